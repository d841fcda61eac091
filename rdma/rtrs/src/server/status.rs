//! What the console and metrics see.

use super::{Counters, PathState, PathStats, Server, SessionId};
use crate::Name;
use core::net::IpAddr;
use core::time::Duration;

/// Name of a path. It is used again once the path is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// A session.
#[derive(Clone, Copy, Debug)]
pub struct SessionStatus {
    /// Its name here.
    pub id: SessionId,
    /// The name that the client gave it; empty before it did.
    pub name: Name,
    /// Address of the host that made it.
    pub host: IpAddr,
    /// Chunks.
    pub queue_depth: u16,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Paths, also those that come up or end.
    pub paths: usize,
    /// Whether a path is connected.
    pub up: bool,
}

/// A path.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus<'a> {
    /// Its name here.
    pub id: PathId,
    /// The session that it belongs to.
    pub session: SessionId,
    /// The client's address.
    pub from: IpAddr,
    /// Our address.
    pub to: IpAddr,
    /// State.
    pub state: PathState,
    /// Connections that stand.
    pub connections: usize,
    /// Requests that are being worked on.
    pub in_flight: u32,
    /// Time from the last heartbeat to its answer.
    pub latency: Duration,
    /// Counts.
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

    /// Addresses of the hosts that have paths of a session.
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

    /// Sets the counts of a path back; false if there is none of that name.
    pub fn reset_stats(&mut self, path: PathId) -> bool {
        let path = self.paths.get_mut(path.0 as usize);
        path.map(|path| path.stats = PathStats::default()).is_some()
    }

    /// Sets back what Linux counts in `stats/rdma`, and nothing else; false if there is no such path.
    pub fn reset_rdma_stats(&mut self, path: PathId) -> bool {
        let Some(path) = self.paths.get_mut(path.0 as usize) else { return false };
        let none = PathStats::default();
        let PathStats { reads, read_bytes, writes, write_bytes, errors, .. } = none;
        path.stats = PathStats { reads, read_bytes, writes, write_bytes, errors, ..path.stats };
        true
    }

    /// Bytes that the sessions were promised: queue depth times chunk size.
    pub fn promised(&self) -> u64 {
        self.sessions.iter().map(|(_, session)| session.promise()).sum()
    }

    /// Bytes that may be promised, if sessions share memory; else each has its own.
    pub fn shared(&self) -> Option<u64> {
        self.shared
    }

    /// What the server counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
