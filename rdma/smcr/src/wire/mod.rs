//! SMC-R on the wire: CLC messages on the TCP connection, LLC and CDC messages in SENDs of the
//! queue pairs (RFC 7609, appendix A; for version 2, Linux 6.12 net/smc/smc_clc.h, smc_llc.c,
//! smc_cdc.h). Everything is big-endian but for two fields of version 2 LLC messages, which Linux
//! writes in the order of its CPU ([`llc::Order`]). SMC-D is told apart, and not spoken.

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

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Neither SMC-R nor SMC-D begins or ends like that.
    Eyecatcher,
    /// Shorter than the message has to be, or not of the length that its parts add up to.
    Length {
        /// Bytes there.
        have: usize,
    },
    /// The message type is unknown, or not expected here.
    Type(u8),
    /// A field, named here, holds what it must not.
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

/// The bytes of a field, if the message is that long.
fn field<const N: usize>(message: &[u8], range: Range<usize>) -> Result<[u8; N], WireError> {
    let bytes = message.get(range).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(WireError::Length { have: message.len() })
}

/// A field of 24 bits.
fn field24(message: &[u8], at: usize) -> Result<u32, WireError> {
    let [a, b, c] = field(message, at..at + 3)?;
    Ok(u32::from_be_bytes([0, a, b, c]))
}

/// The 24 low bits as they are sent.
fn bytes24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// A byte, if the message is that long.
fn byte(message: &[u8], at: usize) -> Result<u8, WireError> {
    message.get(at).copied().ok_or(WireError::Length { have: message.len() })
}

/// Bytes of a receive buffer (RMBE) of a compressed size (0 to 15).
pub const fn rmbe_bytes(code: u8) -> u32 {
    (16 << 10) << (code & 15)
}
