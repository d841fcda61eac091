//! A byte ring of frames: records of variable length, the oldest overwritten first.

use alloc::vec::Vec;
use drivers::hal::Instant;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the network.
    Received,
    /// To the network.
    Sent,
}

/// Metadata of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Time of capture.
    pub time: Instant,
    /// Number of the port.
    pub port: u16,
    /// Received or sent.
    pub way: Direction,
    /// Original length, before truncation.
    pub length: u32,
}

/// Record header in the ring: time 8, kept bytes 4, length 4, port 2, way 1, pad 5.
const HEADER: usize = 24;

/// The ring. Positions count bytes and never wrap. Those of a ring continue where the previous ring ended, so a reader
/// of the previous ring finds no records in this one.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: Vec<u8>,
    head: u64,
    tail: u64,
    frames: u64,
    overwritten: u64,
}

impl Ring {
    pub(super) fn new(bytes: usize, begin: u64) -> Self {
        let size = bytes.next_multiple_of(8);
        Ring { bytes: alloc::vec![0; size], head: begin, tail: begin, frames: 0, overwritten: 0 }
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.frames, self.overwritten)
    }

    /// Position of the oldest record.
    pub(super) fn oldest(&self) -> u64 {
        self.tail
    }

    /// Position after the newest record.
    pub(super) fn newest(&self) -> u64 {
        self.head
    }

    pub(super) fn push(&mut self, frame: &Frame, kept: &[u8]) {
        let size = (HEADER + kept.len()).next_multiple_of(8) as u64;
        assert!(size <= self.bytes.len() as u64, "the ring holds at least one whole frame");
        while self.head + size - self.tail > self.bytes.len() as u64 {
            self.tail += self.size_at(self.tail);
            self.frames -= 1;
            self.overwritten += 1;
        }
        let mut header = [0u8; HEADER];
        header[0..8].copy_from_slice(&frame.time.as_nanos().to_le_bytes());
        header[8..12].copy_from_slice(&(kept.len() as u32).to_le_bytes());
        header[12..16].copy_from_slice(&frame.length.to_le_bytes());
        header[16..18].copy_from_slice(&frame.port.to_le_bytes());
        header[18] = u8::from(frame.way == Direction::Sent);
        self.put(self.head, &header);
        self.put(self.head + HEADER as u64, kept);
        self.head += size;
        self.frames += 1;
    }

    /// Appends the bytes of the record at `position` to `into`. Returns its metadata and the next position. `position`
    /// must be the start of a record, `oldest` or later.
    pub(super) fn get(&self, position: u64, into: &mut Vec<u8>) -> (Frame, u64) {
        let header = self.header_at(position);
        let [time, lengths, rest] =
            [0, 8, 16].map(|at| u64::from_le_bytes(core::array::from_fn(|i| header[at + i])));
        let kept = lengths as u32 as usize;
        let start = into.len();
        into.resize(start + kept, 0);
        self.copy_out(position + HEADER as u64, &mut into[start..]);
        let frame = Frame {
            time: Instant::from_nanos(time),
            port: rest as u16,
            way: if rest >> 16 & 1 == 1 { Direction::Sent } else { Direction::Received },
            length: (lengths >> 32) as u32,
        };
        (frame, position + self.size_at(position))
    }

    fn header_at(&self, position: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        self.copy_out(position, &mut header);
        header
    }

    fn size_at(&self, position: u64) -> u64 {
        let header = self.header_at(position);
        let kept = u32::from_le_bytes(core::array::from_fn(|i| header[8 + i]));
        (HEADER as u64 + u64::from(kept)).next_multiple_of(8)
    }

    fn put(&mut self, position: u64, from: &[u8]) {
        let at = (position % self.bytes.len() as u64) as usize;
        let first = from.len().min(self.bytes.len() - at);
        self.bytes[at..at + first].copy_from_slice(&from[..first]);
        self.bytes[..from.len() - first].copy_from_slice(&from[first..]);
    }

    fn copy_out(&self, position: u64, into: &mut [u8]) {
        let at = (position % self.bytes.len() as u64) as usize;
        let first = into.len().min(self.bytes.len() - at);
        let (a, b) = into.split_at_mut(first);
        a.copy_from_slice(&self.bytes[at..at + first]);
        b.copy_from_slice(&self.bytes[..b.len()]);
    }
}
