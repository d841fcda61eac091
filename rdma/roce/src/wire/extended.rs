//! Extended transport headers (vol. 1, 9.3). Immediate data and the key to invalidate (IETH) are
//! plain 32-bit numbers and have no type of their own.

use super::{Error, be24, bytes, get24, get32, get64};
use core::fmt;

/// RDMA extended transport header: the memory that a WRITE or READ accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address at the responder.
    pub address: u64,
    /// Key at the responder.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the header at the beginning of `from`.
    #[inline]
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let h: [u8; Self::LEN] = bytes(from, 0)?;
        Ok(Reth { address: get64(&h, 0)?, rkey: get32(&h, 8)?, length: get32(&h, 12)? })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, into: &mut [u8; Self::LEN]) {
        into[0..8].copy_from_slice(&self.address.to_be_bytes());
        into[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        into[12..16].copy_from_slice(&self.length.to_be_bytes());
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {:#x} len {}", self.address, self.rkey, self.length)
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address at the responder, a multiple of 8.
    pub address: u64,
    /// Key at the responder.
    pub rkey: u32,
    /// New value (compare-and-swap) or addend (fetch-and-add).
    pub swap_or_add: u64,
    /// Expected value (compare-and-swap).
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Reads the header at the beginning of `from`.
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let h: [u8; Self::LEN] = bytes(from, 0)?;
        Ok(AtomicEth {
            address: get64(&h, 0)?,
            rkey: get32(&h, 8)?,
            swap_or_add: get64(&h, 12)?,
            compare: get64(&h, 20)?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, into: &mut [u8; Self::LEN]) {
        into[0..8].copy_from_slice(&self.address.to_be_bytes());
        into[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        into[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        into[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {:#x}", self.address, self.rkey)
    }
}

/// Reason of a NAK (vol. 1, table 59).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Nak {
    /// A packet is missing; its PSN is the expected one.
    SequenceError = 0,
    /// The request is malformed or not allowed.
    InvalidRequest = 1,
    /// The access was refused.
    RemoteAccess = 2,
    /// The responder failed to execute the request.
    RemoteOperation = 3,
}

/// Syndrome of an AETH (vol. 1, table 57).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK. Credits (5 bits) are neither granted nor honoured.
    Ack {
        /// Credit code; 31 carries no credits.
        credits: u8,
    },
    /// Receiver not ready: the requester pauses for the time of this code (0 to 31), then retransmits.
    ReceiverNotReady {
        /// Timer code.
        timer: u8,
    },
    /// NAK.
    Nak(Nak),
}

impl Syndrome {
    /// ACK without credits.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// From the byte on the wire.
    pub const fn from_byte(byte: u8) -> Result<Self, Error> {
        let low = byte & 0x1f;
        match byte >> 5 {
            0 => Ok(Syndrome::Ack { credits: low }),
            1 => Ok(Syndrome::ReceiverNotReady { timer: low }),
            3 => match low {
                0 => Ok(Syndrome::Nak(Nak::SequenceError)),
                1 => Ok(Syndrome::Nak(Nak::InvalidRequest)),
                2 => Ok(Syndrome::Nak(Nak::RemoteAccess)),
                3 => Ok(Syndrome::Nak(Nak::RemoteOperation)),
                _ => Err(Error::Malformed),
            },
            _ => Err(Error::Malformed),
        }
    }

    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::ReceiverNotReady { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(reason) => 0x60 | reason as u8,
        }
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: number of messages that the responder has completed.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header at the beginning of `from`.
    #[inline]
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let [syndrome] = bytes(from, 0)?;
        Ok(Aeth { syndrome: Syndrome::from_byte(syndrome)?, msn: get24(from, 1)? })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, into: &mut [u8; Self::LEN]) {
        into[0] = self.syndrome.to_byte();
        into[1..4].copy_from_slice(&be24(self.msn));
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome {
            Syndrome::Ack { .. } => f.write_str("ACK")?,
            Syndrome::ReceiverNotReady { timer } => write!(f, "RNR NAK timer {timer}")?,
            Syndrome::Nak(reason) => write!(f, "NAK {reason:?}")?,
        }
        write!(f, " msn {}", self.msn)
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Key of the destination queue pair.
    pub qkey: u32,
    /// Source queue pair, 24 bits.
    pub source_qp: u32,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header at the beginning of `from`.
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let h: [u8; Self::LEN] = bytes(from, 0)?;
        Ok(Deth { qkey: get32(&h, 0)?, source_qp: get24(&h, 5)? })
    }

    /// Writes the header.
    pub fn emit(&self, into: &mut [u8; Self::LEN]) {
        into[0..4].copy_from_slice(&self.qkey.to_be_bytes());
        into[4] = 0;
        into[5..8].copy_from_slice(&be24(self.source_qp));
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey {:#x} from qp {:#x}", self.qkey, self.source_qp)
    }
}
