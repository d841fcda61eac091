//! Pre-shared keys of NVMe/TCP's TLS: their text form, their derivation, and their identities (NVMe/TCP Transport
//! Specification 1.1 section 3.6.1; Linux `drivers/nvme/common`, libnvme `derive_nvme_keys`).

use crate::base64::{self, Problem};
use crate::{NQN, Random, ids};
use alloc::format;
use alloc::string::String;
use base64ct::{Base64, Encoding};
use core::fmt;
use tls_psk::Psk;
use tls_psk::hash::{Hash, Secret};
use zeroize::Zeroizing;

/// A configured PSK, as operators exchange it: `NVMeTLSkey-1:hh:base64:`.
#[derive(Clone, Debug)]
pub struct ConfiguredPsk {
    key: Secret,
    /// Whether the retained PSK is derived from the key with the host's NQN. If not, it is the key.
    is_derived: bool,
    /// Hash of derivation and cipher suite. The key has its length.
    hash: Hash,
}

impl PartialEq for ConfiguredPsk {
    fn eq(&self, other: &ConfiguredPsk) -> bool {
        (self.is_derived, self.hash) == (other.is_derived, other.hash)
            && self.key.equals(other.key.as_bytes())
    }
}

impl Eq for ConfiguredPsk {}

/// Why a text is not a configured PSK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PskError {
    /// It does not have the form.
    Form,
    /// The hash's number is none of 00, 01 and 02.
    Hash,
    /// The key is not base64 of 32 or 48 bytes and a CRC, or its length is not that of the hash.
    Key,
    /// The CRC does not match.
    Crc,
}

impl fmt::Display for PskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PskError::Form => {
                "a TLS key has the form NVMeTLSkey-1:hh:base64: (make one with `nvme gen-tls-key`)"
            }
            PskError::Hash => "the second part of a TLS key is 00, 01 (SHA-256) or 02 (SHA-384)",
            PskError::Key => {
                "the key of a TLS key is base64 of 32 bytes (01) or 48 bytes (02) and a CRC-32: copy it again, completely"
            }
            PskError::Crc => "the CRC-32 of the TLS key does not match: copy it again",
        })
    }
}

impl core::error::Error for PskError {}

/// Version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `NVMe0Rhh hostnqn subnqn`
    V0,
    /// `NVMe1Rhh hostnqn subnqn digest`
    V1,
}

/// How a key is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// HKDF-Expand-Label as in RFC 8446.
    Standard,
    /// That of libnvme until mid-2025, as in Debian 13: a little-endian length, and no lengths of label and context.
    Libnvme,
}

impl Derivation {
    /// Both.
    pub const ALL: [Derivation; 2] = [Derivation::Standard, Derivation::Libnvme];

    /// A key of the hash's length. `context` is the concatenation of both parts. None if it is too long.
    fn expand(
        self,
        hash: Hash,
        input: &Secret,
        label: &[u8],
        context: [&[u8]; 2],
    ) -> Option<Secret> {
        const MAX: usize = 255;
        let secret = hash.extract(input.as_bytes());
        let [first, second] = context;
        match self {
            Derivation::Standard => {
                let mut joined = [0; MAX];
                let len = first.len() + second.len();
                let joined = joined.get_mut(..len)?;
                joined
                    .iter_mut()
                    .zip(first.iter().chain(second))
                    .for_each(|(to, from)| *to = *from);
                Some(hash.expand_label(secret.as_bytes(), label, joined, hash.len()))
            }
            Derivation::Libnvme => {
                let len = (hash.len() as u16).to_le_bytes();
                let info: [&[u8]; 5] = [&len, b"tls13 ", label, first, second];
                Some(hash.expand(secret.as_bytes(), &info, hash.len()))
            }
        }
    }
}

impl ConfiguredPsk {
    /// Reads the text form. The last colon may be missing.
    pub fn parse(text: &str) -> Result<ConfiguredPsk, PskError> {
        let rest = text.strip_prefix("NVMeTLSkey-1:").ok_or(PskError::Form)?;
        let (number, key) = rest.split_once(':').ok_or(PskError::Form)?;
        let derived = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(PskError::Hash),
        };
        let key =
            base64::decode(key.strip_suffix(':').unwrap_or(key)).map_err(|why| match why {
                Problem::Encoding => PskError::Key,
                Problem::Crc => PskError::Crc,
            })?;
        let by_length = [Hash::Sha256, Hash::Sha384].into_iter();
        let hash = by_length.into_iter().find(|hash| hash.len() == key.as_bytes().len());
        let hash = hash.filter(|hash| derived.is_none_or(|derived| derived == *hash));
        Ok(ConfiguredPsk { key, is_derived: derived.is_some(), hash: hash.ok_or(PskError::Key)? })
    }

    /// As [`DhchapSecret::is_sequence`](crate::DhchapSecret::is_sequence).
    pub fn is_sequence(&self) -> bool {
        crate::secret::is_sequence(self.key.as_bytes())
    }

    /// A new key for this hash (SHA-512 counts as SHA-384), whose retained PSK is derived.
    pub fn generate(hash: Hash, random: Random<'_>) -> ConfiguredPsk {
        let hash = if hash == Hash::Sha256 { hash } else { Hash::Sha384 };
        let mut key = Secret::zeros(hash.len());
        random(key.as_mut_bytes());
        ConfiguredPsk { key, is_derived: true, hash }
    }

    /// The text form, to be shown once.
    pub fn text(&self) -> Zeroizing<String> {
        let number = if self.is_derived { ids::hash_id(self.hash) } else { 0 };
        let mut text = Zeroizing::new(format!("NVMeTLSkey-1:{number:02}:"));
        text.reserve_exact(128);
        base64::encode(&self.key, &mut text);
        text.push(':');
        text
    }

    /// Hash of derivation and cipher suite.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Identity and TLS key for a host and a subsystem, for a client to offer. None if both NQNs are longer than the
    /// derivation allows: together about 240 bytes for version 0 of the standard one.
    pub fn derive(
        &self,
        host: &str,
        subsystem: &str,
        version: Version,
        derivation: Derivation,
    ) -> Option<(String, Psk)> {
        let retained = match self.is_derived {
            true => derivation.expand(self.hash, &self.key, b"HostNQN", [host.as_bytes(), b""])?,
            false => self.key.clone(),
        };
        tls_psk(self.hash, &retained, false, host, subsystem, version, derivation)
    }

    /// The TLS keys that this configured PSK has under an identity of a client, at most two. The caller has looked it
    /// up by the identity's host and subsystem; the binder shows which key the client has.
    pub fn candidates<'a>(&'a self, identity: &'a Identity<'a>) -> impl Iterator<Item = Psk> + 'a {
        Derivation::ALL.into_iter().filter_map(move |derivation| {
            if identity.is_generated || identity.hash != self.hash {
                return None;
            }
            let Identity { host, subsystem, version, .. } = *identity;
            let (text, psk) = self.derive(host, subsystem, version, derivation)?;
            (text == identity.text).then_some(psk)
        })
    }
}

/// Identity and TLS key of a retained or generated PSK. None if there is none: the hash has no cipher suite, or the
/// context is too long.
pub fn tls_psk(
    hash: Hash,
    input: &Secret,
    is_generated: bool,
    host: &str,
    subsystem: &str,
    version: Version,
    derivation: Derivation,
) -> Option<(String, Psk)> {
    let id = ids::hash_id(hash);
    if hash == Hash::Sha512 {
        return None;
    }
    let kind = if is_generated { 'G' } else { 'R' };
    let (identity, key) = match version {
        Version::V0 => {
            let identity = format!("NVMe0{kind}{id:02} {host} {subsystem}");
            let context = [identity.as_bytes(), b""];
            let key = derivation.expand(hash, input, b"nvme-tls-psk", context)?;
            (identity, key)
        }
        Version::V1 => {
            let parts: [&[u8]; 5] =
                [host.as_bytes(), b" ", subsystem.as_bytes(), b" ", b"NVMe-over-Fabrics"];
            let digest = hash.hmac(input.as_bytes(), &parts);
            let mut text = [0; 64];
            let digest = Base64::encode(digest.as_bytes(), &mut text).ok()?;
            let number = [b'0', b'0' + id, b' '];
            let context = [&number[..], digest.as_bytes()];
            let key = derivation.expand(hash, input, b"nvme-tls-psk", context)?;
            (format!("NVMe1{kind}{id:02} {host} {subsystem} {digest}"), key)
        }
    };
    Some((identity, Psk { hash, key }))
}

/// A client's identity in TLS, which is its claim until the binder was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The whole text.
    pub text: &'a str,
    /// Its version.
    pub version: Version,
    /// Whether it names a key of a secure channel concatenation.
    pub is_generated: bool,
    /// Hash of the key and of the cipher suite: SHA-256 or SHA-384.
    pub hash: Hash,
    /// The host's NQN. A Connect on this connection must have the same.
    pub host: &'a str,
    /// The subsystem's NQN, likewise.
    pub subsystem: &'a str,
}

impl<'a> Identity<'a> {
    /// None if the bytes are not an identity of NVMe/TCP. NQNs are not checked beyond their length.
    pub fn parse(bytes: &'a [u8]) -> Option<Identity<'a>> {
        let text = str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        let (version, is_generated, hash) = match words.next()? {
            "NVMe0R01" => (Version::V0, false, Hash::Sha256),
            "NVMe0R02" => (Version::V0, false, Hash::Sha384),
            "NVMe0G01" => (Version::V0, true, Hash::Sha256),
            "NVMe0G02" => (Version::V0, true, Hash::Sha384),
            "NVMe1R01" => (Version::V1, false, Hash::Sha256),
            "NVMe1R02" => (Version::V1, false, Hash::Sha384),
            "NVMe1G01" => (Version::V1, true, Hash::Sha256),
            "NVMe1G02" => (Version::V1, true, Hash::Sha384),
            _ => return None,
        };
        let (host, subsystem) = (words.next()?, words.next()?);
        if version == Version::V1 {
            words.next()?;
        }
        let is_nqn = |nqn: &str| (1..=NQN).contains(&nqn.len());
        let is_whole = words.next().is_none() && is_nqn(host) && is_nqn(subsystem);
        is_whole.then_some(Identity { text, version, is_generated, hash, host, subsystem })
    }
}
