//! The RTRS client (Linux: rtrs-clt.c): a session with one server, over one or more paths. It transfers requests of its
//! user to the server's chunks and responses back, keeps paths alive, reconnects failed ones, and moves the requests of
//! a failed path to another one.
//!
//! It runs over any verbs provider, and differs from Linux in these points: a silent path with outstanding requests is
//! probed, and abandoned for another path within a second; failed paths are retried after a second, not half a minute;
//! a restart of the server under a live session is detected, if the server reports it (ours do).
//!
//! A request's data remains in the user's memory, and is copied neither on sending nor on receiving. The client does
//! not interpret the user's headers (see `rnbd::client`).

mod config;
mod connect;
mod event;
mod info;
mod io;
mod life;
mod manage;
mod path;
mod policy;
mod pool;
mod recovery;
mod state;
mod stats;
mod timer;

pub use config::Config;
pub use event::{DownReason, Event, Outcome, PathId, Permit};
pub use io::Request;
pub use life::Continuity;
pub use manage::{AddPathError, PathStatus};
pub use policy::Policy;
pub use pool::{Channel, Shape};
pub use state::{Input, PathState};
pub use stats::PathStats;

use crate::Name;
use crate::wire::Uuid;
use alloc::collections::VecDeque;
use drivers::hal::Instant;
use life::ServerIdentity;
use path::{Connection, Path, WorkId};
use pool::Pool;
use rand_core::Rng;
use slab::Slab;
use verbs::{CompletedOperation, CqId, Ctx, PdId, RdmaDevice, Status, VerbsError};

/// A client: one session with one server.
#[derive(Debug)]
pub struct Client {
    config: Config,
    name: Name,
    session: Uuid,
    pd: PdId,
    cq: CqId,
    /// None before a path has connected.
    pool: Option<Pool>,
    pools_made: u16,
    /// Identity of the server at the newest connection.
    identity: ServerIdentity,
    /// Evidence of a restart since the link last came up.
    continuity: Continuity,
    paths: Slab<Path>,
    connections: Slab<Connection>,
    /// Requests that wait for a path, or for room on one.
    queued: VecDeque<u16>,
    /// Requests that were answered before their sends were acknowledged.
    unacknowledged: VecDeque<u16>,
    events: VecDeque<Event>,
    /// Whether `LinkUp` was reported last.
    link_up: bool,
    /// The pool was created since `LinkUp`.
    fresh: bool,
    /// The path that the last request took.
    last_path: usize,
    /// Number of the current run of completions.
    run: u32,
    /// No timer expires before this.
    wake: Option<Instant>,
    /// Fault that a test injects.
    #[cfg(any(test, feature = "testing"))]
    pub mischief: Mischief,
}

/// Faults of clients, for tests.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mischief {
    /// No fault.
    #[default]
    None,
    /// Writes with forged keys.
    ForgesKeys,
    /// Writes requests without announcing them.
    Hoards,
}

impl Client {
    /// Creates a client without paths. `name`: the session's name, without `/` and `.`.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: Config,
        name: Name,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, VerbsError> {
        let pd = ctx.provider.alloc_pd()?;
        let cq = match ctx.provider.create_cq(config.completions) {
            Ok(cq) => cq,
            Err(error) => {
                // Cannot fail: the domain is unused.
                let _ = ctx.provider.dealloc_pd(pd);
                return Err(error);
            }
        };
        Ok(Client {
            config,
            name,
            session: uuid(ctx.rng),
            pd,
            cq,
            pool: None,
            pools_made: 0,
            identity: ServerIdentity::default(),
            continuity: Continuity::Same,
            paths: Slab::new(),
            connections: Slab::new(),
            queued: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            unacknowledged: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            events: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            link_up: false,
            fresh: true,
            last_path: usize::MAX,
            run: 1,
            wake: None,
            #[cfg(any(test, feature = "testing"))]
            mischief: Mischief::None,
        })
    }

    /// The server's parameters; None before a path has connected.
    pub fn shape(&self) -> Option<Shape> {
        self.pool.as_ref().map(|pool| pool.shape)
    }

    /// Whether the server was restarted since the link last came up.
    pub fn server(&self) -> Continuity {
        self.continuity
    }

    /// Whether a path is up.
    pub fn is_up(&self) -> bool {
        self.paths.iter().any(|(_, path)| path.state == PathState::Connected)
    }

    /// The next event, if any: runs timers, takes completions.
    pub fn poll<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> Option<Event> {
        self.run_timers(ctx);
        loop {
            self.send_queued(ctx);
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let Some(completion) = ctx.provider.poll_cq(self.cq) else {
                self.run = self.run.wrapping_add(1);
                return None;
            };
            let work = WorkId::from_bits(completion.id);
            let Some(connection) = self.connections.get_mut(work.connection()) else { continue };
            if connection.qp != completion.qp {
                continue;
            }
            let path = connection.path;
            let stats = &mut self.paths[path].stats;
            stats.completions += 1;
            stats.runs.count(self.run);
            if completion.status != Status::Success {
                self.fail_path(path, DownReason::Transport(completion.status), ctx);
                continue;
            }
            let done = match completion.operation {
                CompletedOperation::Send => {
                    connection.completed = work.number();
                    if !self.unacknowledged.is_empty() {
                        self.end_acknowledged();
                    }
                    Ok(())
                }
                CompletedOperation::Recv { length, with } => {
                    self.handle_message(work, length, with, ctx)
                }
                CompletedOperation::KeyChanged { .. } => {
                    self.end_revoked(work);
                    Ok(())
                }
                CompletedOperation::RecvWriteImmediate { immediate, .. } => {
                    self.handle_immediate(work, immediate, None, ctx)
                }
            };
            if let Err(reason) = done {
                self.fail_path(path, reason, ctx);
            }
        }
    }

    /// Makes the provider report completions for this client, under `number`.
    pub fn watch<P: RdmaDevice + ?Sized>(&self, number: u32, ctx: &mut Ctx<'_, P>) {
        ctx.provider.watch_cq(self.cq, number);
    }

    /// Whether events are queued that need no completion.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When `poll` has to be called at the latest, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// Ends the session and frees its resources. Outstanding requests are abandoned.
    pub fn end<P: RdmaDevice + ?Sized>(mut self, ctx: &mut Ctx<'_, P>) {
        for key in 0..self.paths.capacity() {
            if self.paths.contains(key) {
                self.close_path(key, ctx);
            }
        }
        if let Some(pool) = self.pool.take() {
            pool.end(ctx);
        }
        // Cannot fail: no queue pair and no region is left.
        let _ = ctx.provider.destroy_cq(self.cq);
        let _ = ctx.provider.dealloc_pd(self.pd);
    }
}

/// A random UUID (RFC 9562, version 4).
fn uuid(rng: &mut dyn Rng) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}
