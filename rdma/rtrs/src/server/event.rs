//! Events, requests and notices of the server for its user.

use crate::{Errno, Name};
use core::fmt;
use core::net::IpAddr;
use drivers::hal::Window;
use verbs::{Status, VerbsError};

/// ID of a session. It is reused once the session is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

impl SessionId {
    /// Index in tables by session.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// ID of an executing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) path: u32,
    pub(super) chunk: u16,
}

impl RequestId {
    /// The tag for volumes.
    pub fn to_bits(self) -> u64 {
        u64::from(self.path) << 16 | u64::from(self.chunk)
    }

    /// Converts a tag.
    pub fn from_bits(bits: u64) -> Self {
        RequestId { path: (bits >> 16) as u32, chunk: bits as u16 }
    }
}

/// Direction of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// To the client: up to the length of `Request::data`.
    Read,
    /// From the client, or no data.
    Write,
}

/// A request. Answer it with [`super::Server::respond`].
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its ID.
    pub id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// Direction of its data.
    pub kind: RequestKind,
    /// Data of a write, or room to stage the data of a read. The client chooses its size.
    pub data: Window,
    /// The client cannot change the data of a write any more, or may always do so (without `always_invalidate`).
    pub settled: bool,
    /// The user's header. Copy it once, because the client may change it.
    pub user: Window,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The first path of a session came up.
    LinkUp(SessionId),
    /// The last path of a session went down. Executing requests may finish, but their responses are dropped.
    LinkDown(SessionId),
    /// A request that its executor has deferred.
    Request(Request),
    /// A request was passed to the executor.
    Executed,
}

/// Executor of requests ([`super::Server::serve`]).
pub trait Execute {
    /// Executes a request, if possible at once.
    fn execute(&mut self, request: &Request) -> Execution;
}

/// Result of [`Execute::execute`].
#[derive(Clone, Copy, Debug)]
pub enum Execution {
    /// The request is done, with this result as in [`super::Server::respond`].
    Done(Result<Window, Errno>),
    /// The request is executing, and will be answered by [`super::Server::respond`].
    Pending,
    /// The request is to be returned as an event, and will be answered by [`super::Server::respond`].
    Deferred,
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Direction of its data.
    pub kind: RequestKind,
    /// Bytes of data.
    pub bytes: u32,
    /// Nanoseconds since its arrival.
    pub nanos: u64,
}

/// Reason why a path ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer disconnected, or vanished during connection establishment.
    Peer,
    /// The operator disconnected the path.
    Operator,
    /// The peer was silent for too long.
    Silence,
    /// The path was not completed in time.
    Handshake,
    /// The client reconnected under the same name.
    Replaced,
    /// The session was half-open, and evicted for another one.
    Displaced,
    /// A host with another address has a session with this name.
    NameTaken,
    /// No memory for its chunks.
    Memory,
    /// Our queue pair rejected a request of the client, and failed.
    Refused,
    /// A work request failed.
    Transport(Status),
    /// The peer violated the protocol, as described.
    Protocol(&'static str),
    /// Out of memory or keys.
    Resources,
}

impl From<VerbsError> for CloseReason {
    /// Reason of a failed verb that should succeed.
    fn from(error: VerbsError) -> Self {
        match error {
            // The queue pair failed, and its flushed work requests have not been polled yet.
            VerbsError::WrongState => CloseReason::Transport(Status::Flushed),
            _ => CloseReason::Resources,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Peer => f.write_str("disconnected by the client"),
            CloseReason::Operator => f.write_str("disconnected by the operator"),
            CloseReason::Silence => f.write_str("no heartbeat from the client"),
            CloseReason::Handshake => f.write_str("the client did not complete the path in time"),
            CloseReason::Replaced => f.write_str("the client reconnected"),
            CloseReason::Displaced => f.write_str("half-open session evicted for another client"),
            CloseReason::NameTaken => f.write_str("another host has a session of that name"),
            CloseReason::Memory => f.write_str("no memory for the session's chunks"),
            CloseReason::Refused => {
                f.write_str("our queue pair refused a request of the client, and failed")
            }
            CloseReason::Transport(Status::RetryExceeded) => f.write_str(
                "no ACKs from the client: host down, or packets of 4 KiB do not pass (MTU)",
            ),
            CloseReason::Transport(Status::RnrRetryExceeded) => {
                f.write_str("the client posted no receives in time: host overloaded or stuck")
            }
            CloseReason::Transport(Status::RemoteAccess) => {
                f.write_str("the client refused access to its own memory")
            }
            CloseReason::Transport(status) => write!(f, "our queue pair failed: {status:?}"),
            CloseReason::Protocol(what) => write!(f, "the client broke the protocol: {what}"),
            CloseReason::Resources => f.write_str("out of memory or keys"),
        }
    }
}

/// A notice for the log.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// A path came up.
    PathUp {
        /// Its session.
        session: Name,
        /// The client's address.
        from: IpAddr,
        /// Our address.
        to: IpAddr,
    },
    /// A path went down.
    PathDown {
        /// Its session; empty before INFO_REQ.
        session: Name,
        /// The client's address.
        from: IpAddr,
        /// Our address.
        to: IpAddr,
        /// Why.
        reason: CloseReason,
    },
}

impl Notice {
    /// Whether a path went down without the client or the operator having ended it.
    pub fn is_loss(&self) -> bool {
        let wanted = |reason: &CloseReason| {
            matches!(reason, CloseReason::Peer | CloseReason::Operator | CloseReason::Replaced)
        };
        matches!(self, Notice::PathDown { reason, .. } if !wanted(reason))
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::PathUp { session, from, to } => {
                write!(f, "rtrs: session {session}: path {from}@{to} is up")
            }
            Notice::PathDown { session, from, to, reason } => {
                write!(f, "rtrs: session {session}: path {from}@{to} is down: {reason}")
            }
        }
    }
}
