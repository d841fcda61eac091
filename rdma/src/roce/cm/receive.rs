//! Messages that arrive.

use super::connection::{Connection, State, offered, source_port, time};
use super::{ACK_TIMEOUT, Event, MRA_TIMEOUT};
use crate::roce::Roce;
use crate::roce::wire::bth::DEFAULT_PKEY;
use crate::roce::wire::cm::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej, Rep, Req};
use crate::roce::wire::frame::{Frame, Gid};
use crate::roce::wire::ip_cm::{self, IpCm};
use crate::roce::wire::mad::Mad;
use crate::verbs::{
    AddressVector, ConnectionId, PathMtu, PrivateData, Provider, ReadyToReceive, ReadyToSend,
    RejectReason,
};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;

/// The REQ's partition, transport service, path MTU, or addresses are none that we have.
const INVALID_TRANSPORT: RejectReason = RejectReason(9);
const INVALID_MTU: RejectReason = RejectReason(26);
const UNSUPPORTED: RejectReason = RejectReason(5);

impl Roce {
    /// Takes a MAD that has arrived on queue pair 1.
    pub(in crate::roce) fn handle_mad(&mut self, frame: &Frame<'_>, mad: &[u8], now: Instant) {
        let parsed = Mad::parse(mad).and_then(|(header, data)| {
            Message::parse(header.attribute, &data).map(|message| (header.transaction, message))
        });
        let Ok((transaction, message)) = parsed else {
            self.counters.dropped.malformed += 1;
            return;
        };
        // Answers go the way back.
        let back = AddressVector {
            local: frame.destination().address(),
            remote: frame.source().address(),
            gid_type: frame.gid_type(),
            remote_mac: frame.source_mac(),
            source_port: source_port(1, 1),
            traffic_class: frame.traffic_class(),
            hop_limit: 64,
        };
        match message {
            Message::Req(req) => self.handle_req(&req, transaction, &back),
            Message::Rep(rep) => self.handle_rep(&rep, transaction, &back),
            Message::Rej(rej) => self.handle_rej(&rej, &back, now),
            Message::Brief(brief) => self.handle_brief(&brief, transaction, &back, now),
        }
    }

    /// The connection that a message is about, if it comes from that connection's peer.
    fn connection_of(
        &mut self,
        wire_id: u32,
        remote_id: u32,
        back: &AddressVector,
    ) -> Option<&mut Connection> {
        let id = self.cm.of_wire_id(wire_id);
        self.cm.connections.get_mut(id.0).filter(|c| {
            c.address.remote == back.remote && (c.remote_id == remote_id || c.remote_id == 0)
        })
    }

    fn handle_req(&mut self, req: &Req, transaction: u64, back: &AddressVector) {
        if let Some(same) = self
            .cm
            .find(|c| c.remote_id == req.local_id && c.remote_guid == req.ca_guid && !c.active)
        {
            return self.repeat_req(same, transaction, back, req);
        }
        let stale = self.cm.find(|c| {
            c.remote_qpn == req.qpn
                && c.remote_guid == req.ca_guid
                && matches!(c.state, State::Established | State::RepSent)
        });
        let refusal = match stale {
            Some(old) => {
                // The peer has forgotten the old connection, or it would not use its queue pair.
                self.end(old);
                Err(RejectReason::STALE_CONNECTION)
            }
            None => self.examine(req, back),
        };
        let (ip, port, path_mtu) = match refusal {
            Ok(fine) => fine,
            Err(reason) => return self.refuse_req(req, transaction, back, reason),
        };
        self.make_room();
        if self.cm.connections.len() >= self.cm.limit || self.cm.events.len() >= 4 * self.cm.limit {
            return self.refuse_req(req, transaction, back, RejectReason::NO_RESOURCES);
        }
        self.cm.learn_neighbour(back.remote, back.remote_mac);
        let private = req.private_data.get(ip_cm::LEN..).unwrap_or_default();
        let made = self.cm.connections.insert(|name| Connection {
            id: ConnectionId(name),
            active: false,
            state: State::ReqReceived,
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            transaction,
            qp: None,
            address: AddressVector { traffic_class: req.traffic_class, ..*back },
            port,
            from: SocketAddr::new(ip.source, ip.source_port),
            parameters: offered(req),
            path_mtu,
            sq_psn: req.starting_psn,
            ack_timeout: req.ack_timeout,
            peer_data: PrivateData::new(private).unwrap_or(PrivateData::empty()),
            told: false,
            message: None,
            interval: time(req.local_response_timeout),
            retries_left: req.max_cm_retries,
            deadline: None,
        });
        if let Some(name) = made {
            self.cm.half_open.push_back(ConnectionId(name));
            self.cm.events.push_back((ConnectionId(name), Event::Request));
        }
    }

    /// A REQ for a connection that is there already.
    fn repeat_req(&mut self, id: ConnectionId, transaction: u64, back: &AddressVector, req: &Req) {
        let Some(connection) = self.cm.connections.get(id.0) else { return };
        match connection.state {
            State::ReqReceived => {
                let kind = BriefKind::Mra { about: About::Req, service_timeout: MRA_TIMEOUT };
                self.cm.send_brief(id, transaction, kind);
            }
            State::RepSent => {
                if let Some((transaction, message)) = connection.message {
                    self.cm.send(connection.address, transaction, message);
                }
            }
            State::TimeWait | State::DreqSent => {
                self.refuse_req(req, transaction, back, RejectReason::STALE_CONNECTION);
            }
            State::ReqSent | State::Established | State::Refused => (),
        }
    }

    /// Whether a REQ is for something that we have.
    fn examine(
        &self,
        req: &Req,
        back: &AddressVector,
    ) -> Result<(IpCm, u16, PathMtu), RejectReason> {
        let port = ip_cm::tcp_port(req.service_id)
            .filter(|port| self.cm.listening.has(*port))
            .ok_or(RejectReason::INVALID_SERVICE_ID)?;
        if req.transport != 0 || req.pkey & 0x7fff != DEFAULT_PKEY & 0x7fff {
            return Err(INVALID_TRANSPORT);
        }
        let to = Gid::from_bytes(req.remote_gid).address();
        if to != back.local || Gid::from_bytes(req.local_gid).address() != back.remote {
            return Err(RejectReason::INVALID_GID);
        }
        let ip = IpCm::parse(&req.private_data).map_err(|_| UNSUPPORTED)?;
        if !is_unicast(ip.source) || ip.destination != to {
            return Err(RejectReason::INVALID_GID);
        }
        let own = self.port_of(to).and_then(|place| self.ports.get(place));
        let own = own.ok_or(RejectReason::INVALID_GID)?;
        match PathMtu::from_code(req.path_mtu) {
            Some(mtu) if mtu <= own.path_mtu() => Ok((ip, port, mtu)),
            _ => Err(INVALID_MTU),
        }
    }

    /// Refuses a REQ without a connection. Linux says 0 as its name for one, too.
    fn refuse_req(
        &mut self,
        req: &Req,
        transaction: u64,
        back: &AddressVector,
        reason: RejectReason,
    ) {
        let rej = Rej {
            local_id: 0,
            remote_id: req.local_id,
            about: About::Req,
            reason: reason.0,
            private_data: [0; REJ_PRIVATE_DATA],
        };
        self.cm.answer(*back, transaction, Message::Rej(rej));
    }

    /// Lets the oldest request that nobody has answered give way, if there are too many.
    fn make_room(&mut self) {
        let full = self.cm.connections.len() >= self.cm.limit;
        if !full && self.cm.half_open.len() < self.cm.max_half_open {
            return;
        }
        if let Some(oldest) = self.cm.half_open.pop_front() {
            self.cm.refuse(oldest, About::Req, RejectReason::NO_RESOURCES);
            self.forget_half_open(oldest);
        }
    }

    /// A request that our user has not answered is over.
    pub(super) fn forget_half_open(&mut self, id: ConnectionId) {
        self.cm.half_open.retain(|&other| other != id);
        if let Some(gone) = self.cm.connections.remove(id.0) {
            if gone.told {
                self.cm.events.push_back((id, Event::Disconnected));
            } else {
                self.cm.events.retain(|&(other, _)| other != id);
            }
        }
    }

    fn handle_rep(&mut self, rep: &Rep, transaction: u64, back: &AddressVector) {
        let Some(connection) = self.connection_of(rep.remote_id, rep.local_id, back) else {
            return;
        };
        let id = connection.id;
        match connection.state {
            State::ReqSent if connection.transaction == transaction => (),
            State::Established => {
                return self.cm.send_brief(id, transaction, BriefKind::Rtu);
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
            self.cm.refuse(id, About::Rep, RejectReason::CONSUMER);
            return self.finish(id, RejectReason::CONSUMER);
        }
        if let Some(connection) = self.cm.connections.get_mut(id.0) {
            connection.state = State::Established;
            connection.message = None;
            connection.deadline = None;
        }
        self.cm.send_brief(id, transaction, BriefKind::Rtu);
        self.cm.events.push_back((id, Event::Established));
    }

    /// Takes the queue pair of a connection from Init to ready-to-send.
    pub(super) fn move_qp(&mut self, id: ConnectionId) -> Option<()> {
        let connection = self.cm.connections.get(id.0)?;
        let qp = connection.qp?;
        let identity = self.qps.get(qp.0)?.identity;
        let source_port = source_port(identity.number, connection.remote_qpn);
        let peer = ReadyToReceive {
            remote_qpn: connection.remote_qpn,
            rq_psn: identity.initial_psn.get(),
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
        self.ready_to_receive(qp, &peer).ok()?;
        self.ready_to_send(qp, &to).ok()
    }

    fn handle_rej(&mut self, rej: &Rej, back: &AddressVector, now: Instant) {
        if let Some(connection) = self.connection_of(rej.remote_id, rej.local_id, back) {
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
        let given_up = self.cm.find(|c| {
            c.remote_id == rej.local_id
                && c.address.remote == back.remote
                && c.state == State::ReqReceived
        });
        if let Some(id) = given_up {
            self.forget_half_open(id);
        }
    }

    fn handle_brief(
        &mut self,
        brief: &Brief,
        transaction: u64,
        back: &AddressVector,
        now: Instant,
    ) {
        let found = self.connection_of(brief.remote_id, brief.local_id, back);
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
                self.cm.answer(*back, transaction, Message::Brief(drep));
            }
            return;
        };
        let id = connection.id;
        match brief.kind {
            BriefKind::Mra { service_timeout, .. } => {
                if matches!(connection.state, State::ReqSent | State::RepSent) {
                    // The peer may take longer, but not for ever.
                    let longer = time(service_timeout.min(MRA_TIMEOUT)) + connection.interval;
                    self.cm.arm(id, now + longer);
                }
            }
            BriefKind::Rtu => self.cm.communication_established(id),
            BriefKind::Dreq { remote_qpn } => {
                let ours = connection.qp;
                let number = ours.and_then(|qp| self.qp_number(qp).ok());
                if number.is_some_and(|number| number != remote_qpn) {
                    return;
                }
                self.cm.send_brief(id, transaction, BriefKind::Drep);
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
        let Some(connection) = self.cm.connections.get(id.0) else { return };
        match connection.state {
            State::Established | State::RepSent => {
                let qp = connection.qp;
                self.cm.events.push_back((id, Event::Disconnected));
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
        let Some(connection) = self.cm.connections.get(id.0) else { return };
        let qp = connection.qp;
        self.cm.qp_failed(id);
        if let Some(qp) = qp {
            self.fail_quietly(qp);
        }
    }

    /// The user learns of the end of a queue pair from the connection.
    fn fail_quietly(&mut self, qp: crate::verbs::QpId) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.connection = None;
        }
        // It may be gone already.
        let _ = self.fail_qp(qp);
    }

    /// Keeps a connection's name until nothing of it can be under way any more.
    pub(super) fn time_wait(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.cm.connections.get_mut(id.0) else { return };
        connection.state = State::TimeWait;
        connection.message = None;
        let wait = time(connection.ack_timeout.max(ACK_TIMEOUT));
        self.cm.arm(id, now + wait);
    }

    /// Our request is refused: the user is told.
    pub(super) fn finish(&mut self, id: ConnectionId, reason: RejectReason) {
        let Some(connection) = self.cm.connections.get_mut(id.0) else { return };
        connection.state = State::Refused;
        connection.message = None;
        connection.deadline = None;
        if let Some(qp) = connection.qp.take()
            && let Some(found) = self.qps.get_mut(qp.0)
        {
            found.connection = None;
        }
        self.cm.events.push_back((id, Event::Rejected(reason)));
    }
}

impl super::Cm {
    /// The first connection that fits.
    fn find(&self, fits: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        self.connections.iter().find(|c| fits(c)).map(|c| c.id)
    }
}

fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !broadcast
}
