//! What the client tells its user.

use crate::rtrs::Errno;
use crate::verbs::{RejectReason, Status};

/// The right to have a request outstanding: one chunk of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit(pub(super) u16);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Answered(Result<(), Errno>),
    /// Its path went down; whether it was done is unknown. It may be submitted again.
    Lost,
}

/// Why a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// The server refused, with this error.
    Refused(Errno),
    /// The connection manager refused.
    Rejected(RejectReason),
    /// It did not come up in time, or the server was silent for too long.
    Timeout,
    /// The server disconnected.
    Peer,
    /// The user asked for it.
    User,
    /// A work request failed.
    Transport(Status),
    /// The server broke the protocol, as said here.
    Protocol(&'static str),
    /// This side had no memory or other resources left.
    Resources,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path came up.
    PathUp(usize),
    /// A path is down; its requests were reported as lost before.
    PathDown(usize, DownReason),
    /// A request ended.
    Done(Permit, Outcome),
}
