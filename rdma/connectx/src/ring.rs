//! A completion queue: a ring of entries of 64 bytes. Entries are assigned to a queue pair by its identifier
//! (`user_index`) and its number. There are two rings: one for users' sends, one for everything else.

use super::memory::Buffer;
use drivers::ethernet::mlx5::Completions;
use drivers::hal::{Arena, Window};
use verbs::{Status, VerbsError};

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request succeeded.
    Requested,
    /// A receive was consumed by a WRITE with an immediate.
    WriteImmediate,
    /// A receive was consumed by a SEND.
    Send,
    /// A receive was consumed by a SEND with an immediate.
    SendImmediate,
    /// A receive was consumed by a SEND that invalidated a key of ours.
    SendInvalidate,
    /// A request failed, with this syndrome.
    RequestFailed(u8),
    /// A receive failed.
    ReceiveFailed(u8),
    /// Any other entry.
    Unknown,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// Identifier of the queue pair (`user_index`), and its number.
    pub user: u32,
    pub number: u32,
    /// The counter of the work request.
    pub counter: u16,
    pub length: u32,
    /// An immediate, or an invalidated key.
    pub immediate: u32,
    /// For a datagram: the sender's queue pair, and whether it has an IPv4 header.
    pub source: u32,
    pub is_ipv4: bool,
}

/// A receive that was consumed by a WRITE with an immediate or by a SEND without one: identifier and number of the
/// queue pair, counter of the work request, bytes received, and the immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub is_write: bool,
    pub user: u32,
    pub number: u32,
    pub counter: u16,
    pub length: u32,
    pub immediate: u32,
}

/// The queue.
pub struct Ring {
    pub buffer: Buffer,
    pub completions: Completions,
}

impl Ring {
    /// A ring of 2^`log` entries, with a record of 8 bytes.
    pub fn new(log: u32, record: Window, arena: &mut Arena) -> Result<Ring, VerbsError> {
        let buffer = Buffer::new(Completions::bytes(log), arena)?;
        let completions = Completions::new(buffer.window, record, log);
        let mut completions = completions.map_err(|_| VerbsError::NoRoom)?;
        completions.clear();
        Ok(Ring { buffer, completions })
    }

    /// Notes an event of the completion queue with this number.
    #[inline]
    pub fn note_event(&mut self, queue: u32) {
        if queue == self.completions.number() {
            self.completions.has_told();
        }
    }

    /// The next entry, if it is of a receive that was consumed by a WRITE with an immediate or a SEND without one.
    #[inline]
    pub fn next_received(&self) -> Option<Received> {
        let (at, last) = self.completions.next_words()?;
        let user = self.completions.word(at, 4);
        matches!(last >> 4 & 0xf, 1 | 2).then_some(Received {
            is_write: last >> 4 & 0xf == 1,
            user: (user >> 32) as u32 & 0xff_ffff,
            number: (last >> 32) as u32 & 0xff_ffff,
            counter: (last >> 16) as u16,
            length: self.completions.word(at, 5) as u32,
            immediate: user as u32,
        })
    }

    /// Takes the entry that `next_received` returned.
    #[inline]
    pub fn skip(&mut self) {
        self.completions.skip();
    }

    /// The next entry.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        let (at, last) = self.completions.take_words()?;
        let word = |word| self.completions.word(at, word);
        // The syndrome of an error is the last byte of the word at 0x30.
        let syndrome = || word(6) as u8;
        let kind = match last >> 4 & 0xf {
            0 => Kind::Requested,
            1 => Kind::WriteImmediate,
            2 => Kind::Send,
            3 => Kind::SendImmediate,
            4 => Kind::SendInvalidate,
            0xd => Kind::RequestFailed(syndrome()),
            0xe => Kind::ReceiveFailed(syndrome()),
            _ => Kind::Unknown,
        };
        let (header, user) = (word(3), word(4));
        Some(Entry {
            kind,
            user: (user >> 32) as u32 & 0xff_ffff,
            number: (last >> 32) as u32 & 0xff_ffff,
            counter: (last >> 16) as u16,
            length: word(5) as u32,
            immediate: user as u32,
            source: (header >> 32) as u32 & 0xff_ffff,
            is_ipv4: header >> 56 & 3 == 2,
        })
    }
}

/// The status of a syndrome. `Flushed` is not a failure of the request itself.
pub fn status(syndrome: u8) -> Status {
    match syndrome {
        0x01 => Status::LocalLength,
        // Error of the queue pair, of protection, of a key change, of access.
        0x02 | 0x04 | 0x06 | 0x11 => Status::LocalProtection,
        // Aborted with the queue pair.
        0x05 | 0x22 => Status::Flushed,
        0x12 => Status::RemoteInvalidRequest,
        0x13 => Status::RemoteAccess,
        0x15 => Status::RetryExceeded,
        0x16 => Status::RnrRetryExceeded,
        // A bad response, or a remote operation error.
        _ => Status::RemoteOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_once_in_each_lap() {
        let mut arena = Arena::on_heap(1 << 20);
        let record = arena.alloc(8, 64).unwrap();
        let mut ring = Ring::new(2, record, &mut arena).unwrap();
        assert_eq!(ring.take(), None);
        for n in 0..19u32 {
            let mut entry = [0u8; 64];
            entry[0x21..0x24].copy_from_slice(&[0, 0, 9]);
            entry[0x2f] = 5;
            entry[0x37] = 0x13;
            entry[0x3b] = 7;
            entry[0x3d] = n as u8;
            entry[0x3f] = [0x00, 0x20, 0xd0][n as usize % 3] | (n >> 2 & 1) as u8;
            ring.buffer.window.write((n as usize & 3) * 64, &entry).unwrap();
            assert!(ring.completions.pending());
            let taken = ring.take().unwrap();
            let kind = [Kind::Requested, Kind::Send, Kind::RequestFailed(0x13)][n as usize % 3];
            assert_eq!((taken.kind, taken.user, taken.number), (kind, 9, 7));
            assert_eq!((taken.counter, taken.length), (n as u16, 5));
            assert!(!ring.completions.pending());
            assert_eq!(ring.take(), None);
            ring.completions.tell();
            assert_eq!(record.load32(0).swap_bytes(), n + 1);
        }
    }

    #[test]
    fn syndromes_map_to_verbs_statuses() {
        let of = |syndromes: &[u8]| syndromes.iter().map(|n| status(*n)).collect::<Vec<_>>();
        use Status::*;
        assert_eq!(of(&[1, 2, 4, 5]), [LocalLength, LocalProtection, LocalProtection, Flushed]);
        assert_eq!(of(&[0x12, 0x13, 0x14]), [RemoteInvalidRequest, RemoteAccess, RemoteOperation]);
        assert_eq!(of(&[0x15, 0x16, 0x10]), [RetryExceeded, RnrRetryExceeded, RemoteOperation]);
    }

    use std::vec::Vec;
}
