//! The RNBD server (Linux: rnbd-srv.c): opens exports for sessions and turns their I/O into
//! requests on volumes. Drives the RTRS server below it.
//!
//! Differs from Linux on purpose: writes to a device that was opened read-only get EROFS, and
//! discards larger than what was offered get EINVAL.

mod device;
mod export;
mod io;
mod session;
mod stats;

pub use device::DeviceStatus;
pub use export::{Export, ExportError, plain};
pub use stats::VolumeStats;

use crate::volume::{User, VolumeId, Volumes};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;
use io::AtOnce;
use rtrs::server::{Event, RequestId, SessionId, StartError};
use session::Session;
use verbs::EngineContext;
use verbs::{ConnectionEvent, RdmaDevice};

/// Requests taken in one poll, so that others get their turn.
const BUDGET: usize = 128;

/// What the server keeps of a volume.
#[derive(Debug, Default)]
struct Books {
    /// Requests that the volume had no room for.
    waiting: VecDeque<RequestId>,
    stats: VolumeStats,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    transport: rtrs::server::Server,
    max_devices: usize,
    secure_erase: bool,
    exports: Vec<Export>,
    /// Grows with each change of the exports.
    exports_revision: u64,
    sessions: Vec<Session>,
    /// Devices that were opened and closed so far.
    opened: usize,
    books: Vec<Books>,
}

impl Server {
    /// Listens. A session opens up to `max_devices` (at most 256) devices.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: rtrs::server::Config,
        max_devices: usize,
        provider: &mut P,
    ) -> Result<Self, StartError> {
        let transport = rtrs::server::Server::new(config, provider)?;
        let sessions = Vec::with_capacity(config.max_sessions);
        let max_devices = max_devices.clamp(1, Session::MAX_DEVICES);
        Ok(Server {
            transport,
            max_devices,
            secure_erase: false,
            exports: Vec::new(),
            exports_revision: 0,
            sessions,
            opened: 0,
            books: Vec::new(),
        })
    }

    /// Whether devices are said to take secure erase, if their volumes do. Not unless this is asked
    /// for: Linux's client (6.12, rnbd-clt.c) maps the data of such a request, which has none, and
    /// its kernel oopses. A client that asks without being told is served.
    pub fn offer_secure_erase(&mut self, offered: bool) {
        self.secure_erase = offered;
    }

    /// How often a device was opened or closed.
    pub fn opened(&self) -> usize {
        self.opened
    }

    /// Whether devices are said to take secure erase.
    pub fn offers_secure_erase(&self) -> bool {
        self.secure_erase
    }

    /// The RTRS server, to look at.
    pub fn transport(&self) -> &rtrs::server::Server {
        &self.transport
    }

    /// The RTRS server, for its notices and counts. Events and requests belong to this server.
    pub fn transport_mut(&mut self) -> &mut rtrs::server::Server {
        &mut self.transport
    }

    /// Takes an event of the connection manager; false if it is none of this server's.
    pub fn handle_connection_event<P: RdmaDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let Server { transport, exports, sessions, .. } = self;
        let door = |host, session: Option<SessionId>| {
            export::admit(exports, session.and_then(|id| sessions.get(id.index())), host)
        };
        transport.handle_connection_event(event, &door, ctx)
    }

    /// Takes what has arrived, and what the volumes have done. True if there was anything.
    pub fn poll<P: RdmaDevice + ?Sized>(
        &mut self,
        volumes: &mut Volumes,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let before = self.transport.counters().completions;
        let mut moved = false;
        for _ in 0..BUDGET {
            let Server { transport, sessions, books, .. } = self;
            let mut at_once = AtOnce { sessions, books, volumes };
            let event = transport.serve(&mut at_once, ctx);
            moved |= event.is_some();
            match event {
                None => break,
                Some(Event::Executed) => {}
                Some(Event::Request(request)) => {
                    if let Some(busy) = self.execute(&request, volumes, ctx) {
                        books_of(&mut self.books, busy).waiting.push_back(request.id);
                    }
                }
                Some(Event::LinkUp(id)) => self.link_up(id),
                Some(Event::LinkDown(id)) => self.close_devices(id),
            }
        }
        if moved {
            volumes.flush_queues();
        }
        let mut completed = false;
        let mut volume = VolumeId(0);
        while let Some((from, completion)) = volumes.poll(User::SERVER, volume) {
            volume = from;
            completed = true;
            self.complete(from, &completion, ctx);
            self.retry(from, volumes, ctx);
        }
        while let Some(freed) = volumes.poll_freed() {
            self.retry(freed, volumes, ctx);
        }
        if completed {
            volumes.flush_queues();
        }
        moved |= self.transport.handle_timeout(ctx);
        moved || completed || self.transport.counters().completions > before
    }

    /// Whether anybody is connected to it.
    pub fn has_clients(&self) -> bool {
        self.transport.has_connections()
    }

    /// Whether it has nothing to tell, and has not refused anything.
    pub fn is_calm(&mut self) -> bool {
        self.transport.is_calm()
    }

    /// When `poll` has to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.transport.poll_timeout()
    }

    /// What was counted for a volume.
    pub fn volume_stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        self.books.get(volume.index()).map(|books| &books.stats)
    }

    fn link_up(&mut self, id: SessionId) {
        if id.index() >= self.sessions.len() {
            let first = self.transport.config().incarnation as u32;
            self.sessions.resize_with(id.index() + 1, || Session::new(first));
        }
    }
}

/// What is kept of a volume.
#[inline(always)]
fn books_of(books: &mut Vec<Books>, volume: VolumeId) -> &mut Books {
    let index = volume.index();
    if index >= books.len() {
        books.resize_with(index + 1, Books::default);
    }
    &mut books[index]
}
