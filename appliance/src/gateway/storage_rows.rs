//! What the loop of another core tells of its clients: the rows of `session list`, `device list` and `path list`.

use super::manage::sessions;
use super::storage::Storage;
use crate::report::Value;
use core::time::Duration;
use drivers::hal::Instant;
use std::sync::Arc;

/// How often rows are made anew while only their counters move.
const COUNTERS: Duration = Duration::from_secs(5);

/// The rows.
#[derive(Debug, Default)]
pub(super) struct StorageRows {
    pub sessions: Vec<Value>,
    pub devices: Vec<Value>,
    pub paths: Vec<Value>,
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
        }))
    }
}
