//! Headers of `ob1` in messages of a BTL: the BTL's tag is the header's type. Numbers are little-endian. Bytes that the
//! table does not name are padding of C's structures, and sent as 0.
//!
//! | header | tag | bytes |
//! |---|---|---|
//! | MATCH, a complete message | 65 | type u8, flags u8, communicator u16, source rank i32, tag i32, sequence u16: 14; data |
//! | RNDV, the beginning of a longer message | 66 | MATCH, 2 of padding, length u64, sender's request u64: 32; data |
//! | ACK, which requests the rest | 68 | type u8, flags u8, 6 of padding, sender's request u64, receiver's request u64, offset u64, size u64 (0: all from the offset): 40 |
//! | FRAG, a part of the rest | 70 | type u8, flags u8, 6 of padding, offset u64, sender's request u64, receiver's request u64: 32; data |
//!
//! A request is an opaque value of its owner: the stock Open MPI sends addresses of its own memory, and trusts
//! the values that it receives. Written from captures of Open MPI 4.1.4, and from its definitions.

use crate::wire::array;
use core::fmt;

/// Bytes of the longest header.
pub const LONGEST: usize = 40;
/// Bytes of a MATCH.
pub const MATCH: usize = 14;
/// Bytes of a RNDV.
pub const RENDEZVOUS: usize = 32;
/// Bytes of an ACK.
pub const ACK: usize = 40;
/// Bytes of a FRAG.
pub const FRAGMENT: usize = 32;

/// Flag: numbers are in network order, between hosts of different byte order.
const NETWORK_ORDER: u8 = 2;
/// Flag: the rest is sent in FRAGs, not by GET or PUT.
const COPIED: u8 = 16;
/// Flag that the stock sender sets in a RNDV.
const SIGNAL: u8 = 32;

/// Fields that identify a message among those of the same two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Number of the communicator.
    pub communicator: u16,
    /// Rank of the sender in it.
    pub source: i32,
    /// MPI's tag; MPI's internal tags are negative.
    pub tag: i32,
    /// Sequence number of the messages from the sender to the receiver in this communicator.
    pub sequence: u16,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A message; its data follow.
    Match(Envelope),
    /// The beginning of a message.
    Rendezvous {
        /// The message.
        envelope: Envelope,
        /// Bytes of the whole message.
        length: u64,
        /// The sender's request.
        request: u64,
    },
    /// The receiver requests the rest.
    Ack {
        /// The sender's request.
        sender: u64,
        /// The receiver's request.
        receiver: u64,
        /// First byte that is requested.
        offset: u64,
        /// Number of bytes; 0 for all.
        size: u64,
    },
    /// A part of the rest; its data follow.
    Fragment {
        /// Offset in the message.
        offset: u64,
        /// The sender's request.
        sender: u64,
        /// The receiver's request.
        receiver: u64,
    },
}

/// Why a header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The tag is none of those in the table.
    Tag(u8),
    /// The message is shorter than its header.
    Short,
    /// The header's type differs from the tag.
    Type(u8),
    /// Numbers are in network order.
    ByteOrder,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::Tag(tag) => {
                write!(f, "the peer sent a message with tag {tag}, which is no header of ob1")
            }
            BadHeader::Short => {
                f.write_str("the peer sent a message that is shorter than its header")
            }
            BadHeader::Type(kind) => {
                write!(f, "the peer sent a header whose type {kind} differs from its tag")
            }
            BadHeader::ByteOrder => {
                f.write_str("the peer sent a header with numbers in network order")
            }
        }
    }
}

impl core::error::Error for BadHeader {}

fn word(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

impl Envelope {
    fn parse(bytes: &[u8]) -> Self {
        let half = |at| array(bytes, at).map_or(0, u16::from_le_bytes);
        let int = |at| array(bytes, at).map_or(0, i32::from_le_bytes);
        Envelope { communicator: half(2), source: int(4), tag: int(8), sequence: half(12) }
    }

    fn emit(&self, into: &mut [u8; LONGEST]) {
        into[2..4].copy_from_slice(&self.communicator.to_le_bytes());
        into[4..8].copy_from_slice(&self.source.to_le_bytes());
        into[8..12].copy_from_slice(&self.tag.to_le_bytes());
        into[12..14].copy_from_slice(&self.sequence.to_le_bytes());
    }
}

impl Header {
    /// The BTL's tag for it.
    pub fn tag(&self) -> u8 {
        match self {
            Header::Match(_) => 65,
            Header::Rendezvous { .. } => 66,
            Header::Ack { .. } => 68,
            Header::Fragment { .. } => 70,
        }
    }

    /// Its bytes on the wire.
    pub fn length(&self) -> usize {
        match self {
            Header::Match(_) => MATCH,
            Header::Rendezvous { .. } => RENDEZVOUS,
            Header::Ack { .. } => ACK,
            Header::Fragment { .. } => FRAGMENT,
        }
    }

    /// Parses the header of a message with a tag; `head` is the first [`LONGEST`] bytes of the message, or all of it.
    pub fn parse(tag: u8, head: &[u8]) -> Result<Self, BadHeader> {
        let header = match tag {
            65 => Header::Match(Envelope::parse(head)),
            66 => Header::Rendezvous {
                envelope: Envelope::parse(head),
                length: word(head, 16),
                request: word(head, 24),
            },
            68 => Header::Ack {
                sender: word(head, 8),
                receiver: word(head, 16),
                offset: word(head, 24),
                size: word(head, 32),
            },
            70 => Header::Fragment {
                offset: word(head, 8),
                sender: word(head, 16),
                receiver: word(head, 24),
            },
            other => return Err(BadHeader::Tag(other)),
        };
        let &[kind, flags, ..] = head else { return Err(BadHeader::Short) };
        if kind != tag {
            Err(BadHeader::Type(kind))
        } else if flags & NETWORK_ORDER != 0 {
            Err(BadHeader::ByteOrder)
        } else if head.len() < header.length() {
            Err(BadHeader::Short)
        } else {
            Ok(header)
        }
    }

    /// Encodes the header, in the first [`Header::length`] bytes.
    pub fn emit(&self) -> [u8; LONGEST] {
        let mut bytes = [0; LONGEST];
        bytes[0] = self.tag();
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        match *self {
            Header::Match(envelope) => envelope.emit(&mut bytes),
            Header::Rendezvous { envelope, length, request } => {
                put(16, length);
                put(24, request);
                envelope.emit(&mut bytes);
                bytes[1] = SIGNAL;
            }
            Header::Ack { sender, receiver, offset, size } => {
                put(8, sender);
                put(16, receiver);
                put(24, offset);
                put(32, size);
                bytes[1] = COPIED;
            }
            Header::Fragment { offset, sender, receiver } => {
                put(8, offset);
                put(16, sender);
                put(24, receiver);
            }
        }
        bytes
    }
}
