//! Repetition of the last ACK after a pause. The specification leaves a lost ACK to the requester, which retransmits
//! its last packet and gets an answer then (vol. 1, 9.7.5.1.3). Linux's soft-RoCE does not survive a retransmission
//! with several requests in flight (`rxe_req.c`, req_retry: it executes local registrations a second time, which fail).
//! So if an ACK is lost, and no other packet follows it, the connection is lost too. A requester that received the
//! first ACK drops the others.
//!
//! The same timer sends an ACK that was held for the message behind a WRITE, if that message does not come.

use core::time::Duration;
use drivers::hal::Instant;

/// Well within the ACK timeouts of hosts (Linux: 537 ms), and far longer than the gaps of a busy connection.
const QUIET: Duration = Duration::from_millis(100);

/// A repetition waits for the next multiple of this, in nanoseconds (67 ms). So one round sends the repetitions of all
/// queue pairs, and ACKs that are sent ten times a second are not repeated at all.
const BATCH: u64 = 1 << 26;

/// Longest wait for the message behind a WRITE before the WRITE is acknowledged without it.
const HOLD: Duration = Duration::from_millis(10);

/// Number of repetitions: the first may be lost too.
const REPETITIONS: u8 = 2;

/// Timer of the last ACK's repetitions.
#[derive(Debug)]
pub struct AckRepeat {
    at: Option<Instant>,
    left: u8,
}

impl AckRepeat {
    /// State before the first ACK.
    pub const fn new() -> Self {
        AckRepeat { at: None, left: 0 }
    }

    /// Starts the timer for an ACK of something new, sent at `now`.
    #[inline]
    pub fn acknowledged(&mut self, now: Instant) {
        self.at = Some(after_quiet(now));
        self.left = REPETITIONS;
    }

    /// Holds an ACK of something new, because the next message, which is on its way, will be acknowledged with it.
    #[inline]
    pub fn hold(&mut self, now: Instant) {
        self.at = Some(now + HOLD);
        self.left = REPETITIONS + 1;
    }

    /// Whether the ACK is to be sent or repeated now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.at.is_some_and(|at| at <= now);
        if due {
            self.left = self.left.saturating_sub(1);
            self.at = (self.left > 0).then(|| after_quiet(now));
        }
        due
    }

    /// When the next ACK is due.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.at
    }
}

#[inline]
fn after_quiet(now: Instant) -> Instant {
    let quiet = now + QUIET;
    Instant::from_nanos((quiet.as_nanos() | (BATCH - 1)).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_repetitions_of_all_queue_pairs_are_batched() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let [mut first, mut second] = [AckRepeat::new(), AckRepeat::new()];
        first.acknowledged(at(1));
        second.acknowledged(at(30));
        assert_eq!(first.deadline(), second.deadline());
        assert!(first.deadline() >= Some(at(130)) && first.deadline() <= Some(at(168)));
    }

    #[test]
    fn ack_is_repeated_twice_after_a_pause() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut ack = AckRepeat::new();
        assert_eq!((ack.deadline(), ack.is_due(at(1000))), (None, false));
        ack.acknowledged(at(0));
        ack.acknowledged(at(50));
        assert!(!ack.is_due(at(200)));
        assert!(ack.is_due(at(202)));
        assert!(!ack.is_due(at(302)));
        assert!(ack.is_due(at(336)));
        assert_eq!(ack.deadline(), None);
        ack.acknowledged(at(400));
        assert_eq!(ack.deadline(), Some(Instant::from_nanos(8 * BATCH)));
    }

    /// The message behind a WRITE does not come: its ACK is sent soon, and repeated as often as any other.
    #[test]
    fn held_ack_is_sent_soon_and_repeated_twice() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut ack = AckRepeat::new();
        ack.hold(at(0));
        assert_eq!(ack.deadline(), Some(at(10)));
        assert!(!ack.is_due(at(9)) && ack.is_due(at(10)));
        for _ in 0..2 {
            let next = ack.deadline().expect("it may be lost");
            assert!(next >= at(110) && ack.is_due(next));
        }
        assert_eq!(ack.deadline(), None);
        // The message comes, and its ACK covers both.
        ack.hold(at(1000));
        ack.acknowledged(at(1001));
        assert!(!ack.is_due(at(1010)));
    }
}
