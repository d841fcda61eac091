//! The RNBD server (Linux: rnbd-srv.c): opens exports for sessions and turns their I/O into
//! requests on volumes. Drives the RTRS server below it.
//!
//! Differs from Linux on purpose: writes to a device that was opened read-only get EROFS, and
//! discards larger than the offered maximum get EINVAL. A request that a reservation of the volume excludes gets EBADE,
//! as from a SCSI disk.

mod device;
mod export;
mod io;
mod session;
mod stats;
mod throttles;

pub use device::DeviceStatus;
pub use export::{Export, ExportError, plain};
pub use stats::VolumeStats;

use crate::volume::{User, VolumeId, Volumes};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;
use io::InlineExecutor;
use rtrs::server::ServerDevice;
use rtrs::server::{Event, RequestId, SessionId, StartError};
use session::Session;
use throttles::Throttles;
use verbs::{ConnectionEvent, Ctx};

/// Most requests handled in one poll, so that other engines of the loop get their turn.
const BUDGET: usize = 128;

/// State of a volume: its wait queue and statistics.
#[derive(Debug, Default)]
struct VolumeState {
    /// Requests that the volume refused as busy.
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
    /// Increases with each change of the exports.
    exports_revision: u64,
    sessions: Vec<Session>,
    /// Opens and closes of devices so far.
    opened: usize,
    volume_states: Vec<VolumeState>,
    /// Requests that wait for the limits of exports.
    throttles: Throttles,
}

impl Server {
    /// Starts to listen. A session may open up to `max_devices` (at most 256) devices.
    pub fn new<P: ServerDevice + ?Sized>(
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
            volume_states: Vec::new(),
            throttles: Throttles::default(),
        })
    }

    /// Sets whether secure erase is advertised for devices whose volumes support it. Off by default,
    /// because Linux's client (6.12, rnbd-clt.c) maps the data of such a request, which has none, and
    /// its kernel oopses. A client that requests secure erase without the advertisement is served.
    pub fn offer_secure_erase(&mut self, offered: bool) {
        self.secure_erase = offered;
    }

    /// Number of opens and closes of devices so far.
    pub fn opened(&self) -> usize {
        self.opened
    }

    /// Whether secure erase is advertised.
    pub fn offers_secure_erase(&self) -> bool {
        self.secure_erase
    }

    /// The RTRS server, read-only.
    pub fn transport(&self) -> &rtrs::server::Server {
        &self.transport
    }

    /// The RTRS server, for its notices and counts. Events and requests belong to this server.
    pub fn transport_mut(&mut self) -> &mut rtrs::server::Server {
        &mut self.transport
    }

    /// Handles an event of the connection manager; false if the event is for another consumer.
    pub fn handle_connection_event<P: ServerDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Server { transport, exports, sessions, .. } = self;
        let admission = |host, session: Option<SessionId>| {
            export::admit(exports, session.and_then(|id| sessions.get(id.index())), host)
        };
        transport.handle_connection_event(event, &admission, ctx)
    }

    /// Handles requests that arrived and completions of the volumes. True if there were any.
    pub fn poll<P: ServerDevice + ?Sized>(
        &mut self,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let before = self.transport.counters().completions;
        self.throttles.now = ctx.now;
        let mut moved = self.continue_throttled(volumes, ctx);
        for _ in 0..BUDGET {
            let Server { transport, sessions, volume_states, throttles, .. } = self;
            let mut executor = InlineExecutor { sessions, volume_states, volumes, throttles };
            let event = transport.serve(&mut executor, ctx);
            moved |= event.is_some();
            match event {
                None => break,
                Some(Event::Executed) => {}
                Some(Event::Request(request)) => {
                    if let Some(busy) = self.execute(&request, volumes, ctx) {
                        volume_state(&mut self.volume_states, busy).waiting.push_back(request.id);
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

    /// Whether [`Server::poll`] may have anything to do at `now`: for clients, sessions that end, timers, or volumes at
    /// work.
    #[inline]
    pub fn wants_poll(&self, volumes: &Volumes, now: Instant) -> bool {
        !self.transport.is_vacant()
            || self.poll_timeout().is_some_and(|at| at <= now)
            || volumes.are_working()
            || volumes.want_turn()
            || volumes.has_kept()
    }

    /// Whether any client is connected.
    pub fn has_clients(&self) -> bool {
        self.transport.has_connections()
    }

    /// Whether there are no unread notices and no refusals.
    pub fn is_calm(&mut self) -> bool {
        self.transport.is_calm()
    }

    /// Deadline of the next call of `poll`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let refused = (!self.throttles.refused.is_empty()).then_some(Instant::ZERO);
        Instant::first([self.transport.poll_timeout(), self.throttles.due, refused])
    }

    /// Statistics of a volume.
    pub fn volume_stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        self.volume_states.get(volume.index()).map(|state| &state.stats)
    }

    fn link_up(&mut self, id: SessionId) {
        if id.index() >= self.sessions.len() {
            let first = self.transport.config().incarnation as u32;
            self.sessions.resize_with(id.index() + 1, || Session::new(first));
        }
    }
}

/// The state of a volume; creates it if there is none.
#[inline]
fn volume_state(volume_states: &mut Vec<VolumeState>, volume: VolumeId) -> &mut VolumeState {
    let index = volume.index();
    if index >= volume_states.len() {
        volume_states.resize_with(index + 1, VolumeState::default);
    }
    &mut volume_states[index]
}
