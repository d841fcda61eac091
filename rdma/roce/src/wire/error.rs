//! Errors of frames and of the headers in them.

use core::fmt;

/// Why a frame cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not RoCE.
    NotRoce,
    /// Shorter than the length in its headers.
    Truncated,
    /// A checksum (of the IP header, of UDP) is wrong.
    Checksum,
    /// Unknown version in a version field.
    Version,
    /// Unknown or unsupported opcode.
    Opcode,
    /// A field has an invalid value.
    Malformed,
}

impl From<::cm::wire::Error> for Error {
    #[inline]
    fn from(error: ::cm::wire::Error) -> Self {
        match error {
            ::cm::wire::Error::Truncated => Error::Truncated,
            ::cm::wire::Error::Version => Error::Version,
            ::cm::wire::Error::Opcode => Error::Opcode,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NotRoce => "not RoCE",
            Error::Truncated => "truncated",
            Error::Checksum => "wrong checksum",
            Error::Version => "unknown version",
            Error::Opcode => "unknown opcode",
            Error::Malformed => "malformed",
        })
    }
}

impl core::error::Error for Error {}
