//! What a client reports: notices, status and counts.

use super::{Client, MOST_NOTICES, worst_failure};
use crate::controller::Life;
use crate::failure::Failure;
use crate::identify::{Access, Namespace};
use alloc::vec::Vec;

/// News for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A path is up.
    Up {
        /// Number of the path.
        path: u16,
    },
    /// A path ended or was refused.
    Down {
        /// Number of the path.
        path: u16,
        /// Why.
        why: Failure,
    },
    /// The ANA state of a path has changed.
    Access {
        /// Number of the path.
        path: u16,
        /// The new state.
        access: Access,
    },
    /// The namespace has grown, in bytes.
    Grown {
        /// Size before.
        before: u64,
        /// Size now.
        now: u64,
    },
    /// A controller may have lost acknowledged writes that no flush had covered.
    WritesLost,
    /// A controller answered a request with this status.
    Failed(u16),
}

/// State of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was never open.
    Connecting,
    /// It accepts requests.
    Open,
    /// No path is usable, and requests wait.
    Reconnecting,
    /// A controller is there and an operator has to correct something.
    Refused,
}

impl State {
    /// The state as the console shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Open => "open",
            State::Reconnecting => "reconnecting",
            State::Refused => "refused",
        }
    }
}

/// Counts of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads sent.
    pub reads: u64,
    /// Bytes asked for.
    pub read_bytes: u64,
    /// Writes sent.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes sent.
    pub flushes: u64,
    /// Deallocations and write-zeroes sent.
    pub others: u64,
    /// Requests that failed by a controller's status.
    pub errors: u64,
    /// Commands that were sent again after a controller's status.
    pub retries: u64,
    /// Commands that were sent again, because their path had ended.
    pub replays: u64,
    /// Paths that became ready.
    pub connects: u64,
    /// Paths that failed, before or after they were ready.
    pub failures: u64,
    /// Times that a controller may have lost acknowledged writes.
    pub losses: u64,
}

/// Status of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus {
    /// `down`, `connecting`, `live` or `leaving`.
    pub state: &'static str,
    /// ANA state, while it is live.
    pub access: Option<Access>,
    /// Identifier of the controller, while it is live.
    pub cntlid: Option<u16>,
    /// I/O queues in use.
    pub queues: u16,
    /// Commands of requests in flight.
    pub in_flight: usize,
    /// Why it ended or was refused.
    pub last_failure: Option<Failure>,
}

/// Status of a client.
#[derive(Clone, Debug)]
pub struct Status {
    /// State.
    pub state: State,
    /// The namespace, once it was open.
    pub namespace: Option<Namespace>,
    /// A controller has a volatile write cache, and writes do not pass it.
    pub cache: bool,
    /// The paths, in the order of the addresses.
    pub paths: Vec<PathStatus>,
    /// Paths that are live.
    pub ready: usize,
    /// Requests of the user.
    pub requests: usize,
    /// Why no path is in use.
    pub last_failure: Option<Failure>,
    /// Counts.
    pub stats: Stats,
}

impl<T: Copy> Client<T> {
    /// The next news.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        if self.notices.len() == MOST_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Status for reports.
    pub fn status(&self) -> Status {
        let ready = self.paths.iter().filter(|path| path.is_ready()).count();
        let is_usable = self.paths.iter().any(|path| path.is_usable());
        let failure = worst_failure(&self.paths);
        let state = match (self.namespace, failure) {
            _ if is_usable => State::Open,
            (_, Some(failure)) if failure.is_refusal() => State::Refused,
            (None, _) => State::Connecting,
            _ => State::Reconnecting,
        };
        let path = |path: &crate::controller::Path| PathStatus {
            state: match path.life {
                Life::Down(_) => "down",
                Life::Setup => "connecting",
                Life::Ready(_) => "live",
                Life::Leaving(_) => "leaving",
            },
            access: path.is_ready().then_some(path.access),
            cntlid: path.is_ready().then_some(path.cntlid),
            queues: path.granted,
            in_flight: path.in_flight(),
            last_failure: path.last_failure,
        };
        Status {
            state,
            namespace: self.namespace,
            cache: self.has_cache(),
            paths: self.paths.iter().map(path).collect(),
            ready,
            requests: self.in_use,
            last_failure: failure.filter(|_| !is_usable),
            stats: self.stats,
        }
    }
}
