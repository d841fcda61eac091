//! A secret of DH-HMAC-CHAP in its text form `DHHC-1:hh:base64:` (Base Specification section 8.3.4.5.7), and its
//! transformation.

use crate::base64::{self, Problem};
use crate::{Random, ids};
use alloc::format;
use alloc::string::String;
use core::fmt;
use tls_psk::hash::{Hash, Secret};
use zeroize::Zeroizing;

/// A host's or a controller's secret.
#[derive(Clone, Debug)]
pub struct DhchapSecret {
    key: Secret,
    /// Hash of the transformation with the owner's NQN. None: the key is used as it is.
    transformation: Option<Hash>,
}

impl PartialEq for DhchapSecret {
    fn eq(&self, other: &DhchapSecret) -> bool {
        self.transformation == other.transformation && self.key.equals(other.key.as_bytes())
    }
}

impl Eq for DhchapSecret {}

/// Why a text is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// It does not have the form.
    Form,
    /// The transformation's number is none of 00 to 03.
    Transformation,
    /// The key is not base64 of 32, 48 or 64 bytes and a CRC.
    Key,
    /// The CRC does not match.
    Crc,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SecretError::Form => {
                "a DH-HMAC-CHAP secret has the form DHHC-1:hh:base64: (make one with `nvme gen-dhchap-key`)"
            }
            SecretError::Transformation => {
                "the second part of a DH-HMAC-CHAP secret is 00, 01, 02 or 03"
            }
            SecretError::Key => {
                "the key of a DH-HMAC-CHAP secret is base64 of 32, 48 or 64 bytes and a CRC-32: copy it again, completely"
            }
            SecretError::Crc => {
                "the CRC-32 of the DH-HMAC-CHAP secret does not match: copy it again"
            }
        })
    }
}

impl core::error::Error for SecretError {}

impl DhchapSecret {
    /// Reads the text form. The last colon may be missing, as the Linux host accepts it.
    pub fn parse(text: &str) -> Result<DhchapSecret, SecretError> {
        let rest = text.strip_prefix("DHHC-1:").ok_or(SecretError::Form)?;
        let (number, key) = rest.split_once(':').ok_or(SecretError::Form)?;
        let transformation = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Transformation),
        };
        let key =
            base64::decode(key.strip_suffix(':').unwrap_or(key)).map_err(|why| match why {
                Problem::Encoding => SecretError::Key,
                Problem::Crc => SecretError::Crc,
            })?;
        if !matches!(key.as_bytes().len(), 32 | 48 | 64) {
            return Err(SecretError::Key);
        }
        Ok(DhchapSecret { key, transformation })
    }

    /// Whether the key is a regular sequence of bytes, as in examples, and so not secret.
    pub fn is_sequence(&self) -> bool {
        is_sequence(self.key.as_bytes())
    }

    /// A new secret of the hash's length. None: 32 bytes without transformation.
    pub fn generate(transformation: Option<Hash>, random: Random<'_>) -> DhchapSecret {
        let mut key = Secret::zeros(transformation.map_or(32, Hash::len));
        random(key.as_mut_bytes());
        DhchapSecret { key, transformation }
    }

    /// The text form, to be shown once.
    pub fn text(&self) -> Zeroizing<String> {
        let number = self.transformation.map_or(0, ids::hash_id);
        let mut text = Zeroizing::new(format!("DHHC-1:{number:02}:"));
        // No reallocation may leave a part of the key behind.
        text.reserve_exact(128);
        base64::encode(&self.key, &mut text);
        text.push(':');
        text
    }

    /// The key of responses, with the NQN of its owner: a host's secret with the host's, a controller's with the
    /// subsystem's.
    pub fn transformed(&self, nqn: &str) -> Secret {
        let Some(hash) = self.transformation else { return self.key.clone() };
        hash.hmac(self.key.as_bytes(), &[nqn.as_bytes(), b"NVMe-over-Fabrics"])
    }
}

/// Whether each byte differs from the one before by the same value.
pub(crate) fn is_sequence(key: &[u8]) -> bool {
    let steps = key.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let mut steps = steps.peekable();
    let first = steps.peek().copied();
    steps.all(|step| Some(step) == first)
}
