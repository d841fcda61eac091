//! What the machine has: every device that there is a driver for, and what is left over, for show.

use crate::hal::{ConfigRegionAccess, Location, Platform};
use crate::ntb::ivshmem;
use crate::virtio::{self, Kind, Slot};
use alloc::vec::Vec;
use core::fmt;

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is a virtio device.
    Virtio(virtio::Error),
    /// It is a bridge to another machine.
    Bridge(ivshmem::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Virtio(error) => error.fmt(f),
            Error::Bridge(error) => error.fmt(f),
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
    /// Virtio devices that can be set up, in the order of their places.
    pub devices: Vec<virtio::Device>,
    /// Bridges to other machines, likewise. Which side of one this is the operator may have to say.
    pub bridges: Vec<ivshmem::Device>,
    /// Everything else.
    pub unclaimed: Vec<Unclaimed>,
}

impl Found {
    /// Takes the virtio devices of one kind out, in the order of their places.
    pub fn take(&mut self, kind: Kind) -> Vec<virtio::Device> {
        self.devices.extract_if(.., |device| device.kind() == kind).collect()
    }

    /// Looks at all functions of PCI segment 0.
    pub fn scan_pci(&mut self, access: &dyn ConfigRegionAccess, platform: &mut dyn Platform) {
        for function in crate::pci::scan(0, access) {
            let error = if ivshmem::Device::is(&function) {
                match ivshmem::Device::open(&function, platform) {
                    Ok(bridge) => {
                        self.bridges.push(bridge);
                        continue;
                    }
                    Err(error) => Some(Error::Bridge(error)),
                }
            } else {
                match virtio::Device::on_pci(&function, platform) {
                    Some(Ok(device)) => {
                        self.devices.push(device);
                        continue;
                    }
                    Some(Err(error)) => Some(Error::Virtio(error)),
                    None => None,
                }
            };
            let location = Location::Pci(function.address());
            let id = (function.vendor(), function.device());
            self.unclaimed.push(Unclaimed { location, id, class: function.class(), error });
        }
    }

    /// Looks at places of memory-mapped devices, such as microvm's.
    pub fn scan_mmio(&mut self, slots: &[Slot], platform: &mut dyn Platform) {
        for &slot in slots {
            let (device_type, error) = match virtio::Device::on_mmio(slot, platform) {
                Ok(None) => continue,
                Ok(Some(Ok(device))) => {
                    self.devices.push(device);
                    continue;
                }
                Ok(Some(Err(device_type))) => (device_type as u16, None),
                Err(error) => (0, Some(Error::Virtio(error))),
            };
            let location = Location::Mmio(slot.address);
            let id = (virtio::VENDOR, 0x1040u16.wrapping_add(device_type));
            self.unclaimed.push(Unclaimed { location, id, class: 0, error });
        }
    }
}
