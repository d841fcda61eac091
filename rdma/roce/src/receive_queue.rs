//! Failed and flushed receives of a queue pair.

use super::qp::{Ctx, Identity};
pub use softverbs::receive_queue::ReceiveQueue;
use verbs::{CompletedOperation, Completion, SendWith, Status};

/// Completes all receives as flushed.
pub fn flush(receives: &mut ReceiveQueue, identity: &Identity, ctx: &mut Ctx<'_>) {
    while let Some(id) = receives.pop() {
        fail(id, Status::Flushed, identity, ctx);
    }
}

/// Completes a failed receive.
pub fn fail(id: u64, status: Status, identity: &Identity, ctx: &mut Ctx<'_>) {
    let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
    let qp = identity.id;
    identity.complete_receive(ctx, Completion { id, qp, status, operation, datagram_from: None });
}
