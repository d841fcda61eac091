//! Base transport header, 12 bytes (vol. 1, 9.2).

use super::opcode::Opcode;
use super::{Error, be24, get16, get24};
use core::fmt;

/// Length in bytes.
pub const LEN: usize = 12;

/// The only P_Key on Ethernet (the default partition, full member).
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Field positions.
mod field {
    use core::ops::Range;
    pub const OPCODE: usize = 0;
    pub const FLAGS: usize = 1;
    pub const PKEY: Range<usize> = 2..4;
    pub const RESERVED: usize = 4;
    pub const DESTINATION_QP: Range<usize> = 5..8;
    pub const ACK_REQUEST: usize = 8;
    pub const PSN: Range<usize> = 9..12;
}

/// A base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Bytes (0 to 3) after the payload that fill it to a multiple of four.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination queue pair, 24 bits.
    pub destination_qp: u32,
    /// Whether the responder has to acknowledge.
    pub ack_request: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Reads the header at the beginning of `from`.
    #[inline]
    pub fn parse(from: &[u8]) -> Result<Self, Error> {
        let header = from.first_chunk::<LEN>().ok_or(Error::Truncated)?;
        let flags = header[field::FLAGS];
        if flags & 0x0f != 0 {
            return Err(Error::Version);
        }
        Ok(Bth {
            opcode: Opcode::from_byte(header[field::OPCODE])?,
            solicited: flags & 0x80 != 0,
            pad: flags >> 4 & 3,
            pkey: get16(header, field::PKEY.start)?,
            destination_qp: get24(header, field::DESTINATION_QP.start)?,
            ack_request: header[field::ACK_REQUEST] & 0x80 != 0,
            psn: get24(header, field::PSN.start)?,
        })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, into: &mut [u8; LEN]) {
        into[field::OPCODE] = self.opcode as u8;
        into[field::FLAGS] = (self.solicited as u8) << 7 | (self.pad & 3) << 4;
        into[field::PKEY].copy_from_slice(&self.pkey.to_be_bytes());
        into[field::RESERVED] = 0;
        into[field::DESTINATION_QP].copy_from_slice(&be24(self.destination_qp));
        into[field::ACK_REQUEST] = (self.ack_request as u8) << 7;
        into[field::PSN].copy_from_slice(&be24(self.psn));
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp {:#x} psn {}", self.opcode, self.destination_qp, self.psn)?;
        if self.ack_request {
            f.write_str(" ackreq")?;
        }
        if self.solicited {
            f.write_str(" solicited")?;
        }
        Ok(())
    }
}
