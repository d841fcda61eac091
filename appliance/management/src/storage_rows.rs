//! Storage clients of another core's loop: the rows of `session list`, `device list` and `path list`, and the counters
//! for `/metrics`, as that loop publishes them.

use crate::clients::{self, live_paths, path_name};
use crate::report::Value;
use core::time::Duration;
use drivers::hal::Instant;
use rtrs::Name;
use rtrs::server::{Counters, PathState, PathStats};
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::rnbd::server::{Server, VolumeStats};
use storage::volume::Volumes;

/// Interval at which a loop publishes rows in which only counters changed.
const COUNTERS: Duration = Duration::from_secs(5);

/// The rows and counters of one loop.
#[derive(Debug, Default)]
pub struct StorageRows {
    pub(crate) sessions: Vec<Value>,
    pub(crate) devices: Vec<Value>,
    pub(crate) paths: Vec<Value>,
    pub(crate) counts: StorageCounts,
}

/// Counters of one loop's clients.
#[derive(Debug, Default)]
pub(crate) struct StorageCounts {
    pub(crate) server: Counters,
    /// Queue depth times chunk size of all sessions, in bytes.
    pub(crate) promised: u64,
    /// All sessions, including those that are not up.
    pub(crate) session_count: usize,
    /// Sessions that are up.
    pub(crate) sessions: Vec<SessionCounts>,
    /// Live paths of sessions that have a name.
    pub(crate) paths: Vec<PathCounts>,
    /// Statistics by volume name, for volumes that a client has used.
    pub(crate) volumes: BTreeMap<String, VolumeStats>,
}

/// A session that is up.
#[derive(Debug)]
pub(crate) struct SessionCounts {
    pub(crate) name: Name,
    pub(crate) queue_depth: u64,
    pub(crate) devices: u64,
}

/// A path that is not closing.
#[derive(Debug)]
pub(crate) struct PathCounts {
    pub(crate) session: Name,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) in_flight: u64,
    pub(crate) stats: PathStats,
}

impl StorageCounts {
    /// Counters of one loop's server and volumes.
    fn of(server: &Server, volumes: &Volumes) -> Self {
        let transport = server.transport();
        let sessions = transport.sessions().filter(|session| session.up);
        let sessions = sessions.map(|session| SessionCounts {
            name: session.name,
            queue_depth: session.queue_depth.into(),
            devices: server.devices().filter(|device| device.session == session.id).count() as u64,
        });
        let paths = live_paths(server).filter_map(|path| {
            let session = transport.session(path.session)?.name;
            (!session.as_str().is_empty()).then(|| PathCounts {
                session,
                name: path_name(&path),
                up: path.state == PathState::Connected,
                in_flight: path.in_flight.into(),
                stats: *path.stats,
            })
        });
        let volumes = volumes.ids().filter_map(|id| {
            let name = volumes.name(id).unwrap_or_default();
            Some((name.to_string(), *server.volume_stats(id)?))
        });
        StorageCounts {
            server: *transport.counters(),
            promised: transport.promised(),
            session_count: transport.sessions().count(),
            sessions: sessions.collect(),
            paths: paths.collect(),
            volumes: volumes.collect(),
        }
    }
}

/// Decides when a loop publishes its rows again: after a change of shape at once, after a change of counters every
/// five seconds.
#[derive(Debug, Default)]
pub struct RowsTold {
    /// Connections accepted, paths opened and closed; and devices opened.
    shape: (u64, usize),
    completions: u64,
    due: Instant,
}

impl RowsTold {
    /// Fresh rows of a server and its volumes if a publication is due.
    pub fn news(
        &mut self,
        server: &Server,
        volumes: &Volumes,
        now: Instant,
    ) -> Option<Arc<StorageRows>> {
        let transport = server.transport();
        let counters = transport.counters();
        let shape =
            (counters.accepted + counters.paths_up + counters.paths_closed, server.opened());
        let moved = counters.completions != self.completions && now >= self.due;
        if shape == self.shape && !moved {
            return None;
        }
        (self.shape, self.completions, self.due) = (shape, counters.completions, now + COUNTERS);
        Some(Arc::new(StorageRows {
            sessions: clients::sessions(server).collect(),
            devices: clients::devices(volumes, server).collect(),
            paths: transport.paths().map(|path| clients::path(server, &path)).collect(),
            counts: StorageCounts::of(server, volumes),
        }))
    }
}
