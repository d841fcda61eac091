//! Decides when an idle poll loop may halt, and accounts for its time.

use core::time::Duration;
use drivers::hal::Instant;
pub use management::loops::{LoopCounters, Stage, StageCounters};

/// The first polling time is the quiet time divided by this.
const FIRST_SHARE: u64 = 16;
/// Successive rounds with work that count as load: the loop polls then.
const LOAD: u32 = 16;

/// Decides when an idle loop may halt, and accounts for its time.
///
/// The polling time before a halt adapts, as in Linux's `haltpoll` governor. It doubles, up to the quiet time, each
/// time that work arrives within the quiet time after the last. If work arrives later than that, the loop halts at once
/// the next time. So it hardly ever halts under load, and a heartbeat every few seconds costs no polling.
#[derive(Debug)]
pub struct Pace {
    /// The loop's counters.
    pub counters: LoopCounters,
    /// Longest polling time before a halt, in nanoseconds.
    quiet_time: u64,
    /// Current polling time before a halt, in nanoseconds.
    poll_time: u64,
    last_work: Instant,
    /// There was a round without work, or a halt, since the last work.
    waited: bool,
    /// Rounds with work since then.
    streak: u32,
    round_start: Instant,
}

impl Pace {
    /// Creates the pace of a loop that halts after at most `quiet_time` without work.
    pub fn new(quiet_time: Duration, now: Instant) -> Self {
        let mut pace = Pace {
            counters: LoopCounters::default(),
            quiet_time: 0,
            poll_time: 0,
            last_work: now,
            waited: false,
            streak: 0,
            round_start: now,
        };
        pace.set_quiet_time(quiet_time);
        pace
    }

    /// Sets the quiet time of the configuration.
    pub fn set_quiet_time(&mut self, quiet_time: Duration) {
        self.quiet_time = u64::try_from(quiet_time.as_nanos()).unwrap_or(u64::MAX);
        self.poll_time = self.poll_time.min(self.quiet_time);
    }

    /// Accounts for a round that ends `now`. Returns whether the loop may halt.
    #[inline]
    pub fn round(&mut self, worked: bool, now: Instant) -> bool {
        let took = now.nanos_since(self.round_start);
        self.round_start = now;
        self.counters.rounds += 1;
        if worked {
            self.counters.busy += took;
            if core::mem::take(&mut self.waited) {
                let began = now.nanos_since(self.last_work).saturating_sub(took);
                self.adapt(began);
                self.streak = 0;
            }
            self.streak = self.streak.saturating_add(1);
            if self.streak == LOAD {
                self.adapt(0);
            }
            self.last_work = now;
            // Without a polling time, the check before every halt is enough.
            return self.poll_time == 0;
        }
        self.waited = true;
        self.counters.idle += took;
        now.nanos_since(self.last_work) >= self.poll_time
    }

    /// Adapts the polling time to work that arrived `waited` nanoseconds after the last.
    fn adapt(&mut self, waited: u64) {
        self.poll_time = if waited > self.quiet_time {
            0
        } else {
            (2 * self.poll_time).clamp(self.quiet_time / FIRST_SHARE, self.quiet_time)
        };
    }

    /// Accounts for a halt that ended `now`.
    pub fn halted(&mut self, now: Instant) {
        self.counters.halted += now.nanos_since(self.round_start);
        self.counters.halts += 1;
        self.waited = true;
        self.round_start = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn loop_without_quiet_time_halts_at_once() {
        let mut pace = Pace::new(Duration::ZERO, at(0));
        assert!(pace.round(true, at(10)));
        assert!(pace.round(false, at(20)));
        assert_eq!(pace.counters.busy, 10_000);
    }

    /// Simulates work of 1 µs every `gap` µs. Returns how long the loop polled before each, or until it halted.
    fn polled(pace: &mut Pace, now: &mut u64, gap: u64, times: usize) -> Vec<u64> {
        let mut all = Vec::new();
        for _ in 0..times {
            let mut spent = 0;
            let may_halt = pace.round(true, at(*now));
            let next = *now + gap;
            let mut halts = may_halt;
            while !halts && *now < next {
                *now += 1;
                spent += 1;
                halts = pace.round(false, at(*now));
            }
            if *now < next {
                *now = next;
                pace.halted(at(*now));
            }
            *now += 1;
            all.push(spent);
        }
        all
    }

    #[test]
    fn polling_time_adapts_to_the_work() {
        let (mut pace, mut now) = (Pace::new(Duration::from_micros(64), at(0)), 0);
        // Work arrives soon after the last: the loop polls longer each time.
        let spent = polled(&mut pace, &mut now, 40, 8);
        assert_eq!(spent, [0, 4, 8, 16, 32, 40, 40, 40]);
        // Under load there is no halt.
        assert_eq!(pace.counters.halts, 5);
        // A heartbeat every second: it polls once more, then never.
        assert_eq!(polled(&mut pace, &mut now, 1_000_000, 4), [64, 0, 0, 0]);
        // A heartbeat and its reply: it hardly polls.
        for _ in 0..10 {
            polled(&mut pace, &mut now, 40, 1);
            assert!(polled(&mut pace, &mut now, 1_000_000, 1)[0] <= 4);
        }
    }

    #[test]
    fn loop_under_load_rarely_asks_to_halt() {
        let mut pace = Pace::new(Duration::from_micros(64), at(0));
        let halts = (1..1000).filter(|&n| pace.round(true, at(n))).count();
        assert!(halts < 20, "{halts} times");
    }

    #[test]
    fn time_is_fully_accounted() {
        let mut pace = Pace::new(Duration::from_micros(50), at(0));
        assert!(pace.round(true, at(10)));
        assert!(pace.round(false, at(40)));
        pace.halted(at(1040));
        assert!(pace.round(false, at(1041)), "still quiet after the halt");
        assert!(pace.round(true, at(1042)));
        let c = pace.counters;
        assert_eq!(c.halts, 1);
        assert_eq!(c.busy, 11_000);
        assert_eq!(c.idle, 31_000);
        assert_eq!(c.halted, 1_000_000);
        let total: f64 = c.shares().iter().sum();
        assert!((total - 1.0).abs() < 1e-9);
    }
}
