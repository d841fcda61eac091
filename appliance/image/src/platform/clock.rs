//! Monotonic time from the time-stamp counter, at the frequency that the stub measured.

use core::arch::x86_64::_rdtsc;
use drivers::hal::Instant;

/// The clock. All copies count from the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// TSC at time zero.
    start: u64,
    /// Nanoseconds per tick, as a 32.32 fixed-point number.
    scale: u64,
    khz: u64,
}

impl Clock {
    /// A clock that starts now. `khz` is the TSC's frequency, not 0.
    pub fn start(khz: u64) -> Self {
        Clock { start: tsc(), scale: (1_000_000 << 32) / khz, khz }
    }

    /// The present moment.
    #[inline]
    pub fn now(&self) -> Instant {
        let ticks = tsc().wrapping_sub(self.start);
        Instant::from_nanos(((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64)
    }

    /// The TSC's value `nanos` nanoseconds from now, at most 2³².
    #[inline]
    pub fn tsc_after(&self, nanos: u64) -> u64 {
        tsc().saturating_add(nanos * self.khz / 1_000_000)
    }
}

impl drivers::hal::Clock for Clock {
    fn now(&self) -> Instant {
        Clock::now(self)
    }
}

/// The time-stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _rdtsc() }
}
