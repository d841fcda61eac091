//! Errors of opening a Tsi721. Each text names the cause and the remedy.

use core::fmt;

/// Why a Tsi721 cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A BAR is missing, too small, or cannot be mapped.
    NoRegisters {
        /// Number of the BAR.
        bar: u8,
    },
    /// The registers read as all ones.
    Absent,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters { bar } => write!(
                f,
                "RapidIO bridge Tsi721: its registers (BAR {bar}) cannot be mapped: the firmware assigned no \
                 address, or the BAR is too small"
            ),
            Error::Absent => f.write_str(
                "RapidIO bridge Tsi721 does not answer (its registers read as all ones): reseat the card, or \
                 replace it",
            ),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}
