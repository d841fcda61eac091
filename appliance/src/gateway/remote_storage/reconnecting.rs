//! `reconnect` of a path to a server: the operator waits for its result, as a write to Linux's sysfs does.

use crate::config::PathPair;
use core::time::Duration;
use drivers::hal::Instant;
use rtrs::client::{DownReason, PathState, PathStatus};

/// Longest wait for the result (rtrs-clt.c, `RTRS_CONNECT_TIMEOUT_MS`).
const PATIENCE: Duration = Duration::from_secs(30);

/// A path that is being reconnected.
#[derive(Debug)]
pub(in crate::gateway) struct Reconnecting {
    session: String,
    path: PathPair,
    deadline: Instant,
    cancelled: bool,
}

impl Reconnecting {
    /// A reconnect of a path that begins now.
    pub fn new(session: &str, path: PathPair, now: Instant) -> Self {
        Reconnecting { session: session.into(), path, deadline: now + PATIENCE, cancelled: false }
    }

    /// Name of the session.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The two ends of the path.
    pub fn path(&self) -> PathPair {
        self.path
    }

    /// The operator no longer waits. The path continues to connect.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// The result: success, or why the path is not connected. None while the first attempt runs. `path`: the path's
    /// status, if it exists.
    pub fn result(
        &self,
        path: Option<&PathStatus<'_>>,
        now: Instant,
    ) -> Option<Result<String, String>> {
        if self.cancelled {
            return Some(Err("cancelled; the path continues to connect".into()));
        }
        let Some(path) = path else { return Some(Err("the path was removed".into())) };
        let reason = path.last_failure.filter(|reason| *reason != DownReason::Operator);
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        // The server's hardware address may not be known yet.
        let resolves = path.attempts < 2
            && matches!(path.last_failure, Some(DownReason::Unreachable | DownReason::NoAddress));
        match path.state {
            PathState::Connected => Some(Ok(format!("path {} is connected", self.path))),
            PathState::Closed => Some(Err(format!("path {} is closed{reason}", self.path))),
            PathState::Reconnecting if !resolves => {
                Some(Err(format!("path {} is not connected{reason}; retrying", self.path)))
            }
            _ if now >= self.deadline => {
                Some(Err(format!("path {} is not connected after 30 s{reason}", self.path)))
            }
            _ => None,
        }
    }
}
