//! Reads and writes TLS's presentation language: big-endian numbers, and vectors behind their length.

use crate::alert::{Checked, UNDECODABLE};
use alloc::vec::Vec;

/// The unread rest of a message.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, len: usize) -> Checked<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(UNDECODABLE)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Checked<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| UNDECODABLE)
    }

    pub fn byte(&mut self) -> Checked<u8> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub fn word(&mut self) -> Checked<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// A vector behind a length of one byte.
    pub fn vector8(&mut self) -> Checked<&'a [u8]> {
        let len = self.byte()?;
        self.take(len.into())
    }

    /// A vector behind a length of two bytes.
    pub fn vector16(&mut self) -> Checked<&'a [u8]> {
        let len = self.word()?;
        self.take(len.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if there is a rest.
    pub fn end(&self) -> Checked<()> {
        if self.0.is_empty() { Ok(()) } else { Err(UNDECODABLE) }
    }
}

/// Whether a list of 16-bit numbers contains `wanted`.
pub fn has_word(list: &[u8], wanted: u16) -> bool {
    list.chunks_exact(2).any(|word| word == wanted.to_be_bytes())
}

/// Appends the output of `body` behind its length, which has `width` bytes.
pub fn nested(into: &mut Vec<u8>, width: usize, body: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.resize(start + width, 0);
    body(into);
    let len = (into.len() - start - width) as u32;
    let len = len.to_be_bytes();
    if let (Some(to), Some(from)) = (into.get_mut(start..start + width), len.get(4 - width..)) {
        to.copy_from_slice(from);
    }
}

/// Appends a handshake message.
pub fn message(into: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    into.push(kind);
    nested(into, 3, body);
}

/// Appends an extension.
pub fn extension(into: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    into.extend(kind.to_be_bytes());
    nested(into, 2, body);
}
