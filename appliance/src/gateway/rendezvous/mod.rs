//! The TCP connections over which engines over UDP and their peers exchange parameters: one record each way, then no
//! data for as long as the peer lives. A connection that sends no record, or more data, is closed.

mod connection;
pub(super) mod exchange;
mod sockets;

use super::network::Network;
use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use connection::{Connection, Phase};
use drivers::hal::Instant;
use exchange::Exchange;
use net::connector::{self, Connector};
use net::tcp::{self, Listener};
use rand_core::Rng;
use sockets::{ConnectionId, Sockets};

/// Connections of a listener without a record yet. Beyond that the oldest is closed.
const SILENT: usize = 8;
/// Connections of a listener: endpoints of an interface, and those without a record.
const CONNECTIONS: usize = 64 + SILENT;
/// Outgoing connections of an interface.
const OUTGOING: usize = 64;
/// Bytes of a connection's buffers.
const RECEIVE: usize = 1024;
const TRANSMIT: usize = 1024;

/// All rendezvous connections of this loop.
pub(super) struct Rendezvous {
    /// By index of the port.
    sockets: Vec<Sockets>,
    connections: Vec<Connection>,
    next: u64,
    /// When the next timer expires.
    due: Option<Instant>,
}

impl Rendezvous {
    /// Listens for the engine. `ports` has the interface number of each port.
    pub fn new(engine: &dyn Exchange, ports: &[usize], networks: &mut [Network]) -> Self {
        let mut sockets: Vec<Sockets> = ports.iter().map(|_| Sockets::default()).collect();
        let limits = tcp::Limits { connections: CONNECTIONS, receive: RECEIVE, transmit: TRANSMIT };
        for (place, port) in engine.listen_ports() {
            let network = ports.get(place).and_then(|&number| networks.get_mut(number));
            if let (Some(sockets), Some(network)) = (sockets.get_mut(place), network) {
                sockets.listeners.push(Listener::new(&mut network.interface, port, limits));
            }
        }
        Rendezvous { sockets, connections: Vec::new(), next: 1, due: Some(Instant::ZERO) }
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Polls all connections. Returns whether anything has changed for the engine.
    fn advance(
        &mut self,
        engine: &mut dyn Exchange,
        (ports, networks): (&[usize], &mut [Network]),
        rng: &mut dyn Rng,
        now: Instant,
    ) -> bool {
        let mut has_events = false;
        for (at, &port) in ports.iter().enumerate() {
            let (Some(sockets), Some(network)) = (self.sockets.get_mut(at), networks.get_mut(port))
            else {
                continue;
            };
            has_events |= sockets.take_events(network);
        }
        let is_due = self.due.is_some_and(|at| at <= now);
        if !engine.take_changed() && !has_events && !is_due {
            return false;
        }
        let closed = engine.take_closed();
        for connection in &mut self.connections {
            if closed.contains(&connection.name) {
                connection.over = Some(true);
            }
        }
        self.accept((ports, networks), now);
        self.connect(engine, (ports, networks), rng, now);
        let Rendezvous { sockets, connections, .. } = self;
        for connection in connections.iter_mut() {
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            let (Some(sockets), Some(network)) = (sockets.get(connection.at), network) else {
                continue;
            };
            connection.poll(sockets, network, engine, now);
        }
        connections.retain(|connection| {
            let Some(abort) = connection.over else { return true };
            engine.connection_ended(connection.name, now);
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            if let (Some(sockets), Some(network)) = (sockets.get_mut(connection.at), network) {
                sockets.end(network, connection.id, abort, now);
            }
            false
        });
        let waits = |connection: &Connection| {
            (connection.phase != Phase::Established).then_some(connection.until)
        };
        let waits = self.connections.iter().filter_map(waits).min();
        self.due = Instant::first([waits, engine.deadline()]);
        true
    }

    /// Accepts connections.
    fn accept(&mut self, (ports, networks): (&[usize], &mut [Network]), now: Instant) {
        for (at, &port) in ports.iter().enumerate() {
            let Some(network) = networks.get_mut(port) else { continue };
            let count = self.sockets.get(at).map_or(0, |sockets| sockets.listeners.len());
            for number in 0..count {
                loop {
                    let listener = self
                        .sockets
                        .get_mut(at)
                        .and_then(|sockets| sockets.listeners.get_mut(number));
                    let accepted = listener.and_then(|it| it.accept(&mut network.interface, now));
                    let Some(stream) = accepted else { break };
                    let (name, id) = (self.name(), ConnectionId::Accepted(number, stream));
                    let new = Connection::new(name, at, id, Phase::Receiving, now);
                    self.connections.push(new);
                    self.end_oldest_silent(at, number);
                }
            }
        }
    }

    /// Closes the oldest connection without a record if a listener has too many of them.
    fn end_oldest_silent(&mut self, at: usize, number: usize) {
        let is_silent = |connection: &&mut Connection| {
            let Connection { id, phase, over, .. } = **connection;
            let ours = matches!(id, ConnectionId::Accepted(listener, _) if listener == number);
            ours && connection.at == at && phase == Phase::Receiving && over.is_none()
        };
        let mut silent = self.connections.iter_mut().filter(is_silent);
        let oldest = silent.next();
        if silent.count() >= SILENT
            && let Some(oldest) = oldest
        {
            oldest.over = Some(true);
        }
    }

    /// Connects to the peers that the engine returns.
    fn connect(
        &mut self,
        engine: &mut dyn Exchange,
        (ports, networks): (&[usize], &mut [Network]),
        rng: &mut dyn Rng,
        now: Instant,
    ) {
        loop {
            let name = self.name();
            let Some((at, to)) = engine.next_peer(name, now) else { return };
            let network = ports.get(at).and_then(|&port| networks.get_mut(port));
            let made = self.sockets.get_mut(at).zip(network).and_then(|(sockets, network)| {
                let limits = connector::Limits {
                    connections: OUTGOING,
                    receive: RECEIVE,
                    transmit: TRANSMIT,
                };
                let new = || Connector::new(limits, rng.next_u32() as u16);
                let connector = sockets.connector.get_or_insert_with(new);
                connector.connect(&mut network.interface, to, false)
            });
            match made {
                Some(made) => {
                    let id = ConnectionId::Made(made);
                    let new = Connection::new(name, at, id, Phase::Opening, now);
                    self.connections.push(new);
                }
                None => engine.connection_ended(name, now),
            }
        }
    }
}

impl Service for Rendezvous {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { plane, own_ports, networks, now, .. } = around;
        let Some(engine) = plane.udp_engines.exchange() else { return 0 };
        let changed = self.advance(engine, (own_ports, networks), &mut *plane.rng, *now);
        if changed {
            plane.udp_engines.peers_changed();
        }
        usize::from(changed)
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        self.due
    }
}
