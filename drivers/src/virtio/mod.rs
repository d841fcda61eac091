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

pub use blk::{Block, DumpDisk, DumpTransport};
pub use mmio::Slot;
pub use net::{Net, WantedMtu};
pub use pci::VENDOR;
pub use rng::{Entropy, EntropyError};
pub use transport::Transport;

pub use ring::Ring;

use crate::hal::{Location, Platform};
use crate::pci::Function;
use alloc::boxed::Box;
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
        }
    }
}

impl core::error::Error for Error {}

/// A virtio device that was found, not set up yet.
pub struct Device {
    location: Location,
    kind: Kind,
    transport: Box<dyn Transport>,
    /// Of a disk, a second way to its registers.
    dump: Option<DumpTransport>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.kind, self.location)
    }
}

impl Device {
    /// The device that a PCI function is; None if there is no driver for it.
    pub fn on_pci(
        function: &Function<'_>,
        platform: &mut dyn Platform,
    ) -> Option<Result<Device, Error>> {
        let kind = pci::device_type(function).and_then(kind)?;
        let location = Location::Pci(function.address());
        let transport = pci::PciTransport::open(function, platform);
        Some(transport.map(|it| {
            let polled = (kind == Kind::Block)
                .then(|| pci::PciTransport::open_polled(function, &function.bars(), platform));
            let dump = polled.and_then(Result::ok).map(|it| DumpTransport::new(Box::new(it)));
            Device { location, kind, transport: Box::new(it), dump }
        }))
    }

    /// The device behind memory-mapped registers. None if there is none; its type, if there is no
    /// driver for it.
    pub fn on_mmio(
        slot: Slot,
        platform: &mut dyn Platform,
    ) -> Result<Option<Result<Device, u32>>, Error> {
        let Some(it) = mmio::MmioTransport::open(slot, platform)? else { return Ok(None) };
        let (location, device_type) = (Location::Mmio(slot.address), it.device_type());
        let kind = match kind(device_type) {
            Some(kind) => kind,
            None => return Ok(Some(Err(device_type))),
        };
        let dump = match kind {
            Kind::Block => mmio::MmioTransport::open(slot, platform)?,
            _ => None,
        };
        let dump = dump.map(|it| DumpTransport::new(Box::new(it)));
        Ok(Some(Ok(Device { location, kind, transport: Box::new(it), dump })))
    }

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

    /// Of a disk, a second way to its registers, for a last write. Once.
    pub fn take_dump(&mut self) -> Option<DumpTransport> {
        self.dump.take()
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

fn kind(device_type: u32) -> Option<Kind> {
    match device_type {
        NETWORK => Some(Kind::Network),
        BLOCK => Some(Kind::Block),
        ENTROPY => Some(Kind::Entropy),
        _ => None,
    }
}
