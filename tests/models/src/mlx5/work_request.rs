//! Layout of work requests in send queues: blocks of 64 bytes, segments of 16.

use super::fields::{be16, be32, be64};

/// Opcodes.
pub const NOP: u8 = 0x00;
pub const SEND_INVALIDATE: u8 = 0x01;
pub const WRITE: u8 = 0x08;
pub const WRITE_IMMEDIATE: u8 = 0x09;
pub const SEND: u8 = 0x0a;
pub const SEND_IMMEDIATE: u8 = 0x0b;
pub const SEGMENT_TCP: u8 = 0x0e;
pub const READ: u8 = 0x10;
pub const COMPARE_SWAP: u8 = 0x11;
pub const FETCH_ADD: u8 = 0x12;
pub const UMR: u8 = 0x25;

/// Bytes of a block, and of a segment.
pub const BLOCK: usize = 64;
pub const SEGMENT: usize = 16;

/// Syndromes of completions.
pub const LOCAL_OPERATION: u8 = 2;
pub const FLUSHED: u8 = 5;

/// The control segment, the first of every work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    pub opcode: u8,
    pub counter: u16,
    pub queue: u32,
    /// Number of segments, including this one.
    pub segments: usize,
    pub fence: u8,
    /// Requests a completion.
    pub signaled: bool,
    pub solicited: bool,
    /// Immediate data, or a key.
    pub immediate: u32,
}

impl Control {
    /// Parses the segment.
    pub fn read(bytes: &[u8]) -> Control {
        let (first, second) = (be32(bytes, 0), be32(bytes, 4));
        Control {
            opcode: first as u8,
            counter: (first >> 8) as u16,
            queue: second >> 8,
            segments: (second & 0x3f) as usize,
            fence: bytes[11] >> 5,
            signaled: bytes[11] >> 2 & 3 >= 2,
            solicited: bytes[11] >> 1 & 1 == 1,
            immediate: be32(bytes, 12),
        }
    }

    /// Blocks of the work request.
    pub fn blocks(&self) -> u16 {
        self.segments.div_ceil(BLOCK / SEGMENT).max(1) as u16
    }
}

/// A piece of memory by key and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub key: u32,
    pub address: u64,
    pub length: u32,
}

impl Segment {
    /// Parses a data segment; None if inline data follows.
    pub fn read(bytes: &[u8]) -> Option<Segment> {
        let length = be32(bytes, 0);
        let segment = Segment { key: be32(bytes, 4), address: be64(bytes, 8), length };
        (length >> 31 == 0).then_some(segment)
    }

    /// Parses a segment of a receive. The top bit of its length requests padding, which is not modelled.
    pub fn of_receive(bytes: &[u8]) -> Segment {
        let length = be32(bytes, 0) & 0x7fff_ffff;
        Segment { key: be32(bytes, 4), address: be64(bytes, 8), length }
    }
}

/// The Ethernet segment.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet {
    /// Checksum offload: layer 3, layer 4.
    pub sums: (bool, bool),
    pub mss: usize,
    /// Inline bytes of the frame.
    pub inlined: usize,
    /// VLAN tag to insert.
    pub tag: Option<u16>,
}

impl Ethernet {
    /// Parses the segment.
    pub fn read(bytes: &[u8]) -> Ethernet {
        let size = be16(bytes, 12);
        let inserts = size & 0x8000 != 0;
        Ethernet {
            sums: (bytes[4] & 0x40 != 0, bytes[4] & 0x80 != 0),
            mss: be16(bytes, 6).into(),
            inlined: if inserts { 0 } else { (size & 0x3ff).into() },
            tag: inserts.then(|| be16(bytes, 14)),
        }
    }
}
