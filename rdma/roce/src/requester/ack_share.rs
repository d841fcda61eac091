//! When requests that nobody waits for ask for an ACK: one does for all that are sent within a while. How long that
//! is goes by how often they are sent. Where one follows another within a millisecond, a pause of a few
//! milliseconds is a reason to ask whether the last one got there; where one comes every 100 ms it is none, and
//! would cost an ACK, and a wake-up, for each.

use core::time::Duration;
use drivers::hal::Instant;

/// The shortest while is this part of the ACK timeout, …
const SHORTEST_SHARE: u64 = 64;
/// … at most, …
const SHORTEST: u64 = 8_000_000;
/// … and the longest this part of it. A request that is lost, with nothing behind it, is noticed after twice that.
const LONGEST_SHARE: u64 = 4;
/// A while is so many times as long as there usually is from one request to the next.
const GAPS: u64 = 4;

/// When ACKs that are shared are asked for. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct AckShare {
    /// Whether they are shared at all.
    pub enabled: bool,
    shortest: u64,
    longest: u64,
    /// From the end of a request to that of the next, smoothed.
    gap: u64,
    /// When the last one was sent, and when an ACK was asked for.
    sent_at: Instant,
    asked_at: Instant,
    /// When an ACK is asked for if nothing else is sent before.
    ask_at: Option<Instant>,
}

impl AckShare {
    /// Requests are sent from now on, with this ACK timeout; 0 if there is none.
    pub fn start(&mut self, timeout: Duration) {
        if self.enabled {
            let timeout = timeout.as_nanos() as u64;
            self.shortest = (timeout / SHORTEST_SHARE).min(SHORTEST);
            self.longest = timeout / LONGEST_SHARE;
            self.gap = self.shortest / GAPS;
        }
    }

    /// The last packet is about to be sent of a request that nobody waits for: whether it asks for an ACK.
    #[inline]
    pub fn asks(&mut self, now: Instant) -> bool {
        if !self.enabled {
            return true;
        }
        // A pause is not taken for how it usually is.
        let gap = now.nanos_since(self.sent_at).min(8 * self.gap);
        let least = self.shortest / GAPS / 8;
        self.gap = ((7 * self.gap + gap) / 8).max(least);
        self.sent_at = now;
        now.nanos_since(self.asked_at) >= self.span()
    }

    /// For how long one ACK does.
    #[inline]
    fn span(&self) -> u64 {
        (GAPS * self.gap).clamp(self.shortest, self.longest.max(self.shortest))
    }

    /// A packet was sent that asks for an ACK.
    #[inline]
    pub fn asked(&mut self, now: Instant) {
        self.asked_at = now;
        self.ask_at = None;
    }

    /// The last packet was sent of all that there is to send, and asked for none.
    #[inline]
    pub fn owes(&mut self) {
        self.ask_at = Some(Instant::from_nanos(self.asked_at.as_nanos() + 2 * self.span()));
    }

    /// When an ACK is to be asked for, if nothing is sent before.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Whether it is time to ask; that is said once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.ask_at.is_some_and(|at| at <= now);
        if due {
            self.ask_at = None;
        }
        due
    }

    /// Nothing is sent any more.
    pub fn stop(&mut self) {
        self.ask_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(536);

    /// Sends a request every `gap` milliseconds; how many ask for an ACK, and what is due then, in milliseconds from
    /// the last one that asked.
    fn send(share: &mut AckShare, now: &mut u64, gap: u64, count: u32) -> (u32, u64) {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut asked = 0;
        for _ in 0..count {
            *now += gap;
            if share.asks(at(*now)) {
                share.asked(at(*now));
                asked += 1;
            } else {
                share.owes();
            }
        }
        share.owes();
        (asked, share.deadline().unwrap().nanos_since(share.asked_at) / 1_000_000)
    }

    fn shared() -> AckShare {
        let mut share = AckShare { enabled: true, ..AckShare::default() };
        share.start(TIMEOUT);
        share
    }

    #[test]
    fn one_that_is_not_shared_is_asked_for_each_time() {
        let mut share = AckShare::default();
        share.start(TIMEOUT);
        assert!((0..10).all(|n| share.asks(Instant::from_nanos(n))));
    }

    #[test]
    fn many_requests_share_one_for_eight_milliseconds() {
        let (mut share, mut now) = (shared(), 1000);
        assert_eq!(send(&mut share, &mut now, 1, 1000), (125, 16));
    }

    #[test]
    fn few_requests_share_one_for_longer() {
        let (mut share, mut now) = (shared(), 1000);
        send(&mut share, &mut now, 70, 20);
        let (asked, due) = send(&mut share, &mut now, 70, 100);
        assert_eq!((asked, due), (50, 268));
        // They become many.
        send(&mut share, &mut now, 1, 40);
        assert_eq!(send(&mut share, &mut now, 1, 1000), (125, 16));
    }

    #[test]
    fn a_pause_changes_little() {
        let (mut share, mut now) = (shared(), 1000);
        send(&mut share, &mut now, 1, 1000);
        let (_, due) = send(&mut share, &mut now, 5000, 1);
        assert!(due <= 20, "{due}");
    }

    #[test]
    fn without_a_timeout_each_asks() {
        let mut share = AckShare { enabled: true, ..AckShare::default() };
        share.start(Duration::ZERO);
        assert!(share.asks(Instant::from_nanos(5)));
        share.asked(Instant::from_nanos(5));
        assert!(share.asks(Instant::from_nanos(6)));
    }
}
