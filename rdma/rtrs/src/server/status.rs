//! Status of sessions and paths, for console and metrics.

use super::{Counters, PathState, PathStats, Server, SessionId};
use crate::Name;
use core::net::IpAddr;
use core::time::Duration;

/// ID of a path. It is reused once the path is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// A session.
#[derive(Clone, Copy, Debug)]
pub struct SessionStatus {
    /// Its ID.
    pub id: SessionId,
    /// The client's name of the session; empty before INFO_REQ.
    pub name: Name,
    /// Address of the host that created it.
    pub host: IpAddr,
    /// Number of chunks.
    pub queue_depth: u16,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Paths, including those that come up or end.
    pub paths: usize,
    /// Whether a path is connected.
    pub up: bool,
}

/// A path.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus<'a> {
    /// Its ID.
    pub id: PathId,
    /// Its session.
    pub session: SessionId,
    /// The client's address.
    pub from: IpAddr,
    /// Our address.
    pub to: IpAddr,
    /// State.
    pub state: PathState,
    /// Established connections.
    pub connections: usize,
    /// Executing requests.
    pub in_flight: u32,
    /// Time from the last heartbeat to its answer.
    pub latency: Duration,
    /// Statistics.
    pub stats: &'a PathStats,
}

impl Server {
    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.sessions.iter().map(|(key, _)| self.status(key))
    }

    /// A session.
    pub fn session(&self, id: SessionId) -> Option<SessionStatus> {
        self.sessions.contains(id.index()).then(|| self.status(id.index()))
    }

    fn status(&self, key: usize) -> SessionStatus {
        let session = &self.sessions[key];
        SessionStatus {
            id: SessionId(key as u32),
            name: session.name,
            host: session.host,
            queue_depth: session.queue_depth,
            chunk_size: session.chunk_size,
            paths: session.paths.len(),
            up: session.up,
        }
    }

    /// Addresses of the hosts with paths of a session.
    pub fn hosts(&self, id: SessionId) -> impl Iterator<Item = IpAddr> + '_ {
        let paths = self.sessions.get(id.index()).map(|session| session.paths.as_slice());
        paths.unwrap_or_default().iter().map(|&path| self.paths[path].from)
    }

    /// The memory of all sessions' chunks.
    #[cfg(any(test, feature = "testing"))]
    pub fn chunks(&self) -> impl Iterator<Item = (SessionId, drivers::hal::Window)> + '_ {
        let of =
            |(key, s): (usize, &super::table::Session)| Some((SessionId(key as u32), s.chunks?));
        self.sessions.iter().filter_map(of)
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = PathStatus<'_>> {
        self.paths.iter().map(|(key, path)| PathStatus {
            id: PathId(key as u32),
            session: SessionId(path.session as u32),
            from: path.from,
            to: path.to,
            state: path.state,
            connections: path.connections.iter().flatten().count(),
            in_flight: path.in_flight,
            latency: Duration::from_nanos(path.latency_nanos),
            stats: &path.stats,
        })
    }

    /// Resets the statistics of a path. Returns false if the path does not exist.
    pub fn reset_stats(&mut self, path: PathId) -> bool {
        let path = self.paths.get_mut(path.0 as usize);
        path.map(|path| path.stats = PathStats::default()).is_some()
    }

    /// Resets only the statistics that Linux has in `stats/rdma`. Returns false if the path does not exist.
    pub fn reset_rdma_stats(&mut self, path: PathId) -> bool {
        let Some(path) = self.paths.get_mut(path.0 as usize) else { return false };
        let none = PathStats::default();
        let PathStats { reads, read_bytes, writes, write_bytes, errors, .. } = none;
        path.stats = PathStats { reads, read_bytes, writes, write_bytes, errors, ..path.stats };
        true
    }

    /// Chunks of each session.
    pub fn queue_depth(&self) -> u16 {
        self.config.queue_depth
    }

    /// Bytes promised to all sessions: queue depth times chunk size.
    pub fn promised(&self) -> u64 {
        self.sessions.iter().map(|(_, session)| session.promise()).sum()
    }

    /// Most bytes promised, if sessions share memory; None if each has its own.
    pub fn shared(&self) -> Option<u64> {
        self.shared
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
