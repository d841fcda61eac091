//! The connection manager (vol. 1, ch. 12; Linux `drivers/infiniband/core/cm.c` and `cma.c`): makes and ends reliable
//! connections by messages on queue pair 1, with the RDMA IP CM service in the TCP port space. Not supported: alternate
//! paths, path migration, service ID resolution.
//!
//! It is an engine. [`Cm`] is the state, which the owner of the queue pairs has. [`Manager`] works on it, over a
//! [`Transport`] (queue pairs, addresses). [`Manager::handle_mad`] takes received MADs, [`Manager::next_datagram`]
//! returns those to send.
//!
//! # Identity of a peer
//!
//! A host is an address at a port, and where it is the neighbour table of the port says (`neighbours.rs`): ARP, neighbour
//! discovery, or the entry of the gateway. A message waits until the table has answered. It is dropped if its frame came
//! from another MAC address, and answers go where the table says. A host behind a gateway may send through another router,
//! so its frames count from any MAC address; its answers still go to the gateway. The MAC address of a connection is the
//! one that the table gave. If the table says later that the host has moved, the connection and its queue pair move along.
//!
//! A message about a connection counts only if the frame came in on that connection's port, from its peer's address, by
//! the same kind of RoCE. The GID and the address in the private data of a REQ must be the frame's, and users of
//! connections see that address. Packets of a connected queue pair must come from its peer, on its port. Nothing in a
//! message changes the neighbour table.
//!
//! Connection IDs have random bits, as have queue pair numbers and first PSNs. A host that does not receive our replies
//! can send neither a valid RTU nor a packet that replaces one. A host that can send and receive in another's name on its
//! network (ARP spoofing) is that host, as far as RoCE can tell.
//!
//! A REQ with a CA GUID and queue pair number in use is a request like any other: source addresses can be forged, and with
//! Linux one such REQ ends the connection. Here the old connection ends when the new one stands, because only the peer
//! itself can complete it.
//!
//! # Limits
//!
//! Times and retries of a peer are capped (`caps.rs` has the values and reasons): response timeout, repeated REPs and
//! DREQs, ACK timeout, MRA, depths. A peer that never showed that it receives gets one DREQ.
//!
//! The table (`table.rs`) has a share for each host (`limits.connections_per_host`, at most half). If a host has its
//! share, or the table is full, a new request evicts the least useful connection, the oldest first: in time-wait; ending;
//! not answered by our user; accepted, but without a sign that the peer receives. Established connections are never
//! evicted. At most 256 connections are half-open, half of them of one host.

#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod caps;
mod connection;
mod goodbye;
mod identity;
mod neighbours;
mod receive;
mod table;
mod timers;
mod user;
pub mod wire;

pub use receive::Arrival;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use connection::State;
use core::net::IpAddr;
use drivers::hal::Instant;
use neighbours::{Neighbours, Way};
use net::refusal::Refusals;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use softverbs::listening::Listening;
use table::Table;
use verbs::{AddressVector, ConnectionId, PathMtu, Provider, QpId, RejectReason, VerbsError};
use wire::mad::{self, Mad};
use wire::message::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej};

/// Messages that wait to be sent; answers that need no connection get at most half of it.
const OUTBOX: usize = 256;
/// Peers with a small path MTU that are remembered.
const SMALL_PATHS: usize = 256;

/// Time that a REQ, REP or DREQ has to be answered in (code), and how often it is repeated.
const RESPONSE_TIMEOUT: u8 = 20;
const MAX_RETRIES: u8 = 15;
/// Time that a packet lives (code), as Linux assumes on Ethernet.
const PACKET_LIFE_TIME: u8 = 16;
/// ACK timeout that we ask for: 537 ms, as rxe.
const ACK_TIMEOUT: u8 = 17;
/// Longest ACK delay that we own up to, as rxe.
const ACK_DELAY: u8 = 15;

/// The partition that everything is in.
const DEFAULT_PKEY: u16 = 0xffff;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, made and being made.
    pub connections: usize,
    /// Of these, those that one host may have asked for, at most half of all. A host is an address at a port;
    /// over IPv6 all of a /64.
    pub connections_per_host: usize,
    /// Of these, those of peers that have not shown yet that they receive; the oldest gives way. One host
    /// has half of them at most.
    pub half_open: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 4096, connections_per_host: 1024, half_open: 256 }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A message that makes no sense.
    Malformed,
    /// A message that is not from the peer of the connection that it is about, from no host's address, or from another
    /// station than the one that has the address.
    WrongPeer,
    /// A message that waited for the neighbour table in vain.
    NoWayBack,
    /// A connection refused because the host that asked has as many as it may have.
    RefusedOfHost,
    /// A connection that was not made yet, or over, and gave way to a new request.
    GaveWay,
}

/// What has the queue pairs that are connected. A port is named by its place.
pub trait Transport: Provider {
    /// The state of the connection manager.
    fn cm(&self) -> &Cm;
    /// The same, to be changed.
    fn cm_mut(&mut self) -> &mut Cm;
    /// The place of the port that has an address.
    fn port_of(&self, address: IpAddr) -> Option<usize>;
    /// Whether the port at a place has an address.
    fn has_address(&self, place: usize, address: IpAddr) -> bool;
    /// Largest path MTU of a port.
    fn path_mtu(&self, place: usize) -> PathMtu;
    /// Number and first PSN of a queue pair, if it is there.
    fn numbers(&self, qp: QpId) -> Option<(u32, u32)>;
    /// The same of one that can be connected: reliable, in Init, without a connection. `WrongState` else.
    fn connectable(&self, qp: QpId) -> Result<(u32, u32), VerbsError>;
    /// The peer of a queue pair has another MAC address now.
    fn readdress(&mut self, qp: QpId, mac: [u8; 6]);
    /// Notes the connection that a queue pair carries, if it is there.
    fn set_connection(&mut self, qp: QpId, connection: Option<ConnectionId>);
    /// Counts something.
    fn count(&mut self, what: Counted);
}

/// The connection manager at work.
pub struct Manager<'a, T: ?Sized> {
    over: &'a mut T,
}

/// A MAD that is to be sent to queue pair 1 of a peer, and the way.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The way.
    pub address: AddressVector,
    /// The MAD.
    pub bytes: [u8; mad::LEN],
}

/// A message on its way out.
#[derive(Debug)]
struct Outgoing {
    address: AddressVector,
    transaction: u64,
    message: Message,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Request,
    Established,
    Rejected(RejectReason),
    Disconnected,
}

/// The connection manager's state.
#[derive(Debug)]
pub struct Cm {
    table: Table,
    listening: Listening,
    /// Requests that were refused, until somebody takes note.
    refusals: Refusals,
    transaction: u64,
    events: VecDeque<(ConnectionId, Event)>,
    /// Messages to be sent, by the address of ours that they leave from: a port that takes none does
    /// not hold up the others.
    outboxes: Vec<(IpAddr, VecDeque<Outgoing>)>,
    /// How many those are.
    waiting: usize,
    neighbours: Neighbours,
    /// Peers to which only smaller packets pass than the port sends, and until when that holds; the oldest first.
    small_paths: VecDeque<(IpAddr, PathMtu, Instant)>,
}

impl Cm {
    /// With nothing in it.
    pub fn new(limits: &Limits, rng: &mut dyn RngCore) -> Self {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        Cm {
            table: Table::new(limits, ChaCha12Rng::from_seed(seed)),
            listening: Listening::default(),
            refusals: Refusals::default(),
            transaction: rng.next_u64(),
            events: VecDeque::new(),
            outboxes: Vec::new(),
            waiting: 0,
            neighbours: Neighbours::default(),
            small_paths: VecDeque::new(),
        }
    }

    /// Whether there are events that nobody has heard of.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether its user does not take events, while peers make more and more.
    fn is_choked(&self) -> bool {
        self.events.len() >= 4 * self.table.limit
    }

    /// The next packet of the peer arrived on a queue pair of this connection: as good as an RTU.
    pub fn communication_established(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id)
            && connection.state == State::RepSent
        {
            connection.message = None;
            connection.deadline = None;
            self.table.set_state(id, State::Established);
            self.events.push_back((id, Event::Established));
            // The peer has shown that it receives. It uses that queue pair anew, so the old connection of it is over.
            if let Some(old) = self.table.supersede(id) {
                self.table.arm(old, Instant::ZERO);
            }
        }
    }

    /// The queue pair of this connection went to error: the peer is told.
    pub fn qp_failed(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        if matches!(connection.state, State::Established | State::RepSent) {
            self.events.push_back((id, Event::Disconnected));
            self.start_disconnect(id);
        }
    }

    /// The queue pair of this connection is gone, and with it our user's interest.
    pub fn qp_destroyed(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.qp = None;
        match connection.state {
            State::Established | State::RepSent => self.start_disconnect(id),
            State::ReqSent => {
                let reason = RejectReason::TIMEOUT;
                self.refuse(id, About::Req, reason);
                self.table.remove(id);
            }
            _ => (),
        }
    }

    /// No timer expires before this.
    pub fn deadline(&self) -> Option<Instant> {
        if self.neighbours.has_released() { Some(Instant::ZERO) } else { self.table.timers.first() }
    }

    fn next_transaction(&mut self) -> u64 {
        self.transaction = self.transaction.wrapping_add(1);
        self.transaction
    }

    /// Sends DREQs from the next run of the timers on: one, if the peer has never shown that it receives.
    fn start_disconnect(&mut self, id: ConnectionId) {
        let transaction = self.next_transaction();
        if let Some(connection) = self.table.get_mut(id) {
            let dreq = Message::Brief(Brief {
                local_id: connection.wire_id,
                remote_id: connection.remote_id,
                kind: BriefKind::Dreq { remote_qpn: connection.remote_qpn },
            });
            connection.message = Some((transaction, dreq));
            connection.interval = caps::DREQ_INTERVAL;
            connection.retries_left = match connection.state {
                State::RepSent => 1,
                _ => caps::DREQ_TRIES,
            };
            self.table.set_state(id, State::DreqSent);
        }
        self.table.arm(id, Instant::ZERO);
    }

    /// Queues a message about a connection; if there is no room, its timer sees to it.
    fn send(&mut self, address: AddressVector, transaction: u64, message: Message) {
        let outbox = self.outbox(address.local);
        if outbox.len() < OUTBOX {
            outbox.push_back(Outgoing { address, transaction, message });
            self.waiting += 1;
        }
    }

    /// What waits to leave from an address.
    fn outbox(&mut self, local: IpAddr) -> &mut VecDeque<Outgoing> {
        let at = self.outboxes.iter().position(|(ip, _)| *ip == local).unwrap_or_else(|| {
            self.outboxes.push((local, VecDeque::new()));
            self.outboxes.len() - 1
        });
        &mut self.outboxes[at].1
    }

    /// Queues the answer to a message that belongs to no connection; the peer asks again if there
    /// is no room.
    fn answer(&mut self, address: AddressVector, transaction: u64, message: Message) {
        if self.outbox(address.local).len() < OUTBOX / 2 {
            self.send(address, transaction, message);
        }
    }

    /// Queues one of the brief messages about a connection.
    fn send_brief(&mut self, id: ConnectionId, transaction: u64, kind: BriefKind) {
        if let Some(connection) = self.table.get(id) {
            let (local_id, remote_id) = (connection.wire_id, connection.remote_id);
            let brief = Brief { local_id, remote_id, kind };
            self.send(connection.address, transaction, Message::Brief(brief));
        }
    }

    /// Queues a REJ about a connection.
    fn refuse(&mut self, id: ConnectionId, about: About, reason: RejectReason) {
        self.refuse_with(id, about, reason, [0; REJ_PRIVATE_DATA]);
    }

    fn refuse_with(
        &mut self,
        id: ConnectionId,
        about: About,
        reason: RejectReason,
        private_data: [u8; REJ_PRIVATE_DATA],
    ) {
        if let Some(connection) = self.table.get(id) {
            let (local_id, remote_id) = (connection.wire_id, connection.remote_id);
            let rej = Rej { local_id, remote_id, about, reason: reason.0, private_data };
            self.send(connection.address, connection.transaction, Message::Rej(rej));
        }
    }

    /// The next host that the control plane is to look for in its neighbour table, with the place of the port. It tells
    /// by [`Manager::learn_neighbour`] or [`Manager::lose_neighbour`].
    pub fn next_wanted(&mut self) -> Option<(usize, IpAddr)> {
        self.neighbours.next_wanted()
    }

    /// Tells that only packets of `mtu` bytes and less pass to `ip` (layer 3), until then. Connections that are made
    /// from now on keep to it.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.small_paths.retain(|(other, ..)| *other != ip);
        if self.small_paths.len() == SMALL_PATHS {
            self.small_paths.pop_front();
        }
        let mtu = PathMtu::for_ethernet(mtu).unwrap_or(PathMtu::Mtu256);
        self.small_paths.push_back((ip, mtu, until));
    }

    /// The largest path MTU that passes to `ip`, of those up to `most`.
    fn path_mtu_to(&self, ip: IpAddr, most: PathMtu) -> PathMtu {
        let known = self.small_paths.iter().find(|(other, ..)| *other == ip);
        known.map_or(most, |(_, mtu, _)| most.min(*mtu))
    }

    /// Forgets which paths are small when that does not hold any more.
    fn forget_paths(&mut self, now: Instant) {
        self.small_paths.retain(|(.., until)| now < *until);
    }

    /// Whether there is any.
    #[inline]
    pub fn wants_neighbours(&self) -> bool {
        self.neighbours.wants()
    }

    /// Enters a host at the port at a place that stays where it is: nobody is asked for it.
    pub fn pin_neighbour(&mut self, place: usize, host: IpAddr, mac: [u8; 6]) {
        self.neighbours.pin((place, host), Way { mac, routed: false });
    }

    /// Whether a host is behind a router, as far as is known.
    pub fn is_routed(&self, place: usize, host: IpAddr) -> bool {
        self.neighbours.get((place, host)).is_some_and(|way| way.routed)
    }

    /// Has the control plane asked where a host is, at the port at a place.
    pub fn ask_for(&mut self, place: usize, host: IpAddr, now: Instant) {
        self.neighbours.ask((place, host), now);
    }

    /// Whether there are messages to send.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.waiting > 0
    }

    /// Number of connections, made, being made and ending.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Whether any stand in [`Cm::refusals`].
    pub fn has_refused(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Requests of connections that were refused, to be taken out.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }
}

impl<'a, T: Transport + ?Sized> Manager<'a, T> {
    /// Over what has queue pairs.
    pub fn of(over: &'a mut T) -> Self {
        Manager { over }
    }

    fn cm(&mut self) -> &mut Cm {
        self.over.cm_mut()
    }

    fn cm_ref(&self) -> &Cm {
        self.over.cm()
    }

    /// The next message that leaves through a port. Messages whose address has gone leave through none, and are
    /// dropped.
    fn next_message(&mut self, place: usize) -> Option<Outgoing> {
        let mut at = 0;
        loop {
            let (local, outbox) = self.cm_ref().outboxes.get(at)?;
            let (local, empty) = (*local, outbox.is_empty());
            match self.over.port_of(local) {
                Some(port) if port == place && !empty => {
                    let outgoing = self.cm().outboxes.get_mut(at)?.1.pop_front()?;
                    self.cm().waiting -= 1;
                    return Some(outgoing);
                }
                Some(_) => at += 1,
                None => {
                    let (_, dropped) = self.cm().outboxes.swap_remove(at);
                    self.cm().waiting -= dropped.len();
                }
            }
        }
    }

    /// The next MAD that leaves through the port at a place.
    pub fn next_datagram(&mut self, place: usize) -> Option<Datagram> {
        let outgoing = self.next_message(place)?;
        let mut data = [0; mad::DATA_LEN];
        let attribute = outgoing.message.emit(&mut data);
        let mut bytes = [0; mad::LEN];
        Mad { transaction: outgoing.transaction, attribute }.emit(&data, &mut bytes);
        Some(Datagram { address: outgoing.address, bytes })
    }
}
