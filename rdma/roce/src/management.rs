//! The connection manager of this provider: its MADs are packets of queue pair 1.

use super::Roce;
use super::qp::Qp;
use super::transmit::TxBuffer;
use super::wire::bth::{Bth, DEFAULT_PKEY};
use super::wire::extended::Deth;
use super::wire::frame::{Frame, Gid, Network, Template};
use super::wire::mad;
use super::wire::opcode::Opcode;
use ::cm::{Arrival, Cm, Counted, Manager, Transport};
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusals;
use verbs::{ConnectionId, PathMtu, QpId, QpState, QpType, VerbsError};

/// Most queue pairs whose peer's MAC address waits for the neighbour table.
const MAX_ADDRESS_CHECKS: usize = 64;

/// A packet for a queue pair from another MAC address than its peer's. The neighbour table is to confirm the address of
/// the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressCheck {
    /// Place of the queue pair.
    slot: usize,
    port: usize,
    peer: IpAddr,
    /// MAC address of the packet.
    mac: [u8; 6],
    /// When it arrived.
    at: Instant,
}

impl Transport for Roce {
    fn cm(&self) -> &Cm {
        &self.cm
    }

    fn cm_mut(&mut self) -> &mut Cm {
        &mut self.cm
    }

    fn port_of(&self, address: IpAddr) -> Option<usize> {
        Roce::port_of(self, address)
    }

    fn has_address(&self, place: usize, address: IpAddr) -> bool {
        self.ports.get(place).is_some_and(|port| port.gids.contains(&Gid::from(address)))
    }

    fn path_mtu(&self, place: usize, remote: IpAddr) -> PathMtu {
        self.ports.get(place).map_or(PathMtu::Mtu256, |port| port.path_mtu(remote))
    }

    fn numbers(&self, qp: QpId) -> Option<(u32, u32)> {
        let identity = self.qps.get(qp.0)?.identity;
        Some((identity.number, identity.initial_psn.get()))
    }

    fn connectable(&self, qp: QpId) -> Result<(u32, u32), VerbsError> {
        let found = self.qps.get(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let fits = found.identity.kind == QpType::Rc
            && found.state == QpState::Init
            && found.connection.is_none();
        let numbers = (found.identity.number, found.identity.initial_psn.get());
        fits.then_some(numbers).ok_or(VerbsError::WrongState)
    }

    fn readdress(&mut self, qp: QpId, mac: [u8; 6]) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.readdress(mac);
        }
    }

    fn set_connection(&mut self, qp: QpId, connection: Option<ConnectionId>) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.connection = connection;
        }
    }

    fn count(&mut self, what: Counted) {
        *match what {
            Counted::Malformed => &mut self.counters.dropped.malformed,
            Counted::WrongPeer => &mut self.counters.dropped.wrong_peer,
            Counted::NoWayBack => &mut self.counters.dropped.no_way_back,
            Counted::RefusedOfHost => &mut self.counters.refused_of_host,
            Counted::GaveWay => &mut self.counters.gave_way,
        } += 1;
    }
}

impl Roce {
    /// Takes an answer of a port's neighbour table: the MAC address of the next hop to a host, and whether that is a
    /// router. `connect` and messages of the host wait for it. Nothing is learned from packets of peers.
    pub fn learn_neighbour(&mut self, port: usize, host: IpAddr, mac: [u8; 6], routed: bool) {
        Manager::of(self).learn_neighbour(port, host, mac, routed);
        for _ in 0..self.address_checks.len() {
            let Some(check) = self.address_checks.pop_front() else { break };
            if (check.port, check.peer) != (port, host) {
                self.address_checks.push_back(check);
                continue;
            }
            let is_peer = |qp: &&mut Qp| qp.port == port && qp.remote() == Some(host);
            if let Some(qp) = self.qps.at_mut(check.slot).filter(is_peer) {
                qp.routed = routed;
                qp.readdress(mac);
                if !routed && check.mac != mac {
                    let macs = [check.mac, mac];
                    self.cm.note_foreign("rdma_packet", (port, host), macs, check.at);
                }
            }
        }
    }

    /// Adds a host at a port, like a permanent entry of a neighbour table.
    pub fn pin_neighbour(&mut self, port: usize, host: IpAddr, mac: [u8; 6]) {
        self.cm.pin_neighbour(port, host, mac);
    }

    /// The neighbour table of a port failed to resolve a host.
    pub fn lose_neighbour(&mut self, port: usize, host: IpAddr, now: Instant) {
        self.address_checks.retain(|check| (check.port, check.peer) != (port, host));
        Manager::of(self).lose_neighbour(port, host, now);
    }

    /// The next host that a neighbour table is to resolve, with its port. Messages of the host wait for the answer.
    pub fn next_stranger(&mut self) -> Option<(usize, IpAddr)> {
        self.cm.next_wanted()
    }

    /// Handles a packet for the queue pair in `slot` with its peer's IP address and another MAC address, `mac`. The peer
    /// may have moved, or be behind several routers: requests its address from the neighbour table.
    #[cold]
    pub(super) fn check_address(&mut self, slot: usize, port: usize, mac: [u8; 6], now: Instant) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(peer) = qp.remote() else { return };
        if let Some(own) = qp.mac_of_gid() {
            // The neighbour table has no say.
            return self.cm.note_foreign("rdma_packet", (port, peer), [mac, own], now);
        }
        let is_it = |one: &AddressCheck| (one.slot, one.port, one.peer) == (slot, port, peer);
        if !self.address_checks.iter().any(is_it) {
            if self.address_checks.len() == MAX_ADDRESS_CHECKS {
                self.address_checks.pop_front();
            }
            self.address_checks.push_back(AddressCheck { slot, port, peer, mac, at: now });
        }
        self.cm.ask_for(port, peer, now);
    }

    /// Limits the path to `ip` to packets of `mtu` bytes (layer 3), until `until`.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.cm.limit_path(ip, mtu, until);
    }

    /// Whether the connection manager has messages to send.
    #[inline]
    pub(super) fn has_mads(&self) -> bool {
        self.cm.has_messages()
    }

    /// Number of connections: being made, established and ending.
    pub fn connections(&self) -> usize {
        self.cm.connections()
    }

    /// Refused connection requests, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        self.cm.refusals()
    }

    /// Disconnects all connections in order: each peer gets a DREQ (or a REJ while its connection is being made),
    /// retransmitted as usual until it answers.
    pub fn disconnect_all(&mut self, now: Instant) {
        Manager::of(self).disconnect_all(now);
    }

    /// Whether all peers have answered, or need not answer.
    pub fn is_disconnected(&self) -> bool {
        self.cm.is_disconnected()
    }

    /// Handles a MAD that arrived on queue pair 1 of the port at `place`.
    pub(crate) fn handle_mad(&mut self, place: usize, frame: &Frame<'_>, mad: &[u8], now: Instant) {
        let source = frame.source().address();
        let arrival = Arrival {
            place,
            source,
            destination: frame.destination().address(),
            is_mapped: frame.network == Network::Ipv6 && source.is_ipv4(),
            source_mac: Some(frame.source_mac()),
            gid_type: frame.gid_type(),
            traffic_class: frame.traffic_class(),
        };
        Manager::of(self).handle_mad(&arrival, mad, now);
    }

    /// Puts the connection manager's next message for a port into `tx`; false if there is none.
    #[inline(never)]
    pub(super) fn poll_mad(&mut self, port: usize, tx: &mut TxBuffer) -> bool {
        let Some(mac) = self.ports.get(port).map(|port| port.config.mac) else { return false };
        let Some(datagram) = Manager::of(self).next_datagram(port) else { return false };
        let mut deth = [0; Deth::LEN];
        Deth { qkey: mad::GSI_QKEY, source_qp: mad::GSI_QPN }.emit(&mut deth);
        let bth = Bth {
            opcode: Opcode::UdSendOnly,
            solicited: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: mad::GSI_QPN,
            ack_request: false,
            psn: self.mad_psn,
        };
        self.mad_psn = (self.mad_psn + 1) & 0xff_ffff;
        let template = Template::new(mac, &datagram.address);
        tx.begin(&template);
        tx.extend(deth);
        tx.copy(&datagram.bytes);
        self.emitter.emit(tx, &template, bth);
        true
    }

    /// Runs the expired timers of connections.
    pub(crate) fn run_connection_timers(&mut self, now: Instant) {
        Manager::of(self).run_timers(now);
    }
}

::cm::connection_manager!(Roce);
