//! Table of the drivers: the IDs that each matches, and its function to open a device. A driver is a folder in the
//! folder of its class, and an entry here; no code above this crate names a driver.

use crate::block::{self, Opened};
use crate::console::{self, ConsoleLine};
use crate::device::Device;
#[cfg(feature = "ntb")]
use crate::dma;
use crate::dma::Channel;
use crate::entropy::{self, EntropySource};
use crate::ethernet::{self, WantedMtu};
use crate::hal::{Clock, Platform, Port};
#[cfg(feature = "ntb")]
use crate::ntb;
use crate::ntb::{NtbDevice, Side};
use crate::rapidio;
use crate::virtio;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// ID by which a driver matches its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// Virtio device type (virtio 1.2, chapter 5), on PCI or memory-mapped registers.
    Virtio(u32),
    /// PCI vendor and device ID.
    Pci(u16, u16),
    /// PCI base class, subclass and programming interface, as 0xCCSSPP.
    PciClass(u32),
}

/// Why a device cannot be used. Its text names the missing feature of the device, or the culprit.
pub type OpenError = Box<dyn core::error::Error>;

/// Function that opens a device, by the device's class. A device is set up once, before the loops run, on the core that
/// will own it.
#[derive(Clone, Copy)]
pub enum Open {
    /// An Ethernet port. May wait for the device.
    Port(
        fn(
            Device,
            &mut dyn Platform,
            WantedMtu<'_>,
            &dyn Clock,
        ) -> Result<Box<dyn Port + Send>, OpenError>,
    ),
    /// An Ethernet port whose device supports RoCE as well, for a verbs provider. May wait for the device.
    #[cfg(feature = "mlx5")]
    VerbsPort(
        fn(
            Device,
            &mut dyn Platform,
            WantedMtu<'_>,
            &dyn Clock,
        ) -> Result<ethernet::mlx5::Mlx5Port, OpenError>,
    ),
    /// One disk, or all units behind a controller. May wait for the device.
    Disks(fn(Device, &mut dyn Platform, &dyn Clock) -> Result<Opened, OpenError>),
    /// A non-transparent bridge. The configuration may have to name the side of this machine.
    Bridge(fn(Device, &mut dyn Platform, Option<Side>) -> Result<Box<dyn NtbDevice>, OpenError>),
    /// A non-transparent bridge through which the peer machine reaches all memory: its registers can change the
    /// translation of addresses.
    #[cfg(feature = "bridges")]
    UntrustedBridge(
        fn(Device, &mut dyn Platform, Option<Side>) -> Result<Box<dyn NtbDevice>, OpenError>,
    ),
    /// The channels of a DMA engine. May wait for the device.
    Dma(fn(Device, &mut dyn Platform, &dyn Clock) -> Result<Vec<Box<dyn Channel>>, OpenError>),
    /// A source of entropy.
    Entropy(fn(Device, &mut dyn Platform) -> Result<Box<dyn EntropySource>, OpenError>),
    /// The operator's console.
    Console(fn(Device, &mut dyn Platform) -> Result<Box<dyn ConsoleLine>, OpenError>),
    /// A RapidIO master port.
    RapidIo(fn(Device, &mut dyn Platform) -> Result<rapidio::OpenPort, OpenError>),
}

/// Class of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ethernet.
    Port,
    /// Disks.
    Disks,
    /// A non-transparent bridge.
    Bridge,
    /// A DMA engine.
    Dma,
    /// A source of entropy.
    Entropy,
    /// The operator's console.
    Console,
    /// A RapidIO master port.
    RapidIo,
}

/// One driver.
pub struct Driver {
    /// Name of the driver: Linux's name where Linux has such a driver.
    pub name: &'static str,
    /// IDs that the driver matches.
    pub ids: &'static [Id],
    /// Opens a device.
    pub open: Open,
}

/// All drivers. The first that matches takes a device.
pub static DRIVERS: &[Driver] = &[
    Driver {
        name: "virtio_net",
        ids: &[Id::Virtio(virtio::NETWORK)],
        open: Open::Port(ethernet::virtio_net::open),
    },
    Driver {
        name: "e1000e",
        ids: &ethernet::intel::E1000E,
        open: Open::Port(ethernet::intel::open_e1000e),
    },
    Driver { name: "igb", ids: &ethernet::intel::IGB, open: Open::Port(ethernet::intel::open_igb) },
    Driver {
        name: "igbvf",
        ids: &ethernet::intel::IGBVF,
        open: Open::Port(ethernet::intel::open_igbvf),
    },
    Driver {
        name: "ixgbe",
        ids: &ethernet::intel::IXGBE,
        open: Open::Port(ethernet::intel::open_ixgbe),
    },
    Driver {
        name: "ixgbevf",
        ids: &ethernet::intel::IXGBEVF,
        open: Open::Port(ethernet::intel::open_ixgbevf),
    },
    Driver {
        name: "vmxnet3",
        ids: &ethernet::vmxnet3::IDS,
        open: Open::Port(ethernet::vmxnet3::open),
    },
    Driver { name: "enic", ids: &ethernet::enic::IDS, open: Open::Port(ethernet::enic::open) },
    #[cfg(feature = "mlx5")]
    Driver { name: "mlx5", ids: &ethernet::mlx5::IDS, open: Open::VerbsPort(ethernet::mlx5::open) },
    Driver {
        name: "virtio_blk",
        ids: &[Id::Virtio(virtio::BLOCK)],
        open: Open::Disks(block::virtio_blk::open),
    },
    Driver {
        name: "virtio_scsi",
        ids: &[Id::Virtio(virtio::SCSI)],
        open: Open::Disks(block::virtio_scsi::open),
    },
    Driver {
        name: "nvme",
        ids: &[Id::PciClass(block::nvme::CLASS)],
        open: Open::Disks(block::nvme::open),
    },
    Driver {
        name: "virtio_rng",
        ids: &[Id::Virtio(virtio::ENTROPY)],
        open: Open::Entropy(entropy::virtio_rng::open),
    },
    Driver {
        name: "virtio_console",
        ids: &[Id::Virtio(virtio::CONSOLE)],
        open: Open::Console(console::virtio_console::open),
    },
    #[cfg(feature = "ntb")]
    Driver {
        name: "ivshmem",
        ids: &[Id::Pci(ntb::ivshmem::VENDOR, ntb::ivshmem::DEVICE)],
        open: Open::Bridge(ntb::ivshmem::open),
    },
    #[cfg(feature = "ntb")]
    Driver { name: "ntb_hw_intel", ids: &ntb::intel::IDS, open: Open::Bridge(ntb::intel::open) },
    #[cfg(feature = "bridges")]
    Driver { name: "ntb_hw_amd", ids: &ntb::amd::IDS, open: Open::UntrustedBridge(ntb::amd::open) },
    #[cfg(feature = "bridges")]
    Driver {
        name: "ntb_hw_switchtec",
        ids: &ntb::switchtec::IDS,
        open: Open::UntrustedBridge(ntb::switchtec::open),
    },
    #[cfg(feature = "ntb")]
    Driver { name: "ioatdma", ids: &dma::ioat::IDS, open: Open::Dma(dma::ioat::open) },
    #[cfg(feature = "bridges")]
    Driver { name: "idxd", ids: &dma::dsa::IDS, open: Open::Dma(dma::dsa::open) },
    #[cfg(feature = "bridges")]
    Driver { name: "ptdma", ids: &dma::ptdma::IDS, open: Open::Dma(dma::ptdma::open) },
    Driver {
        name: "tsi721_mport",
        ids: &[Id::Pci(rapidio::tsi721::VENDOR, rapidio::tsi721::DEVICE)],
        open: Open::RapidIo(rapidio::tsi721::open),
    },
];

impl Driver {
    /// Class of the driver's devices.
    pub fn class(&self) -> Class {
        match self.open {
            Open::Port(_) => Class::Port,
            #[cfg(feature = "mlx5")]
            Open::VerbsPort(_) => Class::Port,
            Open::Disks(_) => Class::Disks,
            Open::Bridge(_) => Class::Bridge,
            #[cfg(feature = "bridges")]
            Open::UntrustedBridge(_) => Class::Bridge,
            Open::Dma(_) => Class::Dma,
            Open::Entropy(_) => Class::Entropy,
            Open::Console(_) => Class::Console,
            Open::RapidIo(_) => Class::RapidIo,
        }
    }

    /// The driver that matches any of a device's `ids`.
    pub fn of(ids: &[Id]) -> Option<&'static Driver> {
        DRIVERS.iter().find(|driver| driver.ids.iter().any(|id| ids.contains(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_drivers_match_the_same_device_or_have_one_name() {
        for (n, driver) in DRIVERS.iter().enumerate() {
            for other in &DRIVERS[n + 1..] {
                assert_ne!(driver.name, other.name);
                assert!(!driver.ids.iter().any(|id| other.ids.contains(id)), "{}", other.name);
            }
        }
    }
}
