//! SMC-R messages: CLC on the TCP connection, LLC and CDC in SENDs of the queue pairs (RFC 7609, appendix A; for
//! version 2, Linux 6.12 net/smc/smc_clc.h, smc_llc.c, smc_cdc.h). All fields are big-endian, except two of version 2
//! LLC messages, which Linux writes in CPU order ([`llc::Order`]). SMC-D is recognised but not supported.

mod accept;
pub mod cdc;
mod clc;
mod decline;
pub mod llc;
mod proposal;
mod reason;
#[cfg(test)]
pub(crate) mod vectors;

pub use accept::{AcceptConfirm, FirstContact, Negotiated, Os};
pub use clc::{Eid, Header, MAX_MESSAGE, MessageType, PathType, PeerId, frame_length};
pub use decline::{Decline, is_decline};
pub use proposal::{MAX_EIDS, MAX_V6_PREFIXES, Prefixes, Proposal, ProposalV2};
pub use reason::Reason;

use core::fmt;
use core::ops::Range;

/// Reason why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Begin or end of the message is neither that of SMC-R nor of SMC-D.
    Eyecatcher,
    /// The message is too short, or its length is not the sum of its parts.
    Length {
        /// Actual length in bytes.
        have: usize,
    },
    /// The message type is unknown, or unexpected here.
    Type(u8),
    /// The named field has an invalid value.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Eyecatcher => f.write_str("not an SMC message"),
            WireError::Length { have } => write!(f, "impossible length {have}"),
            WireError::Type(kind) => write!(f, "unexpected message type {kind:#04x}"),
            WireError::Field(name) => write!(f, "impossible {name}"),
        }
    }
}

/// Reads a field; fails if the message is too short.
fn field<const N: usize>(message: &[u8], range: Range<usize>) -> Result<[u8; N], WireError> {
    let bytes = message.get(range).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(WireError::Length { have: message.len() })
}

/// Reads a field of 24 bits.
fn field24(message: &[u8], at: usize) -> Result<u32, WireError> {
    let [a, b, c] = field(message, at..at + 3)?;
    Ok(u32::from_be_bytes([0, a, b, c]))
}

/// The 24 low bits in wire order.
fn bytes24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Reads a byte; fails if the message is too short.
fn byte(message: &[u8], at: usize) -> Result<u8, WireError> {
    message.get(at).copied().ok_or(WireError::Length { have: message.len() })
}

/// Size in bytes of a receive buffer (RMBE) with a compressed size code (0 to 15).
pub const fn rmbe_bytes(code: u8) -> u32 {
    (16 << 10) << (code & 15)
}
