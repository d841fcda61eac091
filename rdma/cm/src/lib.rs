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
//! The frame identifies the sender: its port and its source address. A message about a connection counts only if the
//! frame came in on that connection's port, from its peer's address, by the same kind of RoCE. The GID and the address in
//! the private data of a REQ must be the frame's, and users of connections see that address. Packets of a connected queue
//! pair must come from its peer, on its port. Nothing in a message changes the neighbour table.
//!
//! Connection IDs have random bits, as have queue pair numbers and first PSNs. A host that does not receive our replies
//! can send neither a valid RTU nor a packet that replaces one. A host that can send and receive in another's name on its
//! network is that host, as far as RoCE can tell.
//!
//! A REQ with a CA GUID and queue pair number in use ends that connection, as with Linux. This needs an otherwise valid
//! REQ, and a connection of the same address.
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

/// Neighbours that are remembered.
const NEIGHBOURS: usize = 256;

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
    /// A message that is not from the peer of the connection that it is about, or from nobody.
    WrongPeer,
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
    /// Link-layer addresses of peers, the oldest first.
    neighbours: VecDeque<(IpAddr, [u8; 6])>,
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
            neighbours: VecDeque::new(),
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
        self.table.timers.first()
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

    /// Tells which link-layer address the next hop to `ip` has; `connect` needs to know. Nothing is learned
    /// from what peers send: answers go where the request came from.
    pub fn learn_neighbour(&mut self, ip: IpAddr, mac: [u8; 6]) {
        if let Some(known) = self.neighbours.iter_mut().find(|(other, _)| *other == ip) {
            known.1 = mac;
            return;
        }
        if self.neighbours.len() == NEIGHBOURS {
            self.neighbours.pop_front();
        }
        self.neighbours.push_back((ip, mac));
    }

    /// Tells that only packets of `mtu` bytes and less pass to `ip` (layer 3), until then. Connections that are made
    /// from now on keep to it.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.small_paths.retain(|(other, ..)| *other != ip);
        if self.small_paths.len() == NEIGHBOURS {
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

    /// The link-layer address of the next hop to `ip`, if it was told.
    pub fn neighbour(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.neighbours.iter().find(|(known, _)| *known == ip).map(|(_, mac)| *mac)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What was told of a neighbour is kept until there are too many: the oldest is forgotten.
    #[test]
    fn neighbours_are_remembered_and_their_number_is_bounded() {
        let mut cm = Cm::new(&Limits::default(), &mut ChaCha12Rng::seed_from_u64(1));
        let ip = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let mac = |n: usize| [2, 0, 0, 0, (n >> 8) as u8, n as u8];
        for n in 0..NEIGHBOURS {
            cm.learn_neighbour(ip(n), mac(n));
        }
        assert!((0..NEIGHBOURS).all(|n| cm.neighbour(ip(n)) == Some(mac(n))));
        // It has another address now, and is none more.
        cm.learn_neighbour(ip(5), mac(1000));
        assert_eq!((cm.neighbour(ip(5)), cm.neighbour(ip(0))), (Some(mac(1000)), Some(mac(0))));
        cm.learn_neighbour(ip(NEIGHBOURS), mac(NEIGHBOURS));
        let known = (0..=NEIGHBOURS).filter(|&n| cm.neighbour(ip(n)).is_some());
        assert!(known.eq(1..=NEIGHBOURS));
    }
}
