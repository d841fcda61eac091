//! How much a mirror may have, what it refuses, and what it counts.

use super::header::BadHeader;
use core::fmt;

/// Memory that messages which come in parts may take, of all mirrors that share it.
#[derive(Debug)]
pub struct Budget {
    pub(super) all: u64,
    pub(super) free: u64,
}

impl Budget {
    /// So many bytes.
    pub fn new(bytes: u64) -> Self {
        Budget { all: bytes, free: bytes }
    }

    /// Bytes of it that are not set aside.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The longest message that there can be memory for.
    pub fn longest(&self) -> u64 {
        (self.all.saturating_sub(SLACK) / 7).saturating_mul(4)
    }
}

/// Memory is given out in powers of two: a part of 150 KiB, as the stock sender makes them, takes 256 KiB. So 7/4 of a
/// message's length is set aside, and this for its last part.
const SLACK: u64 = 256 << 10;

/// Memory that is set aside for a message of so many bytes.
pub(super) fn needs(length: u64) -> u64 {
    (length / 4).saturating_mul(7).saturating_add(7 + SLACK)
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
}
