//! Adaptive interrupt moderation: how long the card delays the event of a completion (as Linux's `lib/dim`). Without it
//! a loop that halts as soon as it is idle is woken for every few requests; with it, once for all requests that come
//! without a pause.
//!
//! It is tried if wake-ups find several completions. The period is four times the mean time between two completions (of
//! exponentially distributed times one in 55 is longer). Each completion restarts it, so that it ends at a pause.
//! Moderation stays on if wake-ups then find many more completions, at about the same total rate. This is checked again
//! now and then, because with fewer requests in flight than before the loop waits for the pause. If each request comes
//! only after the answer to the one before it, moderation stays off.

use core::time::Duration;
use drivers::hal::Instant;

/// Number of wake-ups that are evaluated together.
const EPOCH: u32 = 64;
/// Number of wake-ups of a trial after which it may be ended.
const SAMPLE: u32 = 8;
/// Completions per wake-up from which moderation is tried, and below which it ends.
const SEVERAL: u64 = 2;
/// A period is this many times the mean time between two completions.
const GAPS: u32 = 4;
/// Longest period. Each completion restarts it: if they come just within it, the first one waits for many of them.
const LONGEST: Duration = Duration::from_micros(1000);
/// Number of completions that end a period.
pub const MOST: u16 = 16;
/// Epochs before the next trial, at first and at most.
const PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 32;
/// Epochs after which moderation has to prove its benefit again.
const TRUSTED: u32 = 32;

/// Results of some wake-ups.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    wakes: u32,
    completions: u64,
    time: Duration,
}

impl Epoch {
    /// Mean time between completions.
    fn gap(&self) -> Duration {
        self.time / u32::try_from(self.completions).unwrap_or(u32::MAX).max(1)
    }

    /// Whether it found at least a quarter more completions per wake-up.
    fn finds_more_than(&self, old: &Epoch) -> bool {
        4 * self.completions * u64::from(old.wakes) >= 5 * old.completions * u64::from(self.wakes)
    }
}

/// State of moderation.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Off; no trial for this number of epochs.
    Off(u32),
    /// Requested from the card on trial; the epoch before.
    Tried(Epoch),
    /// On; trusted for this number of epochs.
    On(u32),
}

/// The adaptive moderation of a completion queue.
#[derive(Debug)]
pub struct Moderation {
    stage: Stage,
    /// Period in microseconds; 0 for no moderation.
    period: u16,
    /// Epochs without a trial after the next trial that brings no benefit.
    pause: u32,
    epoch: Epoch,
    /// Wake-ups until the next decision.
    until: u32,
    /// Number of completions taken at the last halt, and its time.
    taken: u32,
    at: Instant,
    /// Halts in a row before which the loop did other work.
    other_halts: u32,
}

impl Default for Moderation {
    fn default() -> Self {
        Moderation {
            stage: Stage::Off(0),
            period: 0,
            pause: PAUSE,
            epoch: Epoch::default(),
            until: EPOCH,
            taken: 0,
            at: Instant::ZERO,
            other_halts: 0,
        }
    }
}

impl Moderation {
    /// The wanted period in microseconds.
    pub fn period(&self) -> u16 {
        self.period
    }

    /// The loop halts after other work than completions, of which `taken` were taken so far: the time until then does
    /// not count. Returns whether the card needs another period: none, if the loop does other work all the time.
    pub fn halts_after_other_work(&mut self, taken: u32, now: Instant) -> bool {
        (self.taken, self.at) = (taken, now);
        self.other_halts = self.other_halts.saturating_add(1);
        let ends = self.other_halts >= EPOCH && self.period > 0;
        if ends {
            (self.stage, self.period, self.until) = (Stage::Off(PAUSE), 0, EPOCH);
        }
        ends
    }

    /// The card has applied the period.
    pub fn applied(&mut self) {
        self.epoch = Epoch::default();
    }

    /// The loop halts again after a wake-up by completions, of which `taken` were taken so far. Returns whether the
    /// card needs another period.
    #[inline]
    pub fn halts(&mut self, taken: u32, now: Instant) -> bool {
        self.epoch.wakes += 1;
        self.epoch.completions += u64::from(taken.wrapping_sub(self.taken));
        self.epoch.time += now.since(self.at);
        (self.taken, self.at, self.other_halts) = (taken, now, 0);
        self.epoch.wakes >= self.until && self.decide()
    }

    #[cold]
    fn decide(&mut self) -> bool {
        self.until = EPOCH;
        if let Stage::Tried(old) = self.stage
            && self.epoch.wakes < EPOCH
            && self.epoch.finds_more_than(&old)
        {
            return false;
        }
        let epoch = core::mem::take(&mut self.epoch);
        let before = self.period;
        let several = epoch.completions >= SEVERAL * u64::from(epoch.wakes);
        match self.stage {
            Stage::Off(0) if several => {
                (self.stage, self.period) = (Stage::Tried(epoch), wanted(&epoch));
                self.until = SAMPLE;
            }
            Stage::Off(pause) => self.stage = Stage::Off(pause.saturating_sub(1)),
            Stage::Tried(old) => {
                if epoch.finds_more_than(&old) && epoch.gap() <= old.gap() * 7 / 6 {
                    (self.stage, self.pause) = (Stage::On(TRUSTED), PAUSE);
                } else {
                    (self.stage, self.period) = (Stage::Off(self.pause), 0);
                    self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                }
            }
            Stage::On(_) if !several => (self.stage, self.period) = (Stage::Off(PAUSE), 0),
            Stage::On(0) => (self.stage, self.period) = (Stage::Off(0), 0),
            Stage::On(left) => {
                self.stage = Stage::On(left - 1);
                let wanted = wanted(&epoch);
                // A period that is too long does little harm: it ends after `MOST` completions.
                if 4 * u32::from(wanted) > 5 * u32::from(before) || before > 2 * wanted {
                    self.period = wanted;
                }
            }
        }
        self.period != before
    }
}

/// The period that fits an epoch.
fn wanted(epoch: &Epoch) -> u16 {
    (GAPS * epoch.gap()).min(LONGEST).as_micros().max(1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with requests at some rate, in the bursts that moderation makes of them.
    struct Load {
        moderation: Moderation,
        taken: u32,
        now: u64,
        requests: u32,
    }

    impl Load {
        fn new() -> Self {
            Load { moderation: Moderation::default(), taken: 0, now: 1, requests: 0 }
        }

        /// `count` wake-ups; `found` returns the completions of each and the microseconds before it, by the period.
        fn wakes(&mut self, count: u32, found: impl Fn(u16) -> (u32, u64)) {
            for _ in 0..count {
                let (completions, micros) = found(self.moderation.period());
                self.taken = self.taken.wrapping_add(completions);
                self.now += micros;
                let now = Instant::from_nanos(1000 * self.now);
                if self.moderation.halts(self.taken, now) {
                    self.requests += 1;
                    self.moderation.applied();
                }
            }
        }
    }

    #[test]
    fn bursts_are_moderated_and_single_completions_are_not() {
        let mut load = Load::new();
        let deep = |period| if period > 0 { (8, 16) } else { (3, 6) };
        load.wakes(10 * EPOCH, deep);
        assert_eq!((load.moderation.period(), load.requests), (8, 1));
        // Other work now and then, and then all the time.
        let now = Instant::from_nanos(1000 * load.now);
        assert!(!load.moderation.halts_after_other_work(load.taken, now));
        load.wakes(EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        let ends = (0..EPOCH).map(|_| load.moderation.halts_after_other_work(load.taken, now));
        assert_eq!(ends.filter(|ends| *ends).count(), 1);
        assert_eq!(load.moderation.period(), 0);
        load.wakes(10 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        // Requests become slower, and come one by one.
        load.wakes(3 * EPOCH, |_| (8, 400));
        assert_eq!(load.moderation.period(), 200);
        load.wakes(EPOCH, |_| (8, 8_000_000));
        assert_eq!(load.moderation.period(), 1000);
        load.wakes(2 * EPOCH, |_| (1, 20));
        assert_eq!(load.moderation.period(), 0);
        load.wakes(10 * EPOCH, |_| (1, 20));
        assert_eq!(load.moderation.period(), 0);
    }

    /// Eight requests where there were more before, each after the answer to one: moderation only delays them.
    #[test]
    fn fewer_requests_in_flight_end_moderation_soon() {
        let mut load = Load::new();
        let deep = |period| if period > 0 { (16, 32) } else { (3, 6) };
        load.wakes(10 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        let shallow = |period| if period > 0 { (8, 16 + u64::from(period)) } else { (3, 6) };
        load.wakes((TRUSTED + 4) * EPOCH, shallow);
        assert_eq!(load.moderation.period(), 0);
        load.requests = 0;
        load.wakes(100 * EPOCH, shallow);
        assert_eq!((load.moderation.period(), load.requests), (0, 8));
        load.wakes(100 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
    }

    /// Two requests, the second right behind the first, which waits for the answer before it: moderation is tried ever
    /// less often.
    #[test]
    fn moderation_without_benefit_is_rarely_tried() {
        let mut load = Load::new();
        load.wakes(400 * EPOCH, |period| (2, 20 + u64::from(period)));
        assert_eq!((load.moderation.period(), load.requests), (0, 30));
        // The trials cost a hundredth of the rate.
        let alone = 20 * u64::from(400 * EPOCH);
        assert!(load.now < alone + alone / 100, "{} us instead of {alone}", load.now);
        // As many completions per wake-up, but ever fewer in total.
        let mut load = Load::new();
        load.wakes(100 * EPOCH, |period| if period > 0 { (4, 60) } else { (3, 30) });
        assert!(load.requests < 12 && load.taken > 300 * EPOCH, "{}", load.requests);
        // The number of completions wraps.
        load.taken = u32::MAX - 5;
        load.moderation.halts_after_other_work(load.taken, Instant::from_nanos(1000 * load.now));
        load.wakes(40, |_| (1, 1));
    }
}
