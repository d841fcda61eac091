//! Why a Tsi721 cannot be used: what it did, whose fault it is, and what to do.

use core::fmt;

/// Why a Tsi721 cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A BAR is missing, too small, or cannot be mapped.
    NoRegisters {
        /// Its number.
        bar: u8,
    },
    /// Nothing answers where its registers are.
    Absent,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters { bar } => write!(
                f,
                "RapidIO bridge Tsi721 has no registers that could be reached (BAR {bar}): the firmware gave it \
                 no address, or one that is too small"
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
