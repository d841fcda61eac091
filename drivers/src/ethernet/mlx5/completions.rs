//! A completion queue: a ring of entries of 64 bytes. The last eight bytes of an entry are a big-endian word. From its
//! upper end: the queue that completed (32 bits), the counter of the work request (16), a signature (8), opcode (4),
//! format (2), and in bit 0 the owner, which changes with each lap. At 0x2c is the length of received data.

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
/// Doorbell page: arms a completion queue.
const ARM: usize = 0x20;

/// Opcodes.
const SENT: u64 = 0;
const RECEIVED: u64 = 2;
const INVALID: u64 = 0xf;

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Frames were sent, up to the work request with this counter.
    Sent(u16),
    /// A frame was received, with this counter and length.
    Received(u16, u32),
    /// A queue has failed, with this syndrome.
    Failed(u8),
    /// Another opcode.
    Unknown,
}

/// A completion queue of any kind of queue.
pub struct Completions {
    ring: Window,
    words: Cells<AtomicU64>,
    /// The doorbell record: consumer index, and arming.
    record: Window,
    log: u32,
    number: u32,
    taken: u32,
    /// `taken` as last reported to the device.
    notified: u32,
    /// Number of armings that have ended with an event; the device uses 2 bits of it.
    armed: u32,
    /// Present arming, without an event yet.
    is_armed: Option<Arm>,
}

/// Completions that an armed queue reports by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Any,
    /// The next one that is an error, or was solicited.
    Errors,
}

/// Bit of the arming word: only errors and solicited completions.
const ERRORS: u32 = 1 << 24;

/// Rings the doorbell that arms completion queue `number`, whose record contains `word`.
pub fn arm(doorbells: Doorbells<'_>, word: u32, number: u32) {
    let value = u64::from(word) << 32 | u64::from(number);
    doorbells.write64(ARM, value.swap_bytes());
}

impl Completions {
    /// Bytes of a ring of 2^`log` entries.
    pub fn bytes(log: u32) -> usize {
        ENTRY << log
    }

    /// A queue in a ring of 2^`log` entries, with a record of 8 bytes. Initialize it by [`Completions::clear`].
    pub fn new(ring: Window, record: Window, log: u32) -> Result<Self, Error> {
        let bytes = Self::bytes(log);
        let words = Cells::new(&ring, 0, WORDS << log).ok_or(Error::NoMemory { bytes })?;
        let (number, taken, notified, armed, is_armed) = (0, 0, 0, 0, None);
        Ok(Completions { ring, words, record, log, number, taken, notified, armed, is_armed })
    }

    /// Memory of the ring.
    pub fn ring(&self) -> Window {
        self.ring
    }

    /// The doorbell record.
    pub fn record(&self) -> Window {
        self.record
    }

    /// Log2 of the number of entries.
    pub fn log(&self) -> u32 {
        self.log
    }

    /// Passes all entries to the device.
    pub fn clear(&mut self) {
        self.ring.fill(0);
        for n in 0..1 << self.log {
            self.words.store(n * WORDS + LAST, NEVER_WRITTEN.swap_bytes());
        }
        self.record.fill(0);
        (self.taken, self.notified, self.armed, self.is_armed) = (0, 0, 0, None);
    }

    /// Sets the queue's number.
    pub fn named(&mut self, number: u32) {
        self.number = number;
    }

    /// The queue's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    #[inline]
    fn index(&self, number: u32) -> usize {
        (number as usize & ((1 << self.log) - 1)) * WORDS
    }

    /// The last word of entry `number`, if the device has written it.
    #[inline]
    fn last(&self, number: u32) -> Option<u64> {
        let last = self.words.load(self.index(number) + LAST).swap_bytes();
        let owner = u64::from(number >> self.log & 1);
        (last & 1 == owner && last >> 4 & 0xf != INVALID).then_some(last)
    }

    /// Whether completions wait.
    #[inline]
    pub fn pending(&self) -> bool {
        self.last(self.taken).is_some()
    }

    /// Whether the next completion is missing but the one behind it is there: the device is out of sync.
    pub fn has_gap(&self) -> bool {
        self.last(self.taken).is_none() && self.last(self.taken.wrapping_add(1)).is_some()
    }

    /// Total of completions taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// The next completion, without taking it: index of its first word, and its last word.
    #[inline]
    pub fn next_words(&self) -> Option<(usize, u64)> {
        Some((self.index(self.taken), self.last(self.taken)?))
    }

    /// Takes the completion that [`Completions::next_words`] has returned.
    #[inline]
    pub fn skip(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Takes the next completion: index of its first word, and its last word.
    #[inline]
    pub fn take_words(&mut self) -> Option<(usize, u64)> {
        let next = self.next_words()?;
        self.skip();
        Some(next)
    }

    /// A word of the completion whose first word has index `at`.
    #[inline]
    pub fn word(&self, at: usize, word: usize) -> u64 {
        self.words.load(at + word).swap_bytes()
    }

    /// Takes the next completion of an Ethernet queue.
    #[inline]
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

    /// Notifies the device of the completions taken.
    #[inline]
    pub fn tell(&mut self) {
        if self.notified != self.taken {
            self.notified = self.taken;
            self.record.store32(0, (self.taken & 0xff_ffff).swap_bytes());
        }
    }

    /// Arms the queue for the next completion, unless it is armed.
    pub fn arm(&mut self, doorbells: Doorbells<'_>) {
        if let Some(word) = self.write_armed(Arm::Any) {
            arm(doorbells, word, self.number);
        }
    }

    /// Writes an arming to the record. Returns the word for the doorbell; None if the queue is armed for that, or for
    /// more.
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

    /// Notes that the event of the arming has come.
    pub fn has_told(&mut self) {
        self.is_armed = None;
        self.armed = self.armed.wrapping_add(1);
    }
}
