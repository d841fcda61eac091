//! The event queue, which is polled: armed completion queues, page requests of the firmware, link changes, failed
//! queues. An entry has 64 bytes: type, sub-type, data at 0x20, and in the last byte the owner bit, which changes with
//! each lap.

use super::firmware::Doorbells;
use crate::hal::Window;

/// Log2 of the number of entries: room for simultaneous events of all queue pairs, because an overflow is fatal to the
/// card.
pub const LOG: u32 = 13;
/// Log2 of the number of entries of a queue that only reports armed completion queues: a page.
pub const LOG_COMPLETIONS: u32 = 6;
const ENTRY: usize = 64;
/// Offset of the last word of an entry, whose last byte has the owner bit.
const OWNER: usize = 0x3c;

/// Offset of the kind of queue that an event names: 0 is a queue pair.
const KIND: usize = 0x34;

/// Doorbell page: update and arm.
const ARM: usize = 0x40;
/// Doorbell page: update.
const UPDATE: usize = 0x48;

// Types.
const COMPLETION: u8 = 0x00;
const ESTABLISHED: u8 = 0x02;
const COMPLETION_ERROR: u8 = 0x04;
const QUEUE_FAILED: u8 = 0x05;
const INTERNAL: u8 = 0x08;
const PORT: u8 = 0x09;
const PAGES: u8 = 0x0b;
const INVALID: u8 = 0x10;
const ACCESS: u8 = 0x11;

/// Types of events that are enabled. Completions are always reported.
pub const MASK: u64 = 1 << ESTABLISHED
    | 1 << COMPLETION_ERROR
    | 1 << QUEUE_FAILED
    | 1 << INTERNAL
    | 1 << PORT
    | 1 << PAGES
    | 1 << INVALID
    | 1 << ACCESS;

/// An event of a queue pair, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairEvent {
    /// The first packet has arrived before the queue pair could send.
    Established(u32),
    /// The queue pair has failed.
    Failed(u32),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed completion queue has a completion; its number.
    Completion(u32),
    /// The firmware requests this many pages, or offers some back if negative.
    Pages(i32),
    /// The link went up or down.
    Link(bool),
    /// A queue has failed.
    Failed,
    /// An event of a queue pair.
    Pair(PairEvent),
    /// Another event.
    Other,
}

/// The queue.
pub struct Events {
    ring: Window,
    log: u32,
    number: u32,
    taken: u32,
    /// `taken` as last reported to the device.
    notified: u32,
    /// The queue is armed, and no event has come since.
    is_armed: bool,
}

impl Events {
    /// Bytes of a queue of 2^`log` entries.
    pub fn bytes(log: u32) -> usize {
        ENTRY << log
    }

    /// A queue of 2^`log` entries. Initialize it by [`Events::clear`].
    pub fn new(ring: Window, log: u32) -> Self {
        Events { ring, log, number: 0, taken: 0, notified: 0, is_armed: false }
    }

    pub fn log(&self) -> u32 {
        self.log
    }

    fn entries(&self) -> u32 {
        1 << self.log
    }

    pub fn ring(&self) -> Window {
        self.ring
    }

    /// Passes all entries to the device.
    pub fn clear(&mut self) {
        self.ring.fill(0);
        for n in 0..self.entries() as usize {
            self.ring.store32(n * ENTRY + OWNER, 1 << 24);
        }
        (self.taken, self.notified, self.is_armed) = (0, 0, false);
    }

    /// Starts the queue, which the device has created with this number.
    pub fn begin(&mut self, number: u32, doorbells: Doorbells<'_>) {
        self.number = number;
        self.notify(doorbells, UPDATE);
    }

    /// Offset of the next event, if the device has written it.
    #[inline]
    fn next(&self) -> Option<usize> {
        let at = (self.taken & (self.entries() - 1)) as usize * ENTRY;
        let last = self.ring.load32(at + OWNER).to_le_bytes()[3];
        (u32::from(last & 1) == self.taken >> self.log & 1).then_some(at)
    }

    /// Whether events wait.
    #[inline]
    pub fn pending(&self) -> bool {
        self.next().is_some()
    }

    /// The next event.
    #[inline]
    pub fn poll(&mut self) -> Option<Event> {
        let at = self.next()?;
        self.taken = self.taken.wrapping_add(1);
        self.is_armed = false;
        let word = |offset| self.ring.load32(at + offset).swap_bytes();
        let [_, kind, _, sub] = word(0).to_be_bytes();
        Some(match (kind, sub) {
            (COMPLETION, _) => Event::Completion(word(0x38)),
            (PAGES, _) => Event::Pages(word(0x24) as i32),
            (PORT, 1) => Event::Link(false),
            (PORT, 4) => Event::Link(true),
            (ESTABLISHED, _) => Event::Pair(PairEvent::Established(word(0x38) & 0xff_ffff)),
            // Of a queue pair, not of an Ethernet queue.
            (QUEUE_FAILED | INVALID | ACCESS, _) if word(KIND) >> 24 == 0 => {
                Event::Pair(PairEvent::Failed(word(0x38) & 0xff_ffff))
            }
            (COMPLETION_ERROR | QUEUE_FAILED | INTERNAL | INVALID | ACCESS, _) => Event::Failed,
            _ => Event::Other,
        })
    }

    /// Notifies the device of events taken, once there is a batch of them.
    pub fn notify_batch(&mut self, doorbells: Doorbells<'_>) {
        if self.taken.wrapping_sub(self.notified) >= self.entries() / 4 {
            self.notify(doorbells, UPDATE);
        }
    }

    /// Arms the queue for the next event, unless it is armed.
    pub fn arm(&mut self, doorbells: Doorbells<'_>) {
        if !core::mem::replace(&mut self.is_armed, true) {
            self.notify(doorbells, ARM);
        }
    }

    fn notify(&mut self, doorbells: Doorbells<'_>, register: usize) {
        self.notified = self.taken;
        let value = self.number << 24 | self.taken & 0xff_ffff;
        doorbells.write32(register, value.to_be());
    }
}
