//! Table of the drivers: the IDs that each matches, and its function to open a device. A driver is a folder in the
//! folder of its class, and an entry here; no other code names a driver.

use crate::block;
use crate::console;
use crate::dma;
use crate::driver::{Driver, Id, Open};
use crate::entropy;
use crate::ethernet;
use crate::ethernet::intel::{E1000, E1000e, Igb, IgbVf, Ixgbe, IxgbeVf};
use crate::ntb;
use crate::rapidio;
use crate::virtio;

/// Drivers of every program. The first that matches takes a device.
static DRIVERS: &[Driver] = &[
    Driver {
        name: "virtio_net",
        ids: &[Id::Virtio(virtio::NETWORK)],
        open: Open::Port(ethernet::virtio_net::open),
    },
    Driver {
        name: "e1000",
        ids: &ethernet::intel::E1000_IDS,
        open: Open::Port(ethernet::intel::open::<E1000>),
    },
    Driver {
        name: "e1000e",
        ids: &ethernet::intel::E1000E,
        open: Open::Port(ethernet::intel::open::<E1000e>),
    },
    Driver {
        name: "igb",
        ids: &ethernet::intel::IGB,
        open: Open::Port(ethernet::intel::open::<Igb>),
    },
    Driver {
        name: "igbvf",
        ids: &ethernet::intel::IGBVF,
        open: Open::Port(ethernet::intel::open::<IgbVf>),
    },
    Driver {
        name: "ixgbe",
        ids: &ethernet::intel::IXGBE,
        open: Open::Port(ethernet::intel::open::<Ixgbe>),
    },
    Driver {
        name: "ixgbevf",
        ids: &ethernet::intel::IXGBEVF,
        open: Open::Port(ethernet::intel::open::<IxgbeVf>),
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
    Driver { name: "pvscsi", ids: &block::pvscsi::IDS, open: Open::Disks(block::pvscsi::open) },
    Driver {
        name: "ahci",
        ids: &[Id::PciClass(block::ahci::CLASS)],
        open: Open::Disks(block::ahci::open),
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
    Driver {
        name: "tsi721_mport",
        ids: &[Id::Pci(rapidio::tsi721::VENDOR, rapidio::tsi721::DEVICE)],
        open: Open::RapidIo(rapidio::tsi721::open),
    },
];

/// Drivers of bridges (NTB), and of the DMA engines that carry for them.
static BRIDGES: &[Driver] = &[
    Driver {
        name: "ivshmem",
        ids: &[Id::Pci(ntb::ivshmem::VENDOR, ntb::ivshmem::DEVICE)],
        open: Open::Bridge(ntb::ivshmem::open),
    },
    Driver { name: "ntb_hw_intel", ids: &ntb::intel::IDS, open: Open::Bridge(ntb::intel::open) },
    Driver { name: "ntb_hw_amd", ids: &ntb::amd::IDS, open: Open::UntrustedBridge(ntb::amd::open) },
    Driver {
        name: "ntb_hw_switchtec",
        ids: &ntb::switchtec::IDS,
        open: Open::UntrustedBridge(ntb::switchtec::open),
    },
    Driver { name: "ioatdma", ids: &dma::ioat::IDS, open: Open::Dma(dma::ioat::open) },
    Driver { name: "idxd", ids: &dma::dsa::IDS, open: Open::Dma(dma::dsa::open) },
    Driver { name: "ptdma", ids: &dma::ptdma::IDS, open: Open::Dma(dma::ptdma::open) },
];

/// All drivers of this program.
fn all() -> impl Iterator<Item = &'static Driver> {
    let bridges = if cfg!(feature = "ntb") { BRIDGES } else { &[] };
    DRIVERS.iter().chain(bridges)
}

/// The driver that matches any of a device's `ids`.
pub fn driver_of(ids: &[Id]) -> Option<&'static Driver> {
    all().find(|driver| driver.ids.iter().any(|id| ids.contains(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_drivers_match_the_same_device_or_have_one_name() {
        for (n, driver) in all().enumerate() {
            for other in all().skip(n + 1) {
                assert_ne!(driver.name, other.name);
                assert!(!driver.ids.iter().any(|id| other.ids.contains(id)), "{}", other.name);
            }
        }
    }
}
