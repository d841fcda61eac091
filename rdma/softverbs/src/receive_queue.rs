//! A receive queue: where SENDs go, in the order of posting.

use super::sges::Sges;
use alloc::collections::VecDeque;
use drivers::hal::Window;
use verbs::{QpInit, RecvRequest, VerbsError};

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// The work request's, for its completion.
    pub id: u64,
    /// Where the message goes.
    pub into: Sges,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    windows: usize,
}

/// A receive queue. Windows lie apart from it: receives for WRITEs with immediate have none.
#[derive(Debug)]
pub struct ReceiveQueue {
    queue: VecDeque<Posted>,
    windows: VecDeque<Window>,
    limit: usize,
    max_sge: usize,
}

impl ReceiveQueue {
    /// For as many receives, of as many windows, as `init` says.
    pub fn new(init: &QpInit) -> Self {
        let limit = init.max_recv_wr as usize;
        ReceiveQueue {
            queue: VecDeque::with_capacity(limit),
            windows: VecDeque::with_capacity(limit * init.max_recv_sge),
            limit,
            max_sge: init.max_recv_sge,
        }
    }

    /// Posts a receive.
    #[inline]
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        if request.into.len() > self.max_sge {
            return Err(VerbsError::Invalid);
        }
        if !request.into.is_empty() {
            self.keep(request.into);
        }
        self.queue.push_back(Posted { id: request.id, windows: request.into.len() });
        Ok(())
    }

    /// Keeps the windows of a receive.
    #[inline(never)]
    fn keep(&mut self, windows: &[Window]) {
        self.windows.extend(windows);
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The oldest one.
    #[inline]
    pub fn front(&self) -> Option<Receive> {
        let posted = self.queue.front()?;
        let mut into = Sges::empty();
        for window in self.windows.iter().take(posted.windows) {
            into.push(*window);
        }
        Some(Receive { id: posted.id, into })
    }

    /// Copies all of `from` into the oldest one, from `offset` on; false if it does not fit, or if
    /// there is none.
    #[inline(always)]
    pub fn write(&self, offset: usize, from: &Window) -> bool {
        let Some(posted) = self.queue.front() else { return false };
        if posted.windows == 1
            && let Some(only) = self.windows.front()
        {
            return only.write_window(offset, from).is_ok();
        }
        from.is_empty()
            || self.front().is_some_and(|all| all.into.write_window(offset, from).is_ok())
    }

    /// Takes the oldest one out; its id.
    #[inline]
    pub fn pop(&mut self) -> Option<u64> {
        let posted = self.queue.pop_front()?;
        for _ in 0..posted.windows {
            self.windows.pop_front();
        }
        Some(posted.id)
    }
}
