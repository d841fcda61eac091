//! How long to wait for an answer before packets are repeated: as long as the peer's answers take, after
//! RFC 6298 (smoothed round trip time and its deviation, Karn's rule), within the queue pair's ACK timeout.
//!
//! A lost packet is repeated after 1/16 of the ACK timeout where the peer is quick. The ACK timeout itself
//! would be long: meanwhile what the peer sent could time out too, and Linux's soft-RoCE does not survive
//! that. A slow peer is not given more work: each repetition doubles the wait, and once the peer shows that
//! it had all of them already, only the answer to a packet that was sent once makes it shorter again.

use crate::psn::Psn;
use core::time::Duration;
use drivers::hal::Instant;

/// The shortest wait is the ACK timeout divided by this.
const QUICKEST: u64 = 16;

/// The wait of a queue pair, and what it is learnt from. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct Patience {
    ceiling: u64,
    wait: u64,
    /// Smoothed round trip time, 0 before the first, and how far round trips are from it.
    smoothed: u64,
    deviation: u64,
    /// A packet whose answer is awaited, sent when.
    timed: Option<(Psn, Instant)>,
    /// Since packets were repeated, and until an answer tells a round trip time: what was sent by then.
    repeated: Option<Psn>,
    /// The wait with all doublings, and whether the repetition was in vain: the wait is that one then.
    doubled: u64,
    in_vain: bool,
}

impl Patience {
    /// Up to the ACK timeout; never runs out if that is 0.
    pub fn new(timeout: Duration) -> Self {
        let ceiling = timeout.as_nanos() as u64;
        Patience { ceiling, wait: ceiling / QUICKEST, ..Patience::default() }
    }

    /// When it runs out if nothing is acknowledged from now on.
    #[inline]
    pub fn runs_out(&self, now: Instant) -> Option<Instant> {
        (self.ceiling > 0).then(|| Instant::from_nanos(now.as_nanos() + self.wait))
    }

    /// A packet that asks for an ACK has been sent for the first time.
    #[inline]
    pub fn asked(&mut self, psn: Psn, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Everything before `psn` is acknowledged.
    #[inline]
    pub fn acknowledged(&mut self, psn: Psn, now: Instant) {
        if let Some((timed, sent)) = self.timed {
            if timed.is_before(psn) {
                self.timed = None;
                self.learn(now.nanos_since(sent));
            }
        } else if self.repeated.is_some() && !self.in_vain {
            self.wait = self.estimate();
        }
    }

    /// Something was acknowledged again, when everything before `psn` was acknowledged. If that is all
    /// that was repeated, the answers to the repetition still come: the first ones were only slow.
    pub fn acknowledged_again(&mut self, psn: Psn) {
        if self.repeated.is_some_and(|until| !psn.is_before(until)) {
            self.in_vain = true;
            self.wait = self.doubled;
        }
    }

    /// Packets before `until` are sent again: an answer would not tell which one it is for.
    pub fn repeats(&mut self, until: Psn) {
        self.timed = None;
        self.repeated = Some(until);
        self.doubled = self.wait;
    }

    /// It ran out. Returns whether that was the whole ACK timeout, and counts as a retry.
    pub fn ran_out(&mut self) -> bool {
        let whole = self.wait >= self.ceiling;
        self.wait = (2 * self.wait).min(self.ceiling);
        whole
    }

    fn learn(&mut self, took: u64) {
        if self.smoothed == 0 {
            self.deviation = took / 2;
            self.smoothed = took;
        } else {
            self.deviation = (3 * self.deviation + took.abs_diff(self.smoothed)) / 4;
            self.smoothed = (7 * self.smoothed + took) / 8;
        }
        self.repeated = None;
        self.in_vain = false;
        self.wait = self.estimate();
    }

    fn estimate(&self) -> u64 {
        let wait = self.smoothed.saturating_add(4 * self.deviation);
        wait.clamp(self.ceiling / QUICKEST, self.ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(160);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Milliseconds that it waits.
    fn waits(patience: &Patience) -> u64 {
        patience.runs_out(Instant::ZERO).unwrap().as_nanos() / 1_000_000
    }

    #[test]
    fn a_quick_peer_is_asked_again_early() {
        let mut patience = Patience::new(TIMEOUT);
        assert_eq!(waits(&patience), 10);
        for n in 0..20 {
            patience.asked(Psn::new(n), at(5 * n as u64));
            patience.acknowledged(Psn::new(n + 1), at(5 * n as u64 + 1));
        }
        assert_eq!(waits(&patience), 10);
    }

    #[test]
    fn a_slow_peer_is_given_the_time_it_takes() {
        let mut patience = Patience::new(TIMEOUT);
        for n in 0..20 {
            patience.asked(Psn::new(n), at(100 * n as u64));
            patience.acknowledged(Psn::new(n + 1), at(100 * n as u64 + 50));
        }
        assert!((50..60).contains(&waits(&patience)));
        // It becomes quick.
        for n in 20..60 {
            patience.asked(Psn::new(n), at(100 * n as u64));
            patience.acknowledged(Psn::new(n + 1), at(100 * n as u64 + 1));
        }
        assert_eq!(waits(&patience), 10);
    }

    #[test]
    fn each_repetition_in_vain_doubles_the_wait() {
        let mut patience = Patience::new(TIMEOUT);
        patience.asked(Psn::new(0), at(0));
        let mut waited = std::vec::Vec::new();
        loop {
            waited.push(waits(&patience));
            let whole = patience.ran_out();
            patience.repeats(Psn::new(1));
            if whole {
                break;
            }
        }
        assert_eq!(waited, [10, 20, 40, 80, 160]);
        // An answer to what was sent twice teaches nothing, but that the peer is there; the next one
        // says that the peer had it already.
        patience.acknowledged(Psn::new(1), at(200));
        assert_eq!(waits(&patience), 10);
        patience.acknowledged_again(Psn::new(1));
        assert_eq!(waits(&patience), 160);
        patience.acknowledged(Psn::new(1), at(210));
        assert_eq!(waits(&patience), 160);
        patience.asked(Psn::new(1), at(300));
        patience.acknowledged(Psn::new(2), at(301));
        assert_eq!(waits(&patience), 10);
    }

    #[test]
    fn after_a_loss_it_is_as_it_was() {
        let mut patience = Patience::new(TIMEOUT);
        patience.ran_out();
        patience.repeats(Psn::new(9));
        assert_eq!(waits(&patience), 20);
        // The peer had some of them already.
        patience.acknowledged(Psn::new(5), at(21));
        patience.acknowledged_again(Psn::new(5));
        assert_eq!(waits(&patience), 10);
    }

    #[test]
    fn without_a_timeout_it_never_runs_out() {
        assert_eq!(Patience::new(Duration::ZERO).runs_out(at(1)), None);
    }
}
