//! Why a bridge cannot be used, and what to do about it.

use core::fmt;

/// Why a bridge cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// It answers nothing.
    Absent,
    /// It is of a generation that this driver does not know.
    Generation {
        /// Which.
        name: &'static str,
        /// PCI device ID.
        device: u16,
    },
    /// It is an early one that nobody supports.
    #[cfg(feature = "bridges")]
    Revision {
        /// Which.
        revision: u8,
    },
    /// It does not begin to train its link.
    #[cfg(feature = "bridges")]
    NotTraining,
    /// Firmware has made something else of the port.
    NotBackToBack {
        /// Its connection, 0 to 3.
        connection: u32,
    },
    /// The configuration says that this machine is on the other side.
    WrongSide {
        /// The side as the port has it, 0 or 1.
        is: u8,
    },
    /// Firmware has given the window no memory.
    NoWindow,
    /// The window cannot be mapped.
    NotMapped {
        /// Its bytes.
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
            Error::Generation { name, device } => write!(
                f,
                "the bridge (8086:{device:04x}) is of a generation that is not supported: {name}"
            ),
            #[cfg(feature = "bridges")]
            Error::Revision { revision } => write!(
                f,
                "the bridge (8086:347e) is of revision {revision}, an early one: only 2 and later work"
            ),
            #[cfg(feature = "bridges")]
            Error::NotTraining => f.write_str(
                "the bridge does not begin to train its link: enable the port that it is behind in the BIOS",
            ),
            Error::NotBackToBack { connection } => write!(
                f,
                "firmware has set the port up as {}: set it to \"NTB to NTB\" (back to back) in the BIOS \
                 of both machines",
                match connection {
                    0 => "a transparent root port",
                    2 => "NTB towards a root port",
                    _ => "something unknown",
                }
            ),
            Error::WrongSide { is } => write!(
                f,
                "the port is side {is} of the bridge, and the configuration says the other: leave `side` \
                 out, or change the port's side in the BIOS"
            ),
            Error::NoWindow => f.write_str(
                "firmware has given the bridge's window (BAR 2) no memory: set the size of the NTB's \
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
                "there are no {bytes} bytes of memory that begin at a multiple of {window}, which the \
                 bridge's window of that size wants: set a smaller size of the NTB's \"Imbar1\" and \"Embar1\" \
                 in the BIOS (25 is 32 MiB), or give the machine more memory"
            ),
            Error::Locked { register, wrote, reads } => write!(
                f,
                "the bridge's {register} says {reads:#x} after {wrote:#x} was written: firmware has locked \
                 it, or set the window up wrongly; set the NTB's \"Imbar1\" and \"Embar1\" to the same size in \
                 the BIOS of both machines"
            ),
        }
    }
}

impl core::error::Error for Error {}
