//! The queue of received doorbells.

use super::Error;
use super::registers::{Tsi721Registers, doorbells, queue_size};
use crate::hal::{Arena, Cells, Window};
use crate::rapidio::Doorbell;
use core::sync::atomic::AtomicU64;

/// Entries of the queue: the device's minimum.
const ENTRIES: usize = 512;
const ENTRY: usize = 64;
const WORDS: usize = ENTRY / 8;
/// Value of an entry that the device has not written: no doorbell is from id 0xffff.
const EMPTY: u64 = u64::MAX;
/// Doorbells taken between two updates of the read index, while more are being taken.
const BATCH: usize = 64;

/// The queue.
pub struct DoorbellQueue {
    memory: Window,
    /// The words of `memory`.
    words: Cells<AtomicU64>,
    read: usize,
    /// Doorbells taken since the device was last notified.
    unreported: usize,
    /// The status bit of a received doorbell may be set.
    is_raised: bool,
}

impl DoorbellQueue {
    /// Allocates and starts the queue.
    pub fn new(arena: &mut Arena, registers: &Tsi721Registers) -> Result<Self, Error> {
        let bytes = ENTRIES * ENTRY;
        let memory = arena.alloc(bytes, 64).ok_or(Error::NoMemory { bytes })?;
        let words = Cells::new(&memory, 0, bytes / 8).ok_or(Error::NoMemory { bytes })?;
        let mut queue = DoorbellQueue { memory, words, read: 0, unreported: 0, is_raised: false };
        queue.start(registers);
        Ok(queue)
    }

    /// Starts the queue, empty.
    pub fn start(&mut self, registers: &Tsi721Registers) {
        self.memory.fill(0xff);
        (self.read, self.unreported) = (0, 0);
        registers.write(doorbells::SIZE, queue_size(ENTRIES));
        let base = doorbells::BASE;
        registers.write_address(base, base + 4, self.memory.bus_address());
        // Doorbells to all ids.
        registers.write(doorbells::MASK, 0);
        registers.write(doorbells::INTERRUPT, doorbells::ALL);
        registers.write(doorbells::ENABLE, doorbells::RECEIVED);
        registers.write(doorbells::CONTROL, 1);
        registers.read(doorbells::CONTROL);
        registers.write(doorbells::READ, 0);
    }

    /// Whether a doorbell waits.
    pub fn pending(&self) -> bool {
        self.words.load(self.read * WORDS) != EMPTY
    }

    /// The next doorbell.
    pub fn take(&mut self, registers: &Tsi721Registers) -> Option<Doorbell> {
        let at = self.read * WORDS;
        let entry = self.words.load(at);
        if entry == EMPTY {
            return None;
        }
        self.words.store(at, EMPTY);
        self.read = (self.read + 1) % ENTRIES;
        self.unreported += 1;
        self.is_raised = true;
        if self.unreported >= BATCH {
            self.notify(registers);
        }
        let [a, b, c, d, e, f, ..] = entry.to_le_bytes();
        Some(Doorbell {
            info: u16::from_be_bytes([a, b]),
            from: u16::from_be_bytes([c, d]),
            to: u16::from_be_bytes([e, f]),
        })
    }

    /// Whether an outbound doorbell has timed out or was refused since the last call.
    pub fn outbound_failed(&mut self, registers: &Tsi721Registers) -> bool {
        // Clears the receive bit with the next arming, in case it is set without a doorbell.
        self.is_raised = true;
        let status = registers.read(doorbells::INTERRUPT);
        let failed = status != u32::MAX && status & doorbells::OUTBOUND_ERRORS != 0;
        if failed {
            registers.write(doorbells::INTERRUPT, doorbells::OUTBOUND_ERRORS);
        }
        failed
    }

    /// Notifies the device of doorbells that were taken.
    pub fn notify(&mut self, registers: &Tsi721Registers) {
        if core::mem::take(&mut self.unreported) > 0 {
            registers.write(doorbells::READ, self.read as u32);
        }
    }

    /// Enables the interrupt for the next doorbell; true if that took a register write. Check
    /// [`DoorbellQueue::pending`] after the write has arrived.
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        let was_raised = core::mem::take(&mut self.is_raised);
        if was_raised {
            registers.write(doorbells::INTERRUPT, doorbells::RECEIVED);
        }
        was_raised
    }
}
