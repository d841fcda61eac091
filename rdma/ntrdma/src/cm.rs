//! The connection manager: requests, responses and ends of connections as commands between the two
//! machines. Commands arrive once and in order, so there are no retransmissions; if they are lost with the
//! link, all connections end.

use super::provider::MAX_RD_ATOMIC;
use super::wire::{Command, Proposal};
use super::{Ntrdma, Wrong};
use alloc::collections::{BTreeMap, VecDeque};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Timers};
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use softverbs::listening::Listening;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, PathMtu, PrivateData,
    QpId, QpState, RejectReason, VerbsError,
};

/// Timeout for the response of the peer's user to a request.
const ANSWER: Duration = Duration::from_secs(60);

/// Most bytes of private data in a request, as with RoCE.
const REQUEST_DATA: usize = 56;
/// Most bytes of private data in a rejection, as with RoCE.
const REJECT_DATA: usize = 148;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The local user has requested it; the peer has not responded.
    Requested,
    /// The peer has requested it; the local user has not responded.
    Offered,
    /// The local user has accepted it; the peer has not confirmed it.
    Accepted,
    /// It is established.
    Established,
}

#[derive(Debug)]
struct Connection {
    state: State,
    /// Its id at the peer.
    remote: u32,
    /// Number of the peer's queue pair.
    remote_qpn: u32,
    /// Parameters that the peer offers.
    parameters: ConnectionParameters,
    qp: Option<QpId>,
    deadline: Option<Instant>,
}

/// The connection manager's state.
#[derive(Debug)]
pub struct Cm {
    connections: HandleTable<Connection>,
    limit: usize,
    /// Connections that the peer has requested, by its ids of connection and queue pair.
    offered: BTreeMap<(u32, u32), ConnectionId>,
    listening: Listening,
    events: VecDeque<ConnectionEvent>,
    timers: Timers,
}

impl Cm {
    /// State for up to `limit` connections.
    pub fn new(limit: usize) -> Self {
        Cm {
            connections: HandleTable::new(limit),
            limit,
            offered: BTreeMap::new(),
            listening: Listening::default(),
            events: VecDeque::new(),
            timers: Timers::default(),
        }
    }

    /// No timer expires before this time.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// Adds a connection; None if the table is full.
    fn insert(&mut self, connection: Connection) -> Option<ConnectionId> {
        let (state, deadline) = (connection.state, connection.deadline);
        let names = (connection.remote, connection.remote_qpn);
        let id = self.connections.insert(|_| connection).map(ConnectionId)?;
        let place = HandleTable::<Connection>::index(id.0);
        self.timers.make_room(place);
        if let Some(at) = deadline {
            self.timers.put(place, at);
        }
        if state != State::Requested {
            self.offered.insert(names, id);
        }
        Some(id)
    }

    /// Removes a connection.
    fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let removed = self.connections.remove(id.0)?;
        self.timers.forget(HandleTable::<Connection>::index(id.0));
        let names = (removed.remote, removed.remote_qpn);
        if self.offered.get(&names) == Some(&id) {
            self.offered.remove(&names);
        }
        Some(removed)
    }

    /// Whether the user does not take events while the peer causes more and more.
    fn is_backlogged(&self) -> bool {
        self.events.len() >= 4 * self.limit
    }

    /// Reports the end of a connection, or withdraws the event of its request.
    fn report_end(&mut self, connection: ConnectionId) {
        let before = self.events.len();
        self.events.retain(|event| {
            !matches!(event, ConnectionEvent::Request { connection: c, .. } if *c == connection)
        });
        if self.events.len() == before {
            self.events.push_back(ConnectionEvent::Disconnected { connection });
        }
    }
}

impl Ntrdma {
    /// Number of connections, established and pending.
    pub fn connections(&self) -> usize {
        self.cm.connections.len()
    }

    /// Ends a connection whose queue pair went to error.
    pub(super) fn connection_lost(&mut self, id: ConnectionId) {
        if self.cm.remove(id).is_some() {
            self.cm.events.push_back(ConnectionEvent::Disconnected { connection: id });
        }
    }

    /// Ends a connection whose queue pair is destroyed. The user gets no event.
    pub(super) fn connection_abandoned(&mut self, id: ConnectionId) {
        let Some(connection) = self.cm.remove(id) else { return };
        if connection.state == State::Requested {
            self.cancel(id, &connection);
        }
    }

    /// Withdraws a request; the peer responds with `Detach`.
    fn cancel(&mut self, id: ConnectionId, connection: &Connection) {
        let qpn = connection.qp.and_then(|qp| self.qps.get(qp.0)).map(|qp| qp.identity.number);
        if let Some(qpn) = qpn {
            self.outbox.push_back(Command::Cancel { connection: id.0, qpn });
        }
    }

    /// Ends all connections after the link went down.
    pub(super) fn end_connections(&mut self) {
        for place in 0..self.cm.connections.places() {
            let Some(name) = self.cm.connections.name_at(place) else { continue };
            let id = ConnectionId(name);
            let Some(connection) = self.cm.remove(id) else { continue };
            if let Some(qp) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
                qp.connection = None;
            }
            match connection.state {
                State::Requested => {
                    self.report_rejection(id, RejectReason::TIMEOUT, PrivateData::empty())
                }
                _ => self.cm.report_end(id),
            }
        }
    }

    fn report_rejection(
        &mut self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: PrivateData,
    ) {
        let event = ConnectionEvent::Rejected { connection, reason, private_data };
        self.cm.events.push_back(event);
    }

    pub(super) fn run_connection_timers(&mut self, now: Instant) {
        while let Some(place) = self.cm.timers.take_due(now) {
            let Some(name) = self.cm.connections.name_at(place) else { continue };
            // The peer may have responded since.
            if self.cm.connections.get(name).is_none_or(|c| c.deadline.is_none()) {
                continue;
            }
            let Some(connection) = self.cm.remove(ConnectionId(name)) else { continue };
            let id = ConnectionId(name);
            self.cancel(id, &connection);
            if let Some(qp) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
                qp.connection = None;
            }
            self.report_rejection(id, RejectReason::TIMEOUT, PrivateData::empty());
        }
    }

    pub(super) fn handle_command(&mut self, command: &Command) {
        match command {
            Command::Request(proposal) => self.handle_request(proposal),
            Command::Accept { to, proposal } => self.handle_accept(*to, proposal),
            Command::Reject { to, reason, private_data } => {
                let requested = |c: &&Connection| c.state == State::Requested;
                if self.cm.connections.get(*to).filter(requested).is_some()
                    && let Some(connection) = self.cm.remove(ConnectionId(*to))
                {
                    if let Some(qp) = connection.qp.and_then(|qp| self.qps.get_mut(qp.0)) {
                        (qp.connection, qp.known_to_peer) = (None, false);
                    }
                    self.report_rejection(ConnectionId(*to), *reason, *private_data);
                }
            }
            Command::Ready { to } => {
                if let Some(connection) = self.cm.connections.get_mut(*to)
                    && connection.state == State::Accepted
                {
                    connection.state = State::Established;
                    self.cm.events.push_back(ConnectionEvent::Established {
                        connection: ConnectionId(*to),
                        private_data: PrivateData::empty(),
                    });
                }
            }
            Command::Cancel { connection, qpn } => self.handle_cancel(*connection, *qpn),
            Command::Detach { to, from, refused } => self.handle_detach(*to, *from, *refused),
        }
    }

    fn handle_request(&mut self, proposal: &Proposal) {
        let to = proposal.connection;
        let refuse = |reason| Command::Reject { to, reason, private_data: PrivateData::empty() };
        if !self.cm.listening.has(proposal.port) {
            return self.outbox.push_back(refuse(RejectReason::INVALID_SERVICE_ID));
        }
        let p = &proposal.parameters;
        // The peer's responder resources limit the local initiator depth, and vice versa.
        let parameters = ConnectionParameters {
            responder_resources: p.initiator_depth,
            initiator_depth: p.responder_resources,
            ..*p
        };
        let connection = Connection {
            state: State::Offered,
            remote: proposal.connection,
            remote_qpn: proposal.qpn,
            parameters,
            qp: None,
            deadline: None,
        };
        let made = if self.cm.is_backlogged() { None } else { self.cm.insert(connection) };
        let Some(id) = made else {
            return self.outbox.push_back(refuse(RejectReason::NO_RESOURCES));
        };
        self.cm.events.push_back(ConnectionEvent::Request {
            connection: id,
            port: proposal.port,
            from: SocketAddr::new(self.config.peer, proposal.from_port),
            to: self.config.local,
            parameters,
            path_mtu: PathMtu::Mtu4096,
            private_data: proposal.private_data,
        });
    }

    fn handle_accept(&mut self, to: u32, proposal: &Proposal) {
        let Some(connection) = self.cm.connections.get_mut(to) else {
            // The request was withdrawn, and the peer's queue pair was never written to.
            return self.outbox.push_back(Command::Detach {
                to: proposal.qpn,
                from: 0,
                refused: None,
            });
        };
        let (State::Requested, Some(qp)) = (connection.state, connection.qp) else { return };
        connection.state = State::Established;
        connection.remote = proposal.connection;
        connection.deadline = None;
        if self.attach(qp, proposal.qpn).is_err() {
            // The number of the queue pair is impossible.
            return self.violation(Wrong::Command);
        }
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.state = QpState::Rts;
        }
        self.outbox.push_back(Command::Ready { to: proposal.connection });
        self.cm.events.push_back(ConnectionEvent::Established {
            connection: ConnectionId(to),
            private_data: proposal.private_data,
        });
    }

    fn handle_cancel(&mut self, remote: u32, qpn: u32) {
        if let Some(&id) = self.cm.offered.get(&(remote, qpn)) {
            if let Some(qp) = self.cm.connections.get(id.0).and_then(|c| c.qp) {
                // The failing queue pair sends its own `Detach`.
                return self.fail(super::qp_place(qp), None);
            }
            self.cm.remove(id);
            self.cm.report_end(id);
        }
        self.outbox.push_back(Command::Detach { to: qpn, from: 0, refused: None });
    }

    /// The number of a queue pair, if it can be connected.
    fn connectable(&self, qp: QpId) -> Result<u32, VerbsError> {
        let found = self.qps.get(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if found.state != QpState::Init || found.connection.is_some() || found.known_to_peer {
            return Err(VerbsError::WrongState);
        }
        Ok(found.identity.number)
    }
}

/// Private data of at most `most` bytes.
fn private(bytes: &[u8], most: usize) -> Result<PrivateData, VerbsError> {
    PrivateData::new(bytes).filter(|data| data.as_slice().len() <= most).ok_or(VerbsError::Invalid)
}

impl ConnectionManager for Ntrdma {
    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.cm.listening.add(port)
    }

    fn unlisten(&mut self, port: u16) {
        self.cm.listening.remove(port);
    }

    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError> {
        let qpn = self.connectable(qp)?;
        let private_data = private(private_data, REQUEST_DATA)?;
        let most = parameters.responder_resources.max(parameters.initiator_depth);
        if most > MAX_RD_ATOMIC || from != self.config.local {
            return Err(VerbsError::Invalid);
        }
        if to.ip() != self.config.peer || self.link.peer().is_none() {
            return Err(VerbsError::Unreachable);
        }
        if self.cm.is_backlogged() {
            return Err(VerbsError::NoRoom);
        }
        let connection = Connection {
            state: State::Requested,
            remote: 0,
            remote_qpn: 0,
            parameters: *parameters,
            qp: Some(qp),
            deadline: Some(now + ANSWER),
        };
        let id = self.cm.insert(connection).ok_or(VerbsError::NoRoom)?;
        if let Some(found) = self.qps.get_mut(qp.0) {
            (found.connection, found.known_to_peer) = (Some(id), true);
        }
        self.outbox.push_back(Command::Request(Proposal {
            connection: id.0,
            qpn,
            port: to.port(),
            from_port: 0xc000 | rng.next_u32() as u16,
            parameters: *parameters,
            private_data,
        }));
        Ok(id)
    }

    fn accept(
        &mut self,
        id: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        _now: Instant,
    ) -> Result<(), VerbsError> {
        let qpn = self.connectable(qp)?;
        let private_data = PrivateData::new(private_data).ok_or(VerbsError::Invalid)?;
        let connection = self.cm.connections.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        if connection.state != State::Offered {
            return Err(VerbsError::WrongState);
        }
        if parameters.responder_resources > MAX_RD_ATOMIC {
            return Err(VerbsError::Invalid);
        }
        let (remote, remote_qpn) = (connection.remote, connection.remote_qpn);
        // The retry counts are those of the requesting side.
        let depth = connection.parameters.initiator_depth.min(MAX_RD_ATOMIC);
        let parameters = ConnectionParameters {
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth.min(depth),
            min_rnr_timer: parameters.min_rnr_timer,
            ..connection.parameters
        };
        self.attach(qp, remote_qpn)?;
        if let Some(connection) = self.cm.connections.get_mut(id.0) {
            (connection.state, connection.qp) = (State::Accepted, Some(qp));
            connection.parameters = parameters;
        }
        if let Some(found) = self.qps.get_mut(qp.0) {
            (found.state, found.connection) = (QpState::Rts, Some(id));
        }
        let proposal =
            Proposal { connection: id.0, qpn, port: 0, from_port: 0, parameters, private_data };
        self.outbox.push_back(Command::Accept { to: remote, proposal });
        Ok(())
    }

    fn reject(
        &mut self,
        id: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let private_data = private(private_data, REJECT_DATA)?;
        let connection = self.cm.connections.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        if connection.state != State::Offered {
            return Err(VerbsError::WrongState);
        }
        let to = connection.remote;
        self.cm.remove(id);
        self.outbox.push_back(Command::Reject { to, reason, private_data });
        Ok(())
    }

    fn disconnect(&mut self, id: ConnectionId, _now: Instant) -> Result<(), VerbsError> {
        let connection = self.cm.connections.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        match (connection.state, connection.qp) {
            (State::Offered, _) => {
                self.reject(id, RejectReason::CONSUMER, &[])?;
                self.cm.report_end(id);
            }
            (State::Requested, qp) => {
                if let Some(connection) = self.cm.remove(id) {
                    self.cancel(id, &connection);
                }
                if let Some(found) = qp.and_then(|qp| self.qps.get_mut(qp.0)) {
                    found.connection = None;
                }
                self.report_rejection(id, RejectReason::TIMEOUT, PrivateData::empty());
            }
            (_, Some(qp)) => self.fail_without_event(qp),
            (_, None) => (),
        }
        Ok(())
    }

    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        self.cm.events.pop_front()
    }
}

impl Ntrdma {
    /// Fails a queue pair at its user's request, without an event.
    fn fail_without_event(&mut self, qp: QpId) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.error_reported = true;
        }
        self.fail(super::qp_place(qp), None);
    }
}
