//! Errors of an AMD bridge. Each message names the remedy.

use crate::ntb::Side;
use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// The configuration names the other side.
    WrongSide {
        /// The actual side of this machine.
        is: Side,
    },
    /// The firmware has assigned no addresses to the window.
    NoWindow,
    /// The window cannot be mapped.
    NotMapped {
        /// Bytes of the window.
        bytes: u64,
    },
    /// There is no memory to expose behind the window.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A register does not keep what is written to it.
    Locked {
        /// Name of the register.
        register: &'static str,
        /// The value written.
        wrote: u64,
        /// The value read back.
        reads: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => f.write_str("the bridge's registers (BAR 0) cannot be mapped"),
            Error::Absent => f.write_str("the bridge does not answer: check the machine"),
            Error::WrongSide { is } => write!(
                f,
                "this is the {} side of the bridge, but `side` in the configuration is the other: remove `side`",
                if is == Side::A { "primary" } else { "secondary" }
            ),
            Error::NoWindow => f.write_str(
                "the firmware has assigned no addresses to the bridge's window (BAR 2): set the size of the NTB's BAR \
                 2/3 to 25 (32 MiB) in the BIOS of both machines, and allow BARs above 4 GiB",
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
                "the bridge's {register} reads back as {reads:#x} after {wrote:#x} was written: the firmware has \
                 locked it; enable the NTB in the BIOS of both machines"
            ),
        }
    }
}

impl core::error::Error for Error {}
