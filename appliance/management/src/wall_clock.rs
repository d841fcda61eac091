//! The wall clock: the real-time clock read at boot, or the time of time servers, advanced by the monotonic clock.

use core::ops::Range;
use core::time::Duration;
use drivers::hal::Instant;
use net::syslog::Timestamp;

/// The wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Wall-clock time at `Instant::ZERO`, in nanoseconds since 1970.
    pub epoch: u64,
    /// The time is neither before this build was made nor absurdly late.
    pub is_plausible: bool,
}

impl WallClock {
    /// The earliest time that is plausible for any build, seconds since 1970: 2025-01-01.
    const EARLIEST: u64 = 1_735_689_600;
    /// The end of plausible times: 2100-01-01.
    const LATEST: u64 = 4_102_444_800;

    /// A clock that shows `seconds` since 1970 at `now`, for a build whose commit was made at `commit_time`.
    pub fn new(seconds: u64, now: Instant, commit_time: u64) -> WallClock {
        let epoch = seconds.saturating_mul(1_000_000_000).saturating_sub(now.as_nanos());
        let is_plausible = Self::possible(commit_time).contains(&seconds);
        WallClock { epoch, is_plausible }
    }

    /// The plausible times, in seconds since 1970, for a build whose commit was made at `commit_time`.
    pub fn possible(commit_time: u64) -> Range<u64> {
        Self::EARLIEST.max(commit_time)..Self::LATEST
    }

    /// Wall-clock time at an instant, since 1970.
    pub fn at(&self, instant: Instant) -> Timestamp {
        let nanos = self.epoch.saturating_add(instant.as_nanos());
        Timestamp(Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_before_the_build_is_not_plausible() {
        let now = Instant::from_nanos(5_000_000_000);
        let built = 1_763_636_868;
        let clock = |seconds| WallClock::new(seconds, now, built);
        assert!(clock(built).is_plausible && clock(built + 1_000_000_000).is_plausible);
        for absurd in [0, 978_307_200, built - 1, u64::MAX] {
            assert!(!clock(absurd).is_plausible, "{absurd}");
        }
        assert!(WallClock::new(WallClock::EARLIEST, now, 0).is_plausible);
        assert_eq!(format!("{:.0}", clock(built).at(now)), "2025-11-20T11:07:48Z");
    }
}
