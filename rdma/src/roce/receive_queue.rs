//! A receive queue: where SENDs go, in the order of posting.

use super::qp::{Env, Identity};
use super::sges::Sges;
use crate::verbs::{CompletedOperation, Completion, RecvRequest, SendWith, Status, VerbsError};
use alloc::collections::VecDeque;

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub id: u64,
    pub into: Sges,
}

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    queue: VecDeque<Receive>,
    limit: usize,
}

impl ReceiveQueue {
    /// For up to `limit` receives.
    pub fn new(limit: usize) -> Self {
        ReceiveQueue { queue: VecDeque::with_capacity(limit), limit }
    }

    /// Posts a receive.
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        self.queue.push_back(Receive { id: request.id, into: Sges::new(request.into)? });
        Ok(())
    }

    /// The oldest one.
    #[inline]
    pub fn front(&self) -> Option<&Receive> {
        self.queue.front()
    }

    /// Takes the oldest one out.
    #[inline]
    pub fn pop(&mut self) -> Option<Receive> {
        self.queue.pop_front()
    }

    /// Takes all out, as flushed.
    pub fn flush(&mut self, identity: &Identity, env: &mut Env<'_>) {
        while let Some(receive) = self.pop() {
            fail(receive.id, Status::Flushed, identity, env);
        }
    }
}

/// Completes a receive that did not succeed.
pub fn fail(id: u64, status: Status, identity: &Identity, env: &mut Env<'_>) {
    let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
    let qp = identity.id;
    identity.complete_receive(env, Completion { id, qp, status, operation, datagram_from: None });
}
