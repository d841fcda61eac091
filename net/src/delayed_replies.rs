//! Answers to stations that look for us, held back for a moment.
//!
//! Linux's RDMA address resolution asks for a neighbour first and only then queues the request that the
//! answer wakes (drivers/infiniband/core/addr.c, rdma_resolve_ip): an answer that comes at once is missed,
//! and the connection stands still for its whole time limit (30 s for RTRS). Only questions to everybody
//! are of this kind; who asks us alone knows us, and is answered at once (RFC 4861 section 7.3).

use crate::filter::Kind;
use crate::link::Queue;
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::Instant;

/// How long. Linux needs microseconds from question to queue, but in a guest on a busy host the CPU is
/// likely to be taken away just there, for a few time slices; 2 ms were too short for two such hosts of five.
const HOLD: Duration = Duration::from_millis(50);
/// Answers that can be held; those beyond are given at once.
const DEPTH: usize = 64;
/// Longest answer: an advertisement with its link-layer address has 86 bytes.
const LONGEST: usize = 128;

/// The answers that are held, oldest first.
#[derive(Debug)]
pub struct DelayedReplies {
    answers: Queue,
    /// When each may go.
    due: VecDeque<Instant>,
}

impl DelayedReplies {
    /// An empty one. All memory is taken here.
    pub fn new() -> Self {
        DelayedReplies { answers: Queue::new(DEPTH, LONGEST), due: VecDeque::with_capacity(DEPTH) }
    }

    /// Whether the answer to this accepted frame is to be held.
    pub fn concerns(frame: &[u8], kind: Kind) -> bool {
        let to_a_group = frame.first().is_some_and(|byte| byte & 1 == 1);
        to_a_group && matches!(kind, Kind::Arp | Kind::NeighbourDiscovery)
    }

    /// Whether no more can be held.
    pub fn is_full(&self) -> bool {
        self.answers.is_full()
    }

    /// Where answers are put, before `hold`.
    pub fn answers(&mut self) -> &mut Queue {
        &mut self.answers
    }

    /// Notes that what was put there came up at `now`.
    pub fn hold(&mut self, now: Instant) {
        while self.due.len() < self.answers.len() {
            self.due.push_back(now + HOLD);
        }
    }

    /// Moves what has waited long enough to `queue`, as far as that has room.
    pub fn release(&mut self, now: Instant, queue: &mut Queue) {
        while self.due.front().is_some_and(|&at| at <= now)
            && let Some(answer) = self.answers.front()
            && queue.push(answer.len(), |frame| frame.copy_from_slice(answer)).is_some()
        {
            self.answers.pop();
            self.due.pop_front();
        }
    }

    /// When the next may go.
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
    fn answers_wait_and_leave_in_order_as_there_is_room() {
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
    fn only_questions_to_everybody() {
        let [everybody, us] = [[0xff; 6], [2, 0, 0, 0, 0, 1]];
        assert!(DelayedReplies::concerns(&everybody, Kind::Arp));
        assert!(!DelayedReplies::concerns(&us, Kind::Arp));
        assert!(DelayedReplies::concerns(&[0x33, 0x33], Kind::NeighbourDiscovery));
        assert!(!DelayedReplies::concerns(&everybody, Kind::Other));
    }
}
