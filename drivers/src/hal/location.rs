//! Where a device is.

use super::PciAddress;
use core::fmt;

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
