//! Errors of an Intel bridge. Each message names the remedy.

use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// The device is of an unsupported generation.
    Generation {
        /// Name of the generation.
        name: &'static str,
        /// PCI device ID.
        device: u16,
    },
    /// The device is an engineering sample, which Linux does not support either.
    Revision {
        /// The revision.
        revision: u8,
    },
    /// The device does not begin to train its link.
    NotTraining,
    /// The firmware has set the port up for another use.
    NotBackToBack {
        /// Connection of the port, 0 to 3.
        connection: u32,
    },
    /// The configuration names the other side.
    WrongSide {
        /// The actual side of this machine, 0 or 1.
        is: u8,
    },
    /// The firmware has assigned no addresses to the window.
    NoWindow,
    /// The window cannot be mapped.
    NotMapped {
        /// Bytes of the window.
        bytes: u64,
    },
    /// There is no memory to expose behind the window, aligned as the window is.
    NoMemory {
        /// Bytes of the window.
        window: u64,
        /// Bytes to expose.
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
            Error::Generation { name, device } => write!(
                f,
                "the bridge (8086:{device:04x}) is of a generation that is not supported: {name}"
            ),
            Error::Revision { revision } => write!(
                f,
                "the bridge (8086:347e) is of revision {revision}, an early one: only 2 and later work"
            ),
            Error::NotTraining => f.write_str(
                "the bridge does not begin to train its link: enable its port in the BIOS",
            ),
            Error::NotBackToBack { connection } => write!(
                f,
                "the firmware has set the port up as {}: set it to \"NTB to NTB\" (back to back) in the BIOS \
                 of both machines",
                match connection {
                    0 => "a transparent root port",
                    2 => "NTB towards a root port",
                    _ => "something unknown",
                }
            ),
            Error::WrongSide { is } => write!(
                f,
                "the port is side {is} of the bridge, but `side` in the configuration is the other: remove \
                 `side`, or change the port's side in the BIOS"
            ),
            Error::NoWindow => f.write_str(
                "the firmware has assigned no addresses to the bridge's window (BAR 2): set the size of the NTB's \
                 \"Imbar1\" and \"Embar1\" to 25 (32 MiB) in the BIOS of both machines, and allow BARs above \
                 4 GiB",
            ),
            Error::NotMapped { bytes } => write!(
                f,
                "the bridge's window (BAR 2, {bytes} bytes) cannot be mapped: set a smaller size of the \
                 NTB's \"Imbar1\" and \"Embar1\" in the BIOS"
            ),
            Error::NoMemory { window, bytes } => write!(
                f,
                "there are no {bytes} bytes of memory that begin at a multiple of {window}, as the \
                 bridge's window of that size requires: set a smaller size of the NTB's \"Imbar1\" and \"Embar1\" \
                 in the BIOS (25 is 32 MiB), or give the machine more memory"
            ),
            Error::Locked { register, wrote, reads } => write!(
                f,
                "the bridge's {register} reads back as {reads:#x} after {wrote:#x} was written: the firmware has \
                 locked it, or set the window up wrongly; set the NTB's \"Imbar1\" and \"Embar1\" to the same size in \
                 the BIOS of both machines"
            ),
        }
    }
}

impl core::error::Error for Error {}
