//! What drivers have in common that look after a card: when it hangs, and what is told of resets.

use crate::hal::{Notice, Severity};
use alloc::collections::VecDeque;

/// Looks, about one a second, at which nothing has moved, after which a queue hangs.
const MOST_LOOKS: u8 = 3;
/// Resets in a row that are told; those after them are counted only.
const MOST_TOLD: u64 = 3;
/// After so many looks without a reset those before are forgotten.
const FORGOTTEN: u32 = 60;
/// Notices that are kept until somebody asks.
const NOTICES: usize = 16;

// Why a card is reset.
pub const HUNG: &str = "the network card does not send, though its link is up: it is reset; look after its firmware, or \
     replace it";
pub const LOST_PLACE: &str = "the network card receives, but not in order: it is reset; look after its firmware, or replace it";
const AGAIN: &str = "the network card had to be reset again and again: further resets are only counted (`resets` in \
     `show interfaces --json`); replace it";
const BACK: &str = "the network card works again";

/// A queue that may hang: where it waits.
#[derive(Debug, Default)]
pub struct Stall {
    at: Option<u32>,
    looks: u8,
}

impl Stall {
    /// Whether it has waited here for too long; None if it does not wait.
    pub fn look(&mut self, at: Option<u32>) -> bool {
        let same = at.is_some() && self.at == at;
        self.looks = if same { self.looks.saturating_add(1) } else { 0 };
        self.at = at;
        self.looks >= MOST_LOOKS - 1
    }
}

/// Resets so far, and what is told.
#[derive(Debug)]
pub struct Keeper {
    pub resets: u64,
    /// Resets, none forgotten.
    recent: u64,
    looks: u32,
    notices: VecDeque<Notice>,
}

impl Keeper {
    pub fn new() -> Self {
        let notices = VecDeque::with_capacity(NOTICES);
        Keeper { resets: 0, recent: 0, looks: 0, notices }
    }

    /// The card works at this look.
    pub fn look(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks > FORGOTTEN {
            self.recent = 0;
        }
    }

    /// It is reset.
    pub fn reset(&mut self, why: &'static str) {
        self.resets += 1;
        self.recent += 1;
        self.looks = 0;
        match self.recent {
            0..=MOST_TOLD => self.note(Severity::Warning, why),
            n if n == MOST_TOLD + 1 => self.note(Severity::Error, AGAIN),
            _ => {}
        }
    }

    /// It works, perhaps after a reset.
    pub fn works(&mut self) {
        if (1..=MOST_TOLD).contains(&self.recent) {
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
