//! What operators do with paths, and see of them.

use super::path::Path;
use super::{Client, DownReason, EngineContext, PathId, PathState, PathStats, Policy, uuid};
use crate::wire::MAX_PATHS;
use crate::{Heartbeat, Name};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Window;
use verbs::RdmaDevice;

/// Why a path was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddPathError {
    /// The session has one between these addresses.
    Exists,
    /// The session has as many as the protocol allows.
    TooMany,
    /// One address is IPv4, the other IPv6.
    Families,
    /// The other paths go over another device, where the memory of requests is registered.
    Device,
}

impl fmt::Display for AddPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddPathError::Exists => "the session has a path between these addresses",
            AddPathError::TooMany => "a session has at most 128 paths",
            AddPathError::Families => "both addresses of a path are IPv4, or both IPv6",
            AddPathError::Device => {
                "the paths of a session go over the network, or over one bridge"
            }
        })
    }
}

/// A path, to look at.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus<'a> {
    /// Its name here.
    pub id: PathId,
    /// Our address.
    pub from: IpAddr,
    /// The server's address and port.
    pub to: SocketAddr,
    /// State.
    pub state: PathState,
    /// Attempts to bring it up since it was last up.
    pub attempts: u16,
    /// Why it is down.
    pub last_failure: Option<DownReason>,
    /// Connections that stand.
    pub connections: usize,
    /// Requests outstanding.
    pub in_flight: u32,
    /// Time from the last heartbeat to its answer (`cur_latency`).
    pub latency: Duration,
    /// Counts.
    pub stats: &'a PathStats,
}

impl Client {
    /// Adds a path and starts to connect it. [`super::Event::PathUp`] or `PathDown` follows.
    pub fn add_path<P: RdmaDevice + ?Sized>(
        &mut self,
        from: IpAddr,
        to: SocketAddr,
        ctx: &mut EngineContext<'_, P>,
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
            succeeded: false,
            may_make_session: false,
            attempts: 0,
            deadline: ctx.now,
            established: 0,
            connections: Vec::with_capacity(usize::from(config.connections) + 1),
            chunks: Vec::new(),
            info: Window::empty(),
            heartbeat: Heartbeat::new(config.heartbeat_interval, config.heartbeat_misses, ctx.now),
            latency: Duration::ZERO,
            in_flight: 0,
            heard: ctx.now,
            probed: None,
            last_failure: None,
            stats: PathStats::default(),
        });
        self.reconnect(PathId(key as u32), ctx);
        Ok(PathId(key as u32))
    }

    /// Connects a path at once, whatever its state; attempts are counted from here. False if there
    /// is none of that name.
    pub fn reconnect<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let known = self.disconnect(path, ctx);
        if known {
            self.paths[path.index()].attempts = 0;
            self.start_path(path.index(), ctx);
        }
        known
    }

    /// Makes the next attempt to connect a path now, if there was to be one: what was in its way is
    /// gone. False if it does not wait for one.
    pub fn retry<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let waits = |path: &Path| path.state == super::PathState::Reconnecting;
        let waits = self.paths.get(path.index()).is_some_and(waits);
        if waits {
            self.start_path(path.index(), ctx);
        }
        waits
    }

    /// Takes a path down until the operator wants it again. False if there is none of that name.
    pub fn disconnect<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let known = self.paths.contains(path.index());
        if known {
            self.close_path(path.index(), ctx);
        }
        known
    }

    /// Takes a path down and forgets it. False if there is none of that name.
    pub fn remove_path<P: RdmaDevice + ?Sized>(
        &mut self,
        path: PathId,
        ctx: &mut EngineContext<'_, P>,
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

    /// The multipath policy.
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Changes the multipath policy, from the next request on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
    }

    /// Changes the number of attempts to connect a path before it is given up, from the next failure
    /// on; None for no end.
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

    /// Sets the counts of a path back; false if there is none of that name.
    pub fn reset_stats(&mut self, path: PathId) -> bool {
        let path = self.paths.get_mut(path.index());
        path.map(|path| path.stats = PathStats::default()).is_some()
    }
}
