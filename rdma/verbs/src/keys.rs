//! Keys that are changed while peers hold them. Software does it at once. Hardware is asked by a work request
//! (a local invalidation, or a UMR), and until that is done the key that was is good: what relies on its end waits for
//! the completion. What is posted to the same queue pair afterwards finds it done, so that a peer that has heard of
//! something posted there has lost the key that was, and may use the next one.

use super::QpId;

/// The work request that a change of a key is, where it is one: it is done behind what was posted to `qp` before,
/// takes no place of that queue, and completes there under `id` ([`KeyChanged`]).
///
/// [`KeyChanged`]: super::CompletedOperation::KeyChanged
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// The queue pair.
    pub qp: QpId,
    /// Id of the completion.
    pub id: u64,
    /// Whether there is one though nothing goes wrong.
    pub signaled: bool,
}

/// How a change of a key was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<T> {
    /// It is in force.
    Done(T),
    /// It was posted: its completion tells when it is in force. If the queue pair fails or is destroyed before, it is done
    /// for the peer as well: nobody reaches the memory by that queue pair.
    Posted,
    /// The same, and no completion tells of it: this will be in force for what is posted there from now on.
    Promised(T),
}
