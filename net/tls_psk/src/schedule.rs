//! The key schedule (RFC 8446 section 7.1) with an external PSK.

use crate::hash::{Hash, Secret};

/// A cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128GcmSha256 = 0x1301,
    Aes256GcmSha384 = 0x1302,
}

impl Suite {
    pub fn code(self) -> u16 {
        self as u16
    }

    pub fn of_code(code: u16) -> Option<Suite> {
        [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384].into_iter().find(|s| s.code() == code)
    }

    /// The suite with this hash. None for SHA-512.
    pub fn of(hash: Hash) -> Option<Suite> {
        match hash {
            Hash::Sha256 => Some(Suite::Aes128GcmSha256),
            Hash::Sha384 => Some(Suite::Aes256GcmSha384),
            Hash::Sha512 => None,
        }
    }

    pub fn hash(self) -> Hash {
        match self {
            Suite::Aes128GcmSha256 => Hash::Sha256,
            Suite::Aes256GcmSha384 => Hash::Sha384,
        }
    }

    /// Bytes of a key of its cipher.
    pub fn key_len(self) -> usize {
        match self {
            Suite::Aes128GcmSha256 => 16,
            Suite::Aes256GcmSha384 => 32,
        }
    }
}

/// A pre-shared key: its bytes, and the hash that belongs to it (SHA-256 or SHA-384; no handshake succeeds with
/// SHA-512).
#[derive(Clone, Debug)]
pub struct Psk {
    /// The hash, which also determines the cipher suite.
    pub hash: Hash,
    /// The key.
    pub key: Secret,
}

/// The secret before the key exchange.
pub(crate) struct Early {
    hash: Hash,
    secret: Secret,
}

impl Early {
    pub fn new(psk: &Psk) -> Early {
        Early { hash: psk.hash, secret: psk.hash.extract(psk.key.as_bytes()) }
    }

    /// The binder over this hash of a truncated ClientHello.
    pub fn binder(&self, transcript: &Secret) -> Secret {
        let key = derive(self.hash, &self.secret, b"ext binder", &self.hash.digest(&[]));
        finished(self.hash, &key, transcript)
    }

    pub fn handshake(&self, shared: &Secret) -> Stage {
        Stage::after(self.hash, &self.secret, shared.as_bytes())
    }
}

/// The secret of the handshake, or of application data.
pub(crate) struct Stage {
    hash: Hash,
    secret: Secret,
}

impl Stage {
    fn after(hash: Hash, before: &Secret, input: &[u8]) -> Stage {
        let salt = derive(hash, before, b"derived", &hash.digest(&[]));
        Stage { hash, secret: hash.hmac(salt.as_bytes(), &[input]) }
    }

    /// The traffic secret with this label.
    pub fn traffic(&self, label: &[u8], transcript: &Secret) -> Secret {
        derive(self.hash, &self.secret, label, transcript)
    }

    pub fn master(&self) -> Stage {
        Stage::after(self.hash, &self.secret, Secret::zeros(self.hash.len()).as_bytes())
    }

    #[cfg(test)]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
impl Early {
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

fn derive(hash: Hash, secret: &Secret, label: &[u8], context: &Secret) -> Secret {
    hash.expand_label(secret.as_bytes(), label, context.as_bytes(), hash.len())
}

/// `verify_data` of Finished, and the value of a binder.
pub(crate) fn finished(hash: Hash, secret: &Secret, transcript: &Secret) -> Secret {
    let key = hash.expand_label(secret.as_bytes(), b"finished", &[], hash.len());
    hash.hmac(key.as_bytes(), &[transcript.as_bytes()])
}

/// The next traffic secret, after a KeyUpdate.
pub(crate) fn updated(hash: Hash, secret: &Secret) -> Secret {
    hash.expand_label(secret.as_bytes(), b"traffic upd", &[], hash.len())
}
