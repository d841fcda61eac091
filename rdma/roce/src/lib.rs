//! RoCEv2 (and RoCEv1) in software, over any Ethernet port: the first verbs provider (InfiniBand Architecture vol. 1,
//! ch. 9 to 12, annexes A16, A17; stock peer: Linux rdma_rxe).
//!
//! ```text
//!    frame ──► handle_frame ──► receive (UDP, BTH, ICRC) ──► responder ──► memory::check ──► region
//!                                                       └──► requester (ACK, NAK, READ response)
//!    frame ◄── poll_transmit ◄── requester, responder, cm (QP1)
//!    protocols ──► verbs::Provider ──► post, register ... ◄── completions
//! ```
//!
//! Invariants:
//!
//! * A packet counts for a queue pair only from its peer's address, port and station.
//! * A peer's address and key reach memory only through `softverbs::memory`'s check.
//! * Nothing is allocated, copied twice or locked per packet.
//!
//! Tests: `src/tests`, `tests/conformance`, `tests/sim`, `tests/fuzz`, the suites `storage`, `perf_tools`,
//! `perf_lossy`, `roce_hostile`.
//!
//! [`Roce`] is a state machine. Its loop passes received frames (`handle_frame`), takes packets to transmit
//! (`poll_transmit`), runs its timers (`poll_timeout`, `handle_timeout`), and uses it through the traits of [`verbs`].
//! The loop resolves link-layer addresses: it takes the requests (`next_stranger`) and passes the answers
//! (`learn_neighbour`). [`Roce`] does not fragment, and offers neither UC, RD, XRC nor shared receive queues.
//!
//! The work per packet does not depend on the number of queue pairs: a queue pair with data to send is on its port's
//! list, timers are in a heap (`hal::Timers`), connections are found in maps by their handles and by host. Only
//! rare operations look at all queue pairs: a link that goes down, and [`verbs::Provider::under_way`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

mod config;
mod counters;
mod datagram;
mod management;
mod port;
mod provider;
mod psn;
mod qp;
mod receive;
mod receive_queue;
mod requester;
mod responder;
mod transmit;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use config::{Limits, PortConfig};
pub use counters::{Counters, Drops, Naks, Packets};
pub use memory::Refusal;
pub use receive::Verdict;
pub use transmit::TxBuffer;

use ::cm::Cm;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use completion::CompletionQueues;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Timers, TransmitProgress};
use handle_table::HandleTable;
use management::AddressCheck;
use memory::Memory;
use port::Port;
use qp::{Ctx, Qp};
use rand_core::Rng;
use requester::Outcome;
use softverbs::{completion, handle_table, memory, pool, sges};
use transmit::Emitter;
use verbs::{AsyncEvent, QpState};
use wire::icrc::Icrc;
use wire::opcode::Opcode;

/// Time before a timer's entry is due in which a halt needs it to be right.
const NEAR: Duration = Duration::from_millis(1);
/// Period in nanoseconds whose first halts set all timers right: half the time in which requests share an ACK.
const HALTS_PERIOD: u64 = 4_000_000;
/// Number of these halts: a heartbeat's, and that after its ACK. So an idle loop is not woken by outdated timers.
const FIRST_HALTS: u8 = 2;
/// Most packets that a queue pair sends in one turn.
const MAX_BURST: u8 = 8;

/// The provider, over one or more ports. A port is named by its index, from 0. Queue pairs and regions belong to no
/// port: a queue pair sends through the port that has its local address.
#[derive(Debug)]
pub struct Roce {
    ports: Vec<Port>,
    limits: Limits,
    icrc: Icrc,
    /// Port and queue pair of the last received packet, if its message continues.
    arriving: Option<(usize, usize)>,
    emitter: Emitter,
    memory: Memory,
    cqs: CompletionQueues,
    qps: HandleTable<Qp>,
    /// Mask of queue pair numbers, drawn at each boot: a number is the queue pair's place in the table, with random
    /// bits above it, XORed with this.
    qpn_mask: u32,
    /// The bits of the place in a queue pair number.
    qpn_slots: u32,
    cm: Cm,
    /// Queue pairs that received packets from another MAC address than the peer's.
    address_checks: VecDeque<AddressCheck>,
    /// PSN of the next MAD.
    mad_psn: u32,
    events: VecDeque<AsyncEvent>,
    /// Timers of queue pairs, by their places.
    timers: Timers,
    /// Begin of the current period of halts, and their number.
    halts_since: Instant,
    halts: u8,
    counters: Counters,
}

impl Roce {
    /// A provider on `port`, which gets index 0. Numbers that peers see begin at random.
    pub fn new(port: PortConfig, limits: Limits, rng: &mut dyn Rng) -> Self {
        let icrc = Icrc::new();
        let limits = Limits {
            qps: limits.qps.clamp(1, handle_table::MAX),
            // The specification allows half of all PSNs; a quarter is plenty.
            unacknowledged: limits.unacknowledged.clamp(1, 1 << 22),
            ..limits
        };
        let qpn_slots = limits.qps.next_power_of_two() as u32 - 1;
        Roce {
            arriving: None,
            emitter: Emitter::new(icrc),
            icrc,
            memory: Memory::new(limits.pds, limits.regions, limits.keys),
            cqs: CompletionQueues::new(limits.cqs),
            qps: HandleTable::new(limits.qps),
            qpn_mask: rng.next_u32() & 0xff_ffff,
            qpn_slots,
            cm: Cm::new(&limits.cm(), rng),
            address_checks: VecDeque::new(),
            mad_psn: rng.next_u32() & 0xff_ffff,
            // Grows with the queue pairs, of at most two events each, and the ports, of one of each kind.
            events: VecDeque::new(),
            timers: Timers::default(),
            halts_since: Instant::ZERO,
            halts: 0,
            counters: Counters::default(),
            ports: alloc::vec![Port::new(port)],
            limits,
        }
    }

    /// Adds a port; returns its index.
    pub fn add_port(&mut self, port: PortConfig) -> usize {
        let mut port = Port::new(port);
        port.make_room(self.qps.places());
        self.ports.push(port);
        self.ports.len() - 1
    }

    /// The port with this index.
    pub fn port(&self, port: usize) -> Option<&PortConfig> {
        self.ports.get(port).map(|port| &port.config)
    }

    /// Changes a port's addresses (as DHCP does). Connections of removed addresses time out.
    pub fn set_addresses(&mut self, port: usize, addresses: Vec<IpAddr>) {
        if let Some(port) = self.ports.get_mut(port) {
            port.set_addresses(addresses);
        }
    }

    /// Sets the largest packets of a port's network in bytes (layer 3), over IPv4 and over IPv6, as DHCP and routers
    /// announce them; the device's limit stays. It holds for queue pairs that are connected from now on: a connected
    /// one has agreed on its path MTU with its peer.
    pub fn set_mtus(&mut self, port: usize, mtus: [usize; 2]) {
        if let Some(port) = self.ports.get_mut(port) {
            port.set_mtus(mtus);
        }
    }

    /// Sets the state of a port's link, which is initially up. An event reports a change; of several unread ones only
    /// the last stays.
    pub fn set_link(&mut self, port: usize, up: bool) {
        let Some(found) = self.ports.get_mut(port).filter(|found| found.link != up) else { return };
        found.link = up;
        let of_port = |event: &AsyncEvent| matches!(event, AsyncEvent::PortActive(p) | AsyncEvent::PortError(p) if *p == port);
        self.events.retain(|event| !of_port(event));
        let event = if up { AsyncEvent::PortActive(port) } else { AsyncEvent::PortError(port) };
        self.events.push_back(event);
    }

    /// Changes a port's MAC address. Connected queue pairs keep the former one, so their peers no longer reach them.
    pub fn set_mac(&mut self, port: usize, mac: [u8; 6]) {
        if let Some(found) = self.ports.get_mut(port) {
            found.config.mac = mac;
        }
    }

    /// The port with this address.
    pub fn port_of(&self, address: IpAddr) -> Option<usize> {
        self.ports.iter().position(|port| port.config.addresses.contains(&address))
    }

    /// From now on memory is reused only when the ports have finished sending from it ([`Roce::note_progress`]): for
    /// ports that read payload in place.
    pub fn wait_for_ports(&mut self) {
        self.memory.wait_for_ports(self.ports.len());
    }

    /// Number of ports that memory waits for.
    pub fn waits_for(&self) -> usize {
        self.memory.ports()
    }

    /// Declares that bytes written by peers may be forwarded to other peers.
    pub fn passes_on(&mut self) {
        self.memory.passes_on();
    }

    /// Whether any memory waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.memory.pool.has_retired()
    }

    /// Frees the memory that a port has finished sending. Call it for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.memory.pool.note_progress(port, progress);
    }

    /// Statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of queue pairs.
    pub fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    /// Puts the next packet to be sent through a port into `tx`; false if there is none. ACKs go first, then messages
    /// of the connection manager, then queue pairs in turn, a few packets each.
    pub fn poll_transmit(&mut self, port: usize, now: Instant, tx: &mut TxBuffer) -> bool {
        let Some(found) = self.ports.get_mut(port) else { return false };
        if found.has_replies() {
            if self.poll_reply(port, tx) {
                return true;
            }
        } else if tx.continues.is_some()
            && (1..MAX_BURST).contains(&found.burst)
            && let Some(&place) = found.sends.front()
            && let Some(qp) = self.qps.at_mut(place as usize)
            && let (QpState::Rts, Some(peer)) = (qp.state, &qp.peer)
            && let Some(opcode) =
                qp.requester.poll_middle(peer, self.limits.unacknowledged, now, &self.emitter, tx)
        {
            // Answers to READs follow when the burst is over.
            found.burst += 1;
            return self.sent(opcode);
        }
        if self.has_mads() && self.poll_mad(port, tx) {
            self.counters.sent.connection_manager += 1;
            return true;
        }
        let mut polled = false;
        while let Some(found) = self.ports.get(port)
            && let Some(&place) = found.sends.front()
        {
            let place = place as usize;
            polled = true;
            let sent = self.poll_qp(place, now, tx);
            let window = self.limits.unacknowledged;
            let Some(found) = self.ports.get_mut(port) else { break };
            let Some(qp) = self.qps.at_mut(place) else {
                found.sends.pop_front();
                continue;
            };
            let Some(opcode) = sent else {
                found.burst = 0;
                found.sends.pop_front();
                qp.listed_send = false;
                self.settle(place);
                continue;
            };
            // Only the timer needs attention: the rest of `settle` is done here.
            let deadline = qp.deadline();
            let more = qp.has_send(window);
            if more && found.burst < MAX_BURST {
                // Its turn continues.
                found.burst += 1;
            } else {
                found.burst = 0;
                found.sends.pop_front();
                if more {
                    found.sends.push_back(place as u32);
                }
                qp.listed_send = more;
            }
            if let Some(at) = deadline {
                self.timers.put(place, at);
            }
            return self.sent(opcode);
        }
        // A queue pair may have failed just now.
        polled && self.poll_reply(port, tx)
    }

    /// Puts the next ACK or NAK into `tx`; false if there is none.
    fn poll_reply(&mut self, port: usize, tx: &mut TxBuffer) -> bool {
        while let Some(place) = self.ports.get_mut(port).and_then(|p| p.replies.pop_front()) {
            let Some(qp) = self.qps.at_mut(place as usize) else { continue };
            qp.listed_reply = false;
            let sent = match (&qp.peer, qp.has_reply()) {
                (Some(peer), true) => qp.responder.poll_reply(peer, &self.emitter, tx),
                _ => None,
            };
            if let Some(opcode) = sent {
                return self.sent(opcode);
            }
        }
        match self.ports.get_mut(port).and_then(|p| p.final_naks.pop_front()) {
            Some((peer, nak)) => {
                let opcode = nak.emit(&peer, &self.emitter, tx);
                self.sent(opcode)
            }
            None => false,
        }
    }

    fn sent(&mut self, opcode: Opcode) -> bool {
        self.counters.sent.count(opcode.class());
        true
    }

    /// One packet of a queue pair: answers before requests.
    fn poll_qp(&mut self, place: usize, now: Instant, tx: &mut TxBuffer) -> Option<Opcode> {
        let qp = self.qps.at_mut(place)?;
        if qp.responder.has_answer()
            && let Some(peer) = &qp.peer
        {
            let mut ctx = Ctx {
                memory: &mut self.memory,
                cqs: &mut self.cqs,
                counters: &mut self.counters,
                now,
            };
            let emitter = &self.emitter;
            match qp.responder.poll_answer(peer, &qp.identity, emitter, tx, &mut ctx) {
                Ok(Some(opcode)) => return Some(opcode),
                Ok(None) => (),
                Err(()) => qp.fail(None, &mut ctx),
            }
        }
        if qp.state != QpState::Rts {
            return None;
        }
        match &qp.peer {
            Some(peer) => {
                let window = self.limits.unacknowledged;
                qp.requester.poll_transmit(peer, window, now, &self.emitter, tx)
            }
            None => {
                let mac = self.ports.get(qp.port)?.config.mac;
                let mut ctx = Ctx {
                    memory: &mut self.memory,
                    cqs: &mut self.cqs,
                    counters: &mut self.counters,
                    now,
                };
                qp.datagrams.poll_transmit(mac, &qp.identity, &self.emitter, tx, &mut ctx)
            }
        }
    }

    /// After a change of a queue pair: puts it on its port's lists, sets its timer, and reports its failure.
    #[inline]
    fn settle(&mut self, place: usize) {
        let Some(qp) = self.qps.at_mut(place) else { return };
        let Some(port) = self.ports.get_mut(qp.port) else { return };
        if !qp.listed_reply && qp.has_reply() {
            qp.listed_reply = true;
            port.replies.push_back(place as u32);
        }
        if !qp.listed_send && qp.has_send(self.limits.unacknowledged) {
            qp.listed_send = true;
            port.sends.push_back(place as u32);
        }
        let has_failed = qp.state == QpState::Error && !qp.error_reported;
        if let Some(at) = qp.deadline() {
            self.timers.put(place, at);
        }
        if has_failed {
            self.report_failure(place);
        }
    }

    /// Reports that a queue pair went to error by itself.
    #[cold]
    fn report_failure(&mut self, place: usize) {
        let Some(qp) = self.qps.at_mut(place) else { return };
        qp.error_reported = true;
        self.events.push_back(AsyncEvent::QpError(qp.identity.id));
        if let Some(connection) = qp.connection {
            self.cm.qp_failed(connection);
        }
        if let (Some(at), Some(host), Some(peer)) = (qp.large_packet_lost, qp.remote(), &qp.peer) {
            self.cm.large_packets_are_lost(host, peer.path_mtu, at);
        }
    }

    /// Deadline by which `handle_timeout` is to be called, if any (perhaps a little early).
    fn next_timeout(&self) -> Option<Instant> {
        Instant::first([self.timers.first(), self.cm.deadline()])
    }

    /// Before a halt at `now`: removes outdated timer entries that would end it. Under load, when halts follow each
    /// other closely, only those that are due within a millisecond: an entry then stays until its time is near, instead
    /// of being removed after each ACK and set again with the next packet.
    #[inline]
    pub fn set_timers_right_before(&mut self, now: Instant) {
        if now.nanos_since(self.halts_since) >= HALTS_PERIOD {
            (self.halts_since, self.halts) = (now, 0);
        }
        self.halts = self.halts.saturating_add(1);
        if self.halts <= FIRST_HALTS || self.timers.first().is_some_and(|at| at <= now + NEAR) {
            self.set_timers_right();
        }
    }

    /// Removes outdated timer entries, so that postponed timers do not end a halt.
    pub fn set_timers_right(&mut self) {
        let qps = &self.qps;
        self.timers.first_due(|place| qps.at(place).and_then(Qp::deadline));
    }

    /// Runs the expired timers; returns whether users have anything to do. There may be packets to transmit in any
    /// case.
    pub fn run_due(&mut self, now: Instant) -> bool {
        let awaited = self.cqs.awaited;
        self.run_timers(now);
        self.cqs.awaited != awaited || !self.events.is_empty() || self.cm.has_events()
    }

    /// Whether there may be packets to transmit.
    pub fn wants_transmit(&self) -> bool {
        self.has_mads()
            || self.ports.iter().any(|port| port.has_replies() || !port.sends.is_empty())
    }

    /// Runs the expired timers.
    fn run_timers(&mut self, now: Instant) {
        // A timer that is set anew may be due at once; it runs at the next call.
        for _ in 0..self.timers.len() {
            let Some(place) = self.timers.take_due(now) else { break };
            let Some(qp) = self.qps.at_mut(place) else { continue };
            // Most were postponed.
            if qp.deadline().is_some_and(|at| at <= now) {
                let mut ctx = Ctx {
                    memory: &mut self.memory,
                    cqs: &mut self.cqs,
                    counters: &mut self.counters,
                    now,
                };
                qp.responder.handle_timeout(&mut ctx);
                if let Outcome::Failed(status) = qp.requester.handle_timeout(&mut ctx) {
                    qp.fail(Some(status), &mut ctx);
                }
            }
            self.settle(place);
        }
        self.run_connection_timers(now);
    }
}
