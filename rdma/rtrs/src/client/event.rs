//! What the client tells its user.

use super::Continuity;
use crate::Errno;
use core::fmt;
use verbs::{RejectReason, Status};

/// The right to have a request outstanding: one chunk of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    pub(super) index: u16,
    /// Of which making of the pool it is.
    pub(super) pool: u16,
}

impl Permit {
    /// Place in tables that are kept by permit.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// Name of a path. It is used again once the path is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// Place in tables that are kept by path.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Answered(Result<(), Errno>),
    /// Its path went down, and no other is up; whether it was done is unknown. It may be submitted
    /// again with the same permit, and then is not done twice at the same time.
    Lost,
}

/// Why a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// The server refused, with this error.
    Refused(Errno),
    /// The connection manager refused.
    Rejected(RejectReason),
    /// The way to the server's address is not known (yet).
    Unreachable,
    /// The path's own address is none of ours (yet).
    NoAddress,
    /// It did not come up in time.
    Timeout,
    /// The server was silent for too long.
    Silence,
    /// The server disconnected.
    Peer,
    /// A request on it was given up: what it holds in memory is to be free.
    GivenUp,
    /// The operator asked for it.
    Operator,
    /// A work request failed.
    Transport(Status),
    /// The server does not know the session any more.
    Forgotten,
    /// The server offers something else than before, or says that it was restarted.
    Anew,
    /// The server broke the protocol, as said here.
    Protocol(&'static str),
    /// This side had no memory or other resources left.
    Resources,
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DownReason::Refused(errno) => write!(f, "the server refused: {errno}"),
            DownReason::Rejected(RejectReason::TIMEOUT) => f.write_str("the server did not answer"),
            DownReason::Rejected(RejectReason::INVALID_SERVICE_ID) => {
                f.write_str("nobody listens on the server's port")
            }
            DownReason::Rejected(reason) => write!(f, "the server rejected: reason {}", reason.0),
            DownReason::Unreachable => f.write_str("the server's address is not known here"),
            DownReason::NoAddress => f.write_str("the path's source is no address of ours"),
            DownReason::Timeout => f.write_str("it did not come up in time"),
            DownReason::Silence => f.write_str("no sign of life from the server"),
            DownReason::Peer => f.write_str("disconnected by the server"),
            DownReason::GivenUp => f.write_str("a request was not answered in time"),
            DownReason::Operator => f.write_str("disconnected by the operator"),
            DownReason::Transport(Status::RetryExceeded) => {
                f.write_str("server does not answer: check that it runs, cable, MTU")
            }
            DownReason::Transport(status) => write!(f, "transport: {status:?}"),
            DownReason::Forgotten => f.write_str("the server does not know the session any more"),
            DownReason::Anew => f.write_str("the server made the session anew"),
            DownReason::Protocol(what) => write!(f, "the server broke the protocol: {what}"),
            DownReason::Resources => f.write_str("no memory or other resources left here"),
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path came up.
    PathUp(PathId),
    /// A path is down, or an attempt to bring it up failed.
    PathDown(PathId, DownReason),
    /// The first path came up: requests can be submitted.
    LinkUp {
        /// The server offers something else than before: permits that are still held are void.
        fresh: bool,
        /// Whether the server is the one that it was when the link was last up: then what it has
        /// answered and not yet made durable is still there.
        server: Continuity,
    },
    /// The last path went down; its requests are reported as lost.
    LinkDown,
    /// A request ended.
    Done(Permit, Outcome),
}
