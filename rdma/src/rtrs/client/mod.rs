//! The RTRS client (Linux: rtrs-clt.c): connects paths to a server, and carries the requests of
//! its user to it and the answers back.
//!
//! The user chooses the path and the connection of each request; a request whose path went down
//! may be submitted again on another one. It does not reconnect by itself.

mod connect;
mod event;
mod io;
mod table;

pub use event::{DownReason, Event, Outcome, Permit};

use crate::rtrs::wire::{Addressing, Uuid};
use crate::rtrs::{Context, Name, Tick};
use crate::verbs::{CompletedOperation, CqId, Fabric, MrId, PdId, Status, VerbsError};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use rand_core::RngCore;
use slab::Slab;
use table::{Connection, Path, PathState, WorkId};

/// Settings of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections of a path beside the service connection (Linux: one per CPU).
    pub connections: u16,
    /// Depth of the completion queue that all connections share.
    pub completions: u32,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Heartbeats in a row that may stay without answer.
    pub heartbeat_misses: u8,
    /// Time that a path has to come up.
    pub connect_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            connections: 1,
            completions: 4096,
            heartbeat_interval: Duration::from_millis(5000),
            heartbeat_misses: 5,
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// What the server offered for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests that can be outstanding.
    pub queue_depth: u16,
    /// Most bytes of data in a request.
    pub max_io_size: u32,
    /// Bytes of a chunk beside its data.
    pub max_header: u32,
    /// Every answer carries the chunk's next key.
    pub new_rkey: bool,
}

impl Shape {
    fn chunk_size(&self) -> u32 {
        self.max_io_size + self.max_header
    }
}

/// Memory and books of the session's requests, made when the first path connects.
#[derive(Debug)]
struct Pool {
    shape: Shape,
    addressing: Addressing,
    /// A buffer of a chunk's size for each request: data, then headers.
    memory: Window,
    /// The data part of each buffer, registered for answers of reads.
    regions: Vec<(MrId, u64)>,
    free: Vec<u16>,
    calls: Vec<table::Call>,
}

/// A client: one session with one server.
#[derive(Debug)]
pub struct Client {
    config: Config,
    name: Name,
    session: Uuid,
    pd: PdId,
    cq: CqId,
    pool: Option<Pool>,
    paths: Vec<Path>,
    connections: Slab<Connection>,
    events: VecDeque<Event>,
}

impl Client {
    /// A client without a path.
    pub fn new<P: Fabric + ?Sized>(
        config: Config,
        name: Name,
        ctx: &mut Context<'_, P>,
    ) -> Result<Self, VerbsError> {
        let pd = ctx.provider.alloc_pd()?;
        let cq = ctx.provider.create_cq(config.completions)?;
        Ok(Client {
            config,
            name,
            session: uuid(ctx.rng),
            pd,
            cq,
            pool: None,
            paths: Vec::new(),
            connections: Slab::new(),
            events: VecDeque::new(),
        })
    }

    /// What the server offered; None before a path has connected.
    pub fn shape(&self) -> Option<Shape> {
        self.pool.as_ref().map(|pool| pool.shape)
    }

    /// The next event, if any.
    pub fn poll<P: Fabric + ?Sized>(&mut self, ctx: &mut Context<'_, P>) -> Option<Event> {
        self.run_timers(ctx);
        while self.events.is_empty() {
            let completion = ctx.provider.poll_cq(self.cq)?;
            let work = WorkId::from_bits(completion.id);
            let Some(connection) = self.connections.get_mut(work.connection()) else { continue };
            if connection.qp != completion.qp {
                continue;
            }
            let path = connection.path;
            if completion.status != Status::Success {
                self.end_path(path, DownReason::Transport(completion.status), ctx);
                continue;
            }
            let done = match completion.operation {
                CompletedOperation::Send => {
                    connection.completed = work.number();
                    Ok(())
                }
                CompletedOperation::Recv { length, with } => {
                    self.handle_message(work, length, with, ctx)
                }
                CompletedOperation::RecvWriteImmediate { immediate, .. } => {
                    self.handle_immediate(work, immediate, None, ctx)
                }
            };
            if let Err(reason) = done {
                self.end_path(path, reason, ctx);
            }
        }
        self.events.pop_front()
    }

    /// When `poll` has to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.paths
            .iter()
            .filter_map(|path| match path.state {
                PathState::Connecting { .. } => Some(path.deadline),
                PathState::Connected => Some(path.heartbeat.deadline()),
                PathState::Down => None,
            })
            .min()
    }

    fn run_timers<P: Fabric + ?Sized>(&mut self, ctx: &mut Context<'_, P>) {
        for key in 0..self.paths.len() {
            let path = &mut self.paths[key];
            let done = match path.state {
                PathState::Connecting { .. } if path.deadline <= ctx.now => {
                    Err(DownReason::Timeout)
                }
                PathState::Connected => match path.heartbeat.tick(ctx.now) {
                    Tick::Nothing => Ok(()),
                    Tick::Send => self.send_heartbeat(key, ctx),
                    Tick::Dead => Err(DownReason::Timeout),
                },
                PathState::Connecting { .. } | PathState::Down => Ok(()),
            };
            if let Err(reason) = done {
                self.end_path(key, reason, ctx);
            }
        }
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
