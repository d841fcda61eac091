//! Completion queues. Completions are kept in their queue pairs, which have room for all that can
//! be posted, so that none is ever lost; a completion queue knows which queue pairs have some, and
//! takes them in turn.

use crate::parts::slots::Slots;
use crate::verbs::{CqId, VerbsError};
use alloc::collections::VecDeque;

#[derive(Debug, Default)]
struct Queue {
    /// Places of queue pairs that have completions for it, each once.
    ready: VecDeque<u32>,
    /// Send and receive queues that complete here.
    users: usize,
}

/// All completion queues of a provider.
#[derive(Debug)]
pub struct CompletionQueues {
    queues: Slots<Queue>,
}

impl CompletionQueues {
    /// For up to `limit` queues.
    pub fn new(limit: usize) -> Self {
        CompletionQueues { queues: Slots::new(limit) }
    }

    /// Makes a queue.
    pub fn create(&mut self) -> Result<CqId, VerbsError> {
        self.queues.insert(|_| Queue::default()).map(CqId).ok_or(VerbsError::NoRoom)
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

    /// Counts a user, and takes the room that it needs.
    pub fn hold(&mut self, cq: CqId) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.users += 1;
            queue.ready.reserve(queue.users);
        }
    }

    /// Takes a user back: the queue pair at `place`.
    pub fn release(&mut self, cq: CqId, place: u32) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.users -= 1;
            queue.ready.retain(|&other| other != place);
        }
    }

    /// The queue pair at `place`, which is not listed, has completions.
    #[inline]
    pub fn list(&mut self, cq: CqId, place: u32) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.ready.push_back(place);
        }
    }

    /// The queue pair whose turn it is, taken off the list.
    #[inline]
    pub fn turn(&mut self, cq: CqId) -> Option<u32> {
        self.queues.get_mut(cq.0)?.ready.pop_front()
    }
}
