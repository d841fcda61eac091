//! Device side of a split virtqueue.

use crate::hal::Window;
use std::vec::Vec;

/// A chain of descriptors as the driver offered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub head: u16,
    /// Memory for the device to read, in order: bus address and length.
    pub readable: Vec<(u64, u32)>,
    /// Memory for the device to write, in order: bus address and length.
    pub writable: Vec<(u64, u32)>,
}

pub struct Queue {
    /// Most entries.
    pub max: u16,
    pub size: u16,
    pub enabled: bool,
    pub table: u64,
    pub available: u64,
    pub used: u64,
    pub vector: u16,
    /// Chains taken so far, and completed so far.
    popped: u16,
    pushed: u16,
}

impl Queue {
    pub fn new(max: u16) -> Queue {
        Queue {
            max,
            size: max,
            enabled: false,
            table: 0,
            available: 0,
            used: 0,
            vector: 0xffff,
            popped: 0,
            pushed: 0,
        }
    }

    pub fn reset(&mut self) {
        *self = Queue::new(self.max);
    }

    pub fn pop(&mut self, memory: &Window, event_index: bool) -> Option<Chain> {
        if !self.enabled {
            return None;
        }
        let at = |address: u64| (address - memory.bus_address()) as usize;
        let size = usize::from(self.size);
        let index = memory.load16(at(self.available) + 2);
        assert!(index.wrapping_sub(self.popped) <= self.size, "driver offers more than there is");
        if event_index {
            // Requests a notification of the next chain.
            memory.store16(at(self.used) + 4 + size * 8, index);
        }
        if index == self.popped {
            return None;
        }
        let head = memory.load16(at(self.available) + 4 + usize::from(self.popped) % size * 2);
        self.popped = self.popped.wrapping_add(1);
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let mut descriptor = head;
        for _ in 0..size {
            assert!(descriptor < self.size, "driver names a descriptor outside of the table");
            let entry = at(self.table) + usize::from(descriptor) * 16;
            let address =
                u64::from(memory.load32(entry + 4)) << 32 | u64::from(memory.load32(entry));
            let len = memory.load32(entry + 8);
            let (flags, next) = (memory.load16(entry + 12), memory.load16(entry + 14));
            assert!(len > 0, "driver offers an empty descriptor");
            if flags & 2 != 0 {
                chain.writable.push((address, len));
            } else {
                assert!(chain.writable.is_empty(), "readable part after a writable one");
                chain.readable.push((address, len));
            }
            if flags & 1 == 0 {
                return Some(chain);
            }
            descriptor = next;
        }
        panic!("driver offers a chain without an end");
    }

    /// Completes a chain. True if the driver requests an interrupt.
    pub fn push(&mut self, memory: &Window, id: u32, written: u32, event_index: bool) -> bool {
        let at = |address: u64| (address - memory.bus_address()) as usize;
        let old = self.pushed;
        self.lie(memory, id, written, 1);
        if event_index {
            let event = memory.load16(at(self.available) + 4 + usize::from(self.size) * 2);
            self.pushed.wrapping_sub(event).wrapping_sub(1) < self.pushed.wrapping_sub(old)
        } else {
            memory.load16(at(self.available)) & 1 == 0
        }
    }

    pub fn lie(&mut self, memory: &Window, id: u32, written: u32, step: u16) {
        let at = |address: u64| (address - memory.bus_address()) as usize;
        let entry = at(self.used) + 4 + usize::from(self.pushed % self.size) * 8;
        memory.store32(entry, id);
        memory.store32(entry + 4, written);
        self.pushed = self.pushed.wrapping_add(step);
        memory.store16(at(self.used) + 2, self.pushed);
    }
}
