//! Completion queues: rings of completions, polled.

use super::handle_table::HandleTable;
use alloc::collections::VecDeque;
use verbs::{Completion, CqId, QpId, VerbsError};

#[derive(Debug)]
struct Queue {
    ring: VecDeque<Completion>,
    depth: usize,
    /// Send and receive queues that complete here.
    users: usize,
    /// What whoever polls it calls it, if that is to be told of completions.
    watched_as: Option<u32>,
    /// It stands in the list of those that have some.
    listed: bool,
}

/// All completion queues of a provider.
#[derive(Debug)]
pub struct CompletionQueues {
    queues: HandleTable<Queue>,
    /// Watched queues that have got completions.
    listed: VecDeque<CqId>,
    /// Completions ever added for which somebody waits, modulo 2^64.
    pub awaited: u64,
}

impl CompletionQueues {
    /// For up to `limit` queues.
    pub fn new(limit: usize) -> Self {
        CompletionQueues { queues: HandleTable::new(limit), listed: VecDeque::new(), awaited: 0 }
    }

    /// Makes a queue for up to `depth` completions.
    pub fn create(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let depth = depth as usize;
        // Beyond that it only grows when many queue pairs fail at once.
        let ring = VecDeque::with_capacity(depth.min(4096));
        let queue = Queue { ring, depth, users: 0, watched_as: None, listed: false };
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
                if queue.watched_as.is_some() && !queue.listed {
                    queue.listed = true;
                    self.listed.push_back(cq);
                }
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

    /// Whether no queue has a completion.
    pub fn are_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.ring.is_empty())
    }

    /// Has a queue told of by `number` when it gets completions, instead of being polled all the time.
    pub fn watch(&mut self, cq: CqId, number: u32) {
        if let Some(queue) = self.queues.get_mut(cq.0) {
            queue.watched_as = Some(number);
            if !queue.ring.is_empty() && !core::mem::replace(&mut queue.listed, true) {
                self.listed.push_back(cq);
            }
            // A queue stands in it once; those that were destroyed may stand in it still.
            self.listed.reserve(self.queues.places());
        }
    }

    /// The number of a watched queue that has got completions since it was told of last. All of them are to be
    /// polled.
    pub fn next_watched(&mut self) -> Option<u32> {
        while let Some(cq) = self.listed.pop_front() {
            if let Some(queue) = self.queues.get_mut(cq.0) {
                queue.listed = false;
                return queue.watched_as;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{CompletedOperation, Status};

    #[test]
    fn watched_queues_are_told_of_when_they_get_completions() {
        let mut queues = CompletionQueues::new(4);
        let completion = Completion {
            id: 1,
            qp: QpId(0),
            status: Status::Success,
            operation: CompletedOperation::Send,
            datagram_from: None,
        };
        let [plain, early, late] = [0; 3].map(|_| queues.create(8).unwrap());
        queues.push(early, completion, true);
        queues.watch(early, 7);
        queues.watch(late, 9);
        for cq in [late, plain, late, early] {
            queues.push(cq, completion, true);
        }
        let told = |queues: &mut CompletionQueues| {
            core::iter::from_fn(|| queues.next_watched()).collect::<std::vec::Vec<u32>>()
        };
        assert_eq!(told(&mut queues), [7, 9]);
        assert_eq!(told(&mut queues), []);
        queues.push(late, completion, true);
        queues.push(early, completion, true);
        queues.destroy(late).unwrap();
        assert_eq!(told(&mut queues), [7]);
    }
}
