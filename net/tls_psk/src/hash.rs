//! SHA-2, HMAC and HKDF with a hash that is chosen at run time, and memory for secrets that is zeroed after use.

use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Maximum number of bytes of a [`Secret`]: the longest hash.
pub const MAX: usize = 64;

/// A hash. TLS 1.3 uses the first two, DH-HMAC-CHAP all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// At most [`MAX`] secret bytes: a key, a hash or a MAC. Zeroed when dropped; compared in constant time.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; MAX],
    len: usize,
}

impl Secret {
    /// A copy of `bytes`. None if there are more than [`MAX`].
    pub fn new(bytes: &[u8]) -> Option<Secret> {
        let mut secret = Secret { bytes: [0; MAX], len: bytes.len() };
        secret.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(secret)
    }

    /// `len` zeros; at most [`MAX`].
    pub fn zeros(len: usize) -> Secret {
        Secret { bytes: [0; MAX], len: len.min(MAX) }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The bytes, to be filled.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }

    /// The first `len` bytes, or all.
    fn truncated(mut self, len: usize) -> Secret {
        self.len = self.len.min(len);
        self
    }

    /// Whether `other` has the same bytes. The time depends on the lengths only.
    pub fn equals(&self, other: &[u8]) -> bool {
        self.as_bytes().ct_eq(other).into()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Secret {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key may have any length");
    parts.iter().for_each(|part| mac.update(part));
    Secret::new(&mac.finalize().into_bytes()).expect("at most the longest hash")
}

fn digest<D: Digest>(parts: &[&[u8]]) -> Secret {
    let mut hash = D::new();
    parts.iter().for_each(|part| hash.update(part));
    Secret::new(&hash.finalize()).expect("at most the longest hash")
}

impl Hash {
    /// Bytes of its output.
    pub const fn len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The hash of the concatenated parts.
    pub fn digest(self, parts: &[&[u8]]) -> Secret {
        match self {
            Hash::Sha256 => digest::<Sha256>(parts),
            Hash::Sha384 => digest::<Sha384>(parts),
            Hash::Sha512 => digest::<Sha512>(parts),
        }
    }

    /// HMAC of the concatenated parts.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Secret {
        match self {
            Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }

    /// HKDF-Extract with a salt of zeros (RFC 5869 section 2.2).
    pub fn extract(self, input: &[u8]) -> Secret {
        self.hmac(Secret::zeros(self.len()).as_bytes(), &[input])
    }

    /// HKDF-Expand to at most the length of one hash (RFC 5869 section 2.3). `info` is the concatenation of the parts,
    /// at most five.
    pub fn expand(self, secret: &[u8], info: &[&[u8]], len: usize) -> Secret {
        let mut parts: [&[u8]; 6] = [&[]; 6];
        let (last, room) = parts.split_last_mut().expect("six parts");
        assert!(info.len() <= room.len() && len <= self.len(), "bounded by the callers");
        room.iter_mut().zip(info).for_each(|(part, info)| *part = info);
        *last = &[1];
        self.hmac(secret, &parts).truncated(len)
    }

    /// HKDF-Expand-Label to at most the length of one hash (RFC 8446 section 7.1). `label` is without "tls13 ", which
    /// it gets here; `context` has at most 255 bytes.
    pub fn expand_label(self, secret: &[u8], label: &[u8], context: &[u8], len: usize) -> Secret {
        const PREFIX: &[u8] = b"tls13 ";
        let [high, low] = (len as u16).to_be_bytes();
        let head = [high, low, (PREFIX.len() + label.len()) as u8];
        let context_len = [context.len() as u8];
        self.expand(secret, &[&head, PREFIX, label, &context_len, context], len)
    }
}

/// A running hash of handshake messages.
#[derive(Clone)]
pub(crate) enum Transcript {
    Sha256(Sha256),
    Sha384(Sha384),
}

impl Transcript {
    /// An empty one. TLS has no suite with SHA-512.
    pub fn new(hash: Hash) -> Transcript {
        match hash {
            Hash::Sha256 => Transcript::Sha256(Sha256::new()),
            Hash::Sha384 | Hash::Sha512 => Transcript::Sha384(Sha384::new()),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Transcript::Sha256(hash) => hash.update(bytes),
            Transcript::Sha384(hash) => hash.update(bytes),
        }
    }

    /// The hash so far.
    pub fn current(&self) -> Secret {
        match self {
            Transcript::Sha256(hash) => Secret::new(&hash.clone().finalize()),
            Transcript::Sha384(hash) => Secret::new(&hash.clone().finalize()),
        }
        .expect("at most the longest hash")
    }
}
