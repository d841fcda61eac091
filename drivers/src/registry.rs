//! Table of the drivers: the IDs that each matches, and its function to open a device. A driver is a folder in the
//! folder of its class, and an entry here; no other code names a driver.

use crate::block;
use crate::console;
#[cfg(feature = "ntb")]
use crate::dma;
use crate::driver::{Driver, Id, Open};
use crate::entropy;
use crate::ethernet;
#[cfg(feature = "ntb")]
use crate::ntb;
use crate::rapidio;
use crate::virtio;

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

/// The driver that matches any of a device's `ids`.
pub fn driver_of(ids: &[Id]) -> Option<&'static Driver> {
    DRIVERS.iter().find(|driver| driver.ids.iter().any(|id| ids.contains(id)))
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
