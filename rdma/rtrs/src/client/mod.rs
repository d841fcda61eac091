//! The RTRS client (Linux: rtrs-clt.c): a session with one server, over one or more paths. It
//! carries the requests of its user to the server's chunks and the answers back, keeps the paths
//! alive, connects them again when they failed, and moves the requests of a failed path to
//! another one.
//!
//! Over any verbs provider. It differs from Linux in these points: a silent path with requests
//! outstanding is asked for a sign of life, and left for another path within a second; paths are
//! tried again after a second, not half a minute; a server that was restarted under a living
//! session is noticed, if it tells (ours do).
//!
//! A request's data lies where its user has it, and is neither copied on its way out nor on its
//! way in. The client does not interpret the user's headers (see `rnbd::client`).

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
use life::Life;
use path::{Connection, Path, WorkId};
use pool::Pool;
use rand_core::RngCore;
use slab::Slab;
use verbs::EngineContext;
use verbs::{CompletedOperation, CqId, PdId, RdmaDevice, Status, VerbsError};

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
    /// The newest sign of the server's life, and what all of them since the link last came up say.
    life: Life,
    continuity: Continuity,
    paths: Slab<Path>,
    connections: Slab<Connection>,
    /// Requests that wait for a path, or for room on one.
    queued: VecDeque<u16>,
    /// Requests that were answered before what was sent was acknowledged.
    unacknowledged: VecDeque<u16>,
    events: VecDeque<Event>,
    /// Whether a path is up, as far as the user knows; and whether the pool was made anew since.
    link_up: bool,
    fresh: bool,
    /// The path that the last request took.
    last_path: usize,
    /// No timer expires before this.
    wake: Option<Instant>,
    /// What a test has it do that no sound client does.
    #[cfg(any(test, feature = "testing"))]
    pub mischief: Mischief,
}

/// What no sound client does.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mischief {
    /// Nothing.
    #[default]
    None,
    /// It writes with keys that were never given to it.
    ForgesKeys,
    /// It writes requests, and does not say so.
    Hoards,
}

impl Client {
    /// A client without a path. `name` is the session's, without `/` and `.`.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: Config,
        name: Name,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, VerbsError> {
        let pd = ctx.provider.alloc_pd()?;
        let cq = match ctx.provider.create_cq(config.completions) {
            Ok(cq) => cq,
            Err(error) => {
                // Nothing uses it yet, so that this cannot fail.
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
            life: Life::default(),
            continuity: Continuity::Same,
            paths: Slab::new(),
            connections: Slab::new(),
            queued: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            unacknowledged: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            events: VecDeque::with_capacity(usize::from(config.max_queue_depth)),
            link_up: false,
            fresh: true,
            last_path: usize::MAX,
            wake: None,
            #[cfg(any(test, feature = "testing"))]
            mischief: Mischief::None,
        })
    }

    /// What the server offered; None before a path has connected.
    pub fn shape(&self) -> Option<Shape> {
        self.pool.as_ref().map(|pool| pool.shape)
    }

    /// Whether the server is the one that it was when the link last came up.
    pub fn server(&self) -> Continuity {
        self.continuity
    }

    /// Whether a path is up.
    pub fn is_up(&self) -> bool {
        self.paths.iter().any(|(_, path)| path.state == PathState::Connected)
    }

    /// The next event, if any: runs timers, takes completions.
    pub fn poll<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Event> {
        self.run_timers(ctx);
        loop {
            self.send_queued(ctx);
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let completion = ctx.provider.poll_cq(self.cq)?;
            let work = WorkId::from_bits(completion.id);
            let Some(connection) = self.connections.get_mut(work.connection()) else { continue };
            if connection.qp != completion.qp {
                continue;
            }
            let path = connection.path;
            self.paths[path].stats.completions += 1;
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

    /// Has the provider tell of completions for this client, under `number`.
    pub fn watch<P: RdmaDevice + ?Sized>(&self, number: u32, ctx: &mut EngineContext<'_, P>) {
        ctx.provider.watch_cq(self.cq, number);
    }

    /// Whether `poll` has an event that came up by itself.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When `poll` has to be called at the latest, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// Ends the session and gives back all that it took. Requests are given up.
    pub fn end<P: RdmaDevice + ?Sized>(mut self, ctx: &mut EngineContext<'_, P>) {
        for key in 0..self.paths.capacity() {
            if self.paths.contains(key) {
                self.close_path(key, ctx);
            }
        }
        if let Some(pool) = self.pool.take() {
            pool.end(ctx);
        }
        // No queue pair and no region is left.
        let _ = ctx.provider.destroy_cq(self.cq);
        let _ = ctx.provider.dealloc_pd(self.pd);
    }
}

/// A random UUID (RFC 9562, version 4).
fn uuid(rng: &mut dyn RngCore) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}
