//! Shared parts of drivers that reset their cards: detection of hung queues, and notices of resets.

use crate::hal::{Notice, Severity};
use alloc::collections::VecDeque;

/// A queue hangs if it has not moved in this many checks, one a second, unless its driver says otherwise.
const MOST_CHECKS: u8 = 3;
/// Number of successive resets that are reported. Further ones are only counted.
const MOST_REPORTED: u64 = 3;
/// Number of checks without a reset after which earlier resets no longer count.
const FORGET_AFTER: u32 = 60;
/// Maximum number of notices that are kept for the user.
const NOTICES: usize = 16;

// Reasons for a reset.
pub const HUNG: &str = "the network card does not send, though its link is up: it is reset; update its firmware, or \
     replace it";
pub const OUT_OF_ORDER: &str =
    "the network card receives, but not in order: it is reset; update its firmware, or replace it";
const AGAIN: &str = "the network card had to be reset again and again: further resets are only counted (`resets` in \
     `show interfaces --json`); replace it";
pub const BACK: &str = "the network card works again";

/// Detects that a queue hangs.
#[derive(Debug)]
pub struct Stall {
    /// Position at which the queue waited at the last check.
    at: Option<u32>,
    /// Number of checks at which it has not moved.
    checks: u8,
    most: u8,
}

impl Default for Stall {
    fn default() -> Self {
        Stall::after(MOST_CHECKS)
    }
}

impl Stall {
    /// A queue hangs after `most` checks. Flow control (PFC) may pause a queue for seconds.
    pub fn after(most: u8) -> Self {
        Stall { at: None, checks: 0, most }
    }

    /// Checks a queue that waits at position `at`, or does not wait. True if it hangs.
    pub fn check(&mut self, at: Option<u32>) -> bool {
        let same = at.is_some() && self.at == at;
        self.checks = if same { self.checks.saturating_add(1) } else { 0 };
        self.at = at;
        self.checks >= self.most - 1
    }
}

/// Counts resets of a card, and collects notices for the operator.
#[derive(Debug)]
pub struct ResetLog {
    pub resets: u64,
    /// Successive resets, see [`FORGET_AFTER`].
    recent: u64,
    /// Number of checks since the last reset.
    checks: u32,
    notices: VecDeque<Notice>,
}

impl ResetLog {
    pub fn new() -> Self {
        let notices = VecDeque::with_capacity(NOTICES);
        ResetLog { resets: 0, recent: 0, checks: 0, notices }
    }

    /// Notes that the card has passed a check.
    pub fn passed_check(&mut self) {
        self.checks = self.checks.saturating_add(1);
        if self.checks > FORGET_AFTER {
            self.recent = 0;
        }
    }

    /// Notes a reset and its reason.
    pub fn reset(&mut self, why: &'static str) {
        self.resets += 1;
        self.recent += 1;
        self.checks = 0;
        match self.recent {
            0..=MOST_REPORTED => self.note(Severity::Warning, why),
            n if n == MOST_REPORTED + 1 => self.note(Severity::Error, AGAIN),
            _ => {}
        }
    }

    /// Notes that the card is up. Reports it after a reported reset.
    pub fn note_up(&mut self) {
        if (1..=MOST_REPORTED).contains(&self.recent) {
            self.note(Severity::Information, BACK);
        }
    }

    pub fn note(&mut self, severity: Severity, text: &'static str) {
        if self.notices.len() < NOTICES {
            self.notices.push_back(Notice { severity, text });
        }
    }

    /// The oldest notice.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }
}
