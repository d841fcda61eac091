//! The connection manager (vol. 1, ch. 12; Linux `drivers/infiniband/core/cm.c` and `cma.c`): makes
//! and ends reliable connections by messages on queue pair 1, with the RDMA IP CM service in the
//! TCP port space. Alternate paths, path migration and service id resolution are not offered.
//!
//! Who sent a message says its frame: the port that it came in on, and its source address. A message about a
//! connection counts only if it comes from the peer of that connection. What a peer says of times and
//! retries is capped ([`caps`]), and there is a bounded number of connections, of a host and in all: some
//! give way to new requests ([`table`]).

mod caps;
mod connection;
mod goodbye;
mod receive;
mod table;
mod timers;
mod user;

use super::transmit::TxBuffer;
use super::wire::bth::{Bth, DEFAULT_PKEY};
use super::wire::cm::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej};
use super::wire::extended::Deth;
use super::wire::frame::Template;
use super::wire::mad::{self, Mad};
use super::wire::opcode::Opcode;
use super::{Limits, Roce};
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
use verbs::{AddressVector, ConnectionId, RejectReason};

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
    psn: u32,
    /// Link-layer addresses of peers, the oldest first.
    neighbours: VecDeque<(IpAddr, [u8; 6])>,
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
            psn: rng.next_u32() & 0xff_ffff,
            neighbours: VecDeque::new(),
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

    fn learn_neighbour(&mut self, ip: IpAddr, mac: [u8; 6]) {
        if let Some(known) = self.neighbours.iter_mut().find(|(other, _)| *other == ip) {
            known.1 = mac;
            return;
        }
        if self.neighbours.len() == NEIGHBOURS {
            self.neighbours.pop_front();
        }
        self.neighbours.push_back((ip, mac));
    }
}

impl Roce {
    /// Tells which link-layer address the next hop to `ip` has; `connect` needs to know. Nothing is learned
    /// from what peers send: answers go where the request came from.
    pub fn learn_neighbour(&mut self, ip: IpAddr, mac: [u8; 6]) {
        self.cm.learn_neighbour(ip, mac);
    }

    /// Whether the connection manager has messages to send.
    #[inline]
    pub(super) fn has_mads(&self) -> bool {
        self.cm.waiting > 0
    }

    /// Number of connections, made, being made and ending.
    pub fn connections(&self) -> usize {
        self.cm.table.len()
    }

    /// Requests of connections that were refused, to be taken out.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.cm.refusals
    }

    /// The next message that leaves through a port, and the port's MAC address. Messages whose
    /// address has gone leave through none, and are dropped.
    fn next_message(&mut self, port: usize) -> Option<(Outgoing, [u8; 6])> {
        let mut at = 0;
        loop {
            let (local, outbox) = self.cm.outboxes.get(at)?;
            let (local, empty) = (*local, outbox.is_empty());
            match self.port_of(local) {
                Some(place) if place == port && !empty => {
                    let outgoing = self.cm.outboxes.get_mut(at)?.1.pop_front()?;
                    self.cm.waiting -= 1;
                    return Some((outgoing, self.ports.get(port)?.config.mac));
                }
                Some(_) => at += 1,
                None => {
                    let (_, dropped) = self.cm.outboxes.swap_remove(at);
                    self.cm.waiting -= dropped.len();
                }
            }
        }
    }

    /// Puts the connection manager's next message through a port into `tx`; false if there is none.
    #[inline(never)]
    pub(super) fn poll_mad(&mut self, port: usize, tx: &mut TxBuffer) -> bool {
        let Some((outgoing, mac)) = self.next_message(port) else { return false };
        let mut data = [0; mad::DATA_LEN];
        let attribute = outgoing.message.emit(&mut data);
        let mut bytes = [0; mad::LEN];
        Mad { transaction: outgoing.transaction, attribute }.emit(&data, &mut bytes);
        let mut deth = [0; Deth::LEN];
        Deth { qkey: mad::GSI_QKEY, source_qp: mad::GSI_QPN }.emit(&mut deth);
        let bth = Bth {
            opcode: Opcode::UdSendOnly,
            solicited: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: mad::GSI_QPN,
            ack_request: false,
            psn: self.cm.psn,
        };
        self.cm.psn = (self.cm.psn + 1) & 0xff_ffff;
        let template = Template::new(mac, &outgoing.address);
        tx.begin(&template);
        tx.extend(deth);
        tx.copy(&bytes);
        self.emitter.emit(tx, &template, bth);
        true
    }
}
