//! The last ACK, said again after a while of quiet. The specification leaves a lost ACK to the
//! requester, which repeats its last packet and is answered then (vol. 1, 9.7.5.1.3). Linux's soft-RoCE
//! does not survive repeating with several requests in flight (`rxe_req.c`, req_retry: it runs local
//! registrations a second time, which fail): with an ACK that is lost, and nothing sent behind it, the
//! connection is lost too. A requester that got the first one drops the others.
//!
//! An ACK that waits for the message behind a WRITE is said by the same clock, if that does not come.

use core::time::Duration;
use drivers::hal::Instant;

/// Well within the ACK timeouts that hosts use (Linux: 537 ms), and long after anything that is busy.
const QUIET: Duration = Duration::from_millis(100);

/// A repetition waits for the next multiple of this, in nanoseconds (67 ms): those of all queue pairs are said in one
/// round then, and what is sent ten times a second is not repeated at all.
const TOGETHER: u64 = 1 << 26;

/// How long the message behind a WRITE may take before the WRITE is acknowledged without it.
const HOLD: Duration = Duration::from_millis(10);

/// How often: the repetition may be lost too.
const TIMES: u8 = 2;

/// When the last ACK is said again.
#[derive(Debug)]
pub struct Again {
    at: Option<Instant>,
    left: u8,
}

impl Again {
    /// There was no ACK yet.
    pub const fn new() -> Self {
        Again { at: None, left: 0 }
    }

    /// An ACK of something new is sent at `now`.
    #[inline]
    pub fn acknowledged(&mut self, now: Instant) {
        self.at = Some(after_quiet(now));
        self.left = TIMES;
    }

    /// An ACK of something new is to go with that of the next message, which is on its way.
    #[inline]
    pub fn held(&mut self, now: Instant) {
        self.at = Some(now + HOLD);
        self.left = TIMES + 1;
    }

    /// Whether it is time to say it, or to repeat it.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.at.is_some_and(|at| at <= now);
        if due {
            self.left = self.left.saturating_sub(1);
            self.at = (self.left > 0).then(|| after_quiet(now));
        }
        due
    }

    /// When it wants to be asked.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.at
    }
}

#[inline]
fn after_quiet(now: Instant) -> Instant {
    let quiet = now + QUIET;
    Instant::from_nanos((quiet.as_nanos() | (TOGETHER - 1)).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_all_queue_pairs_are_said_together() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let [mut first, mut second] = [Again::new(), Again::new()];
        first.acknowledged(at(1));
        second.acknowledged(at(30));
        assert_eq!(first.deadline(), second.deadline());
        assert!(first.deadline() >= Some(at(130)) && first.deadline() <= Some(at(168)));
    }

    #[test]
    fn twice_after_quiet_and_anew_after_more() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut again = Again::new();
        assert_eq!((again.deadline(), again.is_due(at(1000))), (None, false));
        again.acknowledged(at(0));
        again.acknowledged(at(50));
        assert!(!again.is_due(at(200)));
        assert!(again.is_due(at(202)));
        assert!(!again.is_due(at(302)));
        assert!(again.is_due(at(336)));
        assert_eq!(again.deadline(), None);
        again.acknowledged(at(400));
        assert_eq!(again.deadline(), Some(Instant::from_nanos(8 * TOGETHER)));
    }

    /// The message behind a WRITE does not come: its ACK is said soon, and again as often as any other.
    #[test]
    fn what_is_held_is_said_soon_and_then_twice_again() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut again = Again::new();
        again.held(at(0));
        assert_eq!(again.deadline(), Some(at(10)));
        assert!(!again.is_due(at(9)) && again.is_due(at(10)));
        for _ in 0..2 {
            let next = again.deadline().expect("it may be lost");
            assert!(next >= at(110) && again.is_due(next));
        }
        assert_eq!(again.deadline(), None);
        // It does come, and its ACK is that of both.
        again.held(at(1000));
        again.acknowledged(at(1001));
        assert!(!again.is_due(at(1010)));
    }
}
