//! How old requests are: time as whoever looks about once a second has seen it.

use crate::hal::Instant;

/// More time than this between two looks counts as this: the machine was stopped, not the drive late.
const LONGEST_LOOK: u64 = 2_000;

/// Milliseconds since the first look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Age {
    looked: Option<Instant>,
    millis: u32,
}

impl Age {
    /// Takes a look.
    pub fn grow(&mut self, now: Instant) {
        let passed = self.looked.map_or(0, |looked| now.nanos_since(looked) / 1_000_000);
        self.millis = self.millis.wrapping_add(passed.min(LONGEST_LOOK) as u32);
        self.looked = Some(now);
    }

    /// The age at the last look.
    #[inline(always)]
    pub fn millis(self) -> u32 {
        self.millis
    }

    /// Milliseconds since it was `then`.
    pub fn since(self, then: u32) -> u32 {
        self.millis.wrapping_sub(then)
    }
}
