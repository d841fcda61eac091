//! Why a bridge cannot be used, and what to do about it.

use crate::ntb::Side;
use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// It answers nothing.
    Absent,
    /// The configuration says that this machine is on the other side.
    WrongSide {
        /// The side that it is on.
        is: Side,
    },
    /// Firmware has given the window no memory.
    NoWindow,
    /// The window cannot be mapped.
    NotMapped {
        /// Its bytes.
        bytes: u64,
    },
    /// There is no memory to expose behind the window.
    NoMemory {
        /// Bytes of it.
        bytes: usize,
    },
    /// A register does not keep what is written to it.
    Locked {
        /// Which.
        register: &'static str,
        /// What was written.
        wrote: u64,
        /// What it says.
        reads: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => f.write_str("the bridge's registers (BAR 0) cannot be mapped"),
            Error::Absent => f.write_str("the bridge does not answer: look after the machine"),
            Error::WrongSide { is } => write!(
                f,
                "this is the {} side of the bridge, and the configuration says the other: leave `side` out",
                if is == Side::A { "primary" } else { "secondary" }
            ),
            Error::NoWindow => f.write_str(
                "firmware has given the bridge's window (BAR 2) no memory: set the size of the NTB's BAR 2/3 to \
                 25 (32 MiB) in the BIOS of both machines, and allow BARs above 4 GiB",
            ),
            Error::NotMapped { bytes } => write!(
                f,
                "the bridge's window (BAR 2, {bytes} bytes) cannot be mapped: set a smaller size of the NTB's \
                 BAR 2/3 in the BIOS"
            ),
            Error::NoMemory { bytes } => write!(
                f,
                "there are no {bytes} bytes of memory to expose behind the bridge's window: set a smaller size \
                 of the NTB's BAR 2/3 in the BIOS, or give the machine more memory"
            ),
            Error::Locked { register, wrote, reads } => write!(
                f,
                "the bridge's {register} says {reads:#x} after {wrote:#x} was written: firmware has locked it; \
                 enable the NTB in the BIOS of both machines"
            ),
        }
    }
}

impl core::error::Error for Error {}
