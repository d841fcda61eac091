//! The queue of doorbells that were rung here.

use super::Error;
use super::registers::{Tsi721Registers, doorbells, queue_size};
use crate::hal::{Arena, Cells, Window};
use crate::rapidio::Doorbell;
use core::sync::atomic::AtomicU64;

/// Entries of the queue: the fewest that the device has.
const ENTRIES: usize = 512;
const ENTRY: usize = 64;
const WORDS: usize = ENTRY / 8;
/// What stands in an entry that the device has not written: no doorbell is from id 0xffff.
const EMPTY: u64 = u64::MAX;
/// Doorbells that are taken before the device is told, while more are being taken.
const BATCH: usize = 64;

/// The queue.
pub struct DoorbellQueue {
    memory: Window,
    /// The same, word by word.
    words: Cells<AtomicU64>,
    read: usize,
    untold: usize,
    /// The bit of a received doorbell may stand.
    is_raised: bool,
}

impl DoorbellQueue {
    /// Sets it up and starts it.
    pub fn new(arena: &mut Arena, registers: &Tsi721Registers) -> Result<Self, Error> {
        let bytes = ENTRIES * ENTRY;
        let memory = arena.alloc(bytes, 64).ok_or(Error::NoMemory { bytes })?;
        let words = Cells::new(&memory, 0, bytes / 8).ok_or(Error::NoMemory { bytes })?;
        let mut queue = DoorbellQueue { memory, words, read: 0, untold: 0, is_raised: false };
        queue.start(registers);
        Ok(queue)
    }

    fn start(&mut self, registers: &Tsi721Registers) {
        self.memory.fill(0xff);
        (self.read, self.untold) = (0, 0);
        registers.write(doorbells::SIZE, queue_size(ENTRIES));
        let base = doorbells::BASE;
        registers.write_address(base, base + 4, self.memory.bus_address());
        // Of all ids.
        registers.write(doorbells::MASK, 0);
        registers.write(doorbells::INTERRUPT, doorbells::ALL);
        registers.write(doorbells::ENABLE, doorbells::RECEIVED);
        registers.write(doorbells::CONTROL, 1);
        registers.read(doorbells::CONTROL);
        registers.write(doorbells::READ, 0);
    }

    /// Whether there is a doorbell.
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
        self.untold += 1;
        self.is_raised = true;
        if self.untold >= BATCH {
            self.tell(registers);
        }
        let [a, b, c, d, e, f, ..] = entry.to_le_bytes();
        Some(Doorbell {
            info: u16::from_be_bytes([a, b]),
            from: u16::from_be_bytes([c, d]),
            to: u16::from_be_bytes([e, f]),
        })
    }

    /// Whether an outbound doorbell timed out, or was refused, since this was asked.
    pub fn outbound_failed(&mut self, registers: &Tsi721Registers) -> bool {
        // Should the other bit stand for nothing.
        self.is_raised = true;
        let status = registers.read(doorbells::INTERRUPT);
        let failed = status != u32::MAX && status & doorbells::OUTBOUND_ERRORS != 0;
        if failed {
            registers.write(doorbells::INTERRUPT, doorbells::OUTBOUND_ERRORS);
        }
        failed
    }

    /// Tells the device what was taken.
    pub fn tell(&mut self, registers: &Tsi721Registers) {
        if core::mem::take(&mut self.untold) > 0 {
            registers.write(doorbells::READ, self.read as u32);
        }
    }

    /// Has it interrupt when the next doorbell arrives; whether that took a write. Look at [`DoorbellQueue::pending`]
    /// after the write has arrived.
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        let was_raised = core::mem::take(&mut self.is_raised);
        if was_raised {
            registers.write(doorbells::INTERRUPT, doorbells::RECEIVED);
        }
        was_raised
    }
}
