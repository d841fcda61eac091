//! What the machine has: every device that there is a driver for, and what is left over, for show.

use crate::hal::{ConfigRegionAccess, Location, PciAddress, Platform};
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
    /// It is a part of the chipset: a function beside an ISA bridge.
    pub chipset: bool,
    /// What went wrong, if there is a driver for it.
    pub error: Option<Error>,
}

impl Unclaimed {
    /// What it is, in words: by the PCI class (PCI Code and ID Assignment 1.11), or the virtio type.
    pub fn what(&self) -> &'static str {
        if self.id.0 == virtio::VENDOR && self.class >> 16 != 6 {
            return match self.id.1 {
                0x1000 | 0x1041 => "virtio network device",
                0x1001 | 0x1042 => "virtio disk",
                0x1004 | 0x1048 => "virtio SCSI controller",
                0x1005 | 0x1044 => "virtio entropy source",
                0x1009 | 0x1049 => "virtio file system (9P)",
                0x1043 | 0x1003 => "virtio console",
                0x1002 | 0x1045 => "virtio memory balloon",
                0x1053 => "virtio socket device",
                0x105a => "virtio file system",
                0x1110 => "memory that machines share (ivshmem)",
                _ => "virtio device",
            };
        }
        match (self.class >> 16, self.class >> 8 & 0xff) {
            (0x01, 0x00) => "SCSI controller",
            (0x01, 0x01) => "IDE controller",
            (0x01, 0x04) => "RAID controller",
            (0x01, 0x06) => "SATA controller",
            (0x01, 0x07) => "SAS controller",
            (0x01, 0x08) => "NVMe disk",
            (0x01, _) => "storage controller",
            (0x02, 0x00) => "Ethernet interface",
            (0x02, 0x07) => "InfiniBand adapter",
            (0x02, _) => "network interface",
            (0x03, _) => "display",
            (0x04, _) => "multimedia device",
            (0x05, _) => "memory controller",
            (0x06, 0x00) => "host bridge",
            (0x06, 0x01) => "ISA bridge",
            (0x06, 0x04) => "PCI bridge",
            (0x06, _) => "bridge",
            (0x07, _) => "serial port",
            (0x08, _) => "system device",
            (0x0c, 0x03) => "USB controller",
            (0x0c, 0x05) => "SMBus controller",
            (0x0c, 0x06) => "InfiniBand adapter",
            (0x0c, _) => "serial bus controller",
            (0x10, _) => "encryption device",
            (0x12, _) => "accelerator",
            _ => "device",
        }
    }

    /// Whether an operator may miss it: a disk or a network interface that no driver takes, but not what
    /// every chipset has.
    pub fn is_missed(&self) -> bool {
        !self.chipset && (matches!(self.class >> 16, 1 | 2) || self.class >> 8 == 0x0c06)
            || self.id.0 == virtio::VENDOR && matches!(self.id.1, 0x1004 | 0x1048)
    }
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
        const ISA_BRIDGE: u32 = 0x0601;
        let functions = crate::pci::scan(0, access);
        let place = |address: PciAddress| (address.bus(), address.device());
        let bridges = functions.iter().filter(|one| one.class() >> 8 == ISA_BRIDGE);
        let chipset: Vec<(u8, u8)> = bridges.map(|bridge| place(bridge.address())).collect();
        for function in functions {
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
            let chipset = chipset.contains(&place(function.address()));
            self.unclaimed.push(Unclaimed {
                location,
                id,
                class: function.class(),
                chipset,
                error,
            });
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
            self.unclaimed.push(Unclaimed { location, id, class: 0, chipset: false, error });
        }
    }
}
