//! Errors of a vNIC. Each text names the cause and the remedy.

use super::command::Failure;
use crate::ethernet::rings::NoMemory;
use core::fmt;

/// Why an interface cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// The registers read as all ones.
    Absent,
    /// There is no resource table: this is the value in place of its magic number.
    NoTable(u32),
    /// The resource table locates these outside of a BAR.
    BadTable(&'static str),
    /// The device has fewer of these than are needed.
    TooFew(&'static str),
    /// A command timed out, or failed.
    Command(&'static str, Failure),
    /// This operation timed out.
    Endless(&'static str),
    /// A queue does not stop.
    NotStopped,
    /// The vNIC has no MAC address.
    NoMac,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl From<NoMemory> for Error {
    fn from(NoMemory { bytes }: NoMemory) -> Self {
        Error::NoMemory { bytes }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "enic's registers (BAR 0) cannot be mapped: the firmware assigned no address",
            ),
            Error::Absent => f.write_str("enic does not answer (its registers read as all ones)"),
            Error::NoTable(magic) => {
                write!(
                    f,
                    "enic has no resource table in BAR 0 (but {magic:#010x}): the vNIC is of an unknown kind"
                )
            }
            Error::BadTable(what) => {
                write!(
                    f,
                    "enic's resource table is wrong about its {what}: update the adapter's firmware"
                )
            }
            Error::TooFew(what) => {
                write!(f, "enic has too few {what}: give the vNIC more in its configuration")
            }
            Error::Command(name, failure) => {
                write!(f, "enic's firmware failed the command {name}: {failure}")
            }
            Error::Endless(what) => {
                write!(
                    f,
                    "enic does not complete {what} within 3 s: reset the adapter, or update its firmware"
                )
            }
            Error::NotStopped => f.write_str(
                "enic does not stop its queues: reset the adapter, or update its firmware",
            ),
            Error::NoMac => {
                f.write_str("enic has no MAC address: give the vNIC one in its configuration")
            }
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
