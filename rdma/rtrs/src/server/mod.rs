//! The RTRS server (Linux: rtrs-srv.c): owns the chunks that clients write their requests into,
//! hands the requests to its user, and sends the answers.
//!
//! Over any verbs provider. It differs from Linux on purpose in these points: a chunk's next key
//! is drawn anew for every I/O (all 32 bits); an answer is as few messages as the mode allows
//! (SEND with invalidation is left out, clients then invalidate themselves); requests that Linux
//! drops in silence get EINVAL; a client that comes back replaces its stale path at once; a
//! request whose chunk is still worked on for another path of the session waits, so that a
//! failover can neither mix up nor reorder writes.
//!
//! A session has memory from its first INFO_REQ on, which shows that the client receives what is sent
//! to its address, and is told where its chunks are when they are zeroed (`memory`).
//!
//! A request starts only once there is room for its answer in the send queue, so that answers
//! never wait. With `oversubscribe` sessions share the provider's memory on demand: a chunk has
//! memory from the client's WRITE until the request in it is answered, and what a read returns
//! keeps it until the client has acknowledged it.
//!
//! It does not interpret the user's headers (see `rnbd::server`).

mod arrival;
mod config;
mod connect;
mod directory;
mod end;
mod event;
mod info;
mod io;
mod memory;
mod refuse;
mod state;
mod stats;
mod status;
mod table;
mod timer;

pub use config::{BadConfig, Config, offered_depth};
pub use directory::{Directory, Wake};
pub use event::{
    CloseReason, Event, Execute, Execution, Notice, Request, RequestId, RequestKind, Served,
    SessionId,
};
pub use refuse::{Door, Refused};
pub use state::{Input, PathState};
pub use stats::{Counters, Histogram, PathStats};
pub use status::{PathId, PathStatus, SessionStatus};

use crate::wire::Uuid;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use config::MIN_INLINE;
use core::fmt;
use drivers::hal::Instant;
use end::Left;
use net::refusal::Refusals;
use slab::Slab;
use table::{Connection, Path, Session, WorkId};
use verbs::EngineContext;
use verbs::{CompletedOperation, ConnectionId, CqId, RdmaDevice, Status, VerbsError};

/// Notices kept until the loop fetches them; the oldest go first.
const MAX_NOTICES: usize = 64;

/// Executes nothing at once.
struct Later;

impl Execute for Later {
    fn execute(&mut self, _: &Request) -> Execution {
        Execution::Deferred
    }
}

/// The server.
#[derive(Debug)]
pub struct Server {
    config: Config,
    cq: CqId,
    sessions: Slab<Session>,
    paths: Slab<Path>,
    connections: Slab<Connection>,
    /// Sessions by what their clients call them, connections by what the provider calls them.
    uuids: BTreeMap<Uuid, usize>,
    by_id: BTreeMap<ConnectionId, usize>,
    /// Sessions that came up or went down, not yet reported.
    links: VecDeque<Event>,
    /// Requests whose chunk has become free.
    ready: VecDeque<RequestId>,
    notices: VecDeque<Notice>,
    /// What was refused, until the loop fetches it.
    refusals: Refusals,
    /// Requests that wait for memory for what they read.
    awaiting_buffer: VecDeque<RequestId>,
    /// Connections that have ended, for a reason that their completions may yet tell.
    ended: VecDeque<ConnectionId>,
    /// When the timers of paths run.
    timers: BTreeSet<(Instant, usize)>,
    /// Paths whose timers were looked at.
    #[cfg(any(test, feature = "testing"))]
    pub looked_at: u64,
    /// Sessions whose memory is being zeroed, and when the last piece was.
    zeroing: VecDeque<usize>,
    zeroed_at: Option<Instant>,
    /// Sessions that are no more, of which the provider has something still, and when it is asked again.
    left: Vec<Left>,
    look_again: Option<Instant>,
    /// Bytes that may be promised, if sessions share the provider's memory.
    shared: Option<u64>,
    counters: Counters,
    /// Where servers on other cores find what they have to know of the sessions, and the number of this core.
    directory: Option<(Arc<Directory>, usize)>,
}

/// Why a server could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The configuration is impossible.
    Config(BadConfig),
    /// The provider cannot carry RTRS, or refused.
    Provider(VerbsError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(why) => {
                write!(f, "the configuration of the storage server cannot be used: {why}")
            }
            StartError::Provider(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}

impl Server {
    /// Listens on the configured port.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: Config,
        provider: &mut P,
    ) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        if provider.attributes().max_inline < MIN_INLINE {
            return Err(StartError::Provider(VerbsError::Invalid));
        }
        let shared = match (config.oversubscribe, provider.on_demand()) {
            (1, _) => None,
            (times, Some(memory)) => Some(memory.capacity as u64 * u64::from(times)),
            // The owner has to give the provider memory before.
            (_, None) => return Err(StartError::Provider(VerbsError::Invalid)),
        };
        let cq = provider.create_cq(config.completions).map_err(StartError::Provider)?;
        if let Err(error) = provider.listen(config.port) {
            // Nothing uses the queue yet, so that this cannot fail.
            let _ = provider.destroy_cq(cq);
            return Err(StartError::Provider(error));
        }
        Ok(Server {
            config,
            cq,
            sessions: Slab::with_capacity(config.max_sessions),
            paths: Slab::with_capacity(config.max_sessions),
            connections: Slab::with_capacity(2 * config.max_sessions),
            uuids: BTreeMap::new(),
            by_id: BTreeMap::new(),
            links: VecDeque::with_capacity(16),
            ready: VecDeque::new(),
            notices: VecDeque::with_capacity(MAX_NOTICES),
            refusals: Refusals::default(),
            awaiting_buffer: VecDeque::new(),
            ended: VecDeque::new(),
            timers: BTreeSet::new(),
            #[cfg(any(test, feature = "testing"))]
            looked_at: 0,
            zeroing: VecDeque::new(),
            zeroed_at: None,
            left: Vec::new(),
            look_again: None,
            shared,
            counters: Counters::default(),
            directory: None,
        })
    }

    /// Servers on other cores have sessions as well: what each has to know of the others' is in `directory`, where
    /// this one is number `core`.
    pub fn share_sessions(&mut self, directory: Arc<Directory>, core: usize) {
        self.directory = Some((directory, core));
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// As [`Server::serve`] for who executes nothing at once: all requests come as events.
    pub fn poll<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Event> {
        self.serve(&mut Later, ctx)
    }

    /// The next event, if any: takes completions until one means something to the user. Requests are given to `execute`
    /// first, and those that it does at once are answered where they were found.
    #[inline(always)]
    pub fn serve<P: RdmaDevice + ?Sized>(
        &mut self,
        execute: &mut impl Execute,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Event> {
        loop {
            if let Some(link) = self.links.pop_front() {
                return Some(link);
            }
            if let Some(id) = self.ready.pop_front() {
                if let Some(request) = self.release(id, ctx) {
                    return Some(self.hand_out(request, execute, ctx));
                }
                continue;
            }
            if !self.awaiting_buffer.is_empty()
                && let Some(request) = self.feed(ctx)
            {
                return Some(self.hand_out(request, execute, ctx));
            }
            let Some(completion) = ctx.provider.poll_cq(self.cq) else {
                if self.ended.is_empty() {
                    break;
                }
                self.close_ended(ctx);
                continue;
            };
            self.counters.completions += 1;
            let work = WorkId::from_bits(completion.id);
            let key = work.connection() as usize;
            let Some(connection) = self.connections.get_mut(key) else { continue };
            if connection.qp != completion.qp {
                continue;
            }
            let path = connection.path;
            self.paths[path].stats.completions += 1;
            match completion.status {
                Status::Success => {}
                // Something ended the queue pair, and does not say here what.
                Status::Flushed => {
                    self.ended.push_back(connection.id);
                    continue;
                }
                status => {
                    self.close_path(path, CloseReason::Transport(status), ctx);
                    continue;
                }
            }
            let event = match completion.operation {
                CompletedOperation::Send => {
                    connection.completed = work.sequence();
                    self.make_room(key, ctx);
                    None
                }
                CompletedOperation::RecvWriteImmediate { immediate, .. } => {
                    self.handle_immediate(key, immediate, execute, ctx)
                }
                CompletedOperation::KeyChanged { rkey } => {
                    self.handle_key(key, work.sequence() as u16, rkey, ctx)
                }
                CompletedOperation::Recv { length, .. } => {
                    self.handle_message(key, work, length, ctx);
                    None
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Whether there are connections.
    pub fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    /// When `handle_timeout` wants to be called, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        Instant::first([timer, self.next_piece(), self.look_again])
    }

    /// What happened that an operator may want to know.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Whether there is nothing that an operator may want to know.
    pub fn is_calm(&self) -> bool {
        self.notices.is_empty() && self.refusals.is_empty()
    }

    /// What was refused, for whoever logs and counts it.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }
}
