//! Errors of a controller and of its drives. Each message names the fault, the culprit, and the remedy.

use super::identify::Unusable;
use core::fmt;

/// Why a controller or a drive cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// BAR 5 is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Its registers read as all ones or zeroes.
    Absent,
    /// The firmware does not hand it over.
    KeptByFirmware,
    /// It does not come out of its reset.
    NoReset,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// The controller reaches 4 GiB, and memory lies above.
    NarrowAddresses,
    /// There is no drive at the port any more.
    NoDrive,
    /// There is a drive, but the link does not come up.
    NoLink,
    /// The drive stays busy after a reset.
    NotReady,
    /// There is a port multiplier.
    Multiplier,
    /// There is a device with an unknown signature.
    Unknown(u32),
    /// The drive does not complete this command.
    Silent(&'static str),
    /// The drive fails this command.
    Refused(&'static str),
    /// The drive's data shows that it cannot be used.
    Unusable(Unusable),
    /// The port does not stop.
    NoStop,
    /// After a reset there is another drive.
    AnotherDrive,
    /// It needed too many resets in a short time.
    TooManyResets,
}

impl Error {
    /// Notice to the operator about a drive that was in use. Does not name the drive.
    pub fn notice(&self) -> &'static str {
        match self {
            Error::Absent => {
                "the drive's controller does not answer any more: its requests fail until it is back; check \
                 the controller's slot and power"
            }
            Error::NoDrive => {
                "the drive was pulled out, or its cable or power is lost: its requests fail until it is back"
            }
            Error::NoLink => {
                "the drive's link does not come up: its requests fail until it does; check cable and backplane"
            }
            Error::AnotherDrive => {
                "another drive was plugged in where this one was: it is not used; plug the first one in, or \
                 restart the appliance"
            }
            Error::TooManyResets => {
                "the drive needed too many resets: its requests fail, and it is tried again every minute; \
                 check its cable and power, or replace it"
            }
            Error::Multiplier => {
                "a port multiplier was plugged in where the drive was: not supported, connect the drive \
                 directly"
            }
            _ => {
                "the drive does not recover by a reset: its requests fail, and it is tried again every \
                 minute; power-cycle it, or replace it"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NoRegisters => {
                "SATA controller's registers cannot be reached (BAR 5): the firmware gave it no address"
            }
            Error::Absent => {
                "SATA controller does not answer (its registers read as all ones or zeroes): reseat or \
                 replace it"
            }
            Error::KeptByFirmware => {
                "SATA controller is kept by the firmware (BOHC.BOS stays 1): set SATA to AHCI in the firmware"
            }
            Error::NoReset => {
                "SATA controller does not come out of reset in 1 s (GHC.HR stays 1): power-cycle the machine"
            }
            Error::NoMemory { bytes } => {
                return write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory");
            }
            Error::NarrowAddresses => {
                "SATA controller reaches only the first 4 GiB of memory, and the appliance's memory lies \
                 above: not supported"
            }
            Error::NoDrive => "no drive at this port",
            Error::NoLink => "drive's link does not come up in 1 s: check its cable and power",
            Error::NotReady => {
                "drive does not become ready in 10 s: check its power, or replace it, then restart the \
                 appliance"
            }
            Error::Multiplier => {
                "port multiplier: not supported, connect the drives to ports of the controller"
            }
            Error::Unknown(signature) => {
                return write!(f, "device with the unknown signature {signature:#010x}: not supported");
            }
            Error::Silent(command) => {
                return write!(f, "drive does not complete {command}: power-cycle it, or replace it");
            }
            Error::Refused(command) => {
                return write!(f, "drive fails {command}: power-cycle it, or replace it");
            }
            Error::Unusable(why) => return why.fmt(f),
            Error::NoStop => {
                "SATA controller does not stop its port (PxCMD.CR stays 1): power-cycle the machine"
            }
            Error::AnotherDrive | Error::TooManyResets => self.notice(),
        })
    }
}

impl core::error::Error for Error {}
