//! What the loop of another core tells of its clients: the rows of `session list`, `device list` and `path list`, and
//! what is counted for `/metrics`.

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

/// How often rows are made anew while only their counters move.
const COUNTERS: Duration = Duration::from_secs(5);

/// The rows.
#[derive(Debug, Default)]
pub struct StorageRows {
    pub(crate) sessions: Vec<Value>,
    pub(crate) devices: Vec<Value>,
    pub(crate) paths: Vec<Value>,
    pub(crate) counts: StorageCounts,
}

/// What is counted of a loop's clients.
#[derive(Debug, Default)]
pub(crate) struct StorageCounts {
    pub(crate) server: Counters,
    /// Queue depth times chunk size of all sessions, in bytes.
    pub(crate) promised: u64,
    /// Sessions, those among them that are not up.
    pub(crate) session_count: usize,
    /// Those that are up.
    pub(crate) sessions: Vec<SessionCounts>,
    /// Of sessions that have a name.
    pub(crate) paths: Vec<PathCounts>,
    /// By the names of volumes that somebody has used.
    pub(crate) volumes: BTreeMap<String, VolumeStats>,
}

/// A session that is up.
#[derive(Debug)]
pub(crate) struct SessionCounts {
    pub(crate) name: Name,
    pub(crate) queue_depth: u64,
    pub(crate) devices: u64,
}

/// A path that does not end.
#[derive(Debug)]
pub(crate) struct PathCounts {
    pub(crate) session: Name,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) in_flight: u64,
    pub(crate) stats: PathStats,
}

impl StorageCounts {
    /// Of one loop's storage.
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

/// The rows of a loop, made anew when there is something new in them.
#[derive(Debug, Default)]
pub struct RowsTold {
    /// Paths that came and went, and devices.
    shape: (u64, usize),
    completions: u64,
    due: Instant,
}

impl RowsTold {
    /// The rows of a server and its volumes, if they have changed.
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
