//! What the loop of another core tells of its clients: the rows of `session list`, `device list` and `path list`, and
//! what is counted for `/metrics`.

use super::manage::sessions;
use super::objects::{live_paths, path_name};
use super::storage::Storage;
use crate::report::Value;
use core::time::Duration;
use drivers::hal::Instant;
use rtrs::Name;
use rtrs::server::{Counters, PathState, PathStats};
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::rnbd::server::VolumeStats;

/// How often rows are made anew while only their counters move.
const COUNTERS: Duration = Duration::from_secs(5);

/// The rows.
#[derive(Debug, Default)]
pub(super) struct StorageRows {
    pub sessions: Vec<Value>,
    pub devices: Vec<Value>,
    pub paths: Vec<Value>,
    pub counts: StorageCounts,
}

/// What is counted of a loop's clients.
#[derive(Debug, Default)]
pub(super) struct StorageCounts {
    pub server: Counters,
    /// Queue depth times chunk size of all sessions, in bytes.
    pub promised: u64,
    /// Sessions, those among them that are not up.
    pub session_count: usize,
    /// Those that are up.
    pub sessions: Vec<SessionCounts>,
    /// Of sessions that have a name.
    pub paths: Vec<PathCounts>,
    /// By the names of volumes that somebody has used.
    pub volumes: BTreeMap<String, VolumeStats>,
}

/// A session that is up.
#[derive(Debug)]
pub(super) struct SessionCounts {
    pub name: Name,
    pub queue_depth: u64,
    pub devices: u64,
}

/// A path that does not end.
#[derive(Debug)]
pub(super) struct PathCounts {
    pub session: Name,
    pub name: String,
    pub up: bool,
    pub in_flight: u64,
    pub stats: PathStats,
}

impl StorageCounts {
    /// Of one loop's storage.
    fn of(storage: &Storage) -> Self {
        let Some(server) = &storage.server else { return Self::default() };
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
        let volumes = storage.volumes.ids().filter_map(|id| {
            let name = storage.volumes.name(id).unwrap_or_default();
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

/// The rows of a loop, made anew when there is something new in them.
#[derive(Debug, Default)]
pub(super) struct RowsTold {
    /// Paths that came and went, and devices.
    shape: (u64, usize),
    completions: u64,
    due: Instant,
}

impl RowsTold {
    /// The rows of the storage, if they have changed.
    pub fn news(&mut self, storage: &Storage, now: Instant) -> Option<Arc<StorageRows>> {
        let server = storage.server.as_ref()?;
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
            sessions: sessions::sessions(server).collect(),
            devices: sessions::devices(&storage.volumes, server).collect(),
            paths: transport.paths().map(|path| sessions::path(server, &path)).collect(),
            counts: StorageCounts::of(storage),
        }))
    }
}
