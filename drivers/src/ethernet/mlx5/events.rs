//! The event queue, which is polled: completions that somebody was to be woken by, pages that the firmware wants, the
//! link, queues that have failed. An entry has 64 bytes: type, sub-type, at 0x20 what it is about, in the last byte the
//! owner's bit, which changes with each lap.

use super::firmware::Doorbells;
use crate::hal::Window;

/// Log2 of the entries: room for what can happen to all queue pairs at once, because a queue that overflows is the end of
/// the card; and where it tells only of completions that were asked for, a page.
pub const LOG: u32 = 13;
pub const LOG_COMPLETIONS: u32 = 6;
const ENTRY: usize = 64;
/// Where the last entry's last byte is, of all of them.
const OWNER: usize = 0x3c;

/// Which kind of queue an event is of: 0 a queue pair.
const KIND: usize = 0x34;

/// In a doorbell page: update and arm, update.
const ARM: usize = 0x40;
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

/// Types that are asked for; completions come in any case.
pub const MASK: u64 = 1 << ESTABLISHED
    | 1 << COMPLETION_ERROR
    | 1 << QUEUE_FAILED
    | 1 << INTERNAL
    | 1 << PORT
    | 1 << PAGES
    | 1 << INVALID
    | 1 << ACCESS;

/// What has happened to a queue pair, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairEvent {
    /// The first packet has come before it could send.
    Established(u32),
    /// It has failed.
    Failed(u32),
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion queue has something that was asked for by arming it.
    Completion(u32),
    /// The firmware wants so many pages, or, negative, gives some back.
    Pages(i32),
    /// The link.
    Link(bool),
    /// A queue has failed.
    Failed,
    /// Something of a queue pair.
    Pair(PairEvent),
    /// Something else.
    Other,
}

/// The queue.
pub struct Events {
    ring: Window,
    log: u32,
    number: u32,
    taken: u32,
    /// How far the device was told.
    told: u32,
    /// An interrupt was asked for, and nothing has come since.
    is_armed: bool,
}

impl Events {
    /// Bytes of a queue of 2^`log` entries.
    pub fn bytes(log: u32) -> usize {
        ENTRY << log
    }

    /// A queue of 2^`log` entries, in memory that is made ready by [`Events::clear`].
    pub fn new(ring: Window, log: u32) -> Self {
        Events { ring, log, number: 0, taken: 0, told: 0, is_armed: false }
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

    /// All entries become the device's.
    pub fn clear(&mut self) {
        self.ring.fill(0);
        for n in 0..self.entries() as usize {
            self.ring.store32(n * ENTRY + OWNER, 1 << 24);
        }
        (self.taken, self.told, self.is_armed) = (0, 0, false);
    }

    /// The device has it, and calls it so.
    pub fn begin(&mut self, number: u32, doorbells: Doorbells<'_>) {
        self.number = number;
        self.tell(doorbells, UPDATE);
    }

    /// Where the next one is, if it has come.
    #[inline]
    fn next(&self) -> Option<usize> {
        let at = (self.taken & (self.entries() - 1)) as usize * ENTRY;
        let last = self.ring.load32(at + OWNER).to_le_bytes()[3];
        (u32::from(last & 1) == self.taken >> self.log & 1).then_some(at)
    }

    /// Whether there is one that was not taken.
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
            // Of a queue pair, and not of a queue of Ethernet.
            (QUEUE_FAILED | INVALID | ACCESS, _) if word(KIND) >> 24 == 0 => {
                Event::Pair(PairEvent::Failed(word(0x38) & 0xff_ffff))
            }
            (COMPLETION_ERROR | QUEUE_FAILED | INTERNAL | INVALID | ACCESS, _) => Event::Failed,
            _ => Event::Other,
        })
    }

    /// Tells the device how far they were taken, if a good part of the queue was taken since it was told.
    pub fn tell_some(&mut self, doorbells: Doorbells<'_>) {
        if self.taken.wrapping_sub(self.told) >= self.entries() / 4 {
            self.tell(doorbells, UPDATE);
        }
    }

    /// Asks for an interrupt at the next one, if that was not done.
    pub fn arm(&mut self, doorbells: Doorbells<'_>) {
        if !core::mem::replace(&mut self.is_armed, true) {
            self.tell(doorbells, ARM);
        }
    }

    fn tell(&mut self, doorbells: Doorbells<'_>, register: usize) {
        self.told = self.taken;
        let value = self.number << 24 | self.taken & 0xff_ffff;
        doorbells.write32(register, value.to_be());
    }
}
