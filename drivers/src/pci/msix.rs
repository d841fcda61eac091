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
    /// Maps the table, which lies in one of `bars`, and switches MSI-X on, with every entry masked. None if the function has no
    /// MSI-X, or a table that does not lie in a BAR.
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

    /// The table, for who has other entries of it than who has opened it.
    pub fn find(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Option<Msix> {
        let capability = function.capabilities().find(|c| c.id == ID)?;
        let entries = usize::from(capability.extra & 0x7ff) + 1;
        let place = function.read32(capability.offset + 4);
        let bar = bars.get((place & 7) as u8)?;
        let len = entries * ENTRY;
        let address = bar.range(u64::from(place & !7), len as u64)?;
        Some(Msix { table: platform.map_registers(address, len)? })
    }

    /// Entry `index` alone of a table that was opened already, as the only one: for who has it on another core.
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

    /// Entries of the table.
    pub fn entries(&self) -> u16 {
        (self.table.len() / ENTRY) as u16
    }

    /// Keeps entry `index` from sending its message, or lets it: what it was to send meanwhile it sends then.
    pub fn set_masked(&mut self, index: u16, masked: bool) {
        self.table.write32(usize::from(index) * ENTRY + 12, masked.into());
    }

    /// Sends entry `index` to `interrupt`. False if there is no such entry.
    pub fn route(&mut self, index: u16, interrupt: &Interrupt) -> bool {
        let at = usize::from(index) * ENTRY;
        if at + ENTRY > self.table.len() {
            return false;
        }
        // A message in parts must not be sent while the entry is changed.
        self.table.write32(at + 12, 1);
        self.table.write32(at, interrupt.address() as u32);
        self.table.write32(at + 4, (interrupt.address() >> 32) as u32);
        self.table.write32(at + 8, interrupt.data());
        self.table.write32(at + 12, 0);
        true
    }
}
