//! Virtio devices (OASIS virtio 1.2): network, block, entropy; on PCI and on memory-mapped
//! registers.
//!
//! Nothing a device says is trusted: what it is asked at set-up is checked, what it writes into
//! rings is held against the driver's own books, and a device that lies is counted or given up,
//! never believed.

mod blk;
mod mmio;
mod net;
mod pci;
mod ring;
mod rng;
mod transport;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use blk::Block;
pub use mmio::Slot;
pub use net::{Net, WantedMtu};
pub use rng::{Entropy, EntropyError};
pub use transport::Transport;

pub use ring::Ring;

use crate::hal::{ConfigRegionAccess, PciAddress, Platform};
use crate::ntb::ivshmem;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

const NETWORK: u32 = 1;
const BLOCK: u32 = 2;
const ENTROPY: u32 = 4;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Ethernet port: [`Net`].
    Network,
    /// A disk: [`Block`].
    Block,
    /// A source of entropy: [`Entropy`].
    Entropy,
}

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A PCI function.
    Pci(PciAddress),
    /// Memory-mapped registers at this bus address.
    Mmio(u64),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Pci(address) => write!(f, "pci {address}"),
            Location::Mmio(address) => write!(f, "mmio {address:#x}"),
        }
    }
}

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
    /// It is a device of another kind.
    WrongKind,
    /// It is a bridge, and cannot be used.
    Bridge(ivshmem::Error),
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
            Error::WrongKind => write!(f, "device is of another kind"),
            Error::Bridge(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

/// A virtio device that was found, not set up yet.
pub struct Device {
    location: Location,
    kind: Kind,
    transport: Box<dyn Transport>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.kind, self.location)
    }
}

impl Device {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it is.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Sets an Ethernet port up.
    pub fn into_port(
        self,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
    ) -> Result<Net, Error> {
        match self.kind {
            Kind::Network => Net::open(self.transport, platform.arena(), wanted_mtu),
            _ => Err(Error::WrongKind),
        }
    }

    /// Sets a disk up.
    pub fn into_disk(self, platform: &mut dyn Platform) -> Result<Block, Error> {
        match self.kind {
            Kind::Block => Block::open(self.transport, platform.arena()),
            _ => Err(Error::WrongKind),
        }
    }

    /// Sets a source of entropy up.
    pub fn into_entropy(self, platform: &mut dyn Platform) -> Result<Entropy, Error> {
        match self.kind {
            Kind::Entropy => Entropy::open(self.transport, platform.arena()),
            _ => Err(Error::WrongKind),
        }
    }
}

/// A device that cannot be used, for show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// Where it is.
    pub location: Location,
    /// PCI vendor and device ID, or virtio's vendor and the device type plus 0x1040.
    pub id: (u16, u16),
    /// PCI class as 0xCCSSPP; 0 if it is not on PCI.
    pub class: u32,
    /// What went wrong, if there is a driver for it.
    pub error: Option<Error>,
}

/// What there is.
#[derive(Debug, Default)]
pub struct Found {
    /// Devices that can be set up, in the order of their places.
    pub devices: Vec<Device>,
    /// Bridges to other machines, likewise. Which side of one this is the operator may have to say.
    pub bridges: Vec<ivshmem::Device>,
    /// Everything else.
    pub unclaimed: Vec<Unclaimed>,
}

impl Found {
    /// Takes the devices of one kind out, in the order of their places.
    pub fn take(&mut self, kind: Kind) -> Vec<Device> {
        self.devices.extract_if(.., |device| device.kind == kind).collect()
    }

    fn add(
        &mut self,
        location: Location,
        transport: Result<Box<dyn Transport>, Error>,
        it: Unclaimed,
    ) {
        let transport = match transport {
            Ok(transport) => transport,
            Err(error) => return self.unclaimed.push(Unclaimed { error: Some(error), ..it }),
        };
        match kind(transport.device_type()) {
            Some(kind) => self.devices.push(Device { location, kind, transport }),
            None => self.unclaimed.push(it),
        }
    }

    /// Looks at all functions of PCI segment 0.
    pub fn scan_pci(&mut self, access: &dyn ConfigRegionAccess, platform: &mut dyn Platform) {
        for function in crate::pci::scan(0, access) {
            let location = Location::Pci(function.address());
            let id = (function.vendor(), function.device());
            let it = Unclaimed { location, id, class: function.class(), error: None };
            if ivshmem::Device::is(&function) {
                match ivshmem::Device::open(&function, platform) {
                    Ok(bridge) => self.bridges.push(bridge),
                    Err(error) => {
                        self.unclaimed.push(Unclaimed { error: Some(Error::Bridge(error)), ..it });
                    }
                }
                continue;
            }
            if pci::device_type(&function).and_then(kind).is_none() {
                self.unclaimed.push(it);
                continue;
            }
            let transport = pci::PciTransport::open(&function, platform);
            self.add(location, transport.map(|t| Box::new(t) as Box<dyn Transport>), it);
        }
    }

    /// Looks at places of memory-mapped devices, such as microvm's.
    pub fn scan_mmio(&mut self, slots: &[Slot], platform: &mut dyn Platform) {
        for &slot in slots {
            let location = Location::Mmio(slot.address);
            let mut it = Unclaimed { location, id: (pci::VENDOR, 0x1040), class: 0, error: None };
            match mmio::MmioTransport::open(slot, platform) {
                Ok(None) => {}
                Ok(Some(transport)) => {
                    it.id.1 = 0x1040u16.wrapping_add(transport.device_type() as u16);
                    self.add(location, Ok(Box::new(transport)), it);
                }
                Err(error) => self.unclaimed.push(Unclaimed { error: Some(error), ..it }),
            }
        }
    }
}

fn kind(device_type: u32) -> Option<Kind> {
    match device_type {
        NETWORK => Some(Kind::Network),
        BLOCK => Some(Kind::Block),
        ENTROPY => Some(Kind::Entropy),
        _ => None,
    }
}
