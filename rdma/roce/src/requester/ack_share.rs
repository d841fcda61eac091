//! ACK requests of requests that the user does not wait for: one ACK covers all that are sent within a period. The
//! period depends on how often requests are sent. If one follows another within a millisecond, a pause of a few
//! milliseconds is a reason to check whether the last one arrived. If one is sent every 100 ms such a pause is usual,
//! and checking would cost an ACK, and a wake-up, for each request.

use core::time::Duration;
use drivers::hal::Instant;

/// The shortest period is the ACK timeout divided by this, but at most `SHORTEST`.
const SHORTEST_SHARE: u64 = 64;
/// Longest value of the shortest period, in nanoseconds.
const SHORTEST: u64 = 8_000_000;
/// The longest period is the ACK timeout divided by this. The loss of a request with nothing behind it is noticed after
/// twice that.
const LONGEST_SHARE: u64 = 4;
/// The period is this many times the usual gap between requests.
const GAPS: u64 = 4;

/// Timing of shared ACKs. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct AckShare {
    /// Whether ACKs are shared at all.
    pub enabled: bool,
    shortest: u64,
    longest: u64,
    /// Gap between the ends of two requests, smoothed.
    gap: u64,
    /// When the last request was sent, and when the last ACK was requested.
    sent_at: Instant,
    requested_at: Instant,
    /// When to request an ACK if nothing else is sent before.
    request_at: Option<Instant>,
}

impl AckShare {
    /// Starts with this ACK timeout; 0 for none.
    pub fn start(&mut self, timeout: Duration) {
        if self.enabled {
            let timeout = timeout.as_nanos() as u64;
            self.shortest = (timeout / SHORTEST_SHARE).min(SHORTEST);
            self.longest = timeout / LONGEST_SHARE;
            self.gap = self.shortest / GAPS;
        }
    }

    /// Whether the last packet of a request that the user does not wait for has to request an ACK.
    #[inline]
    pub fn must_request(&mut self, now: Instant) -> bool {
        if !self.enabled {
            return true;
        }
        // A pause must not count as the usual gap.
        let gap = now.nanos_since(self.sent_at).min(8 * self.gap);
        let least = self.shortest / GAPS / 8;
        self.gap = ((7 * self.gap + gap) / 8).max(least);
        self.sent_at = now;
        now.nanos_since(self.requested_at) >= self.span()
    }

    /// Period that one ACK covers.
    #[inline]
    fn span(&self) -> u64 {
        (GAPS * self.gap).clamp(self.shortest, self.longest.max(self.shortest))
    }

    /// A packet with an ACK request was sent.
    #[inline]
    pub fn requested(&mut self, now: Instant) {
        self.requested_at = now;
        self.request_at = None;
    }

    /// The last packet to be sent was sent without an ACK request.
    #[inline]
    pub fn defer(&mut self) {
        self.request_at = Some(Instant::from_nanos(self.requested_at.as_nanos() + 2 * self.span()));
    }

    /// When to request an ACK, if nothing is sent before.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.request_at
    }

    /// Whether to request an ACK now; true once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.request_at.is_some_and(|at| at <= now);
        if due {
            self.request_at = None;
        }
        due
    }

    /// Stops the timer, because nothing is sent any more.
    pub fn stop(&mut self) {
        self.request_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(536);

    /// Sends a request every `gap` milliseconds. Returns how many requested an ACK, and when the next ACK request is
    /// due, in milliseconds from the last one.
    fn send(share: &mut AckShare, now: &mut u64, gap: u64, count: u32) -> (u32, u64) {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut requests = 0;
        for _ in 0..count {
            *now += gap;
            if share.must_request(at(*now)) {
                share.requested(at(*now));
                requests += 1;
            } else {
                share.defer();
            }
        }
        share.defer();
        (requests, share.deadline().unwrap().nanos_since(share.requested_at) / 1_000_000)
    }

    fn shared() -> AckShare {
        let mut share = AckShare { enabled: true, ..AckShare::default() };
        share.start(TIMEOUT);
        share
    }

    #[test]
    fn unshared_ack_is_requested_each_time() {
        let mut share = AckShare::default();
        share.start(TIMEOUT);
        assert!((0..10).all(|n| share.must_request(Instant::from_nanos(n))));
    }

    #[test]
    fn many_requests_share_an_ack_for_eight_milliseconds() {
        let (mut share, mut now) = (shared(), 1000);
        assert_eq!(send(&mut share, &mut now, 1, 1000), (125, 16));
    }

    #[test]
    fn few_requests_share_an_ack_for_longer() {
        let (mut share, mut now) = (shared(), 1000);
        send(&mut share, &mut now, 70, 20);
        let (requests, due) = send(&mut share, &mut now, 70, 100);
        assert_eq!((requests, due), (50, 268));
        // The requests become frequent.
        send(&mut share, &mut now, 1, 40);
        assert_eq!(send(&mut share, &mut now, 1, 1000), (125, 16));
    }

    #[test]
    fn pause_hardly_changes_the_ack_period() {
        let (mut share, mut now) = (shared(), 1000);
        send(&mut share, &mut now, 1, 1000);
        let (_, due) = send(&mut share, &mut now, 5000, 1);
        assert!(due <= 20, "{due}");
    }

    #[test]
    fn zero_ack_timeout_requests_an_ack_each_time() {
        let mut share = AckShare { enabled: true, ..AckShare::default() };
        share.start(Duration::ZERO);
        assert!(share.must_request(Instant::from_nanos(5)));
        share.requested(Instant::from_nanos(5));
        assert!(share.must_request(Instant::from_nanos(6)));
    }
}
