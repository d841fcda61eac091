//! Numbers and layouts of the NBD protocol (doc/proto.md of NetworkBlockDevice/nbd). All fields are big-endian.

/// First word of a server.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Second word of a server, and first word of each option.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// First word of a reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub const REQUEST: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Bytes of the greeting: two words and the handshake flags.
pub const GREETING_LENGTH: usize = 18;
/// Bytes before the data of a reply to an option.
pub const OPTION_REPLY_LENGTH: usize = 20;
/// Bytes of a request without its data.
pub const REQUEST_LENGTH: usize = 28;
/// Bytes of a simple reply without its data.
pub const SIMPLE_LENGTH: usize = 16;
/// Bytes of a chunk without its payload.
pub const CHUNK_LENGTH: usize = 20;

/// Handshake flag: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag: no zeroes after the reply to `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 2;

/// Options (`NBD_OPT_*`).
pub mod option {
    /// Selects an export and enters transmission.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Types of replies to options (`NBD_REP_*`). Those with the highest bit are errors.
pub mod reply {
    /// The option is done.
    pub const ACK: u32 = 1;
    /// Information about the export.
    pub const INFO: u32 = 3;
    /// Set in all errors.
    pub const ERROR: u32 = 1 << 31;
    /// The server does not know the option.
    pub const UNSUPPORTED: u32 = ERROR | 1;
    /// The server wants TLS first.
    pub const TLS_REQUIRED: u32 = ERROR | 5;
    /// There is no such export.
    pub const UNKNOWN_EXPORT: u32 = ERROR | 6;
}

/// Kinds of information (`NBD_INFO_*`).
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Smallest, preferred and largest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export (`NBD_FLAG_*`).
pub mod flag {
    /// The flags are valid.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The server supports `FLUSH`.
    pub const FLUSH: u16 = 1 << 2;
    /// The server supports FUA.
    pub const FUA: u16 = 1 << 3;
    /// The server supports `TRIM`.
    pub const TRIM: u16 = 1 << 5;
    /// The server supports `WRITE_ZEROES`.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// A flush on one connection covers the writes of all.
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Commands (`NBD_CMD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Ends the connection. It has no reply.
    Disconnect = 2,
    /// Makes written data durable.
    Flush = 3,
    /// Discards.
    Trim = 4,
    /// Zeroes.
    WriteZeroes = 6,
}

/// Command flag: the effect is durable when the reply is sent.
pub const COMMAND_FUA: u16 = 1;

/// Types of chunks (`NBD_REPLY_TYPE_*`).
pub mod chunk {
    /// No payload.
    pub const NONE: u16 = 0;
    /// An offset (u64) and data.
    pub const DATA: u16 = 1;
    /// An offset (u64) and a length (u32) of zeroes.
    pub const HOLE: u16 = 2;
    /// Set in all types of errors. Their payload begins with an errno (u32), the length of a text (u16) and the text.
    pub const ERROR: u16 = 1 << 15;
    /// Chunk flag: the last one of its reply.
    pub const DONE: u16 = 1;
}

/// Errors of requests, as sent.
pub mod errno {
    /// Not permitted: the export is read-only.
    pub const EPERM: u32 = 1;
    /// Invalid request.
    pub const EINVAL: u32 = 22;
    /// Too large for the request's kind.
    pub const EOVERFLOW: u32 = 75;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// The server is being shut down.
    pub const ESHUTDOWN: u32 = 108;
}

/// The bytes of a request; `length` in bytes.
pub fn request(
    command: Command,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_LENGTH] {
    let mut bytes = [0; REQUEST_LENGTH];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The number in `bytes` at `at`; 0 past the end.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// As [`u16_at`].
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// As [`u16_at`].
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
