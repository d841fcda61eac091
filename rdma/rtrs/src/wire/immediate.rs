//! Immediate data: 4 bits of type, 28 bits of payload (rtrs-pri.h, `rtrs_to_imm`).

use crate::Errno;
use core::fmt;

const PAYLOAD_BITS: u32 = 28;
const PAYLOAD: u32 = (1 << PAYLOAD_BITS) - 1;
const MESSAGE_BITS: u32 = 19;
const MESSAGE: u32 = (1 << MESSAGE_BITS) - 1;

const IO_REQ: u32 = 0;
const IO_RSP: u32 = 1;
const IO_RSP_W_INV: u32 = 2;
const HB_MSG: u32 = 8;
const HB_ACK: u32 = 9;

/// Content of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// A request in a chunk; `place` as in [`Addressing`].
    Request {
        /// 28 bits.
        place: u32,
    },
    /// The response to the request in a chunk.
    Response {
        /// Number of the chunk (19 bits).
        message: u32,
        /// Result of the request.
        result: Result<(), Errno>,
        /// A SEND with invalidation of the client's key has preceded.
        invalidated: bool,
    },
    /// A heartbeat.
    Heartbeat,
    /// The answer to a heartbeat.
    HeartbeatAck,
    /// An immediate of unknown type.
    Unknown(u32),
}

impl Immediate {
    /// Parses immediate data in CPU order.
    #[inline]
    pub fn parse(immediate: u32) -> Self {
        let payload = immediate & PAYLOAD;
        match immediate >> PAYLOAD_BITS {
            IO_REQ => Immediate::Request { place: payload },
            kind @ (IO_RSP | IO_RSP_W_INV) => Immediate::Response {
                message: payload & MESSAGE,
                result: Errno::new((payload >> MESSAGE_BITS) as u16).map_or(Ok(()), Err),
                invalidated: kind == IO_RSP_W_INV,
            },
            HB_MSG => Immediate::Heartbeat,
            HB_ACK => Immediate::HeartbeatAck,
            _ => Immediate::Unknown(immediate),
        }
    }

    /// Emits immediate data in CPU order.
    #[inline]
    pub fn emit(self) -> u32 {
        match self {
            Immediate::Request { place } => IO_REQ << PAYLOAD_BITS | place & PAYLOAD,
            Immediate::Response { message, result, invalidated } => {
                let kind = if invalidated { IO_RSP_W_INV } else { IO_RSP };
                let errno = result.err().map_or(0, Errno::number);
                kind << PAYLOAD_BITS | u32::from(errno) << MESSAGE_BITS | message & MESSAGE
            }
            Immediate::Heartbeat => HB_MSG << PAYLOAD_BITS,
            Immediate::HeartbeatAck => HB_ACK << PAYLOAD_BITS,
            Immediate::Unknown(immediate) => immediate,
        }
    }
}

impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Immediate::Request { place } => write!(f, "IO_REQ {place:#x}"),
            Immediate::Response { message, result, invalidated } => {
                write!(f, "IO_RSP{} {message} ", if *invalidated { "_W_INV" } else { "" })?;
                match result {
                    Ok(()) => f.write_str("ok"),
                    Err(errno) => write!(f, "{errno}"),
                }
            }
            Immediate::Heartbeat => f.write_str("HB_MSG"),
            Immediate::HeartbeatAck => f.write_str("HB_ACK"),
            Immediate::Unknown(immediate) => write!(f, "unknown immediate {immediate:#010x}"),
        }
    }
}

/// Split of the 28 bits of a request into chunk and offset, which depends on the queue depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    offset_bits: u32,
}

impl Addressing {
    /// For `queue_depth` chunks (at least 2).
    pub const fn new(queue_depth: u16) -> Self {
        assert!(queue_depth >= 2, "a queue depth of 1 leaves no bits for the chunk");
        Addressing { offset_bits: PAYLOAD_BITS - bits(queue_depth as u32) }
    }

    /// Whether the bits suffice for every offset into a chunk of `chunk_size`.
    pub const fn reaches(&self, chunk_size: u32) -> bool {
        chunk_size >= 2 && bits(chunk_size) <= self.offset_bits
    }

    /// Chunk and offset.
    #[inline]
    pub const fn split(&self, place: u32) -> (u16, u32) {
        ((place >> self.offset_bits) as u16, place & ((1 << self.offset_bits) - 1))
    }

    /// The 28 bits.
    #[inline]
    pub const fn join(&self, chunk: u16, offset: u32) -> u32 {
        (chunk as u32) << self.offset_bits | offset
    }
}

/// Bits needed to number `n` items (at least 2).
const fn bits(n: u32) -> u32 {
    (n - 1).ilog2() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn linux_messages_round_trip() {
        let addressing = Addressing::new(512);
        assert_eq!(addressing.split(0x0018_1020), (3, 4128));
        assert_eq!(addressing.join(3, 4128), 0x0018_1020);
        assert!(addressing.reaches(1 << 19) && !addressing.reaches(1 << 20));
        assert_eq!(Addressing::new(8).split(1 << 25), (1, 0));
        assert_eq!(Addressing::new(2).split(1 << 27), (1, 0));
        for (bits, text) in [
            (0x1000_0003, "IO_RSP 3 ok"),
            (0x2028_0003, "IO_RSP_W_INV 3 EIO"),
            (0x2008_0000, "IO_RSP_W_INV 0 EPERM"),
            (0x2358_0000, "IO_RSP_W_INV 0 ENOTCONN"),
            (0x8000_0000, "HB_MSG"),
            (0x9000_0000, "HB_ACK"),
            (0x0008_1020, "IO_REQ 0x81020"),
            (0xf000_0001, "unknown immediate 0xf0000001"),
        ] {
            let immediate = Immediate::parse(bits);
            assert_eq!(immediate.to_string(), text);
            assert_eq!(immediate.emit(), bits);
        }
    }

    proptest! {
        #[test]
        fn known_immediates_round_trip(bits: u32) {
            let immediate = Immediate::parse(bits);
            let unused = matches!(immediate, Immediate::Heartbeat | Immediate::HeartbeatAck);
            if !unused {
                prop_assert_eq!(immediate.emit(), bits);
            }
        }

        #[test]
        fn places_round_trip(depth in 2u16.., place in 0u32..1 << 28) {
            let addressing = Addressing::new(depth);
            let (chunk, offset) = addressing.split(place);
            prop_assert_eq!(addressing.join(chunk, offset), place);
        }
    }
}
