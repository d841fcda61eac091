//! The record layer (RFC 8446 section 5): one record from the peer at a time, and a queue of records for the peer.

use crate::alert::{Alert, Checked, Violation, violates};
use crate::cipher::{RecordKey, TAG};
use alloc::vec::Vec;
use core::ops::Range;

/// Content types.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

/// Bytes of a record's header.
pub const HEADER: usize = 5;
/// Maximum number of bytes of text in a record.
pub const TEXT: usize = 1 << 14;
/// Maximum number of bytes of an encrypted record, without its header.
const SEALED: usize = TEXT + 256;
/// Bytes of an encrypted record beyond its text: header, content type and tag.
pub const OVERHEAD: usize = HEADER + 1 + TAG;

const TOO_LONG: Violation =
    Violation::new(Alert::RECORD_OVERFLOW, "the peer's TLS record is longer than allowed");

/// The record that is being received.
pub struct Incoming {
    /// Header and body; of an open record the header and the text.
    bytes: Vec<u8>,
    /// Bytes of the whole record, once its header is complete.
    len: Option<usize>,
    /// Application data in `bytes` that the caller has not consumed.
    text: Range<usize>,
}

impl Incoming {
    pub fn new() -> Self {
        Incoming { bytes: Vec::with_capacity(HEADER + SEALED), len: None, text: 0..0 }
    }

    /// Takes bytes of the current record. Returns how many, and whether the record is complete.
    pub fn fill(&mut self, bytes: &[u8], sealed: bool) -> Checked<(usize, bool)> {
        let mut taken = 0;
        if self.len.is_none() {
            taken = self.append(bytes, HEADER);
            if self.bytes.len() < HEADER {
                return Ok((taken, false));
            }
            self.len = Some(HEADER + body_len(&self.bytes, sealed)?);
        }
        let len = self.len.unwrap_or(HEADER);
        taken += self.append(bytes.get(taken..).unwrap_or_default(), len);
        Ok((taken, self.bytes.len() >= len))
    }

    /// Appends from `bytes` until there are `len`. Returns how many.
    fn append(&mut self, bytes: &[u8], len: usize) -> usize {
        let count = bytes.len().min(len.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(bytes.get(..count).unwrap_or_default());
        count
    }

    /// Decrypts the complete record, unless it is in clear. Returns the content type and where the content is.
    pub fn open(&mut self, key: Option<&mut RecordKey>) -> Checked<(u8, Range<usize>)> {
        let kind = self.bytes.first().copied().unwrap_or(0);
        let Some(key) = key else { return Ok((kind, HEADER..self.bytes.len())) };
        let (header, body) = self.bytes.split_at_mut_checked(HEADER).ok_or(TOO_LONG)?;
        let len = key.open(header, body)?;
        // The content type is the last byte that is not padding.
        let inner = body.get(..len).unwrap_or_default();
        let Some(end) = inner.iter().rposition(|byte| *byte != 0) else {
            return violates(
                Alert::UNEXPECTED_MESSAGE,
                "the peer's TLS record has no content type",
            );
        };
        if len > TEXT + 1 {
            return Err(TOO_LONG);
        }
        let kind = inner.get(end).copied().unwrap_or(0);
        Ok((kind, HEADER..HEADER + end))
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Content type in the header of the current record.
    pub fn outer(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    /// Marks the content as application data, for [`Incoming::text`].
    pub fn keep(&mut self, text: Range<usize>) {
        self.text = text;
    }

    /// Makes room for the next record.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = None;
        self.text = 0..0;
    }

    pub fn text(&self) -> &[u8] {
        self.bytes(self.text.clone())
    }

    /// Marks `count` bytes of text as consumed.
    pub fn consume(&mut self, count: usize) {
        self.text.start += count.min(self.text.len());
        if self.text.is_empty() && self.text.end > 0 {
            self.clear();
        }
    }
}

/// Checks a header. Returns the length of the body.
fn body_len(header: &[u8], sealed: bool) -> Checked<usize> {
    let &[kind, major, _, high, low, ..] = header else { return Err(TOO_LONG) };
    // The rest of the version is ignored (RFC 8446 section 5.1).
    if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind) || major != 3 {
        return violates(Alert::UNEXPECTED_MESSAGE, "the peer does not speak TLS");
    }
    let len = usize::from(u16::from_be_bytes([high, low]));
    let most = if sealed && kind == APPLICATION_DATA { SEALED } else { TEXT };
    if len > most {
        return Err(TOO_LONG);
    }
    // Only application data may be empty, and encrypted it is not.
    if len == 0 {
        return violates(Alert::UNEXPECTED_MESSAGE, "the peer sent an empty TLS record");
    }
    Ok(len)
}

/// Records for the peer.
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes that application data may fill. Alerts and KeyUpdates may exceed it by [`Outgoing::RESERVE`].
    room: usize,
}

impl Outgoing {
    /// Room for records of the protocol itself.
    const RESERVE: usize = 128;

    pub fn new(room: usize) -> Self {
        Outgoing { bytes: Vec::with_capacity(room + Self::RESERVE), sent: 0, room }
    }

    /// Appends a record. `fill` writes its `len` bytes of content.
    pub fn push(
        &mut self,
        kind: u8,
        key: Option<&mut RecordKey>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Checked<()> {
        let start = self.bytes.len();
        let body = if key.is_some() { len + 1 + TAG } else { len };
        let [high, low] = (body as u16).to_be_bytes();
        let outer = if key.is_some() { APPLICATION_DATA } else { kind };
        let header = [outer, 3, 3, high, low];
        self.bytes.extend(header);
        self.bytes.resize(start + HEADER + len, 0);
        fill(self.bytes.get_mut(start + HEADER..).unwrap_or_default());
        if let Some(key) = key {
            self.bytes.push(kind);
            match key.seal(&header, self.bytes.get_mut(start + HEADER..).unwrap_or_default()) {
                Ok(tag) => self.bytes.extend(tag),
                Err(why) => {
                    self.bytes.truncate(start);
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Bytes of text that a further record may have.
    pub fn room(&self) -> usize {
        self.room.saturating_sub(self.bytes.len() + OVERHEAD).min(TEXT)
    }

    /// Whether a record of the protocol itself fits.
    pub fn has_reserve(&self) -> bool {
        self.bytes.len() <= self.room + Self::RESERVE / 2
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub fn consume(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > self.bytes.len() / 2 {
            // Fewer bytes are moved than were sent.
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}
