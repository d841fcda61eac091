//! Configuration spaces of simulated functions, for tests.

use crate::hal::{ConfigRegionAccess, PciAddress};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The 256 bytes of one function, and masks of the writable bits of its BARs.
pub struct ConfigSpace {
    bytes: [u8; 256],
    bars: [u32; 6],
}

impl ConfigSpace {
    pub fn set8(&mut self, offset: usize, value: u8) {
        self.bytes[offset] = value;
    }

    pub fn set32(&mut self, offset: u16, value: u32) {
        if let Some(bytes) = self.bytes.get_mut(usize::from(offset)..usize::from(offset) + 4) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Sets the value that BAR `index` reads after a write of all ones.
    pub fn bar(&mut self, index: usize, mask: u32) {
        self.bars[index] = mask;
    }

    fn get32(&self, offset: u16) -> u32 {
        let bytes = self.bytes.get(usize::from(offset)..usize::from(offset) + 4);
        bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
    }
}

/// The configuration spaces of a machine.
#[derive(Default)]
pub struct ConfigSpaces(pub BTreeMap<PciAddress, Mutex<ConfigSpace>>);

impl ConfigSpaces {
    /// Adds a function.
    pub fn function(&mut self, address: PciAddress, vendor: u16, device: u16) -> &mut ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; 256], bars: [0; 6] };
        space.set32(0, u32::from(device) << 16 | u32::from(vendor));
        self.0.insert(address, Mutex::new(space));
        self.0.get_mut(&address).unwrap().get_mut().unwrap()
    }
}

impl ConfigRegionAccess for ConfigSpaces {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        self.0.get(&address).map_or(u32::MAX, |space| space.lock().unwrap().get32(offset))
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let Some(space) = self.0.get(&address) else { return };
        let mut space = space.lock().unwrap();
        if offset == 4 {
            // Ones that are written to the status half clear bits. The driver writes none.
            let value = space.get32(4) & 0xffff_0000 | value & 0xffff;
            return space.set32(4, value);
        }
        let decodes = space.get32(4) & 2 != 0;
        assert!(!(decodes && (0x10..0x28).contains(&offset)), "an address of decoded memory moves");
        let bar = usize::from(offset.wrapping_sub(0x10) / 4);
        match space.bars.get(bar) {
            Some(&mask) if value == u32::MAX => space.set32(offset, mask),
            _ => space.set32(offset, value),
        }
    }
}
