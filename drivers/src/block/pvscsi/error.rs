//! Errors of an adapter. Each message names the fault, the culprit, and the remedy.

use core::fmt;

/// Why an adapter cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No memory BAR has its registers.
    NoRegisters,
    /// Its registers read as all ones.
    Absent,
    /// The adapter refuses the rings.
    Refused,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "PVSCSI adapter's registers cannot be reached (no memory BAR of 32 KiB): the firmware gave it no \
                 address",
            ),
            Error::Absent => f.write_str(
                "PVSCSI adapter does not answer (its registers read as all ones): its host is to blame",
            ),
            Error::Refused => f.write_str("PVSCSI adapter refuses its rings: its host is to blame"),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
