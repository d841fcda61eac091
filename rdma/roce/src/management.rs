//! The connection manager over queue pairs of this provider: its MADs are packets of queue pair 1.

use super::Roce;
use super::qp::Qp;
use super::transmit::TxBuffer;
use super::wire::bth::{Bth, DEFAULT_PKEY};
use super::wire::extended::Deth;
use super::wire::frame::{Frame, Gid, Network, Template};
use super::wire::mad;
use super::wire::opcode::Opcode;
use ::cm::{Arrival, Cm, Counted, Manager, Transport};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::refusal::Refusals;
use rand_core::RngCore;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, PathMtu, QpId, QpState,
    QpType, RejectReason, VerbsError,
};

/// Queue pairs whose peers may have moved, until the neighbour table has said so.
const DOUBTS: usize = 64;

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

    fn path_mtu(&self, place: usize) -> PathMtu {
        self.ports.get(place).map_or(PathMtu::Mtu256, |port| port.path_mtu())
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
    /// Takes the answer of the neighbour table of a port: the MAC address of the next hop to a host, and whether that is a
    /// router. `connect` needs to know, and so does what came from the host. Nothing is learned from what peers send.
    pub fn learn_neighbour(&mut self, port: usize, host: IpAddr, mac: [u8; 6], routed: bool) {
        Manager::of(self).learn_neighbour(port, host, mac, routed);
        for _ in 0..self.doubts.len() {
            let Some(doubt @ (slot, at, whose)) = self.doubts.pop_front() else { break };
            if (at, whose) != (port, host) {
                self.doubts.push_back(doubt);
                continue;
            }
            let is_it = |qp: &&mut Qp| qp.port == port && qp.remote() == Some(host);
            if let Some(qp) = self.qps.at_mut(slot).filter(is_it) {
                qp.routed = routed;
                qp.readdress(mac);
            }
        }
    }

    /// Enters a host at a port that stays where it is, as a permanent entry of a neighbour table.
    pub fn pin_neighbour(&mut self, port: usize, host: IpAddr, mac: [u8; 6]) {
        self.cm.pin_neighbour(port, host, mac);
    }

    /// The neighbour table of a port has no way to a host.
    pub fn lose_neighbour(&mut self, port: usize, host: IpAddr, now: Instant) {
        self.doubts.retain(|&(_, at, whose)| (at, whose) != (port, host));
        Manager::of(self).lose_neighbour(port, host, now);
    }

    /// The next host that a neighbour table is to be asked for, and the port. What it has sent waits for the answer.
    pub fn next_stranger(&mut self) -> Option<(usize, IpAddr)> {
        self.cm.next_wanted()
    }

    /// A packet for the queue pair in `slot` has its peer's IP address and came from another MAC address. The peer may
    /// have moved, or be behind several routers: the neighbour table knows.
    #[cold]
    pub(super) fn doubt(&mut self, slot: usize, port: usize, now: Instant) {
        let Some(host) = self.qps.at_mut(slot).and_then(|qp| qp.remote()) else { return };
        let doubt = (slot, port, host);
        if self.doubts.contains(&doubt) {
            return self.cm.ask_for(port, host, now);
        }
        if self.doubts.len() == DOUBTS {
            self.doubts.pop_front();
        }
        self.doubts.push_back(doubt);
        self.cm.ask_for(port, host, now);
    }

    /// Tells that only packets of `mtu` bytes and less pass to `ip` (layer 3), until then.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.cm.limit_path(ip, mtu, until);
    }

    /// Whether the connection manager has messages to send.
    #[inline]
    pub(super) fn has_mads(&self) -> bool {
        self.cm.has_messages()
    }

    /// Number of connections, made, being made and ending.
    pub fn connections(&self) -> usize {
        self.cm.connections()
    }

    /// Requests of connections that were refused, to be taken out.
    pub fn refusals(&mut self) -> &mut Refusals {
        self.cm.refusals()
    }

    /// Disconnects every connection in order: each peer gets a DREQ (or a REJ where it is not made yet), again
    /// and again as usual until it has answered.
    pub fn disconnect_all(&mut self, now: Instant) {
        Manager::of(self).disconnect_all(now);
    }

    /// Whether every peer has answered that, or does not need to.
    pub fn is_disconnected(&self) -> bool {
        self.cm.is_disconnected()
    }

    /// Takes a MAD that has arrived on queue pair 1, at the port at `place`.
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

    /// Puts the connection manager's next message through a port into `tx`; false if there is none.
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

    /// Runs the timers of connections that have expired.
    pub(crate) fn run_connection_timers(&mut self, now: Instant) {
        Manager::of(self).run_timers(now);
    }
}

impl ConnectionManager for Roce {
    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.cm.listen(port)
    }

    fn unlisten(&mut self, port: u16) {
        self.cm.unlisten(port);
    }

    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> Result<ConnectionId, VerbsError> {
        Manager::of(self).connect(qp, from, to, parameters, private_data, now, rng)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        Manager::of(self).accept(connection, qp, parameters, private_data, now)
    }

    fn reject(
        &mut self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        Manager::of(self).reject(connection, reason, private_data)
    }

    fn disconnect(&mut self, connection: ConnectionId, now: Instant) -> Result<(), VerbsError> {
        Manager::of(self).disconnect(connection, now)
    }

    fn peer_id(&self, connection: ConnectionId) -> Option<u32> {
        self.cm.peer_id(connection)
    }

    #[inline]
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        // Hardly ever is there any.
        if self.cm.has_events() { Manager::of(self).next_event() } else { None }
    }
}
