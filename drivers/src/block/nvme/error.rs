//! Why a controller cannot be used: what it did, whose fault it is, and what to do.

use core::fmt;

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Nothing answers where its registers are.
    Absent,
    /// A register says what cannot be.
    Registers(&'static str),
    /// VS, as it was read.
    Version(u32),
    /// It has no NVM command set.
    NoCommandSet,
    /// Its smallest page has 2 to the power of so many bytes.
    PageSize {
        /// Exponent.
        log2: u32,
    },
    /// CSTS.RDY stays 1.
    NoReset {
        /// How long was waited.
        seconds: u64,
    },
    /// CSTS.RDY stays 0.
    NotReady {
        /// How long was waited.
        seconds: u64,
    },
    /// CSTS.CFS.
    Fatal,
    /// A command of the admin queue is not completed.
    Silent(&'static str),
    /// A command of the admin queue fails.
    Refused {
        /// The command.
        command: &'static str,
        /// Its status field.
        status: u16,
    },
    /// Completions name commands that are not under way.
    Nonsense,
    /// It wants queue entries of other sizes.
    EntrySizes,
    /// After a reset another drive answers.
    AnotherDrive,
    /// It had to be reset again and again.
    TooManyResets,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// It has no namespace.
    NoNamespace,
}

impl Error {
    /// What is told of a drive that was in use. Does not name it.
    pub fn notice(&self) -> &'static str {
        match self {
            Error::Absent => {
                "the drive does not answer any more: it was pulled out, or its link or power is lost; its \
                 requests fail until it is back and the appliance is restarted"
            }
            Error::Fatal => {
                "the drive reports a fatal error (CSTS.CFS) that a reset does not end; it is not used any \
                 more: replace it"
            }
            Error::AnotherDrive => {
                "after a reset another drive answers in this one's place; it is not used: restart the \
                 appliance"
            }
            Error::TooManyResets => {
                "the drive had to be reset again and again, and is not used any more: look after its firmware, \
                 power and cooling, or replace it"
            }
            _ => {
                "the drive does not come back after a reset, and is not used any more: power-cycle it, or \
                 replace it"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "NVMe controller has no registers that could be reached (BAR 0): the firmware gave it no \
                 address",
            ),
            Error::Absent => f.write_str(
                "NVMe controller does not answer (its registers read as all ones or zeroes): reseat the \
                 drive, or replace it",
            ),
            Error::Registers(what) => {
                write!(f, "NVMe controller has an impossible {what}: the drive is broken")
            }
            Error::Version(version) => {
                write!(f, "NVMe controller has version {version:#x}: not known")
            }
            Error::NoCommandSet => f.write_str(
                "NVMe controller has no NVM command set (CAP.CSS): it is for administration only",
            ),
            Error::PageSize { log2 } => {
                write!(f, "NVMe controller wants pages of 2^{log2} bytes (CAP.MPSMIN), not of 64 KiB or less")
            }
            Error::NoReset { seconds } => write!(
                f,
                "NVMe controller does not come out of reset in {seconds} s (CSTS.RDY stays 1): power-cycle \
                 the drive, or replace it"
            ),
            Error::NotReady { seconds } => write!(
                f,
                "NVMe controller does not become ready in {seconds} s (CSTS.RDY stays 0): power-cycle the \
                 drive, or replace it"
            ),
            Error::Fatal => f.write_str(
                "NVMe controller reports a fatal error (CSTS.CFS): power-cycle the drive, or replace it",
            ),
            Error::Silent(command) => write!(
                f,
                "NVMe controller does not answer the command {command}: power-cycle the drive, or \
                 replace it"
            ),
            Error::Refused { command, status } => write!(
                f,
                "NVMe controller refuses the command {command} with status type {}, code {:#04x}: look \
                 after its firmware",
                status >> 8 & 7,
                status & 0xff
            ),
            Error::Nonsense => f.write_str(
                "NVMe controller completes commands that it was not given: the drive is broken, replace it",
            ),
            Error::EntrySizes => f.write_str(
                "NVMe controller wants queue entries of other sizes than 64 and 16 bytes: no driver for \
                 that",
            ),
            Error::AnotherDrive | Error::TooManyResets => f.write_str(self.notice()),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
            Error::NoNamespace => f.write_str(
                "NVMe controller has no namespace: make one (`nvme create-ns`, `nvme attach-ns`)",
            ),
        }
    }
}

impl core::error::Error for Error {}
