//! The registers of a model: virtio-pci's structures in a BAR, its MSI-X table, and virtio-mmio.

use super::{Model, State};
use crate::hal::Registers;
use std::sync::atomic::AtomicU64;

/// Registers that take accesses of every width the same way.
pub trait AnyWidth: Send {
    fn len(&self) -> usize;
    fn read(&self, offset: usize, size: usize) -> u64;
    fn write(&self, offset: usize, size: usize, value: u64);
}

impl<T: AnyWidth> Registers for T {
    fn len(&self) -> usize {
        AnyWidth::len(self)
    }
    fn read8(&self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }
    fn read16(&self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }
    fn read32(&self, offset: usize) -> u32 {
        self.read(offset, 4) as u32
    }
    fn read64(&self, offset: usize) -> u64 {
        self.read(offset, 8)
    }
    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, 1, value.into());
    }
    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, 2, value.into());
    }
    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, 4, value.into());
    }
    fn write64(&self, offset: usize, value: u64) {
        self.write(offset, 8, value);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    Registers,
    Msix,
    Mmio(u32),
}

/// A range of bus addresses with a model's registers.
pub struct Mapped {
    address: u64,
    len: usize,
    /// Offset of this part in the whole range.
    start: usize,
    model: Model,
    bar: Bar,
}

impl Mapped {
    pub fn new(address: u64, len: usize, model: Model, bar: Bar) -> Mapped {
        Mapped { address, len, start: 0, model, bar }
    }

    pub fn part(&self, address: u64, len: usize) -> Option<Mapped> {
        let start = address.checked_sub(self.address)? as usize;
        let inside = start + len <= self.len;
        inside.then(|| Mapped { address, len, start, model: self.model.clone(), bar: self.bar })
    }
}

impl AnyWidth for Mapped {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, size: usize) -> u64 {
        if offset.checked_add(size).is_none_or(|end| end > self.len) {
            return u64::MAX;
        }
        let at = self.start + offset;
        let mut state = self.model.state();
        match self.bar {
            Bar::Registers => state.read_pci(at, size),
            Bar::Msix => 0,
            Bar::Mmio(version) => state.read_mmio(at, size, version),
        }
    }

    fn write(&self, offset: usize, size: usize, value: u64) {
        if offset.checked_add(size).is_none_or(|end| end > self.len) {
            return;
        }
        let at = self.start + offset;
        let mut state = self.model.state();
        match self.bar {
            Bar::Registers => state.write_pci(at, size, value),
            Bar::Msix => state.write_msix(at, value),
            Bar::Mmio(version) => state.write_mmio(at, value, version),
        }
    }
}

fn set_low(value: &mut u64, low: u64) {
    *value = *value & !0xffff_ffff | low;
}

fn set_high(value: &mut u64, high: u64) {
    *value = *value & 0xffff_ffff | high << 32;
}

impl State {
    fn set_status(&mut self, status: u8) {
        if status == 0 {
            if self.resets {
                self.status = 0;
                self.accepted = 0;
                self.queues.iter_mut().for_each(|queue| queue.reset());
            }
        } else if status & 8 != 0 && !self.agreeable {
            self.status = status & !8;
        } else {
            self.status = status;
        }
    }

    fn offered_half(&self) -> u64 {
        if self.feature_select == 0 { self.offered & 0xffff_ffff } else { self.offered >> 32 }
    }

    fn accept_half(&mut self, value: u64) {
        let half = self.feature_select;
        if half == 0 {
            set_low(&mut self.accepted, value)
        } else {
            set_high(&mut self.accepted, value)
        }
    }

    fn read_config(&self, offset: usize, size: usize) -> u64 {
        let byte = |i: usize| u64::from(self.config.get(offset + i).copied().unwrap_or(0));
        (0..size).fold(0, |value, i| value | byte(i) << (8 * i))
    }

    fn notified(&mut self, value: u64) {
        assert!(self.live(), "notified before the driver is ready");
        assert!((value as usize) < self.queues.len(), "notified of a queue that is not there");
        self.kicks += 1;
    }

    fn read_pci(&mut self, at: usize, size: usize) -> u64 {
        let queue = self.queues.get(usize::from(self.queue_select));
        match (at, size) {
            (0x04, 4) => self.offered_half(),
            (0x14, 1) => self.status.into(),
            (0x15, 1) => self.generation.into(),
            (0x18, 2) => queue.map_or(0, |q| q.size.into()),
            (0x1a, 2) => queue.map_or(0xffff, |q| q.vector.into()),
            (0x1e, 2) => self.queue_select.into(),
            (0x2000..0x2100, _) => self.read_config(at - 0x2000, size),
            _ => panic!("driver reads {size} bytes of register {at:#x}"),
        }
    }

    fn write_pci(&mut self, at: usize, size: usize, value: u64) {
        if let (0x3000.., 2) = (at, size) {
            assert_eq!((at - 0x3000) as u64, value * 4, "doorbell of another queue");
            return self.notified(value);
        }
        if let (0x16, 2) = (at, size) {
            self.queue_select = value as u16;
            return;
        }
        let selected = usize::from(self.queue_select);
        let queue = self.queues.get_mut(selected);
        match (at, size, queue) {
            (0x00 | 0x08, 4, _) => self.feature_select = value as u32,
            (0x0c, 4, _) => self.accept_half(value),
            (0x10, 2, _) => self.msix_vector = value as u16,
            (0x14, 1, _) => self.set_status(value as u8),
            (0x18, 2, Some(queue)) => queue.size = value as u16,
            (0x1a, 2, Some(queue)) => queue.vector = value as u16,
            (0x1c, 2, Some(queue)) => queue.enabled = value == 1,
            (0x20, 4, Some(queue)) => set_low(&mut queue.table, value),
            (0x24, 4, Some(queue)) => set_high(&mut queue.table, value),
            (0x28, 4, Some(queue)) => set_low(&mut queue.available, value),
            (0x2c, 4, Some(queue)) => set_high(&mut queue.available, value),
            (0x30, 4, Some(queue)) => set_low(&mut queue.used, value),
            (0x34, 4, Some(queue)) => set_high(&mut queue.used, value),
            _ => panic!("driver writes {size} bytes of register {at:#x}"),
        }
    }

    /// The model's messages increment the counter at the message's address.
    fn write_msix(&mut self, at: usize, value: u64) {
        match at {
            0 => self.feature_select = value as u32,
            4 => {
                let address = value << 32 | u64::from(self.feature_select);
                let counter = core::ptr::with_exposed_provenance::<AtomicU64>(address as usize);
                // SAFETY: the test machine allocates messages whose address is that of a leaked counter.
                self.raised = Some(unsafe { &*counter });
            }
            _ => {}
        }
    }

    fn read_mmio(&mut self, at: usize, size: usize, version: u32) -> u64 {
        let queue = self.queues.get(usize::from(self.queue_select));
        match at {
            0x000 => 0x7472_6976,
            0x004 => version.into(),
            0x008 => self.device_type.into(),
            0x010 => self.offered_half(),
            0x034 => queue.map_or(0, |q| q.max.into()),
            0x060 => self.line.into(),
            0x070 => self.status.into(),
            0x0fc if version == 2 => self.generation.into(),
            0x100.. => self.read_config(at - 0x100, size),
            _ => panic!("driver reads register {at:#x}"),
        }
    }

    fn write_mmio(&mut self, at: usize, value: u64, version: u32) {
        let selected = usize::from(self.queue_select);
        let queue = self.queues.get_mut(selected);
        match (at, version, queue) {
            (0x014 | 0x024, _, _) => self.feature_select = value as u32,
            (0x020, _, _) => self.accept_half(value),
            (0x028, 1, _) => assert_eq!(value, 4096),
            (0x030, _, _) => self.queue_select = value as u16,
            (0x038, _, Some(queue)) => queue.size = value as u16,
            (0x03c, 1, _) => assert_eq!(value, 4096),
            (0x040, 1, Some(queue)) => {
                let entries = u64::from(queue.size);
                queue.table = value * 4096;
                queue.available = queue.table + entries * 16;
                queue.used = (queue.available + 6 + entries * 2).next_multiple_of(4096);
                queue.enabled = true;
            }
            (0x044, 2, Some(queue)) => queue.enabled = value == 1,
            (0x050, _, _) => self.notified(value),
            (0x064, _, _) => self.line = false,
            (0x070, _, _) => self.set_status(value as u8),
            (0x080, 2, Some(queue)) => set_low(&mut queue.table, value),
            (0x084, 2, Some(queue)) => set_high(&mut queue.table, value),
            (0x090, 2, Some(queue)) => set_low(&mut queue.available, value),
            (0x094, 2, Some(queue)) => set_high(&mut queue.available, value),
            (0x0a0, 2, Some(queue)) => set_low(&mut queue.used, value),
            (0x0a4, 2, Some(queue)) => set_high(&mut queue.used, value),
            _ => panic!("driver writes register {at:#x}"),
        }
    }
}
