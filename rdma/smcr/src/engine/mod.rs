//! The SMC-R engine, both roles, over any verbs provider.
//!
//! A user has a TCP connection on which both sides offered SMC (the option of its SYNs), gives its
//! bytes to a socket of the engine ([`Engine::handle_clc_bytes`]) and sends what that has to say
//! ([`Engine::poll_clc_bytes`]), until the socket is established, or falls back: then the TCP
//! connection carries the application's bytes. An established socket has `send`, `recv`,
//! `shutdown`, `close` and `abort`; what happens to it is told by [`Engine::poll_event`].
//!
//! Underneath are link groups: per peer and role, with queue pairs of their own (made without the
//! connection manager), reused by later connections, and kept for a while without any. A peer that
//! lies about cursors loses its link group.
//!
//! Where both hosts have two ports on a network, or only the server has, a group has two links, and
//! connections go on over the other when one is lost. A link that was lost is made anew, in ever
//! longer pauses while that fails.
//!
//! Version 2 is spoken with who shares an enterprise, else version 1 with who is in our subnet. Not
//! done: SMC-D, routed peers.

mod add_link;
mod buffers;
mod cdc;
mod client;
mod close;
mod config;
mod devices;
mod doubts;
mod failover;
mod flow;
mod group;
mod handshake;
mod hosts;
mod ids;
mod link;
mod llc;
mod peer_buffers;
mod retained;
mod server;
mod state;
mod stats;
mod status;
mod stream;
mod subnet;
mod table;
mod timer;

pub use config::{BadConfig, Config, Device, PnetId};
pub use ids::SocketId;
pub use state::{Input, Said, Say, State};
pub use stats::{Counters, Notice};
pub use status::{GroupStatus, LinkStatus, SocketStatus};
pub use stream::{RecvError, SendError};
pub use subnet::Subnet;
pub use table::{Ready, Role};

use crate::admission::Admission;
use crate::wire::{PeerId, Reason, cdc as cdc_wire};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use doubts::Doubts;
use drivers::hal::{Instant, Window};
use hosts::Host;
use ids::WorkId;
use retained::Retained;
use slab::Slab;
use table::{Group, GroupState, Phase, Socket};
use timer::Timers;
use verbs::EngineContext;
use verbs::{CompletedOperation, CqId, Provider, Status, VerbsError};

/// Completions, and timers, that are dealt with before others have their turn.
pub const BATCH: usize = 64;
/// Notices kept until the loop fetches them; the oldest go first.
const MAX_NOTICES: usize = 64;

/// The engine.
#[derive(Debug)]
pub struct Engine {
    /// The books of those who listen and connect; they all have the engine.
    pub admission: Admission,
    config: Config,
    peer_id: PeerId,
    devices: Vec<Device>,
    subnets: Vec<Subnet>,
    cq: CqId,
    sockets: Slab<Socket>,
    groups: Slab<Group>,
    /// What is left of sockets whose peers have not let go of their receive buffers.
    retained: BTreeMap<SocketId, Retained>,
    /// By their TCP addresses.
    hosts: BTreeMap<IpAddr, Host>,
    /// Receive buffers that are registered, and whether they have memory only when they are written to.
    buffers: usize,
    on_demand: bool,
    /// Servers with which SMC-R comes to nothing.
    doubts: Doubts,
    generation: u16,
    next_group: u32,
    /// Sockets that may have something to send.
    dirty: VecDeque<usize>,
    /// Sockets whose user has something to hear.
    announced: VecDeque<usize>,
    spare: Vec<Window>,
    notices: VecDeque<Notice>,
    /// Sockets whose buffer may have memory, when those of silent ones are looked for, and how far that is.
    filled: Vec<SocketId>,
    sweep: Option<Instant>,
    swept: usize,
    timers: Timers,
    /// It takes no sockets any more.
    closing: bool,
    counters: Counters,
    /// It hears no DELETE_LINK, as one whose exchanges are busy.
    #[cfg(test)]
    pub(crate) deaf: bool,
    /// It hears no ADD_LINK.
    #[cfg(test)]
    pub(crate) deaf_to_offers: bool,
}

/// Why an engine could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The configuration is impossible.
    Config(BadConfig),
    /// The provider refused.
    Provider(VerbsError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(why) => {
                write!(f, "the configuration of SMC-R cannot be used: {why}")
            }
            StartError::Provider(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}

impl Engine {
    /// An engine on `devices`, of which the first names us.
    pub fn new<P: Provider + ?Sized>(
        config: Config,
        devices: Vec<Device>,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let cq = ctx.provider.create_cq(config.completions).map_err(StartError::Provider)?;
        let mac = devices.first().map_or([0; 6], |device| device.mac);
        Ok(Engine {
            admission: Admission::default(),
            peer_id: PeerId::new(ctx.rng.next_u32() as u16, mac),
            devices,
            subnets: Vec::new(),
            cq,
            sockets: Slab::new(),
            groups: Slab::new(),
            retained: BTreeMap::new(),
            hosts: BTreeMap::new(),
            buffers: 0,
            on_demand: false,
            doubts: Doubts::default(),
            generation: ctx.rng.next_u32() as u16,
            next_group: 1,
            dirty: VecDeque::with_capacity(config.max_sockets),
            announced: VecDeque::with_capacity(config.max_sockets),
            spare: Vec::with_capacity(config.spare_buffers),
            notices: VecDeque::with_capacity(MAX_NOTICES),
            filled: Vec::new(),
            sweep: None,
            swept: 0,
            timers: Timers::default(),
            closing: false,
            counters: Counters::default(),
            #[cfg(test)]
            deaf: false,
            #[cfg(test)]
            deaf_to_offers: false,
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes what has completed, at most [`BATCH`]; how much that was. Then [`Engine::poll_event`] and, once the user
    /// has answered, [`Engine::flush`].
    pub fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) -> usize {
        if self.buffers > 0 && self.on_demand && ctx.provider.odp_pool() == 0 {
            // Peers that write and do not tell have taken all.
            self.fill_stock(ctx);
        }
        for handled in 0..BATCH {
            let Some(completion) = ctx.provider.poll_cq(self.cq) else { return handled };
            let work = WorkId::from_bits(completion.id);
            let (group, link) = (work.group(), work.link());
            let Some(in_group) = self.groups.get_mut(group) else { continue };
            let is_new = matches!(in_group.state, GroupState::Making(_));
            let known = in_group.links.get_mut(link).and_then(Option::as_mut);
            let Some(known) = known.filter(|known| known.qp == completion.qp) else { continue };
            if completion.status != Status::Success {
                self.link_failed(group, link, ctx);
                continue;
            }
            match completion.operation {
                CompletedOperation::Recv { length, .. } => {
                    known.heard = ctx.now;
                    let (receive, length) = (work.receive(), length as usize);
                    match known.head(receive) {
                        Some(head) if head[0] == cdc_wire::TYPE && length >= cdc_wire::LEN => {
                            known.repost(completion.id, receive, ctx.provider);
                            if is_new {
                                self.heard_after_confirmation(group, link, ctx.now);
                            }
                            self.handle_cdc_message(group, &head, ctx);
                        }
                        _ => self.handle_message(group, link, receive, length, ctx),
                    }
                }
                CompletedOperation::Send => {
                    self.handle_sent(group, link, work.receive() as u16, ctx);
                }
                CompletedOperation::RecvWriteImmediate { .. } => {
                    // No SMC peer writes with immediate.
                    self.violation(group, ctx);
                }
                // Nobody here asks for that.
                CompletedOperation::KeyChanged { .. } => {}
            }
        }
        BATCH
    }

    /// The next socket to which something happened, all that happened to it, and whose it is.
    pub fn poll_event(&mut self) -> Option<(SocketId, Ready, u32)> {
        while let Some(key) = self.announced.pop_front() {
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            if !core::mem::take(&mut socket.announced) {
                continue;
            }
            let ready = core::mem::take(&mut socket.ready);
            if !ready.is_empty() && !socket.released {
                return Some((socket.id, ready, socket.owner));
            }
        }
        None
    }

    /// Sends what sockets have to send.
    pub fn flush<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        for _ in 0..self.dirty.len() {
            let Some(key) = self.dirty.pop_front() else { break };
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            if core::mem::take(&mut socket.dirty) {
                self.push(key, ctx);
            }
        }
    }

    /// Whether SMC-R is not worth to be offered to a server: several handshakes in a row have waited for it
    /// in vain, the last a short while ago.
    pub fn doubts(&self, server: IpAddr, now: Instant) -> bool {
        self.doubts.concern(server, now)
    }

    /// Why a socket fell back to TCP.
    pub fn fallback(&self, id: SocketId) -> Option<Reason> {
        match self.socket(id)?.phase()? {
            Phase::Fallback(reason) => Some(reason),
            _ => None,
        }
    }

    /// What happened that an operator may want to know.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    fn socket(&self, id: SocketId) -> Option<&Socket> {
        self.sockets.get(id.key()).filter(|socket| socket.id == id)
    }

    fn socket_mut(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.sockets.get_mut(id.key()).filter(|socket| socket.id == id)
    }

    /// Has a socket's user told.
    fn announce(&mut self, key: usize, ready: Ready) {
        let Engine { sockets, announced, .. } = self;
        sockets[key].announce(ready, announced);
    }

    /// Has a socket looked at by the next flush.
    fn touch(&mut self, key: usize) {
        let Engine { sockets, dirty, .. } = self;
        sockets[key].touch(dirty);
    }
}

#[cfg(test)]
impl Engine {
    /// Whose a socket is: what was said when it was opened.
    pub(crate) fn owner(&self, id: SocketId) -> Option<u32> {
        self.socket(id).map(|socket| socket.owner)
    }

    /// The queue pair of a group's link, for tests that lie in its name.
    pub(crate) fn queue_pair(&self, group: usize, link: usize) -> Option<verbs::QpId> {
        Some(self.groups.get(group)?.links.get(link)?.as_ref()?.qp)
    }

    /// A server's socket as it is after its first contact, whatever the peer has said.
    pub(crate) fn forge_first_contact(&mut self, id: SocketId, now: Instant) {
        if let Some(group) = self.socket(id).and_then(|socket| socket.group) {
            self.link_up(group, 0);
            self.establish(id.key(), now);
        }
    }

    /// Forgets where the buffers of a group's peer are.
    pub(crate) fn forget_peer(&mut self, group: usize) {
        self.groups[group].buffers.clear();
    }

    /// How many hosts something is known of.
    pub(crate) fn hosts_known(&self) -> usize {
        self.hosts.len()
    }

    /// How many buffers of a group's peer are known.
    pub(crate) fn keys_of_peer(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |group| group.buffers.len())
    }

    /// The peer's name of a socket, and where its buffer is.
    pub(crate) fn peer_of(&self, id: SocketId) -> (u32, verbs::RemoteAddress) {
        let peer = self.socket(id).expect("the socket is there").peer;
        let address = verbs::RemoteAddress { address: peer.address, rkey: peer.rkey };
        (peer.token, address)
    }
}
