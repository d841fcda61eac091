//! Handling of received messages.

use super::caps::{self, MAX_MRA};
use super::connection::{Connection, State, offered, source_port, time};
use super::neighbours::Verdict;
use super::table::{Full, Host};
use super::wire::Gid;
use super::wire::ip_cm::{self, IpCm};
use super::wire::mad::Mad;
use super::wire::message::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej, Rep, Req};
use super::{
    ACK_TIMEOUT, Counted, DEFAULT_PKEY, Event, LEAST_OFFER, Manager, SMALL_OFFER, Transport,
};
use alloc::borrow::Cow;
use alloc::format;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::refusal::Refusal;
use verbs::{
    AddressVector, ConnectionId, GidType, PathMtu, PrivateData, ReadyToReceive, ReadyToSend,
    RejectReason,
};

/// The REQ's partition or transport service is not supported.
const INVALID_TRANSPORT: RejectReason = RejectReason(9);
const INVALID_MTU: RejectReason = RejectReason::INVALID_MTU;
const UNSUPPORTED: RejectReason = RejectReason(5);

/// The packet headers of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Place of the port that received it.
    pub place: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Whether the source is an IPv4 address within an IPv6 header.
    pub is_mapped: bool,
    /// MAC address of the last hop, if the device reports it.
    pub source_mac: Option<[u8; 6]>,
    /// Encapsulation.
    pub gid_type: GidType,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
}

impl Arrival {
    /// The host of the source address.
    pub fn host(&self) -> Host {
        (self.place, self.source)
    }
}

/// The sender of a message, and the path back to it.
struct Sender {
    /// Place of the port that received it.
    place: usize,
    back: AddressVector,
}

impl Sender {
    fn host(&self) -> Host {
        (self.place, self.back.remote)
    }

    /// Whether it is the peer of a connection.
    fn is_peer_of(&self, connection: &Connection) -> bool {
        let (own, back) = (&connection.address, &self.back);
        connection.host() == self.host() && (own.local, own.gid_type) == (back.local, back.gid_type)
    }
}

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// Handles a MAD that arrived on queue pair 1.
    pub fn handle_mad(&mut self, arrival: &Arrival, mad: &[u8], now: Instant) {
        let parsed = Mad::parse(mad).and_then(|(header, data)| {
            Message::parse(header.attribute, &data).map(|message| (header.transaction, message))
        });
        let Ok((transaction, message)) = parsed else {
            return self.over.count(Counted::Malformed);
        };
        let &Arrival { place, source, .. } = arrival;
        let own = self.over.has_address(place, source);
        // An IPv4 address in an IPv6 header is invalid, and so is our own address as a source.
        if !net::is_host(source) || own || arrival.is_mapped {
            return self.over.count(Counted::WrongPeer);
        }
        let next_hop = match self.check_sender(arrival, &message, now) {
            Verdict::Genuine(next_hop) => next_hop,
            Verdict::Unknown => {
                let dropped = self.cm().neighbours.hold(arrival, mad, now);
                (0..dropped).for_each(|_| self.over.count(Counted::NoWayBack));
                return;
            }
            Verdict::OtherStation(next_hop) => return self.note_foreign(arrival, next_hop, now),
        };
        // Answers go to the MAC address that the table returned.
        let back = AddressVector {
            local: arrival.destination,
            remote: source,
            gid_type: arrival.gid_type,
            remote_mac: next_hop.mac,
            source_port: source_port(1, 1),
            traffic_class: arrival.traffic_class,
            hop_limit: 64,
        };
        let from = Sender { place, back };
        match message {
            Message::Req(req) => self.handle_req(&req, transaction, &from, now),
            Message::Rep(rep) => self.handle_rep(&rep, transaction, &from),
            Message::Rej(rej) => self.handle_rej(&rej, &from, now),
            Message::Brief(brief) => self.handle_brief(&brief, transaction, &from, now),
        }
    }

    /// The connection of a message, if the message is from its peer.
    fn connection_of(
        &mut self,
        wire_id: u32,
        remote_id: u32,
        from: &Sender,
    ) -> Option<&mut Connection> {
        let found = self.cm().table.by_wire_id(wire_id)?;
        if !from.is_peer_of(found) {
            self.over.count(Counted::WrongPeer);
            return None;
        }
        let fits = found.remote_id == remote_id || found.remote_id == 0;
        let id = found.id;
        self.cm().table.get_mut(id).filter(|_| fits)
    }

    fn handle_req(&mut self, req: &Req, transaction: u64, from: &Sender, now: Instant) {
        let host = from.host();
        if let Some(same) = self.cm().table.requested(host, req.local_id, req.ca_guid) {
            return self.repeat_req(same, transaction, from, req);
        }
        let (ip, port, path_mtu) = match self.examine(req, from, now) {
            Ok(fine) => fine,
            Err(reason) => {
                self.note_refusal(req, from, reason, now);
                return self.refuse_req(req, transaction, from, reason);
            }
        };
        if let Err(full) = self.make_room(host) {
            self.note_full(full, from, port);
            return self.refuse_req(req, transaction, from, RejectReason::NO_RESOURCES);
        }
        let private = req.private_data.get(ip_cm::LEN..).unwrap_or_default();
        let most = self.over.attributes().max_rd_atomic;
        let made = self.cm().table.insert(|id, wire_id| Connection {
            id,
            wire_id,
            active: false,
            state: State::ReqReceived,
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            transaction,
            qp: None,
            address: AddressVector { traffic_class: req.traffic_class, ..from.back },
            place: from.place,
            port,
            from: SocketAddr::new(from.back.remote, ip.source_port),
            parameters: offered(req, most),
            path_mtu,
            sq_psn: req.starting_psn,
            ack_timeout: caps::ack_timeout(req.ack_timeout),
            peer_data: PrivateData::new(private).unwrap_or(PrivateData::empty()),
            reported: false,
            message: None,
            interval: caps::rep_interval(req.local_response_timeout),
            retries_left: caps::rep_retries(req.max_cm_retries),
            prolonged: false,
            superseded: false,
            deadline: None,
            order: None,
        });
        if let Some(id) = made {
            self.cm().events.push_back((id, Event::Request));
        }
    }

    /// Reports a request that this node cannot serve.
    fn note_refusal(&mut self, req: &Req, from: &Sender, reason: RejectReason, now: Instant) {
        let (reason, advice): (_, Cow<'static, str>) = match reason {
            RejectReason::INVALID_SERVICE_ID => {
                ("no_such_port", "no service listens on this port: check the client's port and `rnbd.port`".into())
            }
            RejectReason::INVALID_GID => (
                "wrong_address",
                "the addresses in the client's request differ from those of its frame or of this port: check for NAT between them"
                    .into(),
            ),
            INVALID_MTU => {
                let remote = from.back.remote;
                let most = self.over.path_mtu(from.place, remote);
                let passes = self.cm_ref().small_paths.surely_passes(remote, most, now);
                let asked = PathMtu::from_code(req.path_mtu).map_or(0, PathMtu::bytes);
                let what = if passes < most { "the path to it" } else { "this port or its network" };
                let passes = passes.bytes();
                let advice = format!(
                    "the client requests packets of {asked} bytes, but {what} passes only {passes}: lower the client's MTU"
                );
                ("wrong_mtu", advice.into())
            }
            _ => ("not_rdma_cm", "not a request of the RDMA IP connection manager".into()),
        };
        let asked = match ip_cm::tcp_port(req.service_id) {
            Some(port) => format!("port {port}"),
            None => format!("service {:#x}", req.service_id),
        };
        let who = Some(from.back.remote);
        self.cm().refusals.push(Refusal { who, what: "rdma_connection", asked, reason, advice });
    }

    /// Reports a request for which there is no room.
    fn note_full(&mut self, full: Full, from: &Sender, port: u16) {
        let (reason, advice) = match full {
            Full::Host => {
                self.over.count(Counted::RefusedOfHost);
                let advice = "the client is at its limit: end some of its connections, or raise \
                              limits.connections_per_host";
                ("connections_per_host", advice.into())
            }
            Full::Table => ("connections", "all connections are in use: end unneeded ones".into()),
        };
        let (who, asked) = (Some(from.back.remote), format!("port {port}"));
        self.cm().refusals.push(Refusal { who, what: "rdma_connection", asked, reason, advice });
    }

    /// Makes room for a new connection of a host, by eviction (see [`super::table`]).
    fn make_room(&mut self, host: Host) -> Result<(), Full> {
        if self.cm().is_backlogged() {
            return Err(Full::Table);
        }
        while let Some(id) = self.cm().table.eviction_candidate(host)? {
            self.over.count(Counted::GaveWay);
            self.evict(id);
        }
        Ok(())
    }

    /// Evicts a connection that is being made or ending.
    fn evict(&mut self, id: ConnectionId) {
        match self.cm().table.get(id).map(|connection| connection.state) {
            Some(State::ReqReceived) => {
                self.cm().refuse(id, About::Req, RejectReason::NO_RESOURCES);
                self.drop_half_open(id);
            }
            Some(State::RepSent) => {
                self.cm().refuse(id, About::Rep, RejectReason::NO_RESOURCES);
                self.cm().events.push_back((id, Event::Disconnected));
                let qp = self.cm().table.remove(id).and_then(|gone| gone.qp);
                if let Some(qp) = qp {
                    self.fail_quietly(qp);
                }
            }
            _ => {
                self.cm().table.remove(id);
            }
        }
    }

    /// Handles a repeated REQ of an existing connection.
    fn repeat_req(&mut self, id: ConnectionId, transaction: u64, from: &Sender, req: &Req) {
        let Some(connection) = self.cm().table.get(id) else { return };
        match connection.state {
            State::ReqReceived => {
                let kind = BriefKind::Mra { about: About::Req, service_timeout: MAX_MRA };
                self.cm().send_brief(id, transaction, kind);
            }
            State::RepSent => {
                let address = connection.address;
                if let Some((transaction, message)) = connection.message {
                    self.cm().send(address, transaction, message);
                }
            }
            State::TimeWait | State::DreqSent => {
                self.refuse_req(req, transaction, from, RejectReason::STALE_CONNECTION);
            }
            State::ReqSent | State::Established | State::Refused => (),
        }
    }

    /// Checks whether this node can serve a REQ.
    fn examine(
        &self,
        req: &Req,
        from: &Sender,
        now: Instant,
    ) -> Result<(IpCm, u16, PathMtu), RejectReason> {
        let back = &from.back;
        let port = ip_cm::tcp_port(req.service_id)
            .filter(|port| self.cm_ref().listening.has(*port))
            .ok_or(RejectReason::INVALID_SERVICE_ID)?;
        if req.transport != 0 || req.pkey & 0x7fff != DEFAULT_PKEY & 0x7fff {
            return Err(INVALID_TRANSPORT);
        }
        let to = Gid::from_bytes(req.remote_gid).address();
        if to != back.local || Gid::from_bytes(req.local_gid).address() != back.remote {
            return Err(RejectReason::INVALID_GID);
        }
        let ip = IpCm::parse(&req.private_data).map_err(|_| UNSUPPORTED)?;
        // The user sees the frame's address.
        if ip.source != back.remote || ip.destination != to {
            return Err(RejectReason::INVALID_GID);
        }
        if !self.over.has_address(from.place, to) {
            return Err(RejectReason::INVALID_GID);
        }
        match PathMtu::from_code(req.path_mtu) {
            Some(mtu) if mtu > self.over.path_mtu(from.place, back.remote) => Err(INVALID_MTU),
            // Large packets would be lost in both directions: a refusal is better than a connection that stalls.
            Some(mtu) if mtu > self.cm_ref().small_paths.surely_passes(back.remote, mtu, now) => {
                Err(INVALID_MTU)
            }
            Some(mtu) => Ok((ip, port, mtu)),
            None => Err(INVALID_MTU),
        }
    }

    /// Refuses a REQ without a connection. Like Linux, the REJ has 0 as our communication ID.
    fn refuse_req(&mut self, req: &Req, transaction: u64, from: &Sender, reason: RejectReason) {
        let rej = Rej {
            local_id: 0,
            remote_id: req.local_id,
            about: About::Req,
            reason: reason.0,
            private_data: [0; REJ_PRIVATE_DATA],
        };
        self.cm().answer(from.back, transaction, Message::Rej(rej));
    }

    /// Drops a request that our user has not answered.
    pub(super) fn drop_half_open(&mut self, id: ConnectionId) {
        // The user gets an event only if the request was reported to it.
        if self.cm().table.remove(id).is_some_and(|gone| gone.reported) {
            self.cm().events.push_back((id, Event::Disconnected));
        }
    }

    fn handle_rep(&mut self, rep: &Rep, transaction: u64, from: &Sender) {
        let Some(connection) = self.connection_of(rep.remote_id, rep.local_id, from) else {
            return;
        };
        let id = connection.id;
        match connection.state {
            State::ReqSent if connection.transaction == transaction => (),
            State::Established => {
                return self.cm().send_brief(id, transaction, BriefKind::Rtu);
            }
            _ => return,
        }
        connection.remote_id = rep.local_id;
        connection.remote_guid = rep.ca_guid;
        connection.remote_qpn = rep.qpn;
        connection.sq_psn = rep.starting_psn;
        connection.parameters.rnr_retry_count = rep.rnr_retry_count;
        let depth = connection.parameters.initiator_depth.min(rep.responder_resources);
        connection.parameters.initiator_depth = depth;
        connection.peer_data = PrivateData::new(&rep.private_data).unwrap_or(PrivateData::empty());
        if self.move_qp(id).is_none() {
            // Our user has destroyed or failed its queue pair.
            self.cm().refuse(id, About::Rep, RejectReason::CONSUMER);
            return self.fail_request(id, RejectReason::CONSUMER);
        }
        if let Some(connection) = self.cm().table.get_mut(id) {
            connection.message = None;
            connection.deadline = None;
        }
        self.cm().table.set_state(id, State::Established);
        self.cm().send_brief(id, transaction, BriefKind::Rtu);
        self.cm().events.push_back((id, Event::Established));
    }

    /// Moves the queue pair of a connection from Init to ready-to-send.
    pub(super) fn move_qp(&mut self, id: ConnectionId) -> Option<()> {
        let connection = self.cm_ref().table.get(id)?;
        let qp = connection.qp?;
        let (number, initial_psn) = self.over.numbers(qp)?;
        let source_port = source_port(number, connection.remote_qpn);
        let peer = ReadyToReceive {
            remote_qpn: connection.remote_qpn,
            rq_psn: initial_psn,
            path_mtu: connection.path_mtu,
            address: AddressVector { source_port, ..connection.address },
            max_dest_rd_atomic: connection.parameters.responder_resources,
            min_rnr_timer: connection.parameters.min_rnr_timer,
        };
        let to = ReadyToSend {
            sq_psn: connection.sq_psn,
            max_rd_atomic: connection.parameters.initiator_depth,
            ack_timeout: connection.ack_timeout,
            retry_count: connection.parameters.retry_count,
            rnr_retry: connection.parameters.rnr_retry_count,
        };
        self.over.ready_to_receive(qp, &peer).ok()?;
        self.over.ready_to_send(qp, &to).ok()
    }

    fn handle_rej(&mut self, rej: &Rej, from: &Sender, now: Instant) {
        if let Some(connection) = self.connection_of(rej.remote_id, rej.local_id, from) {
            let id = connection.id;
            match connection.state {
                State::ReqSent => {
                    connection.peer_data =
                        PrivateData::new(&rej.private_data).unwrap_or(PrivateData::empty());
                    let (host, offered) = (from.back.remote, connection.path_mtu);
                    if RejectReason(rej.reason) == INVALID_MTU && offered > LEAST_OFFER {
                        let until = now + SMALL_OFFER;
                        self.cm().small_paths.suspect(host, LEAST_OFFER, now, until);
                    }
                    self.fail_request(id, RejectReason(rej.reason));
                }
                State::RepSent | State::Established => self.ended_by_peer(id, now),
                State::DreqSent => self.time_wait(id, now),
                State::ReqReceived => self.drop_half_open(id),
                State::TimeWait | State::Refused => (),
            }
            return;
        }
        // The peer cancels a REQ that we have not answered, so it does not know our communication ID.
        let canceled = self.cm().table.requested_by_any_adapter(from.host(), rej.local_id);
        let is_unanswered = |id: &ConnectionId| {
            self.cm_ref().table.get(*id).is_some_and(|found| found.state == State::ReqReceived)
        };
        if let Some(id) = canceled.filter(is_unanswered) {
            self.drop_half_open(id);
        }
    }

    fn handle_brief(&mut self, brief: &Brief, transaction: u64, from: &Sender, now: Instant) {
        let found = self.connection_of(brief.remote_id, brief.local_id, from);
        let Some(connection) = found.filter(|c| {
            c.remote_id == brief.local_id || matches!(brief.kind, BriefKind::Mra { .. })
        }) else {
            if let BriefKind::Dreq { .. } = brief.kind {
                // A DREQ for an unknown connection is answered, so that the peer does not wait.
                let drep = Brief {
                    local_id: brief.remote_id,
                    remote_id: brief.local_id,
                    kind: BriefKind::Drep,
                };
                self.cm().answer(from.back, transaction, Message::Brief(drep));
            }
            return;
        };
        let id = connection.id;
        match brief.kind {
            BriefKind::Mra { service_timeout, .. } => {
                if matches!(connection.state, State::ReqSent | State::RepSent)
                    && !connection.prolonged
                {
                    // The peer may take longer, but only once, and at most `MAX_MRA`.
                    connection.prolonged = true;
                    let longer = time(service_timeout.min(MAX_MRA)) + connection.interval;
                    self.cm().table.arm(id, now + longer);
                }
            }
            BriefKind::Rtu => self.cm().communication_established(id),
            BriefKind::Dreq { remote_qpn } => {
                let ours = connection.qp;
                let number = ours.and_then(|qp| self.over.qp_number(qp).ok());
                if number.is_some_and(|number| number != remote_qpn) {
                    return;
                }
                self.cm().send_brief(id, transaction, BriefKind::Drep);
                self.ended_by_peer(id, now);
            }
            BriefKind::Drep => {
                if connection.state == State::DreqSent {
                    self.time_wait(id, now);
                }
            }
        }
    }

    /// Handles the end of a connection by the peer.
    pub(super) fn ended_by_peer(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.cm().table.get(id) else { return };
        match connection.state {
            State::Established | State::RepSent => {
                let qp = connection.qp;
                self.cm().events.push_back((id, Event::Disconnected));
                self.time_wait(id, now);
                if let Some(qp) = qp {
                    self.fail_quietly(qp);
                }
            }
            State::DreqSent => self.time_wait(id, now),
            State::ReqReceived => self.drop_half_open(id),
            State::ReqSent | State::TimeWait | State::Refused => (),
        }
    }

    /// Ends a connection from our side: its queue pair fails, and the peer gets a DREQ.
    pub(super) fn end(&mut self, id: ConnectionId) {
        let Some(connection) = self.cm().table.get(id) else { return };
        if connection.state == State::ReqReceived {
            return self.drop_half_open(id);
        }
        let qp = connection.qp;
        self.cm().qp_failed(id);
        if let Some(qp) = qp {
            self.fail_quietly(qp);
        }
    }

    /// Fails a queue pair without an event, because the connection reports its end.
    fn fail_quietly(&mut self, qp: verbs::QpId) {
        self.over.set_connection(qp, None);
        // The user may have destroyed it.
        let _ = self.over.fail_qp(qp);
    }

    /// Keeps a connection's identifiers until no packet of it can be in flight.
    pub(super) fn time_wait(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.cm().table.get_mut(id) else { return };
        connection.message = None;
        let wait = time(connection.ack_timeout.max(ACK_TIMEOUT));
        self.cm().table.set_state(id, State::TimeWait);
        self.cm().table.arm(id, now + wait);
    }

    /// Ends our own request as rejected, and reports it to the user.
    pub(super) fn fail_request(&mut self, id: ConnectionId, reason: RejectReason) {
        let Some(connection) = self.cm().table.get_mut(id) else { return };
        connection.message = None;
        connection.deadline = None;
        if let Some(qp) = connection.qp.take() {
            self.over.set_connection(qp, None);
        }
        self.cm().table.set_state(id, State::Refused);
        self.cm().events.push_back((id, Event::Rejected(reason)));
    }
}
