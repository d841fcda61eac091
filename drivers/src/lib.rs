//! Hardware only: what the other rooms see of it (`hal`), then one folder per device family.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod dma;
pub mod found;
pub mod fw_cfg;
pub mod hal;
pub mod ntb;
pub mod pci;
pub mod virtio;
