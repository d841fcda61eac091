//! The calls of the connection manager's user.

use super::connection::{Connection, State, source_port, time};
use super::wire::Gid;
use super::wire::ip_cm::{self, IpCm};
use super::wire::message::{
    About, Message, REJ_PRIVATE_DATA, REP_PRIVATE_DATA, REQ_PRIVATE_DATA, Rep, Req,
};
use super::{
    ACK_DELAY, ACK_TIMEOUT, Cm, DEFAULT_PKEY, Event, MAX_RETRIES, Manager, PACKET_LIFE_TIME,
    RESPONSE_TIMEOUT, Transport,
};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use rand_core::Rng;
use verbs::{
    AddressVector, ConnectionEvent, ConnectionId, ConnectionParameters, GidType, PrivateData, QpId,
    RejectReason, VerbsError,
};

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// See [`verbs::ConnectionManager::connect`].
    #[allow(clippy::too_many_arguments)]
    pub fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError> {
        let (qpn, psn) = self.over.connectable(qp)?;
        let most = self.over.attributes().max_rd_atomic;
        if parameters.responder_resources > most
            || parameters.initiator_depth > most
            || parameters.retry_count > 7
            || parameters.rnr_retry_count > 7
            || parameters.min_rnr_timer > 31
        {
            return Err(VerbsError::Invalid);
        }
        let mut private = [0; REQ_PRIVATE_DATA];
        private
            .get_mut(ip_cm::LEN..ip_cm::LEN + private_data.len())
            .ok_or(VerbsError::Invalid)?
            .copy_from_slice(private_data);
        let port = self.over.port_of(from).filter(|_| from.is_ipv4() == to.is_ipv4());
        let port = port.ok_or(VerbsError::Invalid)?;
        let next_hop = self.cm().neighbours.get((port, to.ip())).ok_or(VerbsError::Unreachable)?;
        if self.cm().is_backlogged() {
            return Err(VerbsError::NoRoom);
        }
        let ip_cm_port = 0xc000 | rng.next_u32() as u16;
        let header = IpCm { source_port: ip_cm_port, source: from, destination: to.ip() };
        if let Some(place) = private.first_chunk_mut() {
            header.emit(place);
        }
        let address = AddressVector {
            local: from,
            remote: to.ip(),
            gid_type: GidType::RoceV2,
            remote_mac: next_hop.mac,
            source_port: source_port(1, 1),
            traffic_class: 0,
            hop_limit: 64,
        };
        let most = self.over.path_mtu(port, to.ip());
        let path_mtu = self.cm_ref().path_mtu_to(to.ip(), most, now);
        let transaction = self.cm().next_transaction();
        let interval = time(RESPONSE_TIMEOUT) + 2 * time(PACKET_LIFE_TIME);
        let made = self.cm().table.insert(|id, wire_id| Connection {
            id,
            wire_id,
            active: true,
            state: State::ReqSent,
            remote_id: 0,
            remote_guid: 0,
            remote_qpn: 0,
            transaction,
            qp: Some(qp),
            address,
            place: port,
            port: to.port(),
            from: SocketAddr::new(from, ip_cm_port),
            parameters: *parameters,
            path_mtu,
            sq_psn: 0,
            ack_timeout: ACK_TIMEOUT,
            peer_data: PrivateData::empty(),
            reported: true,
            message: None,
            interval,
            retries_left: MAX_RETRIES,
            prolonged: false,
            superseded: false,
            deadline: None,
            order: None,
        });
        let id = made.ok_or(VerbsError::NoRoom)?;
        let local_id = self.cm().table.get(id).map_or(0, |connection| connection.wire_id);
        let req = Message::Req(Req {
            local_id,
            service_id: ip_cm::service_id(to.port()),
            ca_guid: self.over.attributes().guid,
            qpn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            transport: 0,
            starting_psn: psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: parameters.retry_count,
            pkey: DEFAULT_PKEY,
            path_mtu: path_mtu as u8,
            rnr_retry_count: parameters.rnr_retry_count,
            max_cm_retries: MAX_RETRIES,
            local_gid: Gid::from(from).to_bytes(),
            remote_gid: Gid::from(to.ip()).to_bytes(),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: ACK_TIMEOUT,
            private_data: private,
        });
        if let Some(connection) = self.cm().table.get_mut(id) {
            connection.message = Some((transaction, req));
        }
        self.over.set_connection(qp, Some(id));
        self.cm().send(address, transaction, req);
        self.cm().table.arm(id, now + interval);
        Ok(id)
    }

    /// See [`verbs::ConnectionManager::accept`].
    pub fn accept(
        &mut self,
        id: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        let (qpn, psn) = self.over.connectable(qp)?;
        let mut private = [0; REP_PRIVATE_DATA];
        private
            .get_mut(..private_data.len())
            .ok_or(VerbsError::Invalid)?
            .copy_from_slice(private_data);
        let (ca_guid, most) = (self.over.attributes().guid, self.over.attributes().max_rd_atomic);
        let connection = self.cm().table.get_mut(id).ok_or(VerbsError::NoSuchObject)?;
        if connection.state != State::ReqReceived {
            return Err(VerbsError::WrongState);
        }
        if parameters.responder_resources > most || parameters.min_rnr_timer > 31 {
            return Err(VerbsError::Invalid);
        }
        let depth = connection.parameters.initiator_depth.min(most);
        let agreed = ConnectionParameters {
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth.min(depth),
            min_rnr_timer: parameters.min_rnr_timer,
            // The requesting side determines the retries.
            ..connection.parameters
        };
        let offered = core::mem::replace(&mut connection.parameters, agreed);
        connection.qp = Some(qp);
        if self.move_qp(id).is_none() {
            if let Some(connection) = self.cm().table.get_mut(id) {
                connection.parameters = offered;
                connection.qp = None;
            }
            return Err(VerbsError::Invalid);
        }
        self.over.set_connection(qp, Some(id));
        let connection = self.cm().table.get_mut(id).ok_or(VerbsError::NoSuchObject)?;
        let rep = Message::Rep(Rep {
            local_id: connection.wire_id,
            remote_id: connection.remote_id,
            qpn,
            starting_psn: psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: connection.parameters.initiator_depth,
            target_ack_delay: ACK_DELAY,
            rnr_retry_count: parameters.rnr_retry_count,
            ca_guid,
            private_data: private,
        });
        let transaction = connection.transaction;
        connection.message = Some((transaction, rep));
        let (address, interval) = (connection.address, connection.interval);
        self.cm().table.set_state(id, State::RepSent);
        self.cm().send(address, transaction, rep);
        self.cm().table.arm(id, now + interval);
        Ok(())
    }

    /// See [`verbs::ConnectionManager::reject`].
    pub fn reject(
        &mut self,
        id: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let connection = self.cm().table.get(id).ok_or(VerbsError::NoSuchObject)?;
        if connection.state != State::ReqReceived {
            return Err(VerbsError::WrongState);
        }
        let mut private = [0; REJ_PRIVATE_DATA];
        private
            .get_mut(..private_data.len())
            .ok_or(VerbsError::Invalid)?
            .copy_from_slice(private_data);
        self.cm().refuse_with(id, About::Req, reason, private);
        self.cm().table.remove(id);
        Ok(())
    }

    /// See [`verbs::ConnectionManager::disconnect`].
    pub fn disconnect(&mut self, id: ConnectionId, _now: Instant) -> Result<(), VerbsError> {
        let connection = self.cm().table.get(id).ok_or(VerbsError::NoSuchObject)?;
        match connection.state {
            State::Established | State::RepSent => self.end(id),
            State::ReqReceived => {
                self.cm().refuse(id, About::Req, RejectReason::CONSUMER);
                self.drop_half_open(id);
            }
            State::ReqSent => {
                self.cm().refuse(id, About::Req, RejectReason::TIMEOUT);
                self.fail_request(id, RejectReason::TIMEOUT);
            }
            State::DreqSent | State::TimeWait | State::Refused => (),
        }
        Ok(())
    }

    /// The next event of the connection manager.
    #[inline(never)]
    pub fn next_event(&mut self) -> Option<ConnectionEvent> {
        while let Some((id, event)) = self.cm().events.pop_front() {
            let connection = self.cm().table.get_mut(id);
            let peer_data = connection.as_ref().map_or(PrivateData::empty(), |c| c.peer_data);
            return Some(match (event, connection) {
                (Event::Request, Some(connection)) => {
                    connection.reported = true;
                    ConnectionEvent::Request {
                        connection: id,
                        port: connection.port,
                        from: connection.from,
                        to: connection.address.local,
                        parameters: connection.parameters,
                        path_mtu: connection.path_mtu,
                        private_data: peer_data,
                    }
                }
                (Event::Request, None) => continue,
                (Event::Established, connection) => ConnectionEvent::Established {
                    connection: id,
                    private_data: match connection {
                        Some(connection) if connection.active => peer_data,
                        _ => PrivateData::empty(),
                    },
                },
                (Event::Rejected(reason), _) => {
                    self.cm().table.remove(id);
                    ConnectionEvent::Rejected { connection: id, reason, private_data: peer_data }
                }
                (Event::Disconnected, _) => ConnectionEvent::Disconnected { connection: id },
            });
        }
        None
    }
}

impl Cm {
    /// See [`verbs::ConnectionManager::listen`].
    pub fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.listening.add(port)
    }

    /// See [`verbs::ConnectionManager::unlisten`].
    pub fn unlisten(&mut self, port: u16) {
        self.listening.remove(port);
    }

    /// See [`verbs::ConnectionManager::peer_id`].
    pub fn peer_id(&self, id: ConnectionId) -> Option<u32> {
        let connection = self.table.get(id)?;
        (connection.state == State::Established).then_some(connection.remote_id)
    }
}
