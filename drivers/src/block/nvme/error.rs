//! Errors of a controller. Each message names the fault, the culprit, and the remedy.

use core::fmt;

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 0 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Its registers read as all ones or zeroes.
    Absent,
    /// This register has an impossible value.
    Registers(&'static str),
    /// VS has this unknown value.
    Version(u32),
    /// It has no NVM command set.
    NoCommandSet,
    /// Its smallest page has 2 to the power of `log2` bytes: too large.
    PageSize {
        /// Exponent.
        log2: u32,
    },
    /// CSTS.RDY stays 1.
    NoReset {
        /// Time limit.
        seconds: u64,
    },
    /// CSTS.RDY stays 0.
    NotReady {
        /// Time limit.
        seconds: u64,
    },
    /// CSTS.CFS is set.
    Fatal,
    /// This command of the admin queue does not complete.
    Silent(&'static str),
    /// A command of the admin queue fails.
    Refused {
        /// The command.
        command: &'static str,
        /// Its status field.
        status: u16,
    },
    /// Completions name commands that are not in flight.
    InvalidCompletion,
    /// It requires queue entries of other sizes than this driver uses.
    EntrySizes,
    /// After a reset the serial number is another drive's.
    AnotherDrive,
    /// It needed too many resets in a short time.
    TooManyResets,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// It has no namespace.
    NoNamespace,
}

impl Error {
    /// Whether the failure may pass, so that the driver tries again.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Error::AnotherDrive | Error::TooManyResets | Error::EntrySizes)
    }

    /// Notice to the operator about a drive that was in use. Does not name the drive.
    pub fn notice(&self) -> &'static str {
        match self {
            Error::Absent => {
                "the drive does not answer any more: it was pulled out, or its link or power is lost; its \
                 requests fail until it is back"
            }
            Error::Fatal => {
                "the drive reports a fatal error (CSTS.CFS) that a reset does not end; it is tried again, at \
                 least once a minute: replace it"
            }
            Error::AnotherDrive => {
                "after a reset another drive answers at this address; it is not used: restart the \
                 appliance"
            }
            Error::TooManyResets => {
                "the drive needed too many resets, and is not used any more: check its firmware, power and \
                 cooling, or replace it"
            }
            _ => {
                "the drive does not recover by a reset; it is tried again, at least once a minute: \
                 power-cycle it, or replace it"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "NVMe controller's registers cannot be reached (BAR 0): the firmware gave it no \
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
                write!(f, "NVMe controller has the unknown version {version:#x}")
            }
            Error::NoCommandSet => f.write_str(
                "NVMe controller has no NVM command set (CAP.CSS): it is for administration only",
            ),
            Error::PageSize { log2 } => {
                write!(f, "NVMe controller requires pages of 2^{log2} bytes (CAP.MPSMIN): more than 64 KiB")
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
                "NVMe controller refuses the command {command} with status type {}, code {:#04x}: update \
                 its firmware",
                status >> 8 & 7,
                status & 0xff
            ),
            Error::InvalidCompletion => f.write_str(
                "NVMe controller completes commands that were not submitted: the drive is broken, replace it",
            ),
            Error::EntrySizes => f.write_str(
                "NVMe controller requires queue entries of other sizes than 64 and 16 bytes: not \
                 supported",
            ),
            Error::AnotherDrive | Error::TooManyResets => f.write_str(self.notice()),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
            Error::NoNamespace => f.write_str(
                "NVMe controller has no namespace: create one (`nvme create-ns`, `nvme attach-ns`)",
            ),
        }
    }
}

impl core::error::Error for Error {}
