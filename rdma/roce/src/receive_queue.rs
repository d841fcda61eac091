//! Failed and flushed receives of a queue pair.

use super::qp::{Env, Identity};
pub use softverbs::receive_queue::ReceiveQueue;
use verbs::{CompletedOperation, Completion, SendWith, Status};

/// Completes all receives as flushed.
pub fn flush(receives: &mut ReceiveQueue, identity: &Identity, env: &mut Env<'_>) {
    while let Some(id) = receives.pop() {
        fail(id, Status::Flushed, identity, env);
    }
}

/// Completes a failed receive.
pub fn fail(id: u64, status: Status, identity: &Identity, env: &mut Env<'_>) {
    let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
    let qp = identity.id;
    identity.complete_receive(env, Completion { id, qp, status, operation, datagram_from: None });
}
