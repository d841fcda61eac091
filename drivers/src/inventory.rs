//! Inventory of the machine: the devices that have a driver, and the devices without one, for the operator to see.

use crate::driver::{Bus, Class, Device, Id, Slot};
use crate::hal::{ConfigRegionAccess, Location, PciAddress, Platform};
use crate::pci::Function;
use crate::registry::driver_of;
use crate::virtio;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// A device without a driver, as it is shown to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// Where the device is.
    pub location: Location,
    /// PCI vendor and device ID, or virtio's vendor and the device type plus 0x1040.
    pub id: (u16, u16),
    /// PCI class as 0xCCSSPP; 0 for a device that is not on PCI.
    pub class: u32,
    /// The device is a part of the chipset: a function beside an ISA bridge.
    pub chipset: bool,
    /// Why its registers could not be read, if they are invalid.
    pub error: Option<virtio::Error>,
}

impl Unclaimed {
    /// Description of the device by its PCI class (PCI Code and ID Assignment 1.11) or its virtio type.
    pub fn what(&self) -> &'static str {
        if self.id.0 == virtio::VENDOR && self.class >> 16 != 6 {
            return match self.id.1 {
                0x1000 | 0x1041 => "virtio network device",
                0x1001 | 0x1042 => "virtio disk",
                0x1004 | 0x1048 => "virtio SCSI controller",
                0x1005 | 0x1044 => "virtio entropy source",
                0x1009 | 0x1049 => "virtio file system (9P)",
                0x1003 | 0x1043 => "virtio console",
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

    /// Whether an operator may miss the device: a disk or a network interface without a driver that is not a part of
    /// the chipset.
    pub fn is_missed(&self) -> bool {
        !self.chipset && (matches!(self.class >> 16, 1 | 2) || self.class >> 8 == 0x0c06)
    }
}

/// The devices of this machine.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Devices that have a driver, in the order of their addresses.
    devices: Vec<Device>,
    /// Devices without a driver.
    pub unclaimed: Vec<Unclaimed>,
}

impl Inventory {
    /// Takes the devices of one class out, in the order of their addresses.
    pub fn take(&mut self, class: Class) -> Vec<Device> {
        self.devices.extract_if(.., |device| device.class() == class).collect()
    }

    /// Whether there are devices of this class.
    pub fn has(&self, class: Class) -> bool {
        self.devices.iter().any(|device| device.class() == class)
    }

    /// Scans all functions of PCI segment 0 that are on its bus 0, or behind bridges there.
    pub fn scan_pci(&mut self, access: &'static (dyn ConfigRegionAccess + Sync)) {
        self.scan_segment(0, 0..=0, access);
    }

    /// Scans all functions of a segment that are on the buses `roots`, or behind bridges there.
    pub fn scan_segment(
        &mut self,
        segment: u16,
        roots: RangeInclusive<u8>,
        access: &'static (dyn ConfigRegionAccess + Sync),
    ) {
        const ISA_BRIDGE: u32 = 0x0601;
        let functions = crate::pci::scan(segment, roots, access);
        let slot = |address: PciAddress| (address.bus(), address.device());
        let bridges = functions.iter().filter(|one| one.class() >> 8 == ISA_BRIDGE);
        let chipset: Vec<(u8, u8)> = bridges.map(|bridge| slot(bridge.address())).collect();
        for function in functions {
            if let Some(device) = device(function) {
                self.devices.push(device);
                continue;
            }
            let chipset = chipset.contains(&slot(function.address()));
            self.unclaimed.push(Unclaimed {
                location: Location::pci(function.address()),
                id: (function.vendor(), function.device()),
                class: function.class(),
                chipset,
                error: None,
            });
        }
    }

    /// Scans slots of virtio's memory-mapped registers, such as microvm's.
    pub fn scan_virtio_mmio(&mut self, slots: &[Slot], platform: &mut dyn Platform) {
        for &slot in slots {
            let (device_type, error) = match virtio::mmio_device_type(slot, platform) {
                Ok(None) => continue,
                Ok(Some(device_type)) => match driver_of(&[Id::Virtio(device_type)]) {
                    Some(driver) => {
                        self.devices.push(Device::new(Bus::VirtioMmio(slot), driver));
                        continue;
                    }
                    None => (device_type as u16, None),
                },
                Err(error) => (0, Some(error)),
            };
            let location = Location::mmio(slot.address);
            let id = (virtio::VENDOR, 0x1040u16.wrapping_add(device_type));
            self.unclaimed.push(Unclaimed { location, id, class: 0, chipset: false, error });
        }
    }
}

/// The PCI function as a device, if it has a driver.
pub fn device(function: Function<'static>) -> Option<Device> {
    driver_of(&ids(&function)).map(|driver| Device::new(Bus::Pci(function), driver))
}

/// The IDs of a function, the most exact first.
fn ids(function: &Function<'_>) -> Vec<Id> {
    let virtio = virtio::pci_device_type(function).map(Id::Virtio);
    let exact = Id::Pci(function.vendor(), function.device());
    virtio.into_iter().chain([exact, Id::PciClass(function.class())]).collect()
}
