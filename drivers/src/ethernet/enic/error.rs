//! Why an interface cannot be used.

use super::command::Failure;
use core::fmt;

/// Why an interface cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Nothing answers where its registers are.
    Absent,
    /// There is no resource table: this is its magic number.
    NoTable(u32),
    /// What the resource table says of these does not lie in a BAR.
    BadTable(&'static str),
    /// It has fewer of these than are needed.
    TooFew(&'static str),
    /// A command was not done in time, or failed.
    Command(&'static str, Failure),
    /// It does not end this in time.
    Endless(&'static str),
    /// A queue does not stop.
    NotStopped,
    /// It has no MAC address.
    NoMac,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "enic has no registers that could be reached (BAR 0): the firmware gave it no address",
            ),
            Error::Absent => f.write_str("enic does not answer (its registers read as all ones)"),
            Error::NoTable(magic) => {
                write!(f, "enic has no resource table in BAR 0 (but {magic:#010x}): not a vNIC that is known")
            }
            Error::BadTable(what) => {
                write!(f, "enic's resource table is wrong about its {what}: renew the adapter's firmware")
            }
            Error::TooFew(what) => {
                write!(f, "enic has too few {what}: give the vNIC more in its configuration")
            }
            Error::Command(name, failure) => {
                write!(f, "enic's firmware does not do the command {name}: {failure}")
            }
            Error::Endless(what) => {
                write!(f, "enic does not end {what} within 3 s: reset the adapter, or renew its firmware")
            }
            Error::NotStopped => {
                f.write_str("enic does not stop its queues: reset the adapter, or renew its firmware")
            }
            Error::NoMac => f.write_str("enic has no MAC address: give the vNIC one in its configuration"),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
