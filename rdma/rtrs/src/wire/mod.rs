//! RTRS messages (Linux 6.12, drivers/infiniband/ulp/rtrs/rtrs-pri.h): connection private data, the INFO exchange,
//! immediates, and the headers in the chunks. All fields are little-endian, except immediates, which verbs pass in CPU
//! order. Reserved bytes are written as zero and never checked, because Linux sends uninitialised padding.

mod connect;
mod field;
mod immediate;
mod info;
mod io;
#[cfg(any(test, feature = "testing"))]
pub mod vectors;

pub use connect::{ConnectRequest, ConnectResponse, Uuid};
pub use field::{array, put};
pub use immediate::{Addressing, Immediate};
pub use info::{Descriptor, InfoRequest, InfoResponse};
pub use io::{IoHeader, RkeyResponse};

use core::fmt;

/// Identifies RTRS in connection private data.
pub const MAGIC: u16 = 0x1bbd;
/// Default TCP port number of servers, in the RDMA CM's TCP port space (`RTRS_PORT` of Linux's rnbd-proto.h).
pub const PORT: u16 = 1234;
/// Protocol version 2.0. Only the major number (the high byte) must match.
pub const VERSION: u16 = 0x0200;
/// Bytes of a chunk kept for headers (the page size of a Linux server on x86).
pub const MAX_HEADER: u32 = 4096;
/// Most paths of a session.
pub const MAX_PATHS: usize = 128;
/// Most connections of a path.
pub const MAX_CONNECTIONS: u16 = 4096;

/// Reason why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message is too short.
    Short {
        /// Bytes needed.
        need: usize,
        /// Actual bytes.
        have: usize,
    },
    /// Wrong magic.
    Magic(u16),
    /// Unsupported major version.
    Version(u16),
    /// The message type is unexpected here.
    Type(u16),
    /// The named field has an invalid value.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short { need, have } => write!(f, "{have} bytes, at least {need} needed"),
            WireError::Magic(magic) => write!(f, "magic {magic:#06x}, not {MAGIC:#06x}"),
            WireError::Version(v) => write!(f, "version {}.{}, not 2.x", v >> 8, v & 0xff),
            WireError::Type(kind) => write!(f, "unexpected message type {kind}"),
            WireError::Field(name) => write!(f, "invalid {name}"),
        }
    }
}

/// The first `N` bytes of a message.
pub fn fixed<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], WireError> {
    bytes.first_chunk().ok_or(WireError::Short { need: N, have: bytes.len() })
}
