//! Heartbeats of a path (rtrs.c, `hb_work`): a side asks at every tick at which its last question has been
//! answered; whatever arrives counts as an answer.
//!
//! Both sides of Linux do so. A server of ours asks when it has heard nothing since its last tick: a client that
//! asks by itself has shown that it is there, and four packets and as many wake-ups are saved.

use core::time::Duration;
use drivers::hal::Instant;

/// Ticks that a server does without a question, while its client is heard: it asks once in a minute.
const SPARED: u8 = 11;

/// The heartbeat of one path.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    interval: Duration,
    allowed_misses: u8,
    missed: u8,
    /// Ticks between two questions to a peer that is heard, and how many of them are left.
    spared: u8,
    quiet: u8,
    /// When something arrived last.
    heard_at: Instant,
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
        Heartbeat {
            interval,
            allowed_misses,
            missed: 0,
            spared: 0,
            quiet: 0,
            heard_at: now,
            next: now + interval,
            asked: now,
        }
    }

    /// As [`Heartbeat::new`], for a side whose peer asks by itself: a peer that was heard since the last tick is
    /// asked only at the first, and then once in a while, for the time that its answer takes.
    pub fn of_server(interval: Duration, allowed_misses: u8, now: Instant) -> Self {
        Heartbeat { spared: SPARED, ..Heartbeat::new(interval, allowed_misses, now) }
    }

    /// Something arrived on any connection of the path.
    #[inline]
    pub fn heard(&mut self, now: Instant) {
        self.missed = 0;
        self.heard_at = now;
    }

    /// Whether the last question was not answered (yet), or the peer, who asks as often as we do, has not asked
    /// when it should have.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.missed > 0 || now.since(self.heard_at) > self.interval + self.interval / 4
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
        // Who comes a little late does not put off those that follow.
        let late = now.since(self.next) >= self.interval;
        self.next = if late { now } else { self.next } + self.interval;
        if self.quiet > 0 && now.since(self.heard_at) <= self.interval {
            self.quiet -= 1;
            return Tick::Nothing;
        }
        if self.missed > self.allowed_misses {
            return Tick::Dead;
        }
        self.missed += 1;
        if self.missed > 1 {
            return Tick::Nothing;
        }
        self.quiet = self.spared;
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
            talking.heard(at(5 * n + 1));
        }
    }

    #[test]
    fn ticks_keep_their_interval_though_somebody_is_late() {
        let mut heartbeat = Heartbeat::new(Duration::from_secs(5), 5, at(0));
        let next = [6, 10, 19, 30].map(|n| {
            heartbeat.tick(at(n));
            heartbeat.deadline()
        });
        assert_eq!(next, [10, 15, 20, 35].map(at));
    }

    #[test]
    fn a_server_asks_a_client_that_is_heard_once_in_a_minute() {
        let mut heartbeat = Heartbeat::of_server(Duration::from_secs(5), 5, at(0));
        let ticks = |heartbeat: &mut Heartbeat, from: u64, to: u64, heard: bool| {
            let asked = |n: &u64| {
                if heard {
                    heartbeat.heard(at(5 * n - 2));
                }
                heartbeat.tick(at(5 * n)) == Tick::Send
            };
            (from..=to).filter(asked).collect::<std::vec::Vec<u64>>()
        };
        assert_eq!(ticks(&mut heartbeat, 1, 30, true), [1, 13, 25]);
        // One that falls silent is asked at the next tick, and is dead after as many ticks as with Linux.
        assert!(!heartbeat.is_silent(at(154)) && heartbeat.is_silent(at(155)));
        assert_eq!(ticks(&mut heartbeat, 31, 36, false), [31]);
        assert_eq!(heartbeat.tick(at(5 * 37)), Tick::Dead);
    }
}
