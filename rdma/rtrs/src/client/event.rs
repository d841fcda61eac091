//! Events of the client for its user.

use super::Continuity;
use crate::Errno;
use core::fmt;
use verbs::{RejectReason, Status};

/// The right to have one request outstanding: one chunk of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    pub(super) index: u16,
    /// Generation of the pool.
    pub(super) pool: u16,
}

impl Permit {
    /// Index in tables by permit.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// ID of a path. It is reused once the path is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// Index in tables by path.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server responded.
    Answered(Result<(), Errno>),
    /// The path went down and no other is up; whether the server executed the request is unknown. If it is submitted
    /// again with the same permit, the server does not execute both at the same time.
    Lost,
}

/// Reason why a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// The server refused the connection with this error.
    Refused(Errno),
    /// The connection manager rejected the connection.
    Rejected(RejectReason),
    /// The server's address has no route, or is not resolved yet.
    Unreachable,
    /// The path's source address is not configured here (yet).
    NoAddress,
    /// The path did not come up in time.
    Timeout,
    /// The server was silent for too long.
    Silence,
    /// The server disconnected.
    Peer,
    /// The caller took back a request of the path, whose memory must be free.
    GivenUp,
    /// The operator disconnected the path.
    Operator,
    /// A work request failed.
    Transport(Status),
    /// The server has lost the session.
    Forgotten,
    /// The server has other parameters or another incarnation than before.
    Anew,
    /// The server violated the protocol, as described.
    Protocol(&'static str),
    /// Out of memory or other resources.
    Resources,
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DownReason::Refused(errno) => write!(f, "the server refused: {errno}"),
            DownReason::Rejected(RejectReason::TIMEOUT) => f.write_str("the server did not answer"),
            DownReason::Rejected(RejectReason::INVALID_SERVICE_ID) => {
                f.write_str("no service listens on the server's port")
            }
            DownReason::Rejected(RejectReason::INVALID_MTU) => f.write_str(
                "the server's port has a smaller MTU than this one: give both the same (`net.N.mtu`)",
            ),
            DownReason::Rejected(reason) => {
                write!(f, "rejected by the server: reason {}", reason.0)
            }
            DownReason::Unreachable => {
                f.write_str("server unreachable: no route, or MAC address unresolved")
            }
            DownReason::NoAddress => f.write_str("source address is not configured here"),
            DownReason::Timeout => f.write_str("the path did not come up in time"),
            DownReason::Silence => f.write_str("no heartbeat from the server"),
            DownReason::Peer => f.write_str("disconnected by the server"),
            DownReason::GivenUp => f.write_str("a request was not answered in time"),
            DownReason::Operator => f.write_str("disconnected by the operator"),
            DownReason::Transport(Status::RetryExceeded) => {
                f.write_str("server does not answer: check that it runs, cable, MTU")
            }
            DownReason::Transport(status) => write!(f, "transport: {status:?}"),
            DownReason::Forgotten => f.write_str("the server has lost the session"),
            DownReason::Anew => f.write_str("the server was restarted or reconfigured"),
            DownReason::Protocol(what) => write!(f, "the server broke the protocol: {what}"),
            DownReason::Resources => f.write_str("out of memory or other resources"),
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path came up.
    PathUp(PathId),
    /// A path went down, or an attempt to bring it up failed.
    PathDown(PathId, DownReason),
    /// The first path came up: requests can be submitted.
    LinkUp {
        /// The server's parameters have changed: permits still held are void.
        fresh: bool,
        /// Whether the server still runs since the link was last up: then writes that it has acknowledged but not
        /// flushed still exist.
        server: Continuity,
    },
    /// The last path went down; its requests are reported as lost.
    LinkDown,
    /// A request ended.
    Done(Permit, Outcome),
}
