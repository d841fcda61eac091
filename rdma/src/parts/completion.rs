//! Completion queues: rings of completions, polled.

use super::slots::Slots;
use crate::verbs::{Completion, CqId, QpId, VerbsError};
use alloc::collections::VecDeque;

#[derive(Debug)]
struct Queue {
    ring: VecDeque<Completion>,
    depth: usize,
    /// Send and receive queues that complete here.
    users: usize,
}

/// All completion queues of a provider.
#[derive(Debug)]
pub struct CompletionQueues {
    queues: Slots<Queue>,
    /// Completions ever added for which somebody waits, modulo 2^64.
    pub awaited: u64,
}

impl CompletionQueues {
    /// For up to `limit` queues.
    pub fn new(limit: usize) -> Self {
        CompletionQueues { queues: Slots::new(limit), awaited: 0 }
    }

    /// Makes a queue for up to `depth` completions.
    pub fn create(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let depth = depth as usize;
        // Beyond that it only grows when many queue pairs fail at once.
        let ring = VecDeque::with_capacity(depth.min(4096));
        let queue = Queue { ring, depth, users: 0 };
        self.queues.insert(|_| queue).map(CqId).ok_or(VerbsError::NoRoom)
    }

    /// Destroys a queue that nothing uses.
    pub fn destroy(&mut self, cq: CqId) -> Result<(), VerbsError> {
        match self.queues.get(cq.0) {
            None => Err(VerbsError::NoSuchObject),
            Some(queue) if queue.users > 0 => Err(VerbsError::Busy),
            Some(_) => {
                self.queues.remove(cq.0);
                Ok(())
            }
        }
    }

    /// Whether there is such a queue.
    pub fn exists(&self, cq: CqId) -> bool {
        self.queues.get(cq.0).is_some()
    }

    /// Counts a user.
    pub fn hold(&mut self, cq: CqId) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.users += 1;
        }
    }

    /// Takes a user back, and drops what `qp` completed and nobody polled.
    pub fn release(&mut self, cq: CqId, qp: QpId) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.users -= 1;
            queue.ring.retain(|completion| completion.qp != qp);
        }
    }

    /// Adds a completion, for which somebody waits or not; false if there is no room for it.
    #[inline(always)]
    pub fn push(&mut self, cq: CqId, completion: Completion, awaited: bool) -> bool {
        match self.queues.get_mut(cq.0) {
            Some(queue) if queue.ring.len() < queue.depth => {
                queue.ring.push_back(completion);
                self.awaited = self.awaited.wrapping_add(awaited.into());
                true
            }
            _ => false,
        }
    }

    /// The next completion, if any.
    #[inline]
    pub fn poll(&mut self, cq: CqId) -> Option<Completion> {
        self.queues.get_mut(cq.0)?.ring.pop_front()
    }
}
