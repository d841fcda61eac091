//! Heartbeats of a path (rtrs.c, `hb_work`): a side sends a heartbeat at every tick at which its last one has been
//! answered. Any received message counts as an answer.
//!
//! Both sides of Linux do so. Our server sends one only if nothing was received since its last tick: the heartbeats of
//! an active client already prove that it is alive, which saves four packets and as many wake-ups.

use core::time::Duration;
use drivers::hal::Instant;

/// Ticks that a server skips while messages of its client arrive: it sends one heartbeat a minute.
const SKIPPED_TICKS: u8 = 11;

/// The heartbeat of one path.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    interval: Duration,
    allowed_misses: u8,
    missed: u8,
    /// Ticks to skip after a heartbeat while messages arrive.
    skip_after_send: u8,
    /// Ticks still to skip.
    ticks_to_skip: u8,
    /// When the last message was received.
    last_rx: Instant,
    next: Instant,
    last_tx: Instant,
}

/// Result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing to do.
    Nothing,
    /// Send a heartbeat.
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
            skip_after_send: 0,
            ticks_to_skip: 0,
            last_rx: now,
            next: now + interval,
            last_tx: now,
        }
    }

    /// As [`Heartbeat::new`], for a side whose peer sends heartbeats by itself: while messages arrive, a heartbeat is
    /// sent only at the first tick, and then once in a while to measure the latency.
    pub fn for_server(interval: Duration, allowed_misses: u8, now: Instant) -> Self {
        Heartbeat {
            skip_after_send: SKIPPED_TICKS,
            ..Heartbeat::new(interval, allowed_misses, now)
        }
    }

    /// Records a message received on any connection of the path.
    #[inline]
    pub fn record_rx(&mut self, now: Instant) {
        self.missed = 0;
        self.last_rx = now;
    }

    /// Whether the last heartbeat is unanswered, or the peer, which has the same interval, has missed its own
    /// heartbeat.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.missed > 0 || now.since(self.last_rx) > self.interval + self.interval / 4
    }

    /// Records a heartbeat sent between two ticks.
    pub fn record_tx(&mut self, now: Instant) {
        self.last_tx = now;
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
        // A small delay does not shift the following ticks.
        let late = now.since(self.next) >= self.interval;
        self.next = if late { now } else { self.next } + self.interval;
        if self.ticks_to_skip > 0 && now.since(self.last_rx) <= self.interval {
            self.ticks_to_skip -= 1;
            return Tick::Nothing;
        }
        if self.missed > self.allowed_misses {
            return Tick::Dead;
        }
        self.missed += 1;
        if self.missed > 1 {
            return Tick::Nothing;
        }
        self.ticks_to_skip = self.skip_after_send;
        self.last_tx = now;
        Tick::Send
    }

    /// Time from the last heartbeat to its answer at `now`.
    pub fn latency(&self, now: Instant) -> Duration {
        now.since(self.last_tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn silent_peer_is_dead_after_seven_ticks_and_active_one_never() {
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
            assert_eq!(talking.latency(at(5 * n + 1)), Duration::from_secs(1));
            talking.record_rx(at(5 * n + 1));
        }
    }

    #[test]
    fn ticks_keep_their_interval_after_a_late_one() {
        let mut heartbeat = Heartbeat::new(Duration::from_secs(5), 5, at(0));
        let next = [6, 10, 19, 30].map(|n| {
            heartbeat.tick(at(n));
            heartbeat.deadline()
        });
        assert_eq!(next, [10, 15, 20, 35].map(at));
    }

    #[test]
    fn server_sends_to_an_active_client_once_a_minute() {
        let mut heartbeat = Heartbeat::for_server(Duration::from_secs(5), 5, at(0));
        let ticks = |heartbeat: &mut Heartbeat, from: u64, to: u64, active: bool| {
            let sends = |n: &u64| {
                if active {
                    heartbeat.record_rx(at(5 * n - 2));
                }
                heartbeat.tick(at(5 * n)) == Tick::Send
            };
            (from..=to).filter(sends).collect::<std::vec::Vec<u64>>()
        };
        assert_eq!(ticks(&mut heartbeat, 1, 30, true), [1, 13, 25]);
        // A client that falls silent gets a heartbeat at the next tick, and is dead after as many ticks as with Linux.
        assert!(!heartbeat.is_silent(at(154)) && heartbeat.is_silent(at(155)));
        assert_eq!(ticks(&mut heartbeat, 31, 36, false), [31]);
        assert_eq!(heartbeat.tick(at(5 * 37)), Tick::Dead);
    }
}
