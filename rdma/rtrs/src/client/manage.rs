//! Management of paths by operators, and their status.

use super::path::Path;
use super::{Client, Config, Ctx, DownReason, PathId, PathState, PathStats, Policy, uuid};
use crate::wire::MAX_PATHS;
use crate::{Heartbeat, Name};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Window;
use verbs::RdmaDevice;

/// Reason why a path was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddPathError {
    /// The session has a path between these addresses.
    Exists,
    /// The session has as many paths as the protocol allows.
    TooMany,
    /// One address is IPv4, the other IPv6.
    Families,
    /// The other paths use another device, where the memory of requests is registered.
    Device,
}

impl fmt::Display for AddPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddPathError::Exists => "the session has a path between these addresses",
            AddPathError::TooMany => "a session has at most 128 paths",
            AddPathError::Families => "both addresses of a path must be IPv4, or both IPv6",
            AddPathError::Device => {
                "all paths of a session must use the network, or the same bridge"
            }
        })
    }
}

/// Status of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus<'a> {
    /// Its ID.
    pub id: PathId,
    /// Our address.
    pub from: IpAddr,
    /// The server's address and port.
    pub to: SocketAddr,
    /// State.
    pub state: PathState,
    /// Connection attempts since the path was last up.
    pub attempts: u16,
    /// Reason why the path is down.
    pub last_failure: Option<DownReason>,
    /// Established connections.
    pub connections: usize,
    /// Requests outstanding.
    pub in_flight: u32,
    /// Time from the last heartbeat to its answer (`cur_latency`).
    pub latency: Duration,
    /// Statistics.
    pub stats: &'a PathStats,
}

impl Client {
    /// Adds a path and starts to connect it. [`super::Event::PathUp`] or `PathDown` follows.
    pub fn add_path<P: RdmaDevice + ?Sized>(
        &mut self,
        from: IpAddr,
        to: SocketAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<PathId, AddPathError> {
        if from.is_ipv4() != to.is_ipv4() {
            return Err(AddPathError::Families);
        }
        if self.paths.iter().any(|(_, path)| path.from == from && path.to.ip() == to.ip()) {
            return Err(AddPathError::Exists);
        }
        let device = |address| ctx.provider.pd_on(self.pd, address);
        if self.paths.iter().any(|(_, path)| device(path.from) != device(from)) {
            return Err(AddPathError::Device);
        }
        if self.paths.len() >= MAX_PATHS {
            return Err(AddPathError::TooMany);
        }
        let config = &self.config;
        let key = self.paths.insert(Path {
            uuid: uuid(ctx.rng),
            from,
            to,
            state: PathState::Closed,
            recon_cnt: 0,
            was_up: false,
            may_create_session: false,
            attempts: 0,
            deadline: ctx.now,
            established: 0,
            connections: Vec::with_capacity(usize::from(config.connections) + 1),
            chunks: Vec::new(),
            info: Window::empty(),
            heartbeat: Heartbeat::new(config.heartbeat_interval, config.heartbeat_misses, ctx.now),
            latency: Duration::ZERO,
            in_flight: 0,
            last_rx: ctx.now,
            probed: None,
            last_failure: None,
            stats: PathStats::default(),
        });
        self.reconnect(PathId(key as u32), ctx);
        Ok(PathId(key as u32))
    }

    /// Connects a path at once from any state, and restarts the count of attempts. Returns false if the path does not
    /// exist.
    pub fn reconnect<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let known = self.disconnect(path, ctx);
        if known {
            self.paths[path.index()].attempts = 0;
            self.start_path(path.index(), ctx);
        }
        known
    }

    /// Starts the next attempt to connect a path now, because its obstacle is gone. Returns false if no attempt is
    /// scheduled.
    pub fn retry<P: RdmaDevice + ?Sized>(&mut self, path: PathId, ctx: &mut Ctx<'_, P>) -> bool {
        let waits = |path: &Path| path.state == super::PathState::Reconnecting;
        let waits = self.paths.get(path.index()).is_some_and(waits);
        if waits {
            self.start_path(path.index(), ctx);
        }
        waits
    }

    /// Disconnects a path until the operator reconnects it. Returns false if the path does not exist.
    pub fn disconnect<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let known = self.paths.contains(path.index());
        if known {
            self.close_path(path.index(), ctx);
        }
        known
    }

    /// Disconnects and removes a path. Returns false if the path does not exist.
    pub fn remove_path<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let known = self.disconnect(path, ctx);
        if known {
            self.paths.remove(path.index());
        }
        known
    }

    /// The session's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The multipath policy.
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Changes the multipath policy for further requests.
    pub fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
    }

    /// Changes the most attempts to reconnect a path, from the next failure on; None for no limit.
    pub fn set_max_reconnect_attempts(&mut self, attempts: Option<u16>) {
        self.config.max_reconnect_attempts = attempts;
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = PathStatus<'_>> {
        self.paths.iter().map(|(key, path)| PathStatus {
            id: PathId(key as u32),
            from: path.from,
            to: path.to,
            state: path.state,
            attempts: path.attempts,
            last_failure: path.last_failure,
            connections: usize::from(path.established),
            in_flight: path.in_flight,
            latency: path.latency,
            stats: &path.stats,
        })
    }

    /// Resets the statistics of a path. Returns false if the path does not exist.
    pub fn reset_stats(&mut self, path: PathId) -> bool {
        let path = self.paths.get_mut(path.index());
        path.map(|path| path.stats = PathStats::default()).is_some()
    }
}
