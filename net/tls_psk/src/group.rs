//! The key exchange: one secret for each group, drawn at construction, of which the handshake uses one.

use crate::alert::{Alert, Checked, Violation};
use crate::connection::Random;
use crate::hash::Secret;
use alloc::vec::Vec;
use p256::elliptic_curve::sec1::ToSec1Point;
use zeroize::Zeroize;

/// A group of the key exchange (RFC 8446 section 4.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519.
    X25519 = 0x1d,
    /// P-256.
    Secp256r1 = 0x17,
    /// P-384.
    Secp384r1 = 0x18,
}

impl Group {
    /// All, in order of preference: the cheapest first.
    pub const ALL: &'static [Group] = &[Group::X25519, Group::Secp256r1, Group::Secp384r1];

    /// Its number in TLS.
    pub const fn code(self) -> u16 {
        self as u16
    }

    pub(crate) fn of(code: u16) -> Option<Group> {
        Group::ALL.iter().copied().find(|group| group.code() == code)
    }
}

/// The secrets of one handshake.
pub struct Ephemeral {
    x25519: [u8; 32],
    p256: [u8; 32],
    p384: [u8; 48],
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        self.x25519.zeroize();
        self.p256.zeroize();
        self.p384.zeroize();
    }
}

const BAD_SHARE: Violation = Violation::new(
    Alert::ILLEGAL_PARAMETER,
    "the peer's TLS key share is not a point of its group",
);
/// A secret is checked when it is drawn.
const BAD_SECRET: Violation =
    Violation::new(Alert::INTERNAL_ERROR, "the own secret of the TLS key exchange is unusable");

impl Ephemeral {
    pub fn new(random: Random<'_>) -> Ephemeral {
        let mut secrets = Ephemeral { x25519: [0; 32], p256: [0; 32], p384: [0; 48] };
        random(&mut secrets.x25519);
        // A valid secret is below the group's order: all but one in 2^32, and one in 2^190.
        for _ in 0..4 {
            random(&mut secrets.p256);
            if p256::SecretKey::from_slice(&secrets.p256).is_ok() {
                break;
            }
        }
        random(&mut secrets.p384);
        secrets
    }

    /// Appends the public value.
    pub fn public(&self, group: Group, into: &mut Vec<u8>) -> Checked<()> {
        match group {
            Group::X25519 => {
                let secret = x25519_dalek::StaticSecret::from(self.x25519);
                into.extend(x25519_dalek::PublicKey::from(&secret).as_bytes());
            }
            Group::Secp256r1 => {
                let secret = p256::SecretKey::from_slice(&self.p256).map_err(|_| BAD_SECRET)?;
                into.extend(secret.public_key().to_sec1_point(false).as_bytes());
            }
            Group::Secp384r1 => {
                let secret = p384::SecretKey::from_slice(&self.p384).map_err(|_| BAD_SECRET)?;
                into.extend(secret.public_key().to_sec1_point(false).as_bytes());
            }
        }
        Ok(())
    }

    /// The shared secret with a peer's public value.
    pub fn shared(&self, group: Group, peer: &[u8]) -> Checked<Secret> {
        // RFC 8446 section 4.2.8.2: points are uncompressed.
        if group != Group::X25519 && peer.first() != Some(&4) {
            return Err(BAD_SHARE);
        }
        let shared = match group {
            Group::X25519 => {
                let peer: [u8; 32] = peer.try_into().map_err(|_| BAD_SHARE)?;
                let secret = x25519_dalek::StaticSecret::from(self.x25519);
                let shared = secret.diffie_hellman(&peer.into());
                // RFC 8446 section 7.4.2: a share of low order leads to a publicly known secret.
                if !shared.was_contributory() {
                    return Err(BAD_SHARE);
                }
                Secret::new(shared.as_bytes())
            }
            Group::Secp256r1 => {
                let secret = p256::SecretKey::from_slice(&self.p256).map_err(|_| BAD_SECRET)?;
                let peer = p256::PublicKey::from_sec1_bytes(peer).map_err(|_| BAD_SHARE)?;
                let scalar = secret.to_nonzero_scalar();
                let shared = p256::ecdh::diffie_hellman(scalar, peer.as_affine());
                Secret::new(shared.raw_secret_bytes())
            }
            Group::Secp384r1 => {
                let secret = p384::SecretKey::from_slice(&self.p384).map_err(|_| BAD_SECRET)?;
                let peer = p384::PublicKey::from_sec1_bytes(peer).map_err(|_| BAD_SHARE)?;
                let scalar = secret.to_nonzero_scalar();
                let shared = p384::ecdh::diffie_hellman(scalar, peer.as_affine());
                Secret::new(shared.raw_secret_bytes())
            }
        };
        shared.ok_or(BAD_SECRET)
    }
}
