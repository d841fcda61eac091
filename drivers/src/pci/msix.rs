//! MSI-X (PCI 3.0, 6.8.2): interrupts as messages, from a table in one of the function's BARs.

use super::{Bars, Function};
use crate::hal::{Interrupt, Platform, Registers};
use alloc::boxed::Box;

const ID: u8 = 0x11;
const ENABLE: u32 = 1 << 31;
const MASK_ALL: u32 = 1 << 30;
const ENTRY: usize = 16;

/// The MSI-X table of a function.
pub struct Msix {
    table: Box<dyn Registers>,
}

impl Msix {
    /// Maps the table, which lies in one of `bars`, and enables MSI-X with every entry masked. None if the function has
    /// no MSI-X, or its table does not lie in a BAR.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Option<Msix> {
        let msix = Msix::find(function, bars, platform)?;
        for entry in 0..usize::from(msix.entries()) {
            msix.table.write32(entry * ENTRY + 12, 1);
        }
        let capability = function.capabilities().find(|c| c.id == ID)?;
        let control = function.read32(capability.offset);
        function.write32(capability.offset, (control | ENABLE) & !MASK_ALL);
        Some(msix)
    }

    /// Maps the table of a function whose MSI-X is already open, for a user of other entries.
    pub fn find(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Option<Msix> {
        let capability = function.capabilities().find(|c| c.id == ID)?;
        let entries = usize::from(capability.extra & 0x7ff) + 1;
        let place = function.read32(capability.offset + 4);
        let bar = bars.get((place & 7) as u8)?;
        let len = entries * ENTRY;
        let address = bar.range(u64::from(place & !7), len as u64)?;
        Some(Msix { table: platform.map_registers(address, len)? })
    }

    /// Maps only entry `index` of a table that is already open, for a user on another core. It is entry 0 of the
    /// result.
    pub fn one_entry(
        function: &Function<'_>,
        bars: &Bars,
        platform: &mut dyn Platform,
        index: u16,
    ) -> Option<Msix> {
        let capability = function.capabilities().find(|c| c.id == ID)?;
        if index > capability.extra & 0x7ff {
            return None;
        }
        let place = function.read32(capability.offset + 4);
        let bar = bars.get((place & 7) as u8)?;
        let offset = u64::from(place & !7) + u64::from(index) * ENTRY as u64;
        let table = platform.map_registers(bar.range(offset, ENTRY as u64)?, ENTRY)?;
        Some(Msix { table })
    }

    /// Number of mapped entries.
    pub fn entries(&self) -> u16 {
        (self.table.len() / ENTRY) as u16
    }

    /// Masks or unmasks entry `index`. A message that was pending while masked is sent when it is unmasked.
    pub fn set_masked(&mut self, index: u16, masked: bool) {
        self.table.write32(usize::from(index) * ENTRY + 12, masked.into());
    }

    /// Routes entry `index` to `interrupt`, and unmasks it. False if there is no such entry.
    pub fn route(&mut self, index: u16, interrupt: &Interrupt) -> bool {
        let at = usize::from(index) * ENTRY;
        if at + ENTRY > self.table.len() {
            return false;
        }
        // Masked, so that the function does not send a half-written message.
        self.table.write32(at + 12, 1);
        self.table.write32(at, interrupt.address() as u32);
        self.table.write32(at + 4, (interrupt.address() >> 32) as u32);
        self.table.write32(at + 8, interrupt.data());
        self.table.write32(at + 12, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::{Arena, PciAddress, Window};
    use core::ptr::NonNull;
    use core::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};
    use std::vec::Vec;

    const ENTRIES: usize = 3;
    static RAISED: AtomicU64 = AtomicU64::new(0);

    /// The words of the table.
    #[derive(Clone)]
    struct Table(Arc<Mutex<Vec<u32>>>);

    impl Registers for Table {
        fn len(&self) -> usize {
            ENTRIES * ENTRY
        }
        fn read8(&self, _: usize) -> u8 {
            unreachable!()
        }
        fn read16(&self, _: usize) -> u16 {
            unreachable!()
        }
        fn read32(&self, offset: usize) -> u32 {
            self.0.lock().unwrap()[offset / 4]
        }
        fn read64(&self, _: usize) -> u64 {
            unreachable!()
        }
        fn write8(&self, _: usize, _: u8) {
            unreachable!()
        }
        fn write16(&self, _: usize, _: u16) {
            unreachable!()
        }
        fn write32(&self, offset: usize, value: u32) {
            let mut words = self.0.lock().unwrap();
            let unmasked = words[offset / 16 * 4 + 3] & 1 == 0;
            assert!(offset % 16 == 12 || !unmasked, "a message was changed that may be sent");
            words[offset / 4] = value;
        }
        fn write64(&self, _: usize, _: u64) {
            unreachable!()
        }
    }

    /// A machine with that table and nothing else.
    struct Machine(Table, Arena);

    // SAFETY: nothing is given to any device.
    unsafe impl Platform for Machine {
        fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
            let table = (address, len) == (0xfe80_2000, ENTRIES * ENTRY);
            table.then(|| Box::new(self.0.clone()) as Box<dyn Registers>)
        }
        fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
            None
        }
        fn allocate_interrupt(&mut self) -> Option<Interrupt> {
            None
        }
        fn arena(&mut self) -> &mut Arena {
            &mut self.1
        }
    }

    /// Firmware or an earlier system has left vectors unmasked, with stale messages, or the whole function masked.
    #[test]
    fn only_routed_entries_are_unmasked_whatever_firmware_left() {
        for (control, mask) in [(ENABLE | MASK_ALL, 1), (MASK_ALL, 0), (ENABLE, 0), (0, 1)] {
            let mut spaces = ConfigSpaces::default();
            let address = PciAddress::new(0, 0, 1, 0);
            let space = spaces.function(address, 0x8086, 0x10d3);
            space.set8(6, 0x10);
            space.set8(0x34, 0x40);
            space.set32(0x10, 0xfe80_0000);
            space.bar(0, 0xffff_8000);
            space.set32(0x40, control | (ENTRIES as u32 - 1) << 16 | u32::from(ID));
            space.set32(0x44, 0x2000);
            let function = Function::new(address, &spaces).unwrap();
            let words = [0xdead_0000, 0, 0xbeef, mask].repeat(ENTRIES);
            let table = Table(Arc::new(Mutex::new(words)));
            // SAFETY: no window of it is ever handed out.
            let memory = unsafe { Window::from_raw(NonNull::dangling(), 0, 0) };
            let mut machine = Machine(table.clone(), Arena::new(memory));
            let mut msix = Msix::open(&function, &function.bars(), &mut machine).unwrap();
            let masks = || {
                let words = table.0.lock().unwrap();
                [3, 7, 11].map(|at| words[at] & 1)
            };
            assert_eq!((msix.entries(), masks()), (ENTRIES as u16, [1; ENTRIES]));
            assert_eq!(function.read32(0x40) & (ENABLE | MASK_ALL), ENABLE);
            // SAFETY: no device writes there.
            let interrupt = unsafe { Interrupt::new(0xfee0_1000, 0x41, &RAISED) };
            assert!(msix.route(1, &interrupt) && !msix.route(3, &interrupt));
            assert_eq!(masks(), [1, 0, 1]);
            assert_eq!(table.0.lock().unwrap()[4..8], [0xfee0_1000, 0, 0x41, 0]);
            msix.set_masked(1, true);
            assert_eq!(masks(), [1, 1, 1]);
            msix.set_masked(1, false);
            assert_eq!(masks(), [1, 0, 1]);
            // Routed again, as to another core, while the entry is unmasked.
            assert!(msix.route(1, &interrupt));
        }
    }
}
