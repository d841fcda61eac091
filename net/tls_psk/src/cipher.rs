//! Encryption of one direction's records: key, IV and sequence number (RFC 8446 sections 5.2 and 5.3).

use crate::alert::{Alert, Checked, Violation};
use crate::hash::Secret;
use crate::schedule::{self, Suite};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use alloc::boxed::Box;

/// Bytes of a tag.
pub const TAG: usize = 16;
/// Bytes of a block of AES.
const BLOCK: u64 = 16;

enum Aead {
    Aes128(Box<Aes128Gcm>),
    Aes256(Box<Aes256Gcm>),
}

/// One direction's key.
pub struct RecordKey {
    suite: Suite,
    aead: Aead,
    iv: Secret,
    /// The traffic secret, from which the next key is derived.
    secret: Secret,
    /// Sequence number of the next record. None after the last.
    sequence: Option<u64>,
    /// Blocks that were processed with this key.
    blocks: u64,
}

const USED_UP: Violation =
    Violation::new(Alert::INTERNAL_ERROR, "the sequence numbers of a TLS key are used up");
const UNUSABLE: Violation = Violation::new(Alert::INTERNAL_ERROR, "a TLS key is unusable");
const WRONG: Violation =
    Violation::new(Alert::BAD_RECORD_MAC, "the peer's TLS record was changed, or has another key");

impl RecordKey {
    pub fn new(suite: Suite, secret: Secret) -> Checked<RecordKey> {
        let label =
            |label: &[u8], len| suite.hash().expand_label(secret.as_bytes(), label, &[], len);
        let key = label(b"key", suite.key_len());
        let aead =
            match suite {
                Suite::Aes128GcmSha256 => Aes128Gcm::new_from_slice(key.as_bytes())
                    .map(|aead| Aead::Aes128(Box::new(aead))),
                Suite::Aes256GcmSha384 => Aes256Gcm::new_from_slice(key.as_bytes())
                    .map(|aead| Aead::Aes256(Box::new(aead))),
            };
        let iv = label(b"iv", 12);
        let aead = aead.map_err(|_| UNUSABLE)?;
        Ok(RecordKey { suite, aead, iv, secret, sequence: Some(0), blocks: 0 })
    }

    /// Replaces the key, for a KeyUpdate.
    pub fn update(&mut self) -> Checked<()> {
        let secret = schedule::updated(self.suite.hash(), &self.secret);
        *self = RecordKey::new(self.suite, secret)?;
        Ok(())
    }

    /// Blocks of 16 bytes that were processed with this key.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    #[cfg(test)]
    pub fn set_sequence(&mut self, sequence: u64) {
        self.sequence = Some(sequence);
    }

    fn next_nonce(&mut self, len: usize) -> Checked<[u8; 12]> {
        let sequence = self.sequence.ok_or(USED_UP)?;
        self.sequence = sequence.checked_add(1);
        // Two more: the block of the tag, and the last, incomplete one.
        self.blocks = self.blocks.saturating_add(len as u64 / BLOCK + 2);
        let mut nonce: [u8; 12] = self.iv.as_bytes().try_into().map_err(|_| UNUSABLE)?;
        let number = sequence.to_be_bytes();
        nonce.iter_mut().skip(4).zip(number).for_each(|(byte, number)| *byte ^= number);
        Ok(nonce)
    }

    /// Encrypts `text` in place. Returns the tag.
    pub fn seal(&mut self, header: &[u8], text: &mut [u8]) -> Checked<[u8; TAG]> {
        let nonce = self.next_nonce(text.len())?.into();
        let tag = match &self.aead {
            Aead::Aes128(aead) => aead.encrypt_inout_detached(&nonce, header, text.into()),
            Aead::Aes256(aead) => aead.encrypt_inout_detached(&nonce, header, text.into()),
        };
        Ok(tag.map_err(|_| UNUSABLE)?.into())
    }

    /// Decrypts `sealed`, which ends in its tag, in place. Returns the length of the text.
    pub fn open(&mut self, header: &[u8], sealed: &mut [u8]) -> Checked<usize> {
        let len = sealed.len().checked_sub(TAG).ok_or(WRONG)?;
        let nonce = self.next_nonce(len)?.into();
        let (text, tag) = sealed.split_at_mut_checked(len).ok_or(WRONG)?;
        let tag: [u8; TAG] = (&*tag).try_into().map_err(|_| WRONG)?;
        let tag = tag.into();
        let opened = match &self.aead {
            Aead::Aes128(aead) => aead.decrypt_inout_detached(&nonce, header, text.into(), &tag),
            Aead::Aes256(aead) => aead.decrypt_inout_detached(&nonce, header, text.into(), &tag),
        };
        opened.map_err(|_| WRONG)?;
        Ok(len)
    }
}
