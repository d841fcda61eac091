//! Messages of the connection manager: management datagrams, their data, and the IP addresses in them (InfiniBand
//! Architecture vol. 1, ch. 12 and 13, annex A11; Linux `include/rdma/ibta_vol1_c12.h`).
//!
//! Every `parse` checks lengths once and never panics; every `emit` writes what `parse` reads. All fields are
//! big-endian on the wire.

mod gid;
pub mod ip_cm;
pub mod mad;
pub mod message;

pub use gid::Gid;

use core::fmt;

/// Why a message cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too short.
    Truncated,
    /// Unknown version in a version field.
    Version,
    /// Unknown or unsupported opcode.
    Opcode,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated => "truncated",
            Error::Version => "unknown version",
            Error::Opcode => "unknown opcode",
        })
    }
}

impl core::error::Error for Error {}

/// The `N` bytes at `at`, as an array.
#[inline]
pub fn bytes<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N], Error> {
    match from.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(array) => Ok(*array),
        None => Err(Error::Truncated),
    }
}

/// 16 bits at `at`.
#[inline]
pub fn get16(from: &[u8], at: usize) -> Result<u16, Error> {
    bytes(from, at).map(u16::from_be_bytes)
}

/// The upper 24 of the 32 bits at `at`.
#[inline]
pub fn get24(from: &[u8], at: usize) -> Result<u32, Error> {
    let [a, b, c] = bytes(from, at)?;
    Ok(u32::from_be_bytes([0, a, b, c]))
}

/// 32 bits at `at`.
#[inline]
pub fn get32(from: &[u8], at: usize) -> Result<u32, Error> {
    bytes(from, at).map(u32::from_be_bytes)
}

/// 64 bits at `at`.
#[inline]
pub fn get64(from: &[u8], at: usize) -> Result<u64, Error> {
    bytes(from, at).map(u64::from_be_bytes)
}

/// 24 bits as three bytes.
#[inline]
pub fn be24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
