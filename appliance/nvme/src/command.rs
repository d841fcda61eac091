//! Submission and completion queue entries, and what a command says about its data.

use crate::status::Status;

/// Opcode of all fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// Opcodes of admin queues.
pub mod admin {
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of I/O queues.
pub mod io {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    pub const RESERVATION_REPORT: u8 = 0x0e;
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    pub const RESERVATION_RELEASE: u8 = 0x15;
}

/// Types of fabrics commands.
pub mod fabrics {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTH_SEND: u8 = 0x05;
    pub const AUTH_RECEIVE: u8 = 0x06;
    pub const DISCONNECT: u8 = 0x08;
}

/// A submission queue entry.
#[derive(Clone, Copy, Debug)]
pub struct Command(pub [u8; 64]);

/// Place of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// In the capsule.
    InCapsule { length: u32 },
    /// Moved by the transport.
    Transport { length: u32 },
}

impl Command {
    /// The byte at an offset.
    pub fn byte(&self, offset: usize) -> u8 {
        self.0.get(offset).copied().unwrap_or(0)
    }

    /// The 16-bit number at an offset.
    pub fn u16(&self, offset: usize) -> u16 {
        self.array(offset).map_or(0, u16::from_le_bytes)
    }

    /// The 32-bit number at an offset.
    pub fn u32(&self, offset: usize) -> u32 {
        self.array(offset).map_or(0, u32::from_le_bytes)
    }

    /// The 64-bit number at an offset.
    pub fn u64(&self, offset: usize) -> u64 {
        self.array(offset).map_or(0, u64::from_le_bytes)
    }

    fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// The identifier.
    pub fn cid(&self) -> u16 {
        self.u16(2)
    }

    /// The namespace; of a fabrics command the bytes mean something else.
    pub fn nsid(&self) -> u32 {
        self.u32(4)
    }

    /// Whether it is a fabrics command.
    pub fn is_fabrics(&self) -> bool {
        self.opcode() == FABRICS
    }

    /// The type of a fabrics command.
    pub fn fctype(&self) -> u8 {
        self.byte(4)
    }

    /// Whether it is Authentication Send or Receive.
    pub fn is_authentication(&self) -> bool {
        self.is_fabrics() && matches!(self.fctype(), fabrics::AUTH_SEND | fabrics::AUTH_RECEIVE)
    }

    /// Whether the host sends data.
    pub fn sends_data(&self) -> bool {
        self.direction() == 1
    }

    /// Whether the host receives data.
    pub fn receives_data(&self) -> bool {
        self.direction() == 2
    }

    /// Bits 1:0 of the opcode, or of a fabrics command's type: 1 from the host, 2 to the host, 0 none.
    fn direction(&self) -> u8 {
        (if self.is_fabrics() { self.fctype() } else { self.opcode() }) & 3
    }

    /// Whether its FUSE field is not 0.
    pub fn is_fused(&self) -> bool {
        self.byte(1) & 3 != 0
    }

    /// The place of its data. An error if the entry has no SGL that the transport supports.
    pub fn sgl(&self) -> Result<Sgl, Status> {
        // PSDT 01: an SGL. FUSE, in bits 1:0, is checked elsewhere.
        if self.byte(1) & !3 != 0x40 {
            return Err(Status::INVALID_FIELD);
        }
        let length = self.u32(32);
        match self.byte(39) {
            0x01 if self.u64(24) != 0 => Err(Status::SGL_OFFSET),
            0x01 => Ok(Sgl::InCapsule { length }),
            0x5a => Ok(Sgl::Transport { length }),
            _ => Err(Status::SGL_TYPE),
        }
    }
}

/// A completion queue entry without the queue's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Result, in the first 8 bytes.
    pub result: u64,
    /// Status.
    pub status: Status,
}

impl Outcome {
    /// Success with a result of 0.
    pub const SUCCESS: Outcome = Outcome { result: 0, status: Status::SUCCESS };

    /// Success with a result.
    pub const fn with(result: u64) -> Outcome {
        Outcome { result, status: Status::SUCCESS }
    }

    /// The completion queue entry.
    pub fn emit(&self, sq_head: u16, qid: u16, cid: u16) -> [u8; 16] {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&self.result.to_le_bytes());
        entry[8..10].copy_from_slice(&sq_head.to_le_bytes());
        entry[10..12].copy_from_slice(&qid.to_le_bytes());
        entry[12..14].copy_from_slice(&cid.to_le_bytes());
        entry[14..16].copy_from_slice(&(self.status.0 << 1).to_le_bytes());
        entry
    }
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Outcome {
        Outcome { result: 0, status }
    }
}
