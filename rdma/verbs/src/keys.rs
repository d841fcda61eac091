//! Keys that are changed while peers hold them. Software does it at once. Hardware is asked by a work request
//! (a local invalidation, or a UMR), and until that has completed the key that was is good: what relies on its
//! end waits for the completion.

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
}

/// How a change of a key was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<T> {
    /// It is in force.
    Done(T),
    /// It was posted: its completion tells when it is in force. If the queue pair fails or is destroyed before,
    /// it is done for the peer as well: nobody reaches the memory by that queue pair.
    Posted,
}
