//! How long the card holds back the event of a completion: interrupt moderation, which adapts itself to what comes (as
//! Linux's `lib/dim` does). A loop that halts as soon as it has nothing to do is woken for every few requests otherwise; with
//! it, for as many as come without a pause.
//!
//! It is tried where several completions are found at a wake-up, with a period of four times the mean time between two of
//! them (of times that are exponentially distributed one in 55 is longer), which begins anew with each, so that it ends when
//! there is a pause; and kept if then many more are found at each, and about as many come in all. That is found out anew now
//! and then: who has fewer requests under way than before waits for the pause. Where requests come one by one, each when the
//! one before it was answered, none is held back.

use core::time::Duration;
use drivers::hal::Instant;

/// Wake-ups that are looked at together.
const EPOCH: u32 = 64;
/// And after which it is seen that it does not pay.
const SAMPLE: u32 = 8;
/// Completions of each wake-up, from which on it is tried, and under which it ends.
const SEVERAL: u64 = 2;
/// Times the mean time between two completions: a period.
const GAPS: u32 = 4;
/// Longest period. Each completion begins it anew: where they come just within it, the first one waits for so many of them.
const LONGEST: Duration = Duration::from_micros(1000);
/// So many completions end a period.
pub const MOST: u16 = 16;
/// Epochs before it is tried again, at first and at most.
const PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 32;
/// Epochs after which that it has paid is to be shown again.
const TRUSTED: u32 = 32;

/// What was found at some wake-ups.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    wakes: u32,
    completions: u64,
    time: Duration,
}

impl Epoch {
    /// Mean time for each completion.
    fn gap(&self) -> Duration {
        self.time / u32::try_from(self.completions).unwrap_or(u32::MAX).max(1)
    }

    /// A quarter more at each wake-up, at least.
    fn finds_more_than(&self, old: &Epoch) -> bool {
        4 * self.completions * u64::from(old.wakes) >= 5 * old.completions * u64::from(self.wakes)
    }
}

/// Where it stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Nothing is held back, and it is not tried for so many epochs.
    Off(u32),
    /// The card was asked for it, and this was before.
    Tried(Epoch),
    /// It has paid, and is trusted for so many epochs.
    On(u32),
}

/// What the card is asked for.
#[derive(Debug)]
pub struct Moderation {
    stage: Stage,
    /// Microseconds; 0: nothing is held back.
    period: u16,
    /// How long it is not tried after it did not pay the next time.
    pause: u32,
    epoch: Epoch,
    /// Wake-ups after which something is decided.
    until: u32,
    /// How many completions had been taken, and when.
    taken: u32,
    at: Instant,
    /// Halts in a row before which the loop did something else.
    others: u32,
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
            others: 0,
        }
    }
}

impl Moderation {
    /// The period that is wanted, in microseconds.
    pub fn period(&self) -> u16 {
        self.period
    }

    /// The loop halts after it has done something else than take completions, of which so many were taken in all: what was
    /// until then does not count. Whether the card is to be asked for another period: none, if that is so all the time.
    pub fn halts_after_others(&mut self, taken: u32, now: Instant) -> bool {
        (self.taken, self.at) = (taken, now);
        self.others = self.others.saturating_add(1);
        let ends = self.others >= EPOCH && self.period > 0;
        if ends {
            (self.stage, self.period, self.until) = (Stage::Off(PAUSE), 0, EPOCH);
        }
        ends
    }

    /// The card does as it was asked.
    pub fn applies(&mut self) {
        self.epoch = Epoch::default();
    }

    /// It halts again after a wake-up by completions, of which so many were taken in all by now. Whether the card is to be
    /// asked for another period.
    #[inline]
    pub fn halts(&mut self, taken: u32, now: Instant) -> bool {
        self.epoch.wakes += 1;
        self.epoch.completions += u64::from(taken.wrapping_sub(self.taken));
        self.epoch.time += now.since(self.at);
        (self.taken, self.at, self.others) = (taken, now, 0);
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
                // One that is too long does little harm: it ends with enough completions.
                if 4 * u32::from(wanted) > 5 * u32::from(before) || before > 2 * wanted {
                    self.period = wanted;
                }
            }
        }
        self.period != before
    }
}

/// The period for what was found.
fn wanted(epoch: &Epoch) -> u16 {
    (GAPS * epoch.gap()).min(LONGEST).as_micros().max(1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose requests come at some pace, in the bursts that moderation makes of them.
    struct Load {
        moderation: Moderation,
        taken: u32,
        now: u64,
        asked: u32,
    }

    impl Load {
        fn new() -> Self {
            Load { moderation: Moderation::default(), taken: 0, now: 1, asked: 0 }
        }

        /// So many wake-ups, at which `found` completions are found after `micros`, by the period.
        fn wakes(&mut self, count: u32, found: impl Fn(u16) -> (u32, u64)) {
            for _ in 0..count {
                let (completions, micros) = found(self.moderation.period());
                self.taken = self.taken.wrapping_add(completions);
                self.now += micros;
                let now = Instant::from_nanos(1000 * self.now);
                if self.moderation.halts(self.taken, now) {
                    self.asked += 1;
                    self.moderation.applies();
                }
            }
        }
    }

    #[test]
    fn what_comes_in_numbers_is_held_back_and_what_comes_alone_is_not() {
        let mut load = Load::new();
        let deep = |period| if period > 0 { (8, 16) } else { (3, 6) };
        load.wakes(10 * EPOCH, deep);
        assert_eq!((load.moderation.period(), load.asked), (8, 1));
        // Others may do something now and then; and all the time.
        let now = Instant::from_nanos(1000 * load.now);
        assert!(!load.moderation.halts_after_others(load.taken, now));
        load.wakes(EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        let ends = (0..EPOCH).map(|_| load.moderation.halts_after_others(load.taken, now));
        assert_eq!(ends.filter(|ends| *ends).count(), 1);
        assert_eq!(load.moderation.period(), 0);
        load.wakes(10 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        // It comes more slowly, and one by one.
        load.wakes(3 * EPOCH, |_| (8, 400));
        assert_eq!(load.moderation.period(), 200);
        load.wakes(EPOCH, |_| (8, 8_000_000));
        assert_eq!(load.moderation.period(), 1000);
        load.wakes(2 * EPOCH, |_| (1, 20));
        assert_eq!(load.moderation.period(), 0);
        load.wakes(10 * EPOCH, |_| (1, 20));
        assert_eq!(load.moderation.period(), 0);
    }

    /// Eight requests where there were more before, each behind the answer to one: what is held back is lost.
    #[test]
    fn fewer_requests_than_before_are_not_held_back_for_long() {
        let mut load = Load::new();
        let deep = |period| if period > 0 { (16, 32) } else { (3, 6) };
        load.wakes(10 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
        let shallow = |period| if period > 0 { (8, 16 + u64::from(period)) } else { (3, 6) };
        load.wakes((TRUSTED + 4) * EPOCH, shallow);
        assert_eq!(load.moderation.period(), 0);
        load.asked = 0;
        load.wakes(100 * EPOCH, shallow);
        assert_eq!((load.moderation.period(), load.asked), (0, 8));
        load.wakes(100 * EPOCH, deep);
        assert_eq!(load.moderation.period(), 8);
    }

    /// Each of these waits for the answer before it, but for its second part: it is tried ever more seldom.
    #[test]
    fn what_does_not_pay_is_hardly_tried() {
        let mut load = Load::new();
        load.wakes(400 * EPOCH, |period| (2, 20 + u64::from(period)));
        assert_eq!((load.moderation.period(), load.asked), (0, 30));
        // That costs it a hundredth of its pace.
        let alone = 20 * u64::from(400 * EPOCH);
        assert!(load.now < alone + alone / 100, "{} us instead of {alone}", load.now);
        // As many at a time, but ever fewer in all.
        let mut load = Load::new();
        load.wakes(100 * EPOCH, |period| if period > 0 { (4, 60) } else { (3, 30) });
        assert!(load.asked < 12 && load.taken > 300 * EPOCH, "{}", load.asked);
        // Numbers of completions begin anew.
        load.taken = u32::MAX - 5;
        load.moderation.halts_after_others(load.taken, Instant::from_nanos(1000 * load.now));
        load.wakes(40, |_| (1, 1));
    }
}
