//! Storage clients of another core's loop: the rows of `session list`, `device list` and `path list`, and the counters
//! for `/metrics`, as that loop publishes them.

use crate::clients::{self, exported_name, live_paths, path_name, session_name};
use crate::report::Value;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use rtrs::Name;
use rtrs::server::{Counters, PathState, PathStats, PathStatus, SessionStatus};
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::rnbd::server::{DeviceStatus, Server, VolumeStats};
use storage::rnbd::wire::AccessMode;
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

impl StorageRows {
    /// Addresses of the clients' paths.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.counts.paths.iter().filter_map(|path| {
            let client = path.name.strip_prefix("ip:")?.split('@').next()?;
            client.parse().ok()
        })
    }
}

/// Counters of one loop's clients.
#[derive(Debug, Default)]
pub(crate) struct StorageCounts {
    pub(crate) server: Counters,
    /// Queue depth times chunk size of all sessions, in bytes.
    pub(crate) promised: u64,
    /// All sessions, including those that are not up.
    pub(crate) session_count: usize,
    /// Sessions that have a name.
    pub(crate) sessions: Vec<SessionCounts>,
    /// Live paths of sessions that have a name.
    pub(crate) paths: Vec<PathCounts>,
    /// Devices that sessions have open.
    pub(crate) devices: Vec<DeviceCounts>,
    /// Statistics by volume name, for volumes that a client has used.
    pub(crate) volumes: BTreeMap<String, VolumeStats>,
}

/// A session with a name.
#[derive(Debug)]
pub(crate) struct SessionCounts {
    /// Number of the session in its loop.
    pub(crate) id: usize,
    pub(crate) name: Name,
    pub(crate) up: bool,
    pub(crate) queue_depth: u64,
    pub(crate) chunk_size: u32,
    pub(crate) devices: u64,
}

impl SessionCounts {
    /// Without the count of its devices.
    pub(crate) fn of(session: &SessionStatus) -> Self {
        SessionCounts {
            id: session.id.index(),
            name: session.name,
            up: session.up,
            queue_depth: session.queue_depth.into(),
            chunk_size: session.chunk_size,
            devices: 0,
        }
    }
}

/// A path that is not closing.
#[derive(Debug)]
pub(crate) struct PathCounts {
    /// Number of its session in its loop, and the session's name.
    pub(crate) session_id: usize,
    pub(crate) session: Name,
    pub(crate) name: String,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) state: PathState,
    pub(crate) connections: usize,
    pub(crate) in_flight: u64,
    pub(crate) latency: Duration,
    pub(crate) stats: PathStats,
}

impl PathCounts {
    /// A path of a session with this name.
    pub(crate) fn of(path: &PathStatus<'_>, session: Name) -> Self {
        PathCounts {
            session_id: path.session.index(),
            session,
            name: path_name(path),
            from: path.from,
            to: path.to,
            state: path.state,
            connections: path.connections,
            in_flight: path.in_flight.into(),
            latency: path.latency,
            stats: *path.stats,
        }
    }
}

/// A device that a session has open.
#[derive(Debug)]
pub(crate) struct DeviceCounts {
    /// Name of the export through which it was opened, with `!` for `/`.
    pub(crate) exported: String,
    pub(crate) session: String,
    pub(crate) volume: String,
    pub(crate) mode: AccessMode,
    /// The client's name of the device.
    pub(crate) mapping: String,
}

impl DeviceCounts {
    pub(crate) fn of(server: &Server, volumes: &Volumes, device: &DeviceStatus) -> Self {
        DeviceCounts {
            exported: exported_name(server, device),
            session: session_name(server, device.session),
            volume: volumes.name(device.volume).unwrap_or_default().into(),
            mode: device.mode,
            mapping: device.name.as_str().into(),
        }
    }
}

impl StorageCounts {
    /// Counters of one loop's server and volumes.
    fn of(server: &Server, volumes: &Volumes) -> Self {
        let transport = server.transport();
        let sessions = transport.sessions().filter(|session| !session.name.as_str().is_empty());
        let sessions = sessions.map(|session| SessionCounts {
            devices: server.devices().filter(|device| device.session == session.id).count() as u64,
            ..SessionCounts::of(&session)
        });
        let paths = live_paths(server).filter_map(|path| {
            let session = transport.session(path.session)?.name;
            (!session.as_str().is_empty()).then(|| PathCounts::of(&path, session))
        });
        let devices = server.devices().map(|device| DeviceCounts::of(server, volumes, &device));
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
            devices: devices.collect(),
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
