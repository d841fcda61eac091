//! Limits, refusals and counters of a mirror, and the memory budget of all mirrors.

use super::header::BadHeader;
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;

/// Memory for messages in parts, shared by all mirrors. One peer never gets all of it: its first message may reserve
/// all but a sixteenth, and several messages together half. The reservation of a message that makes no progress is
/// released while other peers wait ([`Budget::set_time`]).
#[derive(Debug)]
pub struct Budget {
    pub(super) all: u64,
    pub(super) free: u64,
    pub(super) now: Instant,
    pub(super) is_contended: bool,
    pub(super) waits: bool,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: u64) -> Self {
        Budget { all: bytes, free: bytes, now: Instant::ZERO, is_contended: false, waits: false }
    }

    /// Sets the time for finding overdue messages.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Sets whether peers wait for memory. If so, they get memory in turn ([`super::Rank::admit`]), and a peer that
    /// releases memory does not get it again before others.
    pub fn set_contended(&mut self, is_contended: bool) {
        self.is_contended = is_contended;
    }

    /// Whether a message has begun to wait since the last call.
    pub fn take_waits(&mut self) -> bool {
        core::mem::take(&mut self.waits)
    }

    /// Largest reservation of a message.
    pub(super) fn most(&self) -> u64 {
        self.all - self.all / 16
    }

    /// Whether `wanted` bytes can be reserved for a peer whose messages together hold `held` bytes.
    pub(super) fn allows(&self, held: u64, wanted: u64) -> bool {
        wanted <= self.free && (held == 0 || held.saturating_add(wanted) <= self.all / 2)
    }

    /// Bytes that are not reserved.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The longest message that the budget has memory for.
    pub fn longest(&self) -> u64 {
        (self.most().saturating_sub(SLACK) / 7).saturating_mul(4)
    }
}

/// Reservation for the last part of a message, in addition to 7/4 of the message's length. Memory is allocated in
/// powers of two: a part of 150 KiB, the stock sender's size, takes 256 KiB.
const SLACK: u64 = 256 << 10;

/// Time limit for the arrival of a message while other peers wait for memory: a base, and an addition for each byte.
const ARRIVES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_nanos(1000));
/// Time limit for the peer to take a message back while other peers wait. The peer may compute before it receives.
const RETURNS: Duration = Duration::from_secs(60);

/// When the memory of a message is released if other peers wait for memory. `since` is when the message began to
/// arrive, or when it was complete.
pub(super) fn overdue_at(is_complete: bool, since: Instant, length: u64) -> Instant {
    if is_complete {
        return since + RETURNS;
    }
    let bytes = u32::try_from(length).unwrap_or(u32::MAX);
    since + ARRIVES.0 + ARRIVES.1 * bytes
}

/// Reservation for a message of so many bytes.
pub(super) fn needs(length: u64) -> u64 {
    (length / 4).saturating_mul(7).saturating_add(7 + SLACK)
}

/// Result of admitting a peer's waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// No message of the peer waits for memory: none is left, the peer has its share, or an earlier message is missing.
    Done,
    /// There is too little memory for the next message.
    Waits,
}

/// Limits of a mirror.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most messages in parts.
    pub rendezvous: usize,
    /// Most parts of them.
    pub parts: usize,
    /// Most bytes of a message.
    pub longest: u64,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its header is invalid.
    Header(BadHeader),
    /// The part belongs to no message, or does not fit its message.
    Mismatch,
    /// The message is longer than the limit.
    TooLong(u64),
    /// The limit of messages in parts, or of parts, is reached.
    TooMany,
    /// The message made no progress while other peers waited for memory.
    Overdue,
    /// The parts of the message are so small that they take more memory than was reserved.
    TooSmall,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Header(why) => why.fmt(f),
            Refused::Mismatch => f.write_str("the peer sent a part that belongs to no message, or does not fit its message"),
            Refused::TooLong(bytes) => {
                write!(f, "the peer sent a message of {bytes} bytes, which is longer than the limit")
            }
            Refused::TooMany => f.write_str("the peer has too many long messages in flight"),
            Refused::Overdue => f.write_str(
                "a long message made no progress while others waited for memory, and was dropped: check that its rank runs",
            ),
            Refused::TooSmall => {
                f.write_str("the peer sent a message in parts so small that they take too much memory")
            }
        }
    }
}

impl core::error::Error for Refused {}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Complete messages (MATCH) returned.
    pub eager: u64,
    /// Messages in parts returned.
    pub rendezvous: u64,
    /// Bytes of data returned, of both kinds.
    pub bytes: u64,
    /// Messages that had to wait for memory.
    pub waited: u64,
    /// Messages and parts refused.
    pub refused: u64,
    /// Messages dropped because they made no progress while other peers waited for memory.
    pub overdue: u64,
}
