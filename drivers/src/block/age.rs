//! Coarse clock for the age of requests. It advances about once a second, when the loop watches the drive.

use crate::hal::Instant;

/// Longest step in milliseconds. A longer gap means that the machine was stopped, not that the drive is late.
const MOST_STEP: u64 = 2_000;

/// Milliseconds since the first update.
#[derive(Clone, Copy, Debug, Default)]
pub struct Age {
    updated: Option<Instant>,
    millis: u32,
}

impl Age {
    /// Advances the clock to `now`.
    pub fn update(&mut self, now: Instant) {
        let passed = self.updated.map_or(0, |then| now.nanos_since(then) / 1_000_000);
        self.millis = self.millis.wrapping_add(passed.min(MOST_STEP) as u32);
        self.updated = Some(now);
    }

    /// Milliseconds at the last update.
    #[inline]
    pub fn millis(self) -> u32 {
        self.millis
    }

    /// Milliseconds between `then` and the last update.
    pub fn since(self, then: u32) -> u32 {
        self.millis.wrapping_sub(then)
    }
}
