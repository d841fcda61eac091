//! Posted send requests.

use crate::roce::psn::Psn;
use crate::roce::sges::Sges;
use crate::roce::transmit::MAX_INLINE;
use crate::verbs::{Payload, RemoteAddress, SendWith, VerbsError};

/// Payload of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    /// By reference.
    Windows(Sges),
    /// Copied at posting.
    Inline([u8; MAX_INLINE], u8),
}

impl Stored {
    /// Takes over a payload; `Invalid` if it is too large.
    #[inline]
    pub fn new(payload: &Payload<'_>) -> Result<Self, VerbsError> {
        match payload {
            Payload::Windows(windows) => Ok(Stored::Windows(Sges::new(windows)?)),
            Payload::Inline(from) => {
                let mut bytes = [0; MAX_INLINE];
                bytes.get_mut(..from.len()).ok_or(VerbsError::Invalid)?.copy_from_slice(from);
                Ok(Stored::Inline(bytes, from.len() as u8))
            }
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Stored::Windows(sges) => sges.len(),
            Stored::Inline(_, len) => *len as usize,
        }
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Send(SendWith),
    Write(RemoteAddress, Option<u32>),
    Read(RemoteAddress),
    CompareSwap { at: RemoteAddress, compare: u64, swap: u64 },
    FetchAdd { at: RemoteAddress, add: u64 },
}

impl Operation {
    /// Whether it is done only when an answer other than an ACK has come.
    pub const fn wants_answer(&self) -> bool {
        !matches!(self, Operation::Send(_) | Operation::Write(..))
    }
}

/// A posted send request.
#[derive(Debug)]
pub struct Work {
    pub id: u64,
    pub operation: Operation,
    pub payload: Stored,
    pub length: u32,
    /// PSN of its first packet.
    pub first: Psn,
    /// PSNs that it takes.
    pub packets: u32,
    pub signaled: bool,
    pub solicited: bool,
}
