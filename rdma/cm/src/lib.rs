//! The connection manager (vol. 1, ch. 12; Linux `drivers/infiniband/core/cm.c` and `cma.c`): makes and ends reliable
//! connections by messages on queue pair 1, with the RDMA IP CM service in the TCP port space. Not supported: alternate
//! paths, path migration, service ID resolution.
//!
//! ```text
//!    MADs of QP1 ──► Manager::handle_mad ──┐        ┌──► connection events ──► users of verbs
//!                                          ├── Cm ──┤
//!    MADs to send ◄── next_datagram ───────┘        └◄── listen, connect, accept, reject, disconnect
//!                          │
//!                      Transport: queue pairs of roce or connectx, neighbour table
//! ```
//!
//! Invariants:
//!
//! * A host is an address at the MAC address that the neighbour table gives; no message changes that table.
//! * An established connection is never evicted for another one.
//! * Whatever a peer asks for (timeouts, retries, depths) is capped.
//!
//! Tests: `rdma/roce/src/tests` (`claims`, `identity`, `connections`), `tests/conformance`, `tests/sim`, the suites
//! `roce_hostile`, `rtrs_hostile`.
//!
//! It is an engine. [`Cm`] is its state, in the hands of the owner of the queue pairs. [`Manager`] works on that state,
//! over a [`Transport`] (queue pairs, addresses). [`Manager::handle_mad`] handles received MADs,
//! [`Manager::next_datagram`] returns MADs to send.
//!
//! # Identity of a peer
//!
//! A host is an address at a port. The neighbour table of the port has its MAC address (`neighbours.rs`): by ARP,
//! neighbour discovery, or the entry of the gateway. A message waits until the table has answered. It is dropped if its
//! frame came from another MAC address, and answers go to the address in the table. A host behind a gateway may send
//! through another router, so its frames count from any MAC address; answers to it still go to the gateway. A
//! connection has the MAC address that the table returned. If the table later reports that the host has moved, the
//! connection and its queue pair move along.
//!
//! A message about a connection counts only if its frame came in on that connection's port, from its peer's address, by
//! the same kind of RoCE. The GID and the address in the private data of a REQ must be the frame's, and users of
//! connections see that address. Packets of a connected queue pair must come from its peer, on its port. No message
//! changes the neighbour table.
//!
//! Connection IDs have random bits, as have queue pair numbers and first PSNs. A host that does not receive our replies
//! can send neither a valid RTU nor a packet that replaces one. A host that can send and receive in the name of another
//! on its network (ARP spoofing) cannot be distinguished from it by RoCE.
//!
//! A REQ with a CA GUID and queue pair number in use is a request like any other: source addresses can be forged, and
//! with Linux one such REQ ends the connection. Here the old connection ends when the new one is established, because
//! only the peer itself can complete it.
//!
//! # Limits
//!
//! Timeouts and retries that a peer requests are capped (`caps.rs` has the values and reasons): response timeout,
//! repeated REPs and DREQs, ACK timeout, MRA, depths. A peer that never proved that it receives gets one DREQ.
//!
//! The table (`table.rs`) has a share for each host (`limits.connections_per_host`, at most half). If a host has used
//! its share, or the table is full, a new request evicts the least useful connection, the oldest first: in time-wait;
//! ending; not answered by our user; accepted, but without a sign that the peer receives. Established connections are
//! never evicted. At most 256 connections are half-open, half of them of one host.

#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod caps;
mod connection;
mod connection_manager;
mod goodbye;
mod identity;
mod neighbours;
mod receive;
mod small_paths;
mod table;
mod timers;
mod user;
pub mod wire;

pub use neighbours::mac_of_gid;
pub use receive::Arrival;

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use connection::State;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use neighbours::{Neighbours, NextHop};
use net::refusal::{Refusal, Refusals};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use small_paths::SmallPaths;
use softverbs::listening::Listening;
use table::Table;
use verbs::{AddressVector, ConnectionId, PathMtu, Provider, QpId, RejectReason, VerbsError};
use wire::mad::{self, Mad};
use wire::message::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej};

/// Most messages that wait to be sent, per local address. Answers that need no connection use at most half of it.
const OUTBOX: usize = 256;
/// Most entries about peers with a small path MTU.
const MAX_SMALL_PATHS: usize = 256;
/// What is offered to a peer, and for how long, after it has rejected or lost larger packets: what a port of 1,500 bytes
/// can do.
pub const LEAST_OFFER: PathMtu = PathMtu::Mtu1024;
const SMALL_OFFER: Duration = Duration::from_secs(600);

/// Timeout (code) for the answer to a REQ, REP or DREQ, and number of retries.
const RESPONSE_TIMEOUT: u8 = 20;
const MAX_RETRIES: u8 = 15;
/// Packet life time (code), as Linux assumes on Ethernet.
const PACKET_LIFE_TIME: u8 = 16;
/// ACK timeout that we request: 537 ms, as rxe.
const ACK_TIMEOUT: u8 = 17;
/// Longest ACK delay that we announce, as rxe.
const ACK_DELAY: u8 = 15;

/// The default partition, the only one.
const DEFAULT_PKEY: u16 = 0xffff;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, established and being made.
    pub connections: usize,
    /// Of these, connections that one host requested; at most half of all. A host is an address at a port, or a /64 in
    /// IPv6.
    pub connections_per_host: usize,
    /// Of these, connections of peers that have not yet proved that they receive; the oldest is evicted. One host has
    /// at most half of them.
    pub half_open: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 4096, connections_per_host: 1024, half_open: 256 }
    }
}

/// Events that the transport counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A malformed message.
    Malformed,
    /// A message that is not from its connection's peer, not from an address that a host may have, or from another MAC
    /// address than the neighbour table has.
    WrongPeer,
    /// A message dropped because the neighbour table did not resolve its sender.
    NoWayBack,
    /// A connection refused because the requesting host is at its limit.
    RefusedOfHost,
    /// A connection being made or ending that was evicted for a new request.
    GaveWay,
}

/// The owner of the queue pairs to connect. A port is named by its place.
pub trait Transport: Provider {
    /// The state of the connection manager.
    fn cm(&self) -> &Cm;
    /// The state of the connection manager, mutable.
    fn cm_mut(&mut self) -> &mut Cm;
    /// The place of the port with an address.
    fn port_of(&self, address: IpAddr) -> Option<usize>;
    /// Whether the port at a place has an address.
    fn has_address(&self, place: usize, address: IpAddr) -> bool;
    /// Largest path MTU of a port and its network, to an address of the family of `remote`.
    fn path_mtu(&self, place: usize, remote: IpAddr) -> PathMtu;
    /// Number and first PSN of a queue pair, if it is there.
    fn numbers(&self, qp: QpId) -> Option<(u32, u32)>;
    /// The same for a queue pair that can be connected: reliable, in Init, without a connection. `WrongState`
    /// otherwise.
    fn connectable(&self, qp: QpId) -> Result<(u32, u32), VerbsError>;
    /// Changes the MAC address of a queue pair's peer.
    fn readdress(&mut self, qp: QpId, mac: [u8; 6]);
    /// Sets the connection of a queue pair, if it is there.
    fn set_connection(&mut self, qp: QpId, connection: Option<ConnectionId>);
    /// Counts an event.
    fn count(&mut self, what: Counted);
}

/// The connection manager, working on its state and a transport.
pub struct Manager<'a, T: ?Sized> {
    over: &'a mut T,
}

/// A MAD to be sent to queue pair 1 of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Path to the peer.
    pub address: AddressVector,
    /// The MAD.
    pub bytes: [u8; mad::LEN],
}

/// A queued message.
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
    /// Refused requests, until the owner takes them.
    refusals: Refusals,
    transaction: u64,
    events: VecDeque<(ConnectionId, Event)>,
    /// Messages to be sent, by their local address: a port that accepts none does not delay the others.
    outboxes: Vec<(IpAddr, VecDeque<Outgoing>)>,
    /// Total number of messages in `outboxes`.
    queued: usize,
    neighbours: Neighbours,
    /// Peers with a smaller path MTU than the port's.
    small_paths: SmallPaths,
}

impl Cm {
    /// An empty state.
    pub fn new(limits: &Limits, rng: &mut dyn Rng) -> Self {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        Cm {
            table: Table::new(limits, ChaCha12Rng::from_seed(seed)),
            listening: Listening::default(),
            refusals: Refusals::default(),
            transaction: rng.next_u64(),
            events: VecDeque::new(),
            outboxes: Vec::new(),
            queued: 0,
            neighbours: Neighbours::default(),
            small_paths: SmallPaths::default(),
        }
    }

    /// Whether the user has events to take.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether the user does not take events, while peers cause more and more.
    fn is_backlogged(&self) -> bool {
        self.events.len() >= 4 * self.table.limit
    }

    /// The next packet of the peer arrived on a queue pair of this connection, which replaces an RTU.
    pub fn communication_established(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id)
            && connection.state == State::RepSent
        {
            connection.message = None;
            connection.deadline = None;
            self.table.set_state(id, State::Established);
            self.events.push_back((id, Event::Established));
            // The peer has proved that it receives. It reuses that queue pair, so the old connection of it is over.
            if let Some(old) = self.table.supersede(id) {
                self.table.arm(old, Instant::ZERO);
            }
        }
    }

    /// The queue pair of this connection went to error: ends the connection.
    pub fn qp_failed(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        if matches!(connection.state, State::Established | State::RepSent) {
            self.events.push_back((id, Event::Disconnected));
            self.start_disconnect(id);
        }
    }

    /// The user destroyed the queue pair of this connection, and gets no more events of it.
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

    /// The time before which no timer expires.
    pub fn deadline(&self) -> Option<Instant> {
        if self.neighbours.has_released() { Some(Instant::ZERO) } else { self.table.timers.first() }
    }

    fn next_transaction(&mut self) -> u64 {
        self.transaction = self.transaction.wrapping_add(1);
        self.transaction
    }

    /// Schedules DREQs from the next run of the timers on: one only, if the peer has never proved that it receives.
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

    /// Queues a message about a connection. If there is no room, the connection's timer repeats it.
    fn send(&mut self, address: AddressVector, transaction: u64, message: Message) {
        let outbox = self.outbox(address.local);
        if outbox.len() < OUTBOX {
            outbox.push_back(Outgoing { address, transaction, message });
            self.queued += 1;
        }
    }

    /// The queue of messages from a local address.
    fn outbox(&mut self, local: IpAddr) -> &mut VecDeque<Outgoing> {
        let at = self.outboxes.iter().position(|(ip, _)| *ip == local).unwrap_or_else(|| {
            self.outboxes.push((local, VecDeque::new()));
            self.outboxes.len() - 1
        });
        &mut self.outboxes[at].1
    }

    /// Queues the answer to a message without a connection. If there is no room, the peer repeats its message.
    fn answer(&mut self, address: AddressVector, transaction: u64, message: Message) {
        if self.outbox(address.local).len() < OUTBOX / 2 {
            self.send(address, transaction, message);
        }
    }

    /// Queues a brief message about a connection.
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

    /// The next host that the control plane is to resolve, with the place of its port. It answers by
    /// [`Manager::learn_neighbour`] or [`Manager::lose_neighbour`].
    pub fn next_wanted(&mut self) -> Option<(usize, IpAddr)> {
        self.neighbours.next_wanted()
    }

    /// Limits the path to `ip` to packets of `mtu` bytes (layer 3), until `until`. This holds for connections made from
    /// now on.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.small_paths.limit(ip, mtu, until);
    }

    /// A queue pair to `ip` has given up on a packet of more than [`LEAST_OFFER`] bytes. Either the peer is down, or the
    /// path passes only smaller packets: for a time connections to it are offered the smaller ones. Reported once in
    /// that time.
    pub fn large_packets_are_lost(&mut self, ip: IpAddr, path_mtu: PathMtu, now: Instant) {
        if !self.small_paths.suspect(ip, LEAST_OFFER, now, now + SMALL_OFFER) {
            return;
        }
        let (lost, next, minutes) =
            (path_mtu.bytes(), LEAST_OFFER.bytes(), SMALL_OFFER.as_secs() / 60);
        let advice = format!(
            "a queue pair gave up because the host acknowledged no packet of {lost} bytes: the host was down, or a switch or \
             router on the path has a smaller MTU (`doctor` probes the path); for {minutes} minutes this node offers the host \
             packets of {next} bytes"
        );
        let (who, what, reason) = (Some(ip), "rdma_packet", "large_packets_lost");
        let asked = format!("path MTU {lost}");
        self.refusals.push(Refusal { who, what, asked, reason, advice: advice.into() });
    }

    /// The path MTU for a connection to `ip`, at most `most`.
    pub fn path_mtu_to(&self, ip: IpAddr, most: PathMtu, now: Instant) -> PathMtu {
        self.small_paths.passes(ip, most, now)
    }

    /// Whether any host is to be resolved.
    #[inline]
    pub fn wants_neighbours(&self) -> bool {
        self.neighbours.wants()
    }

    /// Adds a permanent entry for a host at the port at a place: its neighbour table is not asked.
    pub fn pin_neighbour(&mut self, place: usize, host: IpAddr, mac: [u8; 6]) {
        self.neighbours.pin((place, host), NextHop { mac, routed: false });
    }

    /// Whether a host is known to be behind a router.
    pub fn is_routed(&self, place: usize, host: IpAddr) -> bool {
        self.neighbours.get((place, host)).is_some_and(|next_hop| next_hop.routed)
    }

    /// Requests the control plane to resolve a host at the port at a place.
    pub fn ask_for(&mut self, place: usize, host: IpAddr, now: Instant) {
        self.neighbours.request((place, host), now);
    }

    /// Whether there are messages to send.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.queued > 0
    }

    /// Number of connections: being made, established and ending.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Whether [`Cm::refusals`] has entries.
    pub fn has_refused(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Refused connection requests, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }
}

impl<'a, T: Transport + ?Sized> Manager<'a, T> {
    /// A manager over `over`.
    pub fn of(over: &'a mut T) -> Self {
        Manager { over }
    }

    fn cm(&mut self) -> &mut Cm {
        self.over.cm_mut()
    }

    fn cm_ref(&self) -> &Cm {
        self.over.cm()
    }

    /// The next message for a port. Messages from an address that no port has any more are dropped.
    fn next_message(&mut self, place: usize) -> Option<Outgoing> {
        let mut at = 0;
        loop {
            let (local, outbox) = self.cm_ref().outboxes.get(at)?;
            let (local, empty) = (*local, outbox.is_empty());
            match self.over.port_of(local) {
                Some(port) if port == place && !empty => {
                    let outgoing = self.cm().outboxes.get_mut(at)?.1.pop_front()?;
                    self.cm().queued -= 1;
                    return Some(outgoing);
                }
                Some(_) => at += 1,
                None => {
                    let (_, dropped) = self.cm().outboxes.swap_remove(at);
                    self.cm().queued -= dropped.len();
                }
            }
        }
    }

    /// The next MAD for the port at a place.
    pub fn next_datagram(&mut self, place: usize) -> Option<Datagram> {
        let outgoing = self.next_message(place)?;
        let mut data = [0; mad::DATA_LEN];
        let attribute = outgoing.message.emit(&mut data);
        let mut bytes = [0; mad::LEN];
        Mad { transaction: outgoing.transaction, attribute }.emit(&data, &mut bytes);
        Some(Datagram { address: outgoing.address, bytes })
    }
}
