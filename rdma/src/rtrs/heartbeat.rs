//! Heartbeats of a path, the same on both sides (rtrs.c, `hb_work`): each side asks at every tick
//! at which its last question has been answered; whatever arrives counts as an answer.

use core::time::Duration;
use drivers::hal::Instant;

/// The heartbeat of one path.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    interval: Duration,
    allowed_misses: u8,
    missed: u8,
    next: Instant,
    asked: Instant,
}

/// What a tick asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing (yet).
    Nothing,
    /// A heartbeat message.
    Send,
    /// The peer has been silent for too long.
    Dead,
}

impl Heartbeat {
    /// Starts now; the first tick is one interval away.
    pub fn new(interval: Duration, allowed_misses: u8, now: Instant) -> Self {
        Heartbeat { interval, allowed_misses, missed: 0, next: now + interval, asked: now }
    }

    /// Something arrived on any connection of the path.
    #[inline]
    pub fn heard(&mut self) {
        self.missed = 0;
    }

    /// Whether the last question was not answered (yet).
    pub fn is_silent(&self) -> bool {
        self.missed > 0
    }

    /// A question was asked between two ticks.
    pub fn ask(&mut self, now: Instant) {
        self.asked = now;
    }

    /// When the next tick is due.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Runs the tick, if it is due.
    pub fn tick(&mut self, now: Instant) -> Tick {
        if now < self.next {
            return Tick::Nothing;
        }
        self.next = now + self.interval;
        if self.missed > self.allowed_misses {
            return Tick::Dead;
        }
        self.missed += 1;
        if self.missed > 1 {
            return Tick::Nothing;
        }
        self.asked = now;
        Tick::Send
    }

    /// The answer arrived: the time since the question.
    pub fn answered(&self, now: Instant) -> Duration {
        now.since(self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_silent_peer_is_dead_after_seven_ticks_and_a_talking_one_never() {
        let mut silent = Heartbeat::new(Duration::from_secs(5), 5, at(0));
        assert_eq!(silent.tick(at(4)), Tick::Nothing);
        let ticks: std::vec::Vec<Tick> = (1..=7).map(|n| silent.tick(at(5 * n))).collect();
        let mut expected = [Tick::Nothing; 7];
        expected[0] = Tick::Send;
        expected[6] = Tick::Dead;
        assert_eq!(ticks, expected);

        let mut talking = Heartbeat::new(Duration::from_secs(5), 5, at(0));
        for n in 1..100 {
            assert_eq!(talking.tick(at(5 * n)), Tick::Send);
            assert_eq!(talking.answered(at(5 * n + 1)), Duration::from_secs(1));
            talking.heard();
        }
    }
}
