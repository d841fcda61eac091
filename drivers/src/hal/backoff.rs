//! Times at which a driver tries again to bring up a device that did not come up, or was away.

use super::Instant;
use core::time::Duration;

/// Pause before the second try. The first is made at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Times of tries: a second after the first failure, then after twice as long each time, up to a minute, for ever.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    next: Option<Instant>,
    pause: Duration,
}

impl Backoff {
    /// Notes that a try has failed.
    pub fn note_failed(&mut self, now: Instant) {
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.next = Some(now + self.pause);
    }

    /// Notes that the device is up.
    pub fn note_up(&mut self) {
        *self = Backoff::default();
    }

    /// When the next try is due; None if no try has failed since the device was up.
    pub fn next_try(&self) -> Option<Instant> {
        self.next
    }

    /// Whether a try is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        let mut now = Instant::ZERO;
        assert!(backoff.is_due(now));
        let mut pauses = alloc::vec::Vec::new();
        for _ in 0..9 {
            backoff.note_failed(now);
            let next = backoff.next_try().unwrap();
            pauses.push(next.since(now).as_secs());
            assert!(!backoff.is_due(now) && backoff.is_due(next));
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        backoff.note_up();
        assert!(backoff.is_due(now) && backoff.next_try().is_none());
    }
}
