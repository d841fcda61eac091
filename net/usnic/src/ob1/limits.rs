//! How much a mirror may have, what it refuses, and what it counts.

use super::header::BadHeader;
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;

/// Memory that messages which come in parts may take, of all mirrors that share it. The peer of one mirror never has all
/// of it: its first message may take all but a sixteenth, and several together take half. What is set aside for a message
/// that does not go on is taken back while other peers wait ([`Budget::set_time`]).
#[derive(Debug)]
pub struct Budget {
    pub(super) all: u64,
    pub(super) free: u64,
    pub(super) now: Instant,
    pub(super) is_contended: bool,
    pub(super) waits: bool,
}

impl Budget {
    /// So many bytes.
    pub fn new(bytes: u64) -> Self {
        Budget { all: bytes, free: bytes, now: Instant::ZERO, is_contended: false, waits: false }
    }

    /// The time by which it is judged what does not go on.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Says whether peers wait for memory: then each has it in its turn ([`super::Rank::admit`]), and who gives some back
    /// does not have it again before others.
    pub fn set_contended(&mut self, is_contended: bool) {
        self.is_contended = is_contended;
    }

    /// Whether a message has begun to wait since this was asked last.
    pub fn take_waits(&mut self) -> bool {
        core::mem::take(&mut self.waits)
    }

    /// Most that a message takes.
    pub(super) fn most(&self) -> u64 {
        self.all - self.all / 16
    }

    /// Whether `wanted` can be set aside for a peer that has `held`, all of its messages together.
    pub(super) fn allows(&self, held: u64, wanted: u64) -> bool {
        wanted <= self.free && (held == 0 || held.saturating_add(wanted) <= self.all / 2)
    }

    /// Bytes of it that are not set aside.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The longest message that there can be memory for.
    pub fn longest(&self) -> u64 {
        (self.most().saturating_sub(SLACK) / 7).saturating_mul(4)
    }
}

/// Memory is given out in powers of two: a part of 150 KiB, as the stock sender makes them, takes 256 KiB. So 7/4 of a
/// message's length is set aside, and this for its last part.
const SLACK: u64 = 256 << 10;

/// How long a message may take to arrive while other peers wait for memory, and for each of its bytes beyond that.
const ARRIVES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_nanos(1000));
/// How long a peer may take to take one back then: it may compute before it receives.
const RETURNS: Duration = Duration::from_secs(60);

/// When the memory of a message is taken back if other peers wait for memory: one that is arriving since then, or that is
/// here since then and goes back.
pub(super) fn overdue_at(is_here: bool, since: Instant, length: u64) -> Instant {
    if is_here {
        return since + RETURNS;
    }
    let bytes = u32::try_from(length).unwrap_or(u32::MAX);
    since + ARRIVES.0 + ARRIVES.1 * bytes
}

/// Memory that is set aside for a message of so many bytes.
pub(super) fn needs(length: u64) -> u64 {
    (length / 4).saturating_mul(7).saturating_add(7 + SLACK)
}

/// How far a peer came with messages that wait for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// None waits, or none that memory is what it waits for: it has its share, or another message is to go before.
    Done,
    /// There is too little memory for the next.
    Waits,
}

/// How much there may be at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages that come in parts.
    pub rendezvous: usize,
    /// Their parts.
    pub parts: usize,
    /// Bytes of one.
    pub longest: u64,
}

/// Why something was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its header.
    Header(BadHeader),
    /// It belongs to no message, or does not fit the one that it names.
    Strange,
    /// A message is longer than there may be.
    TooLong(u64),
    /// There are as many that come in parts as there may be, or parts.
    TooMany,
    /// A message did not go on while other peers waited for memory.
    Overdue,
    /// The parts of a message take more memory than was set aside for it: they are too small for it.
    TooSmall,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Header(why) => why.fmt(f),
            Refused::Strange => f.write_str("a part belongs to no message, or does not fit it"),
            Refused::TooLong(bytes) => {
                write!(f, "a message of {bytes} bytes is longer than can be sent back")
            }
            Refused::TooMany => f.write_str("too many long messages are under way at a time"),
            Refused::Overdue => f.write_str(
                "a long message did not go on while others waited for memory, and was given up: does its rank still run?",
            ),
            Refused::TooSmall => {
                f.write_str("a message came in parts so small that they take too much memory")
            }
        }
    }
}

impl core::error::Error for Refused {}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were whole, and went back.
    pub eager: u64,
    /// Messages that came in parts, and went back.
    pub rendezvous: u64,
    /// Bytes of data that went back, of both.
    pub bytes: u64,
    /// Times that a message had to wait for memory.
    pub waited: u64,
    /// What was refused.
    pub refused: u64,
    /// Messages that were given up because they did not go on while other peers waited for memory.
    pub overdue: u64,
}
