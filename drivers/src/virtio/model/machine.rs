//! A machine for tests: memory, PCI configuration spaces, register ranges, interrupts.

use super::Model;
use super::register_models::{Bar, Mapped};
use crate::driver::Slot;
use crate::hal::{Arena, Clock, Instant, Interrupt, PciAddress, Platform, Registers, Window};
use crate::inventory::Inventory;
use crate::pci::model::ConfigSpaces;
use alloc::boxed::Box;
use core::ptr::NonNull;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

/// Bus address of the memory, different from its virtual address.
const MEMORY: u64 = 0x10_0000;

pub struct Machine {
    arena: Arena,
    memory: Window,
    pub spaces: ConfigSpaces,
    /// Configuration spaces that were scanned before.
    known: Vec<&'static ConfigSpaces>,
    mapped: Vec<Mapped>,
    pub slots: Vec<Slot>,
    /// Interrupts that are left.
    pub interrupts: u32,
    time: Cell<u64>,
}

impl Machine {
    pub fn new(memory: usize) -> Machine {
        let start = NonNull::from(std::vec![0u64; memory / 8].leak()).cast();
        // SAFETY: leaked, so mapped for ever, and the only reference was just given up.
        let memory = unsafe { Window::from_raw(start, MEMORY, memory) };
        Machine {
            arena: Arena::new(memory),
            memory,
            spaces: ConfigSpaces::default(),
            known: Vec::new(),
            mapped: Vec::new(),
            slots: Vec::new(),
            interrupts: 8,
            time: Cell::new(0),
        }
    }

    /// All of the memory that devices can reach.
    pub fn memory(&self) -> Window {
        self.memory
    }

    /// Puts a device on PCI, with its registers in BAR 4 and its MSI-X table in BAR 1.
    pub fn plug_pci(&mut self, device: u8, model: &Model) -> PciAddress {
        let address = PciAddress::new(0, 0, device, 0);
        let id = 0x1040 + model.state().device_type as u16;
        let space = self.spaces.function(address, 0x1af4, id);
        let base = 0xfe00_0000 + u32::from(device) * 0x1_0000;
        space.set8(6, 0x10);
        space.set32(0x14, base + 0x8000);
        space.bar(1, 0xffff_f000);
        space.set32(0x20, base | 4);
        space.bar(4, 0xffff_c00c);
        space.bar(5, 0xffff_ffff);
        space.set8(0x34, 0x40);
        // vendor capability: id, next, length, kind; bar; offset; length; multiplier
        for (i, (kind, offset, len)) in
            [(1u32, 0u32, 0x38u32), (3, 0x1000, 1), (4, 0x2000, 0x100), (2, 0x3000, 0x1000)]
                .into_iter()
                .enumerate()
        {
            let at = 0x40 + i as u16 * 0x14;
            space.set32(at, kind << 24 | 0x14 << 16 | u32::from(at + 0x14) << 8 | 9);
            space.set32(at + 4, 4);
            space.set32(at + 8, offset);
            space.set32(at + 12, len);
            space.set32(at + 16, 4);
        }
        space.set32(0x90, 0x0002_0011);
        space.set32(0x94, 1);
        self.mapped.push(Mapped::new(base.into(), 0x4000, model.clone(), Bar::Registers));
        self.mapped.push(Mapped::new(u64::from(base) + 0x8000, 0x1000, model.clone(), Bar::Msix));
        address
    }

    /// Puts a device behind memory-mapped registers of `version` 1 or 2.
    pub fn plug_mmio(&mut self, model: &Model, version: u32) {
        let address = 0xfeb0_0000 + self.slots.len() as u64 * 0x200;
        self.slots.push(Slot { address, wakes: true });
        self.mapped.push(Mapped::new(address, 0x200, model.clone(), Bar::Mmio(version)));
    }

    /// Scans for the devices that were plugged.
    pub fn find(&mut self) -> Inventory {
        let mut inventory = Inventory::default();
        self.known.push(Box::leak(Box::new(core::mem::take(&mut self.spaces))));
        self.known.iter().for_each(|spaces| inventory.scan_pci(*spaces));
        let slots = self.slots.clone();
        inventory.scan_virtio_mmio(&slots, self);
        inventory
    }
}

// SAFETY: the devices are models; tests of hostile models hold no reference to the memory that those write.
unsafe impl Platform for Machine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        let mapped = self.mapped.iter().find_map(|m| m.part(address, len))?;
        Some(Box::new(mapped))
    }

    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        self.interrupts = self.interrupts.checked_sub(1)?;
        let raised = Box::leak(Box::new(AtomicU64::new(0)));
        let address = core::ptr::from_ref(raised) as u64;
        // SAFETY: the model counts there, and writes nothing.
        Some(unsafe { Interrupt::new(address, 0x55, raised) })
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

/// A clock that advances by a millisecond at each reading.
impl Clock for Machine {
    fn now(&self) -> Instant {
        self.time.set(self.time.get() + 1_000_000);
        Instant::from_nanos(self.time.get())
    }
}

/// The host's clock, for tests with a device on another thread.
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Instant {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        Instant::from_nanos(since.as_nanos() as u64)
    }
}
