//! Messages that arrive.

use super::caps::{self, MAX_MRA};
use super::connection::{Connection, State, offered, source_port, time};
use super::neighbours::Verdict;
use super::table::{Full, Host};
use super::wire::Gid;
use super::wire::ip_cm::{self, IpCm};
use super::wire::mad::Mad;
use super::wire::message::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej, Rep, Req};
use super::{ACK_TIMEOUT, Counted, DEFAULT_PKEY, Event, Manager, Transport};
use alloc::borrow::Cow;
use alloc::format;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::refusal::Refusal;
use verbs::{
    AddressVector, ConnectionId, GidType, PathMtu, PrivateData, ReadyToReceive, ReadyToSend,
    RejectReason,
};

/// The REQ's partition, transport service, path MTU, or addresses are none that we have.
const INVALID_TRANSPORT: RejectReason = RejectReason(9);
const INVALID_MTU: RejectReason = RejectReason(26);
const UNSUPPORTED: RejectReason = RejectReason(5);

/// What its packet says of a MAD that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Place of the port that it came in on.
    pub place: usize,
    /// Who sent it, and to which address.
    pub source: IpAddr,
    /// See `source`.
    pub destination: IpAddr,
    /// The source is an IPv4 address within an IPv6 header.
    pub is_mapped: bool,
    /// MAC address of the last hop, if the device reports it.
    pub source_mac: Option<[u8; 6]>,
    /// Encapsulation.
    pub gid_type: GidType,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
}

impl Arrival {
    /// The host that it says.
    pub fn host(&self) -> Host {
        (self.place, self.source)
    }
}

/// Who sent a message, and the way back.
struct From {
    /// Place of the port that it came in on.
    place: usize,
    back: AddressVector,
}

impl From {
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
    /// Takes a MAD that has arrived on queue pair 1.
    pub fn handle_mad(&mut self, arrival: &Arrival, mad: &[u8], now: Instant) {
        let parsed = Mad::parse(mad).and_then(|(header, data)| {
            Message::parse(header.attribute, &data).map(|message| (header.transaction, message))
        });
        let Ok((transaction, message)) = parsed else {
            return self.over.count(Counted::Malformed);
        };
        let &Arrival { place, source, .. } = arrival;
        let own = self.over.has_address(place, source);
        // An IPv4 address has no business in an IPv6 header, nor ours in anybody else's frame.
        if !net::is_host(source) || own || arrival.is_mapped {
            return self.over.count(Counted::WrongPeer);
        }
        let way = match self.judge(arrival, &message, now) {
            Verdict::From(way) => way,
            Verdict::Unknown => {
                let dropped = self.cm().neighbours.hold(arrival, mad, now);
                (0..dropped).for_each(|_| self.over.count(Counted::NoWayBack));
                return;
            }
            Verdict::Elsewhere(way) => return self.note_foreign(arrival, way, now),
        };
        // Answers go the way back that the table gives.
        let back = AddressVector {
            local: arrival.destination,
            remote: source,
            gid_type: arrival.gid_type,
            remote_mac: way.mac,
            source_port: source_port(1, 1),
            traffic_class: arrival.traffic_class,
            hop_limit: 64,
        };
        let from = From { place, back };
        self.cm().forget_paths(now);
        match message {
            Message::Req(req) => self.handle_req(&req, transaction, &from),
            Message::Rep(rep) => self.handle_rep(&rep, transaction, &from),
            Message::Rej(rej) => self.handle_rej(&rej, &from, now),
            Message::Brief(brief) => self.handle_brief(&brief, transaction, &from, now),
        }
    }

    /// The connection that a message is about, if it comes from that connection's peer.
    fn connection_of(
        &mut self,
        wire_id: u32,
        remote_id: u32,
        from: &From,
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

    fn handle_req(&mut self, req: &Req, transaction: u64, from: &From) {
        let host = from.host();
        if let Some(same) = self.cm().table.asked(host, req.local_id, req.ca_guid) {
            return self.repeat_req(same, transaction, from, req);
        }
        let (ip, port, path_mtu) = match self.examine(req, from) {
            Ok(fine) => fine,
            Err(reason) => {
                self.note_refusal(req, from, reason);
                return self.refuse_req(req, transaction, from, reason);
            }
        };
        if let Err(full) = self.make_way(host) {
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
            told: false,
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

    /// Tells of a request for something that we have not.
    fn note_refusal(&mut self, req: &Req, from: &From, reason: RejectReason) {
        let (reason, advice): (_, Cow<'static, str>) = match reason {
            RejectReason::INVALID_SERVICE_ID => {
                ("no_such_port", "nothing listens on that port: see `rnbd.port`".into())
            }
            RejectReason::INVALID_GID => (
                "wrong_address",
                "the addresses that the client says are not those of its frame and of this port"
                    .into(),
            ),
            INVALID_MTU => {
                let most = self.over.path_mtu(from.place);
                let passes = self.cm_ref().path_mtu_to(from.back.remote, most);
                let asked = PathMtu::from_code(req.path_mtu).map_or(0, PathMtu::bytes);
                let what = if passes < most { "the path to it" } else { "this port" };
                let passes = passes.bytes();
                let advice = format!(
                    "the client wants packets of {asked} bytes, and {what} takes {passes}: lower the client's MTU"
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

    /// Tells of a request for which there is no room.
    fn note_full(&mut self, full: Full, from: &From, port: u16) {
        let (reason, advice) = match full {
            Full::Host => {
                self.over.count(Counted::RefusedOfHost);
                ("connections_per_host", "raise limits.connections_per_host, or end some".into())
            }
            Full::Table => ("connections", "all connections are in use: end some".into()),
        };
        let (who, asked) = (Some(from.back.remote), format!("port {port}"));
        self.cm().refusals.push(Refusal { who, what: "rdma_connection", asked, reason, advice });
    }

    /// Makes room for a connection that a host asks for. What gives way: see [`super::table`].
    fn make_way(&mut self, host: Host) -> Result<(), Full> {
        if self.cm().is_choked() {
            return Err(Full::Table);
        }
        while let Some(id) = self.cm().table.in_the_way(host)? {
            self.over.count(Counted::GaveWay);
            self.give_way(id);
        }
        Ok(())
    }

    /// A connection that is not made yet, or over, goes at once.
    fn give_way(&mut self, id: ConnectionId) {
        match self.cm().table.get(id).map(|connection| connection.state) {
            Some(State::ReqReceived) => {
                self.cm().refuse(id, About::Req, RejectReason::NO_RESOURCES);
                self.forget_half_open(id);
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

    /// A REQ for a connection that is there already.
    fn repeat_req(&mut self, id: ConnectionId, transaction: u64, from: &From, req: &Req) {
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

    /// Whether a REQ is for something that we have.
    fn examine(&self, req: &Req, from: &From) -> Result<(IpCm, u16, PathMtu), RejectReason> {
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
        // The address that its user hears of is the frame's.
        if ip.source != back.remote || ip.destination != to {
            return Err(RejectReason::INVALID_GID);
        }
        if !self.over.has_address(from.place, to) {
            return Err(RejectReason::INVALID_GID);
        }
        match PathMtu::from_code(req.path_mtu) {
            Some(mtu) if mtu > self.over.path_mtu(from.place) => Err(INVALID_MTU),
            // Its large packets would be lost, and ours: better no connection than one that stands still.
            Some(mtu) if mtu > self.cm_ref().path_mtu_to(back.remote, mtu) => Err(INVALID_MTU),
            Some(mtu) => Ok((ip, port, mtu)),
            None => Err(INVALID_MTU),
        }
    }

    /// Refuses a REQ without a connection. Linux says 0 as its name for one, too.
    fn refuse_req(&mut self, req: &Req, transaction: u64, from: &From, reason: RejectReason) {
        let rej = Rej {
            local_id: 0,
            remote_id: req.local_id,
            about: About::Req,
            reason: reason.0,
            private_data: [0; REJ_PRIVATE_DATA],
        };
        self.cm().answer(from.back, transaction, Message::Rej(rej));
    }

    /// A request that our user has not answered is over.
    pub(super) fn forget_half_open(&mut self, id: ConnectionId) {
        // Its user is not told of a request that is gone.
        if self.cm().table.remove(id).is_some_and(|gone| gone.told) {
            self.cm().events.push_back((id, Event::Disconnected));
        }
    }

    fn handle_rep(&mut self, rep: &Rep, transaction: u64, from: &From) {
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
            // Our user destroyed or failed its queue pair meanwhile.
            self.cm().refuse(id, About::Rep, RejectReason::CONSUMER);
            return self.finish(id, RejectReason::CONSUMER);
        }
        if let Some(connection) = self.cm().table.get_mut(id) {
            connection.message = None;
            connection.deadline = None;
        }
        self.cm().table.set_state(id, State::Established);
        self.cm().send_brief(id, transaction, BriefKind::Rtu);
        self.cm().events.push_back((id, Event::Established));
    }

    /// Takes the queue pair of a connection from Init to ready-to-send.
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

    fn handle_rej(&mut self, rej: &Rej, from: &From, now: Instant) {
        if let Some(connection) = self.connection_of(rej.remote_id, rej.local_id, from) {
            let id = connection.id;
            match connection.state {
                State::ReqSent => {
                    connection.peer_data =
                        PrivateData::new(&rej.private_data).unwrap_or(PrivateData::empty());
                    self.finish(id, RejectReason(rej.reason));
                }
                State::RepSent | State::Established => self.over(id, now),
                State::DreqSent => self.time_wait(id, now),
                State::ReqReceived => self.forget_half_open(id),
                State::TimeWait | State::Refused => (),
            }
            return;
        }
        // The peer gives up a REQ that we have not answered: it does not know our name for it.
        let given_up = self.cm().table.asked_by_any(from.host(), rej.local_id);
        let asked = |id: &ConnectionId| {
            self.cm_ref().table.get(*id).is_some_and(|found| found.state == State::ReqReceived)
        };
        if let Some(id) = given_up.filter(asked) {
            self.forget_half_open(id);
        }
    }

    fn handle_brief(&mut self, brief: &Brief, transaction: u64, from: &From, now: Instant) {
        let found = self.connection_of(brief.remote_id, brief.local_id, from);
        let Some(connection) = found.filter(|c| {
            c.remote_id == brief.local_id || matches!(brief.kind, BriefKind::Mra { .. })
        }) else {
            if let BriefKind::Dreq { .. } = brief.kind {
                // Nobody should wait for the end of what we know nothing of.
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
                    // The peer may take longer, but not for ever.
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
                self.over(id, now);
            }
            BriefKind::Drep => {
                if connection.state == State::DreqSent {
                    self.time_wait(id, now);
                }
            }
        }
    }

    /// The peer has ended a connection.
    pub(super) fn over(&mut self, id: ConnectionId, now: Instant) {
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
            State::ReqReceived => self.forget_half_open(id),
            State::ReqSent | State::TimeWait | State::Refused => (),
        }
    }

    /// We end a connection: its queue pair fails, the peer is told.
    pub(super) fn end(&mut self, id: ConnectionId) {
        let Some(connection) = self.cm().table.get(id) else { return };
        if connection.state == State::ReqReceived {
            return self.forget_half_open(id);
        }
        let qp = connection.qp;
        self.cm().qp_failed(id);
        if let Some(qp) = qp {
            self.fail_quietly(qp);
        }
    }

    /// The user learns of the end of a queue pair from the connection.
    fn fail_quietly(&mut self, qp: verbs::QpId) {
        self.over.set_connection(qp, None);
        // It may be gone already.
        let _ = self.over.fail_qp(qp);
    }

    /// Keeps a connection's name until nothing of it can be under way any more.
    pub(super) fn time_wait(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.cm().table.get_mut(id) else { return };
        connection.message = None;
        let wait = time(connection.ack_timeout.max(ACK_TIMEOUT));
        self.cm().table.set_state(id, State::TimeWait);
        self.cm().table.arm(id, now + wait);
    }

    /// Our request is refused: the user is told.
    pub(super) fn finish(&mut self, id: ConnectionId, reason: RejectReason) {
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
