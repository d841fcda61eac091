//! A completion queue: a ring of 64 bytes each. In the last eight of an entry stand, from the upper end of a big-endian
//! word on, what it is of (32 bits), the counter of the work request (16), a signature (8), opcode (4), format (2), and in
//! bit 0 the owner, which changes with each lap. At 0x2c is the length of what was received.

use super::error::Error;
use super::firmware::Doorbells;
use crate::hal::{Cells, Window};
use core::sync::atomic::AtomicU64;

/// Bytes of an entry, and its words.
const ENTRY: usize = 64;
const WORDS: usize = ENTRY / 8;
const LAST: usize = 7;
const LENGTH: usize = 5;
const SYNDROME: usize = 6;
/// The last byte of an entry that was never written.
const NEVER_WRITTEN: u64 = 0xf1;
/// In a doorbell page: arms a completion queue.
const ARM: usize = 0x20;

/// Opcodes.
const SENT: u64 = 0;
const RECEIVED: u64 = 2;
const INVALID: u64 = 0xf;

/// What was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// What was sent, up to the work request with this counter.
    Sent(u16),
    /// A frame, with this counter and length.
    Received(u16, u32),
    /// A queue has failed, with this syndrome.
    Failed(u8),
    /// Something else.
    Unknown,
}

/// The queue, of whatever completes there.
pub struct Completions {
    ring: Window,
    words: Cells<AtomicU64>,
    /// The doorbell record: how far it was taken, and what it is armed for.
    record: Window,
    log: u32,
    number: u32,
    taken: u32,
    told: u32,
    /// How often it was armed and has told of something (2 bits count).
    armed: u32,
    /// What it is armed for, and has not told of since.
    is_armed: Option<Arm>,
}

/// What a queue is to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Any,
    /// The next one that is an error, or was solicited.
    Errors,
}

/// In what a queue is armed with: errors, and what was solicited, alone.
const ERRORS: u32 = 1 << 24;

/// Rings for an event at the next completion of the queue `number`, whose record says `word`.
pub fn arm(doorbells: Doorbells<'_>, word: u32, number: u32) {
    let value = u64::from(word) << 32 | u64::from(number);
    doorbells.write64(ARM, value.swap_bytes());
}

impl Completions {
    /// Bytes of a ring of 2^`log` entries.
    pub fn bytes(log: u32) -> usize {
        ENTRY << log
    }

    /// In a ring of 2^`log` entries, with a record of 8 bytes. [`Completions::clear`] makes it ready.
    pub fn new(ring: Window, record: Window, log: u32) -> Result<Self, Error> {
        let bytes = Self::bytes(log);
        let words = Cells::new(&ring, 0, WORDS << log).ok_or(Error::NoMemory { bytes })?;
        let (number, taken, told, armed, is_armed) = (0, 0, 0, 0, None);
        Ok(Completions { ring, words, record, log, number, taken, told, armed, is_armed })
    }

    /// Memory of the ring.
    pub fn ring(&self) -> Window {
        self.ring
    }

    /// The doorbell record.
    pub fn record(&self) -> Window {
        self.record
    }

    /// Log2 of the entries.
    pub fn log(&self) -> u32 {
        self.log
    }

    /// All entries become the device's.
    pub fn clear(&mut self) {
        self.ring.fill(0);
        for n in 0..1 << self.log {
            self.words.store(n * WORDS + LAST, NEVER_WRITTEN.swap_bytes());
        }
        self.record.fill(0);
        (self.taken, self.told, self.armed, self.is_armed) = (0, 0, 0, None);
    }

    /// The device calls it so.
    pub fn named(&mut self, number: u32) {
        self.number = number;
    }

    /// What the device calls it.
    pub fn number(&self) -> u32 {
        self.number
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number as usize & ((1 << self.log) - 1)) * WORDS
    }

    /// The last word of the entry of this number, if the device has written it.
    #[inline(always)]
    fn last(&self, number: u32) -> Option<u64> {
        let last = self.words.load(self.index(number) + LAST).swap_bytes();
        let owner = u64::from(number >> self.log & 1);
        (last & 1 == owner && last >> 4 & 0xf != INVALID).then_some(last)
    }

    /// Whether there is one that was not taken.
    #[inline(always)]
    pub fn pending(&self) -> bool {
        self.last(self.taken).is_some()
    }

    /// Whether there is none, but one behind it: a device that has lost its way.
    pub fn has_gap(&self) -> bool {
        self.last(self.taken).is_none() && self.last(self.taken.wrapping_add(1)).is_some()
    }

    /// How many were taken, in all.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// The next one: where its words begin, and the last of them.
    #[inline(always)]
    pub fn next_words(&self) -> Option<(usize, u64)> {
        Some((self.index(self.taken), self.last(self.taken)?))
    }

    /// The next one, which was looked at, is taken.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// The next one, which is taken: where its words begin, and the last of them.
    #[inline(always)]
    pub fn take_words(&mut self) -> Option<(usize, u64)> {
        let next = self.next_words()?;
        self.skip();
        Some(next)
    }

    /// A word of those that begin there.
    #[inline(always)]
    pub fn word(&self, at: usize, word: usize) -> u64 {
        self.words.load(at + word).swap_bytes()
    }

    /// The next one, of a queue of Ethernet.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Done> {
        let (at, last) = self.take_words()?;
        let counter = (last >> 16) as u16;
        Some(match last >> 4 & 0xf {
            RECEIVED => Done::Received(counter, self.word(at, LENGTH) as u32),
            SENT => Done::Sent(counter),
            0xd | 0xe => Done::Failed(self.word(at, SYNDROME) as u8),
            _ => Done::Unknown,
        })
    }

    /// Tells the device how far it was taken.
    #[inline(always)]
    pub fn tell(&mut self) {
        if self.told != self.taken {
            self.told = self.taken;
            self.record.store32(0, (self.taken & 0xff_ffff).swap_bytes());
        }
    }

    /// Asks for an event at the next completion, if that was not done.
    pub fn arm(&mut self, doorbells: Doorbells<'_>) {
        if let Some(word) = self.write_armed(Arm::Any) {
            arm(doorbells, word, self.number);
        }
    }

    /// Writes down of which next one an event is wanted; what the doorbell says of it. None if that was done, or more.
    pub fn write_armed(&mut self, what: Arm) -> Option<u32> {
        self.tell();
        if self.is_armed.is_some_and(|armed| armed == what || armed == Arm::Any) {
            return None;
        }
        self.is_armed = Some(what);
        let errors = if what == Arm::Errors { ERRORS } else { 0 };
        let word = (self.armed & 3) << 28 | errors | self.taken & 0xff_ffff;
        self.record.store32(4, word.swap_bytes());
        Some(word)
    }

    /// The event has come.
    pub fn has_told(&mut self) {
        self.is_armed = None;
        self.armed = self.armed.wrapping_add(1);
    }
}
