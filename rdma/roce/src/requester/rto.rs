//! Retransmission timeout: it follows the peer's round trip times after RFC 6298 (smoothed round trip time and its
//! deviation, Karn's rule), within the queue pair's ACK timeout.
//!
//! With a quick peer a lost packet is retransmitted after 1/16 of the ACK timeout. The whole ACK timeout would be too
//! long: meanwhile the peer's own packets could time out too, and Linux's soft-RoCE does not survive that. A slow peer
//! gets no more load: each retransmission doubles the timeout. Once the peer shows that it had all packets already,
//! only the answer to a packet that was sent once shortens the timeout again.

use crate::psn::Psn;
use core::time::Duration;
use drivers::hal::Instant;

/// The shortest timeout is the ACK timeout divided by this.
const QUICKEST: u64 = 16;

/// Timeout of a queue pair, and the measurements behind it. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct RetransmitTimeout {
    ceiling: u64,
    wait: u64,
    /// Smoothed round trip time, 0 before the first sample, and the deviation of samples from it.
    smoothed: u64,
    deviation: u64,
    /// The packet whose round trip is measured, and when it was sent.
    timed: Option<(Psn, Instant)>,
    /// End of the retransmitted packets, from a retransmission to the next round trip sample.
    retransmitted: Option<Psn>,
    /// The timeout with all doublings, and whether the retransmission was spurious: then `wait` is this timeout.
    backed_off: u64,
    spurious: bool,
}

impl RetransmitTimeout {
    /// Up to the ACK timeout; no timeout if that is 0.
    pub fn new(timeout: Duration) -> Self {
        let ceiling = timeout.as_nanos() as u64;
        RetransmitTimeout { ceiling, wait: ceiling / QUICKEST, ..RetransmitTimeout::default() }
    }

    /// When the timeout expires if nothing is acknowledged from `now` on.
    #[inline]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        (self.ceiling > 0).then(|| Instant::from_nanos(now.as_nanos() + self.wait))
    }

    /// A packet that requests an ACK was sent for the first time.
    #[inline]
    pub fn ack_requested(&mut self, psn: Psn, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Everything before `psn` was acknowledged.
    #[inline]
    pub fn acknowledged(&mut self, psn: Psn, now: Instant) {
        if let Some((timed, sent)) = self.timed {
            if timed.is_before(psn) {
                self.timed = None;
                self.sample(now.nanos_since(sent));
            }
        } else if self.retransmitted.is_some() && !self.spurious {
            self.wait = self.estimate();
        }
    }

    /// A duplicate ACK arrived, with everything before `psn` acknowledged. If that includes all retransmitted packets,
    /// the duplicate answers a retransmission: the first answer was only slow.
    pub fn duplicate_ack(&mut self, psn: Psn) {
        if self.retransmitted.is_some_and(|until| !psn.is_before(until)) {
            self.spurious = true;
            self.wait = self.backed_off;
        }
    }

    /// Packets before `until` are retransmitted: an answer does not show which transmission it is for.
    pub fn retransmit(&mut self, until: Psn) {
        self.timed = None;
        self.retransmitted = Some(until);
        self.backed_off = self.wait;
    }

    /// The timeout expired. Returns whether it was the whole ACK timeout, and so counts as a retry.
    pub fn expired(&mut self) -> bool {
        let whole = self.wait >= self.ceiling;
        self.wait = (2 * self.wait).min(self.ceiling);
        whole
    }

    fn sample(&mut self, took: u64) {
        if self.smoothed == 0 {
            self.deviation = took / 2;
            self.smoothed = took;
        } else {
            self.deviation = (3 * self.deviation + took.abs_diff(self.smoothed)) / 4;
            self.smoothed = (7 * self.smoothed + took) / 8;
        }
        self.retransmitted = None;
        self.spurious = false;
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

    /// The timeout in milliseconds.
    fn waits(timeout: &RetransmitTimeout) -> u64 {
        timeout.deadline(Instant::ZERO).unwrap().as_nanos() / 1_000_000
    }

    #[test]
    fn timeout_is_short_for_a_quick_peer() {
        let mut timeout = RetransmitTimeout::new(TIMEOUT);
        assert_eq!(waits(&timeout), 10);
        for n in 0..20 {
            timeout.ack_requested(Psn::new(n), at(5 * n as u64));
            timeout.acknowledged(Psn::new(n + 1), at(5 * n as u64 + 1));
        }
        assert_eq!(waits(&timeout), 10);
    }

    #[test]
    fn timeout_follows_a_slow_peer() {
        let mut timeout = RetransmitTimeout::new(TIMEOUT);
        for n in 0..20 {
            timeout.ack_requested(Psn::new(n), at(100 * n as u64));
            timeout.acknowledged(Psn::new(n + 1), at(100 * n as u64 + 50));
        }
        assert!((50..60).contains(&waits(&timeout)));
        // The peer becomes quick.
        for n in 20..60 {
            timeout.ack_requested(Psn::new(n), at(100 * n as u64));
            timeout.acknowledged(Psn::new(n + 1), at(100 * n as u64 + 1));
        }
        assert_eq!(waits(&timeout), 10);
    }

    #[test]
    fn spurious_retransmissions_double_the_timeout() {
        let mut timeout = RetransmitTimeout::new(TIMEOUT);
        timeout.ack_requested(Psn::new(0), at(0));
        let mut waited = std::vec::Vec::new();
        loop {
            waited.push(waits(&timeout));
            let whole = timeout.expired();
            timeout.retransmit(Psn::new(1));
            if whole {
                break;
            }
        }
        assert_eq!(waited, [10, 20, 40, 80, 160]);
        // An answer to a packet that was sent twice is no sample, but shows that the peer is alive. The next answer
        // shows that the peer had the packet already.
        timeout.acknowledged(Psn::new(1), at(200));
        assert_eq!(waits(&timeout), 10);
        timeout.duplicate_ack(Psn::new(1));
        assert_eq!(waits(&timeout), 160);
        timeout.acknowledged(Psn::new(1), at(210));
        assert_eq!(waits(&timeout), 160);
        timeout.ack_requested(Psn::new(1), at(300));
        timeout.acknowledged(Psn::new(2), at(301));
        assert_eq!(waits(&timeout), 10);
    }

    #[test]
    fn timeout_recovers_after_a_loss() {
        let mut timeout = RetransmitTimeout::new(TIMEOUT);
        timeout.expired();
        timeout.retransmit(Psn::new(9));
        assert_eq!(waits(&timeout), 20);
        // The peer had some of them already.
        timeout.acknowledged(Psn::new(5), at(21));
        timeout.duplicate_ack(Psn::new(5));
        assert_eq!(waits(&timeout), 10);
    }

    #[test]
    fn zero_ack_timeout_never_expires() {
        assert_eq!(RetransmitTimeout::new(Duration::ZERO).deadline(at(1)), None);
    }
}
