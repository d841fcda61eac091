//! Monotonic time. Engines get it as an argument; only the poll loop reads a clock.

use core::num::NonZeroU64;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point of monotonic time: nanoseconds since an arbitrary start.
///
/// Deadlines are compared in every turn of the loop, and most of them are optional: one that is not
/// there is a 0 and takes no more room.
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

    /// The first of some moments, if there is any.
    #[inline]
    pub fn first<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
        // What is not there is a 0: one less makes it the last of all, and no moment's number changes
        // its place.
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

    /// So many nanoseconds later; saturates, as [`Instant::from_nanos`].
    #[inline]
    pub const fn after_nanos(self, nanos: u64) -> Self {
        Instant(self.0.saturating_add(nanos))
    }

    /// How long the machine stood still, for a deadline that is looked at `now`: nothing, if that is no more than a
    /// second late. What was to happen before it may have happened, and was not seen.
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
    /// The present moment; never goes back.
    fn now(&self) -> Instant;
}

/// Between two looks at a device that is waited for while it is opened: some microseconds at most, in few
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
    fn what_comes_first() {
        let [early, late] = [3, 5].map(Instant::from_nanos);
        assert_eq!(Instant::first([]), None);
        assert_eq!(Instant::first([None, None]), None);
        assert_eq!(Instant::first([Some(late), None, Some(early)]), Some(early));
        assert_eq!(Instant::first([Some(Instant::ZERO), None]), Some(Instant::ZERO));
    }
}
