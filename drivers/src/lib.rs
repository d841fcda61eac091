//! Hardware only: what the other rooms see of it (`hal`), the drivers in one folder for each class, the
//! table of them (`registry`), and which of them this machine needs (`inventory`).
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod block;
pub mod console;
pub mod device;
pub mod dma;
pub mod entropy;
pub mod ethernet;
pub mod fw_cfg;
pub mod hal;
pub mod inventory;
pub mod iommu;
pub mod ntb;
pub mod pci;
pub mod rapidio;
pub mod registry;
#[cfg(feature = "uhyve")]
pub mod uhyve;
pub mod virtio;
