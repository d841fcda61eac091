//! What a poll loop did with its time: counters per stage, and the shares of busy, idle and
//! halted time that `show loops` and the metrics tell.

use core::time::Duration;
use drivers::hal::Instant;

/// The stages of a loop, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Frames taken from the ports.
    Receive,
    /// Completions taken from the disks.
    Disks,
    /// Protocol servers: completions, requests, answers.
    Serve,
    /// Frames handed to the ports.
    Transmit,
    /// TCP/IP of the control plane, and what stands on it.
    Control,
    /// Serial console.
    Console,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 6] = [
        Stage::Receive,
        Stage::Disks,
        Stage::Serve,
        Stage::Transmit,
        Stage::Control,
        Stage::Console,
    ];

    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Disks => "disks",
            Stage::Serve => "serve",
            Stage::Transmit => "transmit",
            Stage::Control => "control",
            Stage::Console => "console",
        }
    }
}

/// How often a stage found work, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounters {
    /// Rounds in which it found work.
    pub rounds: u64,
    /// Items (frames, completions, bytes of console input) handled.
    pub items: u64,
}

/// The books of one loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopCounters {
    /// Rounds in all.
    pub rounds: u64,
    /// Nanoseconds in rounds that found work.
    pub busy: u64,
    /// Nanoseconds in rounds that found none.
    pub idle: u64,
    /// Nanoseconds halted.
    pub halted: u64,
    /// Times halted.
    pub halts: u64,
    /// By stage.
    pub stages: [StageCounters; Stage::ALL.len()],
}

impl LoopCounters {
    /// Notes that `stage` handled `items` items in this round.
    #[inline]
    pub fn work(&mut self, stage: Stage, items: usize) {
        if items > 0 {
            let counters = &mut self.stages[stage as usize];
            counters.rounds += 1;
            counters.items += items as u64;
        }
    }

    /// Busy, idle and halted shares of all time so far, each from 0 to 1.
    pub fn shares(&self) -> [f64; 3] {
        let parts = [self.busy, self.idle, self.halted].map(|nanos| nanos as f64);
        let all: f64 = parts.iter().sum();
        parts.map(|p| if all > 0.0 { p / all } else { 0.0 })
    }
}

/// Decides when a loop that finds nothing to do may halt, and keeps its books.
#[derive(Debug)]
pub struct Pace {
    /// What was counted.
    pub counters: LoopCounters,
    /// In nanoseconds.
    quiet_time: u64,
    last_work: Instant,
    round_start: Instant,
}

impl Pace {
    /// A loop that halts after `quiet_time` without work.
    pub fn new(quiet_time: Duration, now: Instant) -> Self {
        let mut pace = Pace {
            counters: LoopCounters::default(),
            quiet_time: 0,
            last_work: now,
            round_start: now,
        };
        pace.set_quiet_time(quiet_time);
        pace
    }

    /// A setting of the operator's.
    pub fn set_quiet_time(&mut self, quiet_time: Duration) {
        self.quiet_time = u64::try_from(quiet_time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Closes the books on a round that ends `now`; true if the loop may halt.
    #[inline]
    pub fn round(&mut self, worked: bool, now: Instant) -> bool {
        let took = now.nanos_since(self.round_start);
        self.round_start = now;
        self.counters.rounds += 1;
        if worked {
            self.counters.busy += took;
            self.last_work = now;
            // Without a quiet time the look that precedes every halt is all that is asked for.
            return self.quiet_time == 0;
        }
        self.counters.idle += took;
        now.nanos_since(self.last_work) >= self.quiet_time
    }

    /// Notes a halt that ended `now`.
    pub fn halted(&mut self, now: Instant) {
        self.counters.halted += now.nanos_since(self.round_start);
        self.counters.halts += 1;
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

    #[test]
    fn halts_only_after_the_quiet_time() {
        let mut pace = Pace::new(Duration::from_micros(50), at(0));
        assert!(!pace.round(true, at(10)));
        assert!(!pace.round(false, at(40)));
        assert!(pace.round(false, at(60)));
        pace.halted(at(1060));
        assert!(pace.round(false, at(1061)), "still quiet after the halt");
        assert!(!pace.round(true, at(1062)));
        let c = pace.counters;
        assert_eq!(c.halts, 1);
        assert_eq!(c.busy, 11_000);
        assert_eq!(c.idle, 51_000);
        assert_eq!(c.halted, 1_000_000);
        let total: f64 = c.shares().iter().sum();
        assert!((total - 1.0).abs() < 1e-9);
    }
}
