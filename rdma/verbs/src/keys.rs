//! Changes of keys that peers hold. Software changes a key at once. Hardware changes it by a work request (a local
//! invalidation, or a UMR), and the old key stays valid until that is done: a user that relies on its revocation waits
//! for the completion. Work requests posted later to the same queue pair execute after the change. So a peer that
//! receives a message posted there has lost the old key and may use the new one.

use super::QpId;

/// The work request for a key change, on providers that need one. It executes after all requests posted to `qp` before,
/// takes no place of that queue, and completes there under `id` ([`KeyChanged`]).
///
/// [`KeyChanged`]: super::CompletedOperation::KeyChanged
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The queue pair.
    pub qp: QpId,
    /// Id of the completion.
    pub id: u64,
    /// Whether success makes a completion (failure always does).
    pub signaled: bool,
}

/// State of a key change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<T> {
    /// In effect.
    Done(T),
    /// Posted; its completion reports when it is in effect. If the queue pair fails or is destroyed before, the change
    /// holds for the peer as well: nothing reaches the memory through that queue pair.
    Posted,
    /// Posted without a completion: the value is in effect for work requests posted there from now on.
    Promised(T),
}
