//! Delays replies to multicast and broadcast address requests.
//!
//! Linux's RDMA address resolution sends the request before it queues the work that the reply wakes
//! (drivers/infiniband/core/addr.c, rdma_resolve_ip). A reply that arrives too soon is missed, and the connection
//! stalls for its whole timeout (30 s for RTRS). Unicast requests only verify an entry (RFC 4861 section 7.3), and are
//! answered at once.

use crate::filter::Kind;
use crate::link::Queue;
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::Instant;

/// Delay of a reply. Linux needs microseconds between request and queueing, but a guest on a busy host can lose its CPU
/// there for a few time slices: 2 ms were too short for two of five such hosts.
const HOLD: Duration = Duration::from_millis(50);
/// Replies that can be delayed; further ones are sent at once.
const DEPTH: usize = 64;
/// Longest reply: an advertisement with its link-layer address has 86 bytes.
const LONGEST: usize = 128;

/// Delayed replies, oldest first.
#[derive(Debug)]
pub struct DelayedReplies {
    answers: Queue,
    /// When each reply is sent.
    due: VecDeque<Instant>,
}

impl DelayedReplies {
    /// An empty queue. All memory is allocated here.
    pub fn new() -> Self {
        DelayedReplies { answers: Queue::new(DEPTH, LONGEST), due: VecDeque::with_capacity(DEPTH) }
    }

    /// Whether the reply to this accepted frame must be delayed.
    pub fn concerns(frame: &[u8], kind: Kind) -> bool {
        let to_a_group = frame.first().is_some_and(|byte| byte & 1 == 1);
        to_a_group && matches!(kind, Kind::Arp | Kind::NeighbourDiscovery)
    }

    /// Whether no further reply can be delayed.
    pub fn is_full(&self) -> bool {
        self.answers.is_full()
    }

    /// The queue for replies; call `hold` after adding some.
    pub fn answers(&mut self) -> &mut Queue {
        &mut self.answers
    }

    /// Sets the delay of newly added replies, which count from `now`.
    pub fn hold(&mut self, now: Instant) {
        while self.due.len() < self.answers.len() {
            self.due.push_back(now + HOLD);
        }
    }

    /// Moves replies whose delay has expired to `queue`, while it has room.
    pub fn release(&mut self, now: Instant, queue: &mut Queue) {
        while self.due.front().is_some_and(|&at| at <= now)
            && let Some(answer) = self.answers.front()
            && queue.push(answer.len(), |frame| frame.copy_from_slice(answer)).is_some()
        {
            self.answers.pop();
            self.due.pop_front();
        }
    }

    /// When the next reply is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn replies_are_delayed_and_leave_in_order_when_there_is_room() {
        let (mut hold, mut queue) = (DelayedReplies::new(), Queue::new(2, LONGEST));
        for n in 0..3u8 {
            hold.answers().push(1 + n as usize, |frame| frame.fill(n));
            hold.hold(at(n as u64 / 2));
        }
        assert_eq!(hold.poll_timeout(), Some(at(50)));
        hold.release(at(49), &mut queue);
        assert!(queue.is_empty());
        hold.release(at(51), &mut queue);
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.front(), Some(&[0][..]));
        queue.pop();
        hold.release(at(51), &mut queue);
        assert_eq!(hold.poll_timeout(), None);
        queue.pop();
        assert_eq!(queue.front(), Some(&[2, 2, 2][..]));
    }

    #[test]
    fn only_multicast_requests_are_delayed() {
        let [broadcast, us] = [[0xff; 6], [2, 0, 0, 0, 0, 1]];
        assert!(DelayedReplies::concerns(&broadcast, Kind::Arp));
        assert!(!DelayedReplies::concerns(&us, Kind::Arp));
        assert!(DelayedReplies::concerns(&[0x33, 0x33], Kind::NeighbourDiscovery));
        assert!(!DelayedReplies::concerns(&broadcast, Kind::Other));
    }
}
