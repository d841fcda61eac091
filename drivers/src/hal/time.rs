//! Monotonic time. Engines take it as an argument; only the poll loop reads a clock.

use core::num::NonZeroU64;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point of monotonic time: nanoseconds since an arbitrary start.
///
/// Deadlines are compared in every round of the loop, and most of them are optional: an absent one is a 0, and an
/// `Option<Instant>` has the size of an `Instant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

impl Instant {
    /// The arbitrary start.
    pub const ZERO: Instant = Instant(NonZeroU64::MIN);

    /// From nanoseconds since the start; saturates, as 584 years are never reached.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Nanoseconds since the start.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The earliest of the given instants, or None if all are absent.
    #[inline]
    pub fn first<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
        // An absent instant is a 0. Subtracting one makes it the latest, and keeps the order of the others.
        let mut first = u64::MAX;
        for moment in moments {
            first = first.min(moment.map_or(0, |moment| moment.0.get()).wrapping_sub(1));
        }
        NonZeroU64::new(first.wrapping_add(1)).map(Instant)
    }

    /// Nanoseconds since `earlier`; 0 if `earlier` is later.
    #[inline]
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    /// `nanos` nanoseconds later; saturates, as [`Instant::from_nanos`].
    #[inline]
    pub const fn after_nanos(self, nanos: u64) -> Self {
        Instant(self.0.saturating_add(nanos))
    }

    /// How long the machine was stopped, estimated from a deadline that is checked at `now`: zero if the check is at
    /// most a second late. The awaited event may have happened unseen meanwhile, so that the deadline proves nothing.
    #[inline]
    pub const fn standstill(self, now: Instant) -> Duration {
        let late = now.nanos_since(self);
        Duration::from_nanos(if late > 1_000_000_000 { late } else { 0 })
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Instant::ZERO
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    /// Saturates, as [`Instant::from_nanos`].
    #[inline]
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// The machine's monotonic clock.
pub trait Clock {
    /// The current time; never goes back.
    fn now(&self) -> Instant;
}

/// Pause between two reads of a device that is polled while it is opened: some microseconds at most, in few
/// instructions, so that a hypervisor and the other thread of a core get the time (Linux: `cpu_relax`).
pub fn relax() {
    const PAUSES: usize = 32;
    for _ in 0..PAUSES {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_returns_the_earliest_instant() {
        let [early, late] = [3, 5].map(Instant::from_nanos);
        assert_eq!(Instant::first([]), None);
        assert_eq!(Instant::first([None, None]), None);
        assert_eq!(Instant::first([Some(late), None, Some(early)]), Some(early));
        assert_eq!(Instant::first([Some(Instant::ZERO), None]), Some(Instant::ZERO));
    }
}
