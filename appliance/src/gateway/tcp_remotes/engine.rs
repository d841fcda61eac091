//! Clients of other servers' protocols over TCP: NBD, and NVMe/TCP. They are engines without I/O; [`super::remote`]
//! moves the bytes of their connections.

use crate::config::{Remote, RemoteKind};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use rand_core::Rng;
use std::cell::RefCell;
use std::rc::Rc;
use storage::rnbd::client::Bell;
use storage::rnbd::wire::AccessMode;
use storage::volume::{NbdVolume, NvmeHostVolume, SharedClient, SharedHost, Tag, Volume};

/// Requests of a volume at a time.
const DEPTH: u16 = 128;

/// Why a TCP connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    NoRoute,
    Refused,
    Closed,
}

/// What an engine wants done with its TCP connections.
pub(super) enum Action {
    Connect {
        connection: usize,
        path: u16,
        /// A connection whose address and port this one has to have.
        beside: Option<usize>,
    },
    Close {
        connection: usize,
        abort: bool,
    },
}

/// News for the operator.
pub(super) enum News {
    /// A path is up. `is_only`: the engine uses one path at a time.
    Up { path: u16, is_only: bool },
    /// A path ended or was refused.
    Down { path: u16, why: String },
    /// A path has changed.
    Changed { path: u16, what: String },
    /// The volume has grown.
    Grown { before: u64, now: u64 },
    /// The server may have lost writes.
    WritesLost,
    /// The server answered a request with this error.
    Failed(String),
}

/// A client. Connections are numbered from 0.
pub(super) trait Engine {
    fn poll(&mut self, rng: &mut dyn Rng, now: Instant);
    fn deadline(&self) -> Option<Instant>;
    fn next_action(&mut self, now: Instant) -> Option<Action>;
    fn next_news(&mut self) -> Option<News>;
    fn connected(&mut self, connection: usize, rng: &mut dyn Rng, now: Instant);
    fn closed(&mut self, connection: usize, end: End, now: Instant);
    fn receive(&mut self, connection: usize, bytes: &[u8], now: Instant);
    fn transmit(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize;
    fn wants_transmit(&self, connection: usize) -> bool;
    /// Completions that wait for the users of the volume.
    fn done(&self) -> usize;
    /// Reads the size of the volume again, or tries again now.
    fn remap(&mut self, now: Instant);
    /// Disconnects. Poll it until [`Engine::is_over`].
    fn end(&mut self, now: Instant);
    fn is_over(&self) -> bool;
}

impl Engine for nbd::Client<Tag> {
    fn poll(&mut self, _: &mut dyn Rng, now: Instant) {
        self.poll(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn next_action(&mut self, now: Instant) -> Option<Action> {
        Some(match self.next_action(now)? {
            nbd::Action::Connect { connection, path, beside } => {
                Action::Connect { connection, path, beside }
            }
            nbd::Action::Close { connection, abort } => Action::Close { connection, abort },
        })
    }

    fn next_news(&mut self) -> Option<News> {
        Some(match self.next_notice()? {
            nbd::Notice::Up { path } => News::Up { path, is_only: true },
            nbd::Notice::Down { path, why, .. } => News::Down { path, why: why.to_string() },
            nbd::Notice::Grown { before, now } => News::Grown { before, now },
            nbd::Notice::WritesLost => News::WritesLost,
            nbd::Notice::Failed(errno) => News::Failed(format!("error {errno}")),
        })
    }

    fn connected(&mut self, connection: usize, rng: &mut dyn Rng, now: Instant) {
        self.connected(connection, rng.next_u64(), now);
    }

    fn closed(&mut self, connection: usize, end: End, now: Instant) {
        let failure = match end {
            End::NoRoute => nbd::Failure::NoRoute,
            End::Refused => nbd::Failure::Refused,
            End::Closed => nbd::Failure::Closed,
        };
        self.closed(connection, failure, now);
    }

    fn receive(&mut self, connection: usize, bytes: &[u8], now: Instant) {
        self.receive(connection, bytes, now);
    }

    fn transmit(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize {
        self.transmit(connection, space, now)
    }

    fn wants_transmit(&self, connection: usize) -> bool {
        self.wants_transmit(connection)
    }

    fn done(&self) -> usize {
        self.done()
    }

    fn remap(&mut self, now: Instant) {
        self.remap(now);
    }

    fn end(&mut self, now: Instant) {
        self.end(now);
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }
}

impl Engine for nvme_host::Client<Tag> {
    fn poll(&mut self, rng: &mut dyn Rng, now: Instant) {
        self.poll(&mut |bytes: &mut [u8]| rng.fill_bytes(bytes), now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn next_action(&mut self, now: Instant) -> Option<Action> {
        Some(match self.next_action(now)? {
            nvme_host::Action::Connect { connection, path, beside } => {
                Action::Connect { connection, path, beside }
            }
            nvme_host::Action::Close { connection, abort } => Action::Close { connection, abort },
        })
    }

    fn next_news(&mut self) -> Option<News> {
        Some(match self.next_notice()? {
            nvme_host::Notice::Up { path } => News::Up { path, is_only: false },
            nvme_host::Notice::Down { path, why } => News::Down { path, why: why.to_string() },
            nvme_host::Notice::Access { path, access } => {
                News::Changed { path, what: format!("its ANA state is {}", access.as_str()) }
            }
            nvme_host::Notice::Grown { before, now } => News::Grown { before, now },
            nvme_host::Notice::WritesLost => News::WritesLost,
            nvme_host::Notice::Failed(status) => News::Failed(format!("status {status:#x}")),
        })
    }

    fn connected(&mut self, connection: usize, _: &mut dyn Rng, _: Instant) {
        self.connected(connection);
    }

    fn closed(&mut self, connection: usize, end: End, now: Instant) {
        let failure = match end {
            End::NoRoute => nvme_host::Failure::NoRoute,
            End::Refused => nvme_host::Failure::Refused,
            End::Closed => nvme_host::Failure::Closed,
        };
        self.closed(connection, failure, now);
    }

    fn receive(&mut self, connection: usize, bytes: &[u8], now: Instant) {
        self.receive(connection, bytes, now);
    }

    fn transmit(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize {
        self.transmit(connection, space, now)
    }

    fn wants_transmit(&self, connection: usize) -> bool {
        self.wants_transmit(connection)
    }

    fn done(&self) -> usize {
        self.done()
    }

    fn remap(&mut self, now: Instant) {
        self.remap(now);
    }

    fn end(&mut self, now: Instant) {
        self.end(now);
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }
}

/// The client of a remote, which its volume shares.
#[derive(Clone)]
pub(super) enum Client {
    Nbd(SharedClient),
    Nvme(SharedHost),
}

impl Client {
    /// The client of a configured remote, whose memory comes from the arena.
    pub fn new(remote: &Remote, arena: &mut Arena) -> Result<Client, String> {
        match remote.kind {
            RemoteKind::NvmeTcp => Client::nvme(remote, arena),
            RemoteKind::Rnbd | RemoteKind::Nbd => Client::nbd(remote),
        }
    }

    fn nbd(remote: &Remote) -> Result<Client, String> {
        let settings = nbd::Settings {
            connections: remote.connections,
            paths: remote.address.len() as u16,
            depth: DEPTH,
            read_only: remote.access_mode.0 == AccessMode::ReadOnly,
            write_through: remote.write_through,
            keepalive: milliseconds(remote.keepalive_ms),
            reconnect: milliseconds(remote.reconnect_ms),
            give_up: milliseconds(remote.give_up_ms),
        };
        let export = remote.export.as_ref().map_or("", |export| export.as_str());
        let client = nbd::Client::new(settings, export);
        let client = client.ok_or("the name of the export is too long")?;
        Ok(Client::Nbd(Rc::new(RefCell::new(client))))
    }

    fn nvme(remote: &Remote, arena: &mut Arena) -> Result<Client, String> {
        let settings = nvme_host::Settings {
            connections: remote.connections,
            paths: remote.address.len() as u16,
            depth: DEPTH,
            nsid: remote.nsid,
            read_only: remote.access_mode.0 == AccessMode::ReadOnly,
            write_through: remote.write_through,
            digests: remote.digests.bits(),
            keepalive: milliseconds(remote.keepalive_ms),
            reconnect: milliseconds(remote.reconnect_ms),
            give_up: milliseconds(remote.give_up_ms),
        };
        let identity = remote.nvme_identity().ok_or("`nqn` or `host_nqn` is missing")?;
        let memory = arena.alloc(settings.memory(), 4096).ok_or("not enough memory")?;
        let client = nvme_host::Client::new(settings, identity, memory);
        let client = client.ok_or("not enough memory")?;
        Ok(Client::Nvme(Rc::new(RefCell::new(client))))
    }

    /// The engine.
    pub fn engine(&self) -> Rc<RefCell<dyn Engine>> {
        match self {
            Client::Nbd(client) => client.clone(),
            Client::Nvme(client) => client.clone(),
        }
    }

    /// Number of TCP connections that it may use.
    pub fn connections(&self) -> usize {
        match self {
            Client::Nbd(client) => client.borrow().settings().connections.into(),
            Client::Nvme(client) => client.borrow().connections(),
        }
    }

    /// The volume. `bell` rings the owner of its connections.
    pub fn volume(&self, bell: Bell) -> Box<dyn Volume> {
        match self {
            Client::Nbd(client) => Box::new(NbdVolume::new(client.clone(), Some(bell))),
            Client::Nvme(client) => Box::new(NvmeHostVolume::new(client.clone(), Some(bell))),
        }
    }

    /// Memory of the arena, to be freed once the engine is over.
    pub fn memory(&self) -> Option<Window> {
        match self {
            Client::Nbd(_) => None,
            Client::Nvme(client) => Some(client.borrow().memory()),
        }
    }
}

fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(number.into())
}
