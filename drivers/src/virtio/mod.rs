//! What all virtio devices (OASIS virtio 1.2) have in common: registers on PCI or memory-mapped, features,
//! queues. Their drivers are in the folders of their classes.
//!
//! Nothing a device says is trusted: what it is asked at set-up is checked, what it writes into
//! rings is held against the driver's own books, and a device that lies is counted or given up,
//! never believed.

mod dialect;
mod mmio;
mod pci;
mod polled;
mod ring;
mod transport;
mod vigil;

#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod tests;

pub use dialect::Dialect;
pub use mmio::{Slot, device_type as mmio_device_type};
pub use pci::{VENDOR, device_type as pci_device_type};
pub(crate) use polled::{Asking, PolledQueue};
pub use ring::{Descriptor, Ring, Taken};
pub use transport::Transport;
pub(crate) use transport::{Agreed, Live, Setup, read_config, reset};
pub(crate) use vigil::Vigil;

use crate::device::{Bus, Device};
use crate::hal::Platform;
use alloc::boxed::Box;
use core::fmt;

// Device types (virtio 1.2, chapter 5).
/// An Ethernet port.
pub const NETWORK: u32 = 1;
/// A disk.
pub const BLOCK: u32 = 2;
/// The operator's console.
pub const CONSOLE: u32 = 3;
/// A source of entropy.
pub const ENTROPY: u32 = 4;
/// A SCSI host adapter.
pub const SCSI: u32 = 8;

/// Why a device cannot be used. The device, or the machine, is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Registers are missing, cannot be mapped, or lie outside of where they could be.
    Registers(&'static str),
    /// The register interface has an unknown version.
    Version(u32),
    /// It does not come out of reset.
    NoReset,
    /// It does not offer a feature (its bit number) that it needs to be usable.
    MissingFeature(u32),
    /// It offers features, but not this set of them together.
    FeaturesRefused(u64),
    /// It lacks a queue.
    NoQueue(u16),
    /// It does not take a queue as it was laid out.
    QueueRefused {
        /// Number of the queue.
        index: u16,
        /// Entries asked for.
        entries: u16,
    },
    /// A value in its configuration makes no sense.
    Config(&'static str),
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Registers(what) => write!(f, "device has no usable {what}"),
            Error::Version(n) => write!(f, "device has register interface version {n}, not 1 or 2"),
            Error::NoReset => write!(f, "device does not come out of reset"),
            Error::MissingFeature(bit) => write!(f, "device does not offer feature bit {bit}"),
            Error::FeaturesRefused(bits) => {
                write!(f, "device refuses the features {bits:#x} that it offered")
            }
            Error::NoQueue(index) => write!(f, "device has no queue {index}"),
            Error::QueueRefused { index, entries } => {
                write!(f, "device does not take queue {index} of {entries} entries")
            }
            Error::Config(what) => write!(f, "device configuration has an impossible {what}"),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}

/// The registers of a device, which is switched on. Its interrupts go to one of the platform's, if there is
/// one left and it can be told.
pub fn attach(device: Device, platform: &mut dyn Platform) -> Result<Box<dyn Transport>, Error> {
    Ok(match device.bus() {
        Bus::Pci(function) => Box::new(pci::PciTransport::open(&function, platform)?),
        Bus::VirtioMmio(slot) => Box::new(mmio::MmioTransport::open(slot, platform)?),
    })
}

/// A second way to the registers of a device that somebody else drives, for its last use. It raises no
/// interrupts.
pub fn attach_polled(
    device: Device,
    platform: &mut dyn Platform,
) -> Result<Box<dyn Transport>, Error> {
    Ok(match device.bus() {
        Bus::Pci(function) => {
            Box::new(pci::PciTransport::open_polled(&function, &function.bars(), platform)?)
        }
        Bus::VirtioMmio(slot) => Box::new(mmio::MmioTransport::open(slot, platform)?),
    })
}
