//! What the server tells its user.

use crate::{Errno, Name};
use core::fmt;
use core::net::IpAddr;
use drivers::hal::Window;
use verbs::{Status, VerbsError};

/// Name of a session. It is used again once the session is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

impl SessionId {
    /// Place in tables that are kept by session.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Name of a request that is being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) path: u32,
    pub(super) chunk: u16,
}

impl RequestId {
    /// As a tag for volumes.
    pub fn to_bits(self) -> u64 {
        u64::from(self.path) << 16 | u64::from(self.chunk)
    }

    /// From such a tag.
    pub fn from_bits(bits: u64) -> Self {
        RequestId { path: (bits >> 16) as u32, chunk: bits as u16 }
    }
}

/// Which way the data of a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// To the client: the answer may carry as much as `Request::data` holds.
    Read,
    /// From the client, or there is none.
    Write,
}

/// A request. Answer it with [`super::Server::respond`].
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// The session that it belongs to.
    pub session: SessionId,
    /// Which way its data goes.
    pub kind: RequestKind,
    /// Data of a write; room to stage the answer of a read. Of a size of the client's choice.
    pub data: Window,
    /// The client cannot change the data of a write any more, or may do so at any time.
    pub settled: bool,
    /// The user's header. Copy it out once: the client could change it.
    pub user: Window,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The first path of a session came up.
    LinkUp(SessionId),
    /// The last path of a session went down. Requests that are being worked on may be finished;
    /// their answers go nowhere.
    LinkDown(SessionId),
    /// A request arrived, which nobody has executed.
    Request(Request),
    /// Who executes requests has been given one.
    Executed,
}

/// Who executes requests ([`super::Server::serve`]).
pub trait Execute {
    /// Executes a request, if it can.
    fn execute(&mut self, request: &Request) -> Execution;
}

/// What came of a request that was given to who executes them.
#[derive(Clone, Copy, Debug)]
pub enum Execution {
    /// It is done, and this is its answer, as in [`super::Server::respond`].
    Done(Result<Window, Errno>),
    /// It is worked on, and answered by [`super::Server::respond`].
    Pending,
    /// It is to come as an event, and is answered by [`super::Server::respond`].
    Deferred,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Which way its data went.
    pub kind: RequestKind,
    /// How much there was.
    pub bytes: u32,
    /// Nanoseconds from its arrival to now.
    pub nanos: u64,
}

/// Why a path ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer disconnected, or vanished during connection establishment.
    Peer,
    /// The operator asked for it.
    Operator,
    /// The peer was silent for too long.
    Silence,
    /// The path was not complete in time.
    Handshake,
    /// The client came back under the same name.
    Replaced,
    /// It had shown no sign of life, and another host wanted its place.
    Displaced,
    /// A host of another address has a session of its name.
    NameTaken,
    /// There was no memory for its chunks.
    Memory,
    /// The transport refused what the client sent, and ended the queue pair.
    Refused,
    /// A work request failed.
    Transport(Status),
    /// The peer broke the protocol, as said here.
    Protocol(&'static str),
    /// This side had no memory or keys left.
    Resources,
}

impl From<VerbsError> for CloseReason {
    /// Why a verb was refused that this side always may call.
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
            CloseReason::Displaced => f.write_str("half-open, and others wanted its place"),
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
            CloseReason::Resources => f.write_str("no memory or keys left here"),
        }
    }
}

/// Something for the log.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// A path came up.
    PathUp {
        /// Session that it belongs to.
        session: Name,
        /// The client's address.
        from: IpAddr,
        /// Our address.
        to: IpAddr,
    },
    /// A path went down.
    PathDown {
        /// Session that it belongs to; empty if the client had not said.
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
    /// Whether a path was lost that neither its client nor the operator has ended.
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
