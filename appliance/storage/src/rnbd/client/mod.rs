//! The RNBD client (Linux: rnbd-clt.c): maps devices of a server over an RTRS session, each as a
//! [`crate::volume::Volume`].
//!
//! It differs from Linux in three points. While no path is up, requests wait for a configurable time
//! before they fail. Transfers larger than a chunk are split. A restarted server may have lost
//! writes that it had acknowledged and not flushed, so the next flush fails.

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
use verbs::{ConnectionEvent, Ctx, RdmaDevice, VerbsError};

/// Size in bytes of the buffer for the response to SESS_INFO or OPEN.
const ANSWER: usize = 64;
/// Permits that requests of volumes leave to the session's own requests.
const RESERVED_PERMITS: usize = 1;
/// Most notices kept until the loop fetches them; the oldest are dropped first.
const MAX_NOTICES: usize = 64;

/// Holder of a permit.
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
    /// Number of times that a path came up.
    paths_up: u64,
    /// Buffer for the response to SESS_INFO.
    answer: Window,
    devices: Slab<Device>,
    /// By permit.
    owners: Vec<Owner>,
    notices: VecDeque<Notice>,
    /// Events and requests handled so far.
    taken: u64,
    /// No timer expires before this time.
    next_timer: Option<Instant>,
    /// Rung when the client has work.
    bell: Option<Bell>,
}

impl Client {
    /// A client without a path and without a device.
    pub fn new<P: RdmaDevice + ?Sized>(
        config: Config,
        transport: rtrs::client::Config,
        name: Name,
        ctx: &mut Ctx<'_, P>,
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
            next_timer: None,
            bell: None,
        })
    }

    /// From now on rings a bell when `poll` has work. The bell is not rung for timers ([`Client::poll_timeout`]) and
    /// completions: [`Provider::next_watched`](verbs::Provider::next_watched) returns the bell's number for those.
    pub fn ring_when_asked<P: RdmaDevice + ?Sized>(&mut self, bell: Bell, ctx: &mut Ctx<'_, P>) {
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

    /// The RTRS client, read-only.
    pub fn transport(&self) -> &rtrs::client::Client {
        &self.transport
    }

    /// The RTRS client, for its paths. Its events and permits belong to this client.
    pub fn transport_mut(&mut self) -> &mut rtrs::client::Client {
        self.ring();
        &mut self.transport
    }

    /// Handles an event of the connection manager; false if the event is for another consumer.
    pub fn handle_connection_event<P: RdmaDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let taken = self.transport.handle_connection_event(event, ctx);
        if taken {
            self.ring();
        }
        taken
    }

    /// Handles events of the transport, sends requests of the volumes, and runs timers. Call it until
    /// it returns no notice.
    pub fn poll<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> Option<Notice> {
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

    /// Events and requests handled so far: if the number changes, the client has done work.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Deadline of the next call of `poll`, if there is one.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.next_timer, self.transport.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends the session and releases its memory. Requests fail.
    pub fn end<P: RdmaDevice + ?Sized>(self, ctx: &mut Ctx<'_, P>) {
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

    /// Records the holder of a permit.
    fn set_owner(&mut self, permit: Permit, owner: Owner) {
        if let Some(place) = self.owners.get_mut(permit.index()) {
            *place = owner;
        }
    }
}
