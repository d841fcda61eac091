//! When a poll loop that finds nothing to do may halt, and the books of what it did with its time.

use core::time::Duration;
use drivers::hal::Instant;
pub use management::loops::{LoopCounters, Stage, StageCounters};

/// The quiet time is divided by this where work begins to come soon.
const FIRST_SHARE: u64 = 16;
/// So many rounds in a row that found work are load: it polls then.
const LOAD: u32 = 16;

/// Decides when a loop that finds nothing to do may halt, and keeps its books.
///
/// It polls for as long as that pays (as Linux's `haltpoll` governor does): each time that work comes within
/// the quiet time after the last, it polls for twice as long before it halts, up to the quiet time; when
/// work has kept it waiting for longer than that, it halts at once. Under load it hardly ever halts, and a
/// heartbeat every few seconds costs no polling.
#[derive(Debug)]
pub struct Pace {
    /// What was counted.
    pub counters: LoopCounters,
    /// For how long it polls at most, in nanoseconds.
    quiet_time: u64,
    /// For how long it polls now.
    patience: u64,
    last_work: Instant,
    /// It has looked for work in vain, or halted, since the last work.
    waited: bool,
    /// Rounds since then that found work.
    streak: u32,
    round_start: Instant,
}

impl Pace {
    /// A loop that halts after `quiet_time` without work, or sooner.
    pub fn new(quiet_time: Duration, now: Instant) -> Self {
        let mut pace = Pace {
            counters: LoopCounters::default(),
            quiet_time: 0,
            patience: 0,
            last_work: now,
            waited: false,
            streak: 0,
            round_start: now,
        };
        pace.set_quiet_time(quiet_time);
        pace
    }

    /// A setting of the operator's.
    pub fn set_quiet_time(&mut self, quiet_time: Duration) {
        self.quiet_time = u64::try_from(quiet_time.as_nanos()).unwrap_or(u64::MAX);
        self.patience = self.patience.min(self.quiet_time);
    }

    /// Closes the books on a round that ends `now`; true if the loop may halt.
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
            // Without patience the look that precedes every halt is all that is asked for.
            return self.patience == 0;
        }
        self.waited = true;
        self.counters.idle += took;
        now.nanos_since(self.last_work) >= self.patience
    }

    /// Work has come so many nanoseconds after the last.
    fn adapt(&mut self, waited: u64) {
        self.patience = if waited > self.quiet_time {
            0
        } else {
            (2 * self.patience).clamp(self.quiet_time / FIRST_SHARE, self.quiet_time)
        };
    }

    /// Notes a halt that ended `now`.
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
    fn without_a_quiet_time_it_halts_at_once() {
        let mut pace = Pace::new(Duration::ZERO, at(0));
        assert!(pace.round(true, at(10)));
        assert!(pace.round(false, at(20)));
        assert_eq!(pace.counters.busy, 10_000);
    }

    /// Work every so many microseconds, which takes one; for how long it polled before each, or until it halted.
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
    fn polls_for_as_long_as_that_pays() {
        let (mut pace, mut now) = (Pace::new(Duration::from_micros(64), at(0)), 0);
        // What comes soon after the last is waited for, longer each time.
        let spent = polled(&mut pace, &mut now, 40, 8);
        assert_eq!(spent, [0, 4, 8, 16, 32, 40, 40, 40]);
        // Under load there is no halt.
        assert_eq!(pace.counters.halts, 5);
        // A heartbeat a second: polled for once more, and then never.
        assert_eq!(polled(&mut pace, &mut now, 1_000_000, 4), [64, 0, 0, 0]);
        // A heartbeat and its answer: hardly at all.
        for _ in 0..10 {
            polled(&mut pace, &mut now, 40, 1);
            assert!(polled(&mut pace, &mut now, 1_000_000, 1)[0] <= 4);
        }
    }

    #[test]
    fn under_load_it_does_not_look_before_a_halt_each_time() {
        let mut pace = Pace::new(Duration::from_micros(64), at(0));
        let looked = (1..1000).filter(|&n| pace.round(true, at(n))).count();
        assert!(looked < 20, "{looked} times");
    }

    #[test]
    fn the_books_are_complete() {
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
