//! The RNBD client (Linux: rnbd-clt.c): maps devices of a server over an RTRS session, each as a
//! [`crate::volume::Volume`].
//!
//! It differs from Linux in these points: while no path is up, requests wait for a settable time
//! before they fail; transfers larger than a chunk are done in parts; a server that was started
//! anew may have lost what it had acknowledged and nobody had flushed, so the next flush fails.

mod bell;
mod config;
mod device;
mod give_up;
mod io;
mod manage;
mod queue;
mod request;
mod session;
mod state;
mod timer;
mod volume;

pub use bell::{Bell, Bells};
pub use config::Config;
pub use device::{DeviceId, Losses};
pub use manage::{DeviceStatus, MapError};
pub use session::Notice;
pub use state::{DeviceState, Input};
pub use volume::RemoteVolume;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use device::Device;
use drivers::hal::{Instant, Window};
use rtrs::Name;
use rtrs::client::Permit;
use session::Session;
use slab::Slab;
use verbs::EngineContext;
use verbs::{ConnectionEvent, RdmaDevice, VerbsError};

/// Bytes kept for the answer of SESS_INFO or OPEN.
const ANSWER: usize = 64;
/// Permits that requests of volumes leave to the session's own.
const RESERVED_PERMITS: usize = 1;
/// Notices kept until the loop fetches them; the oldest go first.
const MAX_NOTICES: usize = 64;

/// What a permit is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nothing,
    SessionInfo,
    Open(usize),
    Close,
    Io { device: usize, slot: u32 },
}

/// A client: the devices of one session.
#[derive(Debug)]
pub struct Client {
    config: Config,
    transport: rtrs::client::Client,
    session: Session,
    /// Paths that came up so far.
    paths_up: u64,
    /// The answer of SESS_INFO.
    answer: Window,
    devices: Slab<Device>,
    /// By permit.
    owners: Vec<Owner>,
    notices: VecDeque<Notice>,
    /// Events and requests taken so far.
    taken: u64,
    /// No timer expires before this.
    wake: Option<Instant>,
    /// Rung when there is something to do.
    bell: Option<Bell>,
}

impl Client {
    /// A client without a path and without a device.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: Config,
        transport: rtrs::client::Config,
        name: Name,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, VerbsError> {
        let answer = ctx.arena.alloc(ANSWER, 64).ok_or(VerbsError::NoRoom)?;
        let owners = alloc::vec![Owner::Nothing; usize::from(transport.max_queue_depth)];
        let transport = match rtrs::client::Client::new(transport, name, ctx) {
            Ok(transport) => transport,
            Err(error) => {
                ctx.arena.free(answer);
                return Err(error);
            }
        };
        Ok(Client {
            config,
            transport,
            session: Session::Down,
            paths_up: 0,
            answer,
            devices: Slab::new(),
            owners,
            notices: VecDeque::with_capacity(MAX_NOTICES),
            taken: 0,
            wake: None,
            bell: None,
        })
    }

    /// Rings a bell from now on when `poll` has something to do, but for what is due
    /// ([`Client::poll_timeout`]) and what [`Provider::next_watched`](verbs::Provider::next_watched) tells of
    /// under the bell's number.
    pub fn ring_when_asked<P: RdmaDevice + ?Sized>(
        &mut self,
        bell: Bell,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.transport.watch(bell.number(), ctx);
        bell.ring();
        for (_, device) in &self.devices {
            device.queue.borrow_mut().bell = Some(bell.clone());
        }
        self.bell = Some(bell);
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// The RTRS client, to look at.
    pub fn transport(&self) -> &rtrs::client::Client {
        &self.transport
    }

    /// The RTRS client, for its paths. Its events and permits belong to this client.
    pub fn transport_mut(&mut self) -> &mut rtrs::client::Client {
        self.ring();
        &mut self.transport
    }

    /// Takes an event of the connection manager; false if it is none of this client's.
    pub fn handle_connection_event<P: RdmaDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let taken = self.transport.handle_connection_event(event, ctx);
        if taken {
            self.ring();
        }
        taken
    }

    /// Takes what has arrived, sends what the volumes were given, runs timers. To be called until
    /// there is no notice left.
    pub fn poll<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Notice> {
        while let Some(event) = self.transport.poll(ctx) {
            self.taken += 1;
            self.handle_event(event, ctx);
        }
        self.run_timers(ctx);
        for key in 0..self.devices.capacity() {
            if self.devices.contains(key) {
                self.pump(key, ctx);
            }
        }
        if self.transport.has_events() {
            self.ring();
        }
        self.notices.pop_front()
    }

    /// Events and requests taken so far: tells whether there was anything to do.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// When `poll` has to be called at the latest, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.wake, self.transport.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends the session and gives back all that it took. Requests fail.
    pub fn end<P: RdmaDevice + ?Sized>(self, ctx: &mut EngineContext<'_, P>) {
        self.transport.end(ctx);
        for (_, mut device) in self.devices {
            device.fail_all();
            ctx.arena.free(device.answer);
        }
        ctx.arena.free(self.answer);
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Notes what a permit is held for.
    fn set_owner(&mut self, permit: Permit, owner: Owner) {
        if let Some(place) = self.owners.get_mut(permit.index()) {
            *place = owner;
        }
    }
}
