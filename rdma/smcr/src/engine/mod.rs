//! The SMC-R engine, both roles, over any verbs provider.
//!
//! A user has a TCP connection on which both sides offered SMC (an option of the SYN segments). It passes received
//! bytes to an engine socket ([`Engine::handle_clc_bytes`]) and sends the socket's bytes ([`Engine::poll_clc_bytes`]),
//! until the socket is established or falls back. After a fallback TCP carries the application's bytes. An established
//! socket has `send`, `recv`, `shutdown`, `close` and `abort`. [`Engine::poll_event`] reports its events.
//!
//! Sockets use link groups: one per peer and role, with their own queue pairs (created without the connection manager),
//! reused by later connections, and kept for a while without connections. A peer with impossible cursors loses its link
//! group.
//!
//! If both hosts, or only the server, have two ports on a network, a group has two links, and connections fail over
//! when one is lost. The engine re-establishes a lost link, with increasing pauses between attempts.
//!
//! Peers with a common enterprise ID use version 2, peers in a common subnet version 1. Not implemented: SMC-D, routed
//! peers.

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
mod spare;
mod state;
mod stats;
mod status;
mod stream;
mod subnet;
mod table;
mod timer;

pub use config::{BadConfig, Config, Device, PnetId};
pub use ids::SocketId;
pub use spare::BufferSizes;
pub use state::{CloseStatus, Flag, Input, State};
pub use stats::{Counters, Notice, SIZE_CLASSES, Traffic};
pub use status::{GroupStatus, LinkStatus, SocketStatus};
pub use stream::{RecvError, SendError};
pub use subnet::Subnet;
pub use table::{Ready, Role};

use crate::SmcDevice;
use crate::admission::Admission;
use crate::wire::{PeerId, Reason, cdc as cdc_wire};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use doubts::Blocklist;
use drivers::hal::Instant;
use hosts::Host;
use ids::WorkId;
use retained::Retained;
use slab::Slab;
use spare::Spare;
use table::{Group, GroupState, Phase, Socket};
use timer::Timers;
use verbs::{CompletedOperation, CqId, Ctx, Status, VerbsError};

/// Most completions, and most timers, handled per call.
pub const BATCH: usize = 64;
/// Most notices queued for the loop; the oldest are dropped first.
const MAX_NOTICES: usize = 64;

/// The engine.
#[derive(Debug)]
pub struct Engine {
    /// Accounts of all listeners and connectors, which all have access to the engine.
    pub admission: Admission,
    config: Config,
    peer_id: PeerId,
    devices: Vec<Device>,
    subnets: Vec<Subnet>,
    cq: CqId,
    sockets: Slab<Socket>,
    groups: Slab<Group>,
    /// Receive buffers of removed sockets, whose peers may still write to them.
    retained: BTreeMap<SocketId, Retained>,
    /// Hosts by TCP address.
    hosts: BTreeMap<IpAddr, Host>,
    /// Registered receive buffers.
    buffers: usize,
    /// Receive buffers get their memory on the peer's first WRITE.
    on_demand: bool,
    /// Codes of the sizes of receive buffers that were registered on demand, as bits.
    stocked: u16,
    /// Servers whose RoCE path timed out.
    blocklist: Blocklist,
    generation: u16,
    next_group: u32,
    /// Sockets to be examined by the next flush.
    dirty: VecDeque<usize>,
    /// Sockets with pending events.
    announced: VecDeque<usize>,
    /// Send buffers for reuse.
    spare: Spare,
    notices: VecDeque<Notice>,
    /// Sockets whose receive buffer may have memory.
    filled: Vec<SocketId>,
    /// When idle receive buffers are searched next.
    sweep: Option<Instant>,
    /// Progress of the search in `filled`.
    swept: usize,
    timers: Timers,
    /// The engine is shutting down and opens no sockets.
    closing: bool,
    counters: Counters,
    /// Drops received DELETE_LINK messages, like a peer whose exchanges are busy.
    #[cfg(test)]
    pub(crate) ignore_delete_link: bool,
    /// Drops received ADD_LINK messages.
    #[cfg(test)]
    pub(crate) ignore_add_link: bool,
}

/// Why an engine could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The configuration is impossible.
    Config(BadConfig),
    /// The provider returned an error.
    Provider(VerbsError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(why) => {
                write!(f, "invalid SMC-R configuration: {why}")
            }
            StartError::Provider(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}

impl Engine {
    /// Creates an engine on `devices`. The MAC address of the first is part of our peer ID.
    pub fn new<P: SmcDevice + ?Sized>(
        config: Config,
        devices: Vec<Device>,
        ctx: &mut Ctx<'_, P>,
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
            stocked: 0,
            blocklist: Blocklist::default(),
            generation: ctx.rng.next_u32() as u16,
            next_group: 1,
            dirty: VecDeque::with_capacity(config.max_sockets),
            announced: VecDeque::with_capacity(config.max_sockets),
            spare: Spare::new(config.spare_buffers, config.send_buffer),
            notices: VecDeque::with_capacity(MAX_NOTICES),
            filled: Vec::new(),
            sweep: None,
            swept: 0,
            timers: Timers::default(),
            closing: false,
            counters: Counters::default(),
            #[cfg(test)]
            ignore_delete_link: false,
            #[cfg(test)]
            ignore_add_link: false,
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Handles at most [`BATCH`] completions and returns their number. Then call [`Engine::poll_event`] and, once the
    /// user has answered, [`Engine::flush`].
    pub fn poll<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> usize {
        if self.buffers > 0 && self.on_demand {
            // Peers that write without sending CDC messages may have used up a pool.
            self.refill_stock(ctx);
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
                    known.last_rx = ctx.now;
                    let (receive, length) = (work.receive(), length as usize);
                    match known.head(receive) {
                        Some(head) if head[0] == cdc_wire::TYPE && length >= cdc_wire::LEN => {
                            known.repost(completion.id, receive, ctx.provider);
                            if is_new {
                                self.infer_confirmation_arrived(group, link, ctx.now);
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
                    // SMC peers do not use WRITE with immediate.
                    self.violation(group, ctx);
                }
                // The engine requests no key changes.
                CompletedOperation::KeyChanged { .. } => {}
            }
        }
        BATCH
    }

    /// The next socket with pending events, its events, and its owner tag.
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

    /// Sends pending data and CDC messages of sockets.
    pub fn flush<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        for _ in 0..self.dirty.len() {
            let Some(key) = self.dirty.pop_front() else { break };
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            if core::mem::take(&mut socket.dirty) {
                self.push(key, ctx);
            }
        }
    }

    /// Whether SMC-R should not be offered to a server: several handshakes in a row timed out on its RoCE path, the
    /// last one recently.
    pub fn doubts(&self, server: IpAddr, now: Instant) -> bool {
        self.blocklist.blocks(server, now)
    }

    /// The reason why a socket fell back to TCP.
    pub fn fallback(&self, id: SocketId) -> Option<Reason> {
        match self.socket(id)?.phase()? {
            Phase::Fallback(reason) => Some(reason),
            _ => None,
        }
    }

    /// The next notice for the operator's log.
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

    /// Queues events for a socket's user.
    fn announce(&mut self, key: usize, ready: Ready) {
        let Engine { sockets, announced, .. } = self;
        sockets[key].announce(ready, announced);
    }

    /// Marks a socket for the next flush.
    fn touch(&mut self, key: usize) {
        let Engine { sockets, dirty, .. } = self;
        sockets[key].touch(dirty);
    }
}

#[cfg(test)]
impl Engine {
    /// The owner tag that was given when the socket was opened.
    pub(crate) fn owner(&self, id: SocketId) -> Option<u32> {
        self.socket(id).map(|socket| socket.owner)
    }

    /// The queue pair of a group's link, for tests that forge messages.
    pub(crate) fn queue_pair(&self, group: usize, link: usize) -> Option<verbs::QpId> {
        Some(self.groups.get(group)?.links.get(link)?.as_ref()?.qp)
    }

    /// Completes the first contact of a server's socket, without the peer.
    pub(crate) fn forge_first_contact(&mut self, id: SocketId, now: Instant) {
        if let Some(group) = self.socket(id).and_then(|socket| socket.group) {
            self.link_up(group, 0);
            self.establish(id.key(), now);
        }
    }

    /// Discards the stored keys of a group's peer.
    pub(crate) fn forget_peer(&mut self, group: usize) {
        self.groups[group].buffers.clear();
    }

    /// Number of host entries.
    pub(crate) fn hosts_known(&self) -> usize {
        self.hosts.len()
    }

    /// Number of stored buffers of a group's peer.
    pub(crate) fn keys_of_peer(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |group| group.buffers.len())
    }

    /// The peer's token of a socket, and the key and address of its buffer.
    pub(crate) fn peer_of(&self, id: SocketId) -> (u32, verbs::RemoteAddress) {
        let peer = self.socket(id).expect("the socket is there").peer;
        let address = verbs::RemoteAddress { address: peer.address, rkey: peer.rkey };
        (peer.token, address)
    }
}
