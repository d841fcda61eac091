//! RNBD on the wire (Linux 6.12, drivers/block/rnbd/rnbd-proto.h). Everything is little-endian;
//! every message starts with its type in 16 bits and 16 bits of padding. A sector has 512 bytes.
//! Reserved bytes are written as zero and never checked.

use core::{fmt, ops::Range};
use rtrs::Name;
use rtrs::wire::{WireError, array, fixed, put};

/// Highest version of the protocol that is supported.
pub const VERSION: u8 = 2;
pub use rtrs::wire::PORT;
/// Size of the largest user header, which is that of OPEN.
pub const MAX_HEADER: usize = 264;

const SESS_INFO: u16 = 0;
const SESS_INFO_RSP: u16 = 1;
const OPEN: u16 = 2;
const OPEN_RSP: u16 = 3;
const IO: u16 = 4;
const CLOSE: u16 = 5;

const TYPE: Range<usize> = 0..2;
const DEVICE: Range<usize> = 4..8;

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessMode {
    /// For reading, any number of times.
    ReadOnly = 0,
    /// For writing, once at a time.
    ReadWrite = 1,
    /// For writing, with one other writer allowed: for live migration of a virtual machine between hosts.
    Migration = 2,
}

impl AccessMode {
    /// The mode as Linux's sysfs spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            AccessMode::ReadOnly => "ro",
            AccessMode::ReadWrite => "rw",
            AccessMode::Migration => "migration",
        }
    }
}

/// Operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Makes completed writes durable.
    Flush = 2,
    /// Deallocates sectors.
    Discard = 3,
    /// Deallocates sectors so that their data cannot be recovered.
    SecureErase = 4,
    /// Zeroes sectors.
    WriteZeroes = 5,
}

bitflags::bitflags! {
    /// Flags of an I/O.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IoFlags: u32 {
        /// Synchronous: the submitter waits for it.
        const SYNC = 0x100;
        /// Durable when it completes.
        const FUA = 0x200;
    }

    /// Write cache of the device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CachePolicy: u8 {
        /// Supports FUA.
        const FUA = 1;
        /// Writes may be lost on power failure until they are flushed.
        const WRITEBACK = 2;
    }
}

/// An I/O request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Device id from OPEN_RSP.
    pub device: u32,
    /// First sector.
    pub sector: u64,
    /// Operation.
    pub operation: Operation,
    /// Flags.
    pub flags: IoFlags,
    /// Length in bytes.
    pub size: u32,
    /// Linux I/O priority; 0 if the client does not send it.
    pub priority: u16,
}

impl Io {
    /// Size in bytes of the message that Linux sends.
    pub const SIZE: usize = 32;
    const MIN_SIZE: usize = 24;
    const SECTOR: Range<usize> = 8..16;
    const RW: Range<usize> = 16..20;
    const LENGTH: Range<usize> = 20..24;
    const PRIORITY: Range<usize> = 24..26;

    /// Parses a user header of that size; None if it is not a valid I/O.
    #[inline]
    pub fn of(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let is_io = u16::from_le_bytes(array(bytes, TYPE)) == IO;
        if is_io { Self::parse(bytes).ok() } else { None }
    }

    #[inline]
    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Io::MIN_SIZE }>(bytes)?;
        let rw = u32::from_le_bytes(array(b, Self::RW));
        let operation = match rw & 0xff {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 => Operation::Discard,
            4 => Operation::SecureErase,
            5 => Operation::WriteZeroes,
            _ => return Err(WireError::Field("rw")),
        };
        Ok(Io {
            device: u32::from_le_bytes(array(b, DEVICE)),
            sector: u64::from_le_bytes(array(b, Self::SECTOR)),
            operation,
            flags: IoFlags::from_bits_truncate(rw),
            size: u32::from_le_bytes(array(b, Self::LENGTH)),
            priority: fixed::<{ Io::SIZE }>(bytes)
                .map_or(0, |b| u16::from_le_bytes(array(b, Self::PRIORITY))),
        })
    }

    /// As a user header.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &IO.to_le_bytes());
        put(&mut b, DEVICE, &self.device.to_le_bytes());
        put(&mut b, Self::SECTOR, &self.sector.to_le_bytes());
        let rw = self.operation as u32 | self.flags.bits();
        put(&mut b, Self::RW, &rw.to_le_bytes());
        put(&mut b, Self::LENGTH, &self.size.to_le_bytes());
        put(&mut b, Self::PRIORITY, &self.priority.to_le_bytes());
        b
    }
}

/// SESS_INFO and SESS_INFO_RSP: the protocol version of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Version; both sides use the lower of the two.
    pub version: u8,
}

impl SessionInfo {
    /// Size in bytes of both messages.
    pub const SIZE: usize = 36;
    const VERSION: usize = 4;

    /// As a user header.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        self.emit_as(SESS_INFO)
    }

    /// As the data of the response.
    pub fn emit_response(&self) -> [u8; Self::SIZE] {
        self.emit_as(SESS_INFO_RSP)
    }

    /// From the data of the response.
    pub fn parse_response(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        expect_type(b, SESS_INFO_RSP)?;
        Ok(SessionInfo { version: b[Self::VERSION] })
    }

    fn emit_as(&self, kind: u16) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &kind.to_le_bytes());
        b[Self::VERSION] = self.version;
        b
    }
}

/// OPEN: maps a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Access mode; `Err` holds an unknown value.
    pub mode: Result<AccessMode, u8>,
    /// Name of the device.
    pub name: Name,
}

impl Open {
    /// Size in bytes.
    pub const SIZE: usize = MAX_HEADER;
    const MODE: usize = 4;
    const NAME: Range<usize> = 6..261;

    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        let name = Name::parse(&array(b, Self::NAME)).map_err(|_| WireError::Field("dev_name"))?;
        let mode = match b[Self::MODE] {
            0 => Ok(AccessMode::ReadOnly),
            1 => Ok(AccessMode::ReadWrite),
            2 => Ok(AccessMode::Migration),
            other => Err(other),
        };
        Ok(Open { mode, name })
    }

    /// As a user header.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &OPEN.to_le_bytes());
        b[Self::MODE] = self.mode.map_or_else(|other| other, |mode| mode as u8);
        put(&mut b, Self::NAME, self.name.field());
        b
    }
}

/// OPEN_RSP: id, size and limits of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenResponse {
    /// Id of the device in I/O requests of this session.
    pub device: u32,
    /// Capacity in sectors.
    pub sectors: u64,
    /// Largest transfer in sectors.
    pub max_hw_sectors: u32,
    /// Largest write-zeroes in sectors; 0 if unsupported.
    pub max_write_zeroes_sectors: u32,
    /// Largest discard in sectors; 0 if unsupported.
    pub max_discard_sectors: u32,
    /// Granularity of discards in bytes.
    pub discard_granularity: u32,
    /// Offset of the first discard unit in bytes.
    pub discard_alignment: u32,
    /// Physical block size in bytes.
    pub physical_block: u16,
    /// Logical block size in bytes; a client refuses 0.
    pub logical_block: u16,
    /// Most segments of 4 KiB in a transfer.
    pub max_segments: u16,
    /// Whether secure erase is supported.
    pub secure_discard: bool,
    /// Write cache of the device.
    pub cache_policy: CachePolicy,
}

impl OpenResponse {
    /// Size in bytes.
    pub const SIZE: usize = 56;
    const SECTORS: Range<usize> = 8..16;
    const MAX_HW: Range<usize> = 16..20;
    const MAX_ZEROES: Range<usize> = 20..24;
    const MAX_DISCARD: Range<usize> = 24..28;
    const GRANULARITY: Range<usize> = 28..32;
    const ALIGNMENT: Range<usize> = 32..36;
    const PHYSICAL: Range<usize> = 36..38;
    const LOGICAL: Range<usize> = 38..40;
    const SEGMENTS: Range<usize> = 40..42;
    const SECURE: Range<usize> = 42..44;
    const CACHE: usize = 45;

    /// From the data of the response.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        expect_type(b, OPEN_RSP)?;
        Ok(OpenResponse {
            device: u32::from_le_bytes(array(b, DEVICE)),
            sectors: u64::from_le_bytes(array(b, Self::SECTORS)),
            max_hw_sectors: u32::from_le_bytes(array(b, Self::MAX_HW)),
            max_write_zeroes_sectors: u32::from_le_bytes(array(b, Self::MAX_ZEROES)),
            max_discard_sectors: u32::from_le_bytes(array(b, Self::MAX_DISCARD)),
            discard_granularity: u32::from_le_bytes(array(b, Self::GRANULARITY)),
            discard_alignment: u32::from_le_bytes(array(b, Self::ALIGNMENT)),
            physical_block: u16::from_le_bytes(array(b, Self::PHYSICAL)),
            logical_block: u16::from_le_bytes(array(b, Self::LOGICAL)),
            max_segments: u16::from_le_bytes(array(b, Self::SEGMENTS)),
            secure_discard: u16::from_le_bytes(array(b, Self::SECURE)) != 0,
            cache_policy: CachePolicy::from_bits_truncate(b[Self::CACHE]),
        })
    }

    /// As the data of the response.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &OPEN_RSP.to_le_bytes());
        put(&mut b, DEVICE, &self.device.to_le_bytes());
        put(&mut b, Self::SECTORS, &self.sectors.to_le_bytes());
        put(&mut b, Self::MAX_HW, &self.max_hw_sectors.to_le_bytes());
        put(&mut b, Self::MAX_ZEROES, &self.max_write_zeroes_sectors.to_le_bytes());
        put(&mut b, Self::MAX_DISCARD, &self.max_discard_sectors.to_le_bytes());
        put(&mut b, Self::GRANULARITY, &self.discard_granularity.to_le_bytes());
        put(&mut b, Self::ALIGNMENT, &self.discard_alignment.to_le_bytes());
        put(&mut b, Self::PHYSICAL, &self.physical_block.to_le_bytes());
        put(&mut b, Self::LOGICAL, &self.logical_block.to_le_bytes());
        put(&mut b, Self::SEGMENTS, &self.max_segments.to_le_bytes());
        put(&mut b, Self::SECURE, &u16::from(self.secure_discard).to_le_bytes());
        b[Self::CACHE] = self.cache_policy.bits();
        b
    }
}

/// CLOSE: unmaps a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// Device id from OPEN_RSP.
    pub device: u32,
}

impl Close {
    /// Size in bytes.
    pub const SIZE: usize = 8;

    /// As a user header.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, TYPE, &CLOSE.to_le_bytes());
        put(&mut b, DEVICE, &self.device.to_le_bytes());
        b
    }
}

/// A client's request: the user header of an RTRS request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum Request {
    /// SESS_INFO.
    SessionInfo(SessionInfo),
    /// OPEN.
    Open(Open),
    /// IO.
    Io(Io),
    /// CLOSE.
    Close(Close),
}

impl Request {
    /// From a user header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        match u16::from_le_bytes(*fixed::<2>(bytes)?) {
            IO => Io::parse(bytes).map(Request::Io),
            SESS_INFO => {
                let b = fixed::<{ SessionInfo::SIZE }>(bytes)?;
                Ok(Request::SessionInfo(SessionInfo { version: b[SessionInfo::VERSION] }))
            }
            OPEN => Open::parse(bytes).map(Request::Open),
            CLOSE => {
                let b = fixed::<{ Close::SIZE }>(bytes)?;
                Ok(Request::Close(Close { device: u32::from_le_bytes(array(b, DEVICE)) }))
            }
            kind => Err(WireError::Type(kind)),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::SessionInfo(info) => write!(f, "SESS_INFO version {}", info.version),
            Request::Open(open) => {
                let mode = open.mode.map_or("bad mode", AccessMode::as_str);
                write!(f, "OPEN {:?} {mode}", open.name)
            }
            Request::Io(io) => {
                write!(f, "IO {} {:?} {}+{}", io.device, io.operation, io.sector, io.size)?;
                f.write_str(if io.flags.contains(IoFlags::FUA) { " fua" } else { "" })
            }
            Request::Close(close) => write!(f, "CLOSE {}", close.device),
        }
    }
}

fn expect_type(b: &[u8], expected: u16) -> Result<(), WireError> {
    match u16::from_le_bytes(array(b, TYPE)) {
        kind if kind == expected => Ok(()),
        kind => Err(WireError::Type(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rtrs::wire::vectors::vector;
    use std::string::ToString;

    #[test]
    fn messages_of_linux_parse_and_emit_unchanged() {
        for (name, user_len, text) in [
            ("sess_info", 36, "SESS_INFO version 2"),
            ("open", 264, "OPEN \"/dev/ram0\" rw"),
            ("io_100", 32, "IO 0 Read 0+4096"),
            ("io_101", 32, "IO 0 Write 8+4096"),
            ("io_103", 32, "IO 0 Discard 2048+1048576"),
            ("close", 8, "CLOSE 0"),
        ] {
            let bytes = &vector(name)[..user_len];
            let request = Request::parse(bytes).unwrap();
            assert_eq!(request.to_string(), text);
            match request {
                Request::SessionInfo(m) => assert_eq!(m.emit(), bytes),
                Request::Open(m) => assert_eq!(m.emit(), bytes),
                Request::Io(m) => assert_eq!(m.emit(), bytes),
                Request::Close(m) => assert_eq!(m.emit(), bytes),
            }
        }
        let bytes = vector("sess_info_rsp");
        let info = SessionInfo::parse_response(&bytes).unwrap();
        assert_eq!(info.emit_response(), bytes[..]);
        let bytes = vector("open_rsp");
        let open = OpenResponse::parse(&bytes).unwrap();
        assert_eq!((open.sectors, open.max_hw_sectors, open.logical_block), (131_072, 255, 512));
        assert_eq!(open.emit(), bytes[..]);
    }

    #[test]
    fn io_without_priority_parses_as_priority_zero() {
        let io = Io {
            device: 1,
            sector: u64::MAX,
            operation: Operation::Flush,
            flags: IoFlags::SYNC | IoFlags::FUA,
            size: 0,
            priority: 7,
        };
        assert_eq!(io.emit()[16..20], [2, 3, 0, 0]);
        assert_eq!(Request::parse(&io.emit()), Ok(Request::Io(io)));
        let old = Request::parse(&io.emit()[..24]);
        assert_eq!(old, Ok(Request::Io(Io { priority: 0, ..io })));
    }

    proptest! {
        #[test]
        fn open_messages_round_trip(
            device: u32, sectors: u64, numbers: [u32; 5], blocks: [u16; 3], secure: bool,
            cache in 0u8..4, mode: u8, name in "[ -~]{0,254}",
        ) {
            let response = OpenResponse {
                device,
                sectors,
                max_hw_sectors: numbers[0],
                max_write_zeroes_sectors: numbers[1],
                max_discard_sectors: numbers[2],
                discard_granularity: numbers[3],
                discard_alignment: numbers[4],
                physical_block: blocks[0],
                logical_block: blocks[1],
                max_segments: blocks[2],
                secure_discard: secure,
                cache_policy: CachePolicy::from_bits_truncate(cache),
            };
            prop_assert_eq!(OpenResponse::parse(&response.emit()), Ok(response));
            let mut bytes = Open { mode: Err(0), name: Name::new(&name).unwrap() }.emit();
            bytes[4] = mode;
            match Request::parse(&bytes) {
                Ok(Request::Open(open)) => prop_assert_eq!(open.emit(), bytes),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn parsers_survive_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::parse(&bytes);
            let _ = OpenResponse::parse(&bytes);
            let _ = SessionInfo::parse_response(&bytes);
        }
    }
}
