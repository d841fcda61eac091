//! Common part of all virtio drivers (OASIS virtio 1.2): registers on PCI or memory-mapped, features, queues. The
//! drivers are in the folders of their classes.
//!
//! No value of a device is trusted. Values read at setup are checked. Ring entries are checked against the driver's own
//! records; invalid ones are counted, or the device is given up.

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
pub use mmio::device_type as mmio_device_type;
pub use pci::{VENDOR, device_type as pci_device_type};
pub(crate) use polled::{PolledDevice, PolledQueue};
pub use ring::{Descriptor, Ring, Taken};
pub use transport::Transport;
pub(crate) use transport::{Agreed, Live, Setup, read_config, reset};
pub(crate) use vigil::Vigil;

use crate::driver::{Bus, Device};
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
    /// Registers are missing, cannot be mapped, or are outside of their range.
    Registers(&'static str),
    /// The register interface has an unknown version.
    Version(u32),
    /// The device does not come out of reset.
    NoReset,
    /// The device does not offer a required feature (its bit number).
    MissingFeature(u32),
    /// The device refuses this set of the features that it offers.
    FeaturesRefused(u64),
    /// The device lacks this queue.
    NoQueue(u16),
    /// The device refuses a queue of this size or address.
    QueueRefused {
        /// Number of the queue.
        index: u16,
        /// Entries requested.
        entries: u16,
    },
    /// This value in the device's configuration is impossible.
    Config(&'static str),
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
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
                write!(f, "device refuses queue {index} of {entries} entries")
            }
            Error::Config(what) => write!(f, "device configuration has an impossible {what}"),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}

/// Enables a device and maps its registers. Its interrupts are routed to a free interrupt of the platform, if there is
/// one and the device supports it.
pub fn attach(device: Device, platform: &mut dyn Platform) -> Result<Box<dyn Transport>, Error> {
    Ok(match device.bus() {
        Bus::Pci(function) => Box::new(pci::PciTransport::open(&function, platform)?),
        Bus::VirtioMmio(slot) => Box::new(mmio::MmioTransport::open(slot, platform)?),
    })
}

/// Maps the registers of a device that the main driver owns, for a `PolledQueue`. The transport raises no interrupts.
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
