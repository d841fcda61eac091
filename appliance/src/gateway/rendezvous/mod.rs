//! The TCP connections by which engines over UDP and their peers tell each other what they need to know: a record each
//! way, and then silence for as long as the peer lives. Who says nothing, or more, is turned away.

mod connection;
pub(super) mod exchange;
mod sockets;

use super::network::Network;
use super::plane::DataPlane;
use super::service::{Service, Surroundings};
use connection::{Connection, Phase};
use drivers::hal::Instant;
use exchange::Exchange;
use net::connector::{self, Connector};
use net::tcp::{self, Listener};
use rand_core::RngCore;
use sockets::{Sockets, Way};

/// Connections of a port at a time that have said nothing yet: of more, the oldest gives way.
const SILENT: usize = 8;
/// Connections of a port at a time: endpoints of an interface, and the silent ones.
const CONNECTIONS: usize = 64 + SILENT;
/// Connections to others, of an interface.
const ASKED: usize = 64;
/// Bytes of a connection's buffers.
const RECEIVE: usize = 1024;
const TRANSMIT: usize = 1024;

/// All of them, of this loop.
pub(super) struct Rendezvous {
    /// By place of the port.
    sockets: Vec<Sockets>,
    connections: Vec<Connection>,
    next: u64,
    /// When there is something to do though nothing arrives.
    due: Option<Instant>,
}

impl Rendezvous {
    /// With listeners where the engine wants them; `ports` are the interfaces' numbers by place.
    pub fn new(engine: &dyn Exchange, ports: &[usize], networks: &mut [Network]) -> Self {
        let mut sockets: Vec<Sockets> = ports.iter().map(|_| Sockets::default()).collect();
        let limits = tcp::Limits { connections: CONNECTIONS, receive: RECEIVE, transmit: TRANSMIT };
        for (place, port) in engine.listens() {
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

    /// Goes on; whether something has changed for the engine.
    fn advance(
        &mut self,
        engine: &mut dyn Exchange,
        (ports, networks): (&[usize], &mut [Network]),
        rng: &mut dyn RngCore,
        now: Instant,
    ) -> bool {
        let mut heard = false;
        for (at, &port) in ports.iter().enumerate() {
            let (Some(sockets), Some(network)) = (self.sockets.get_mut(at), networks.get_mut(port))
            else {
                continue;
            };
            heard |= sockets.hear(network);
        }
        let is_due = self.due.is_some_and(|at| at <= now);
        if !engine.take_news() && !heard && !is_due {
            return false;
        }
        let over = engine.take_over();
        for connection in &mut self.connections {
            if over.contains(&connection.name) {
                connection.over = Some(true);
            }
        }
        self.accept((ports, networks), now);
        self.ask(engine, (ports, networks), rng, now);
        let Rendezvous { sockets, connections, .. } = self;
        for connection in connections.iter_mut() {
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            let (Some(sockets), Some(network)) = (sockets.get(connection.at), network) else {
                continue;
            };
            connection.go_on(sockets, network, engine, now);
        }
        connections.retain(|connection| {
            let Some(abort) = connection.over else { return true };
            engine.ended(connection.name, now);
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            if let (Some(sockets), Some(network)) = (sockets.get_mut(connection.at), network) {
                sockets.end(network, connection.way, abort, now);
            }
            false
        });
        let waits = |connection: &Connection| {
            (connection.phase != Phase::Stands).then_some(connection.until)
        };
        let waits = self.connections.iter().filter_map(waits).min();
        self.due = Instant::first([waits, engine.deadline()]);
        true
    }

    /// Takes connections that were opened by others.
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
                    let (name, way) = (self.name(), Way::Accepted(number, stream));
                    let new = Connection::new(name, at, way, Phase::Listening, now);
                    self.connections.push(new);
                    self.end_oldest_silent(at, number);
                }
            }
        }
    }

    /// Makes room at a listener for hosts that have something to say.
    fn end_oldest_silent(&mut self, at: usize, number: usize) {
        let is_silent = |connection: &&mut Connection| {
            let Connection { way, phase, over, .. } = **connection;
            let ours = matches!(way, Way::Accepted(listener, _) if listener == number);
            ours && connection.at == at && phase == Phase::Listening && over.is_none()
        };
        let mut silent = self.connections.iter_mut().filter(is_silent);
        let oldest = silent.next();
        if silent.count() >= SILENT
            && let Some(oldest) = oldest
        {
            oldest.over = Some(true);
        }
    }

    /// Asks peers that the engine wants to hear of.
    fn ask(
        &mut self,
        engine: &mut dyn Exchange,
        (ports, networks): (&[usize], &mut [Network]),
        rng: &mut dyn RngCore,
        now: Instant,
    ) {
        loop {
            let name = self.name();
            let Some((at, to)) = engine.wants(name, now) else { return };
            let network = ports.get(at).and_then(|&port| networks.get_mut(port));
            let made = self.sockets.get_mut(at).zip(network).and_then(|(sockets, network)| {
                let limits =
                    connector::Limits { connections: ASKED, receive: RECEIVE, transmit: TRANSMIT };
                let new = || Connector::new(limits, rng.next_u32() as u16);
                let connector = sockets.connector.get_or_insert_with(new);
                connector.connect(&mut network.interface, to, false)
            });
            match made {
                Some(made) => {
                    let way = Way::Made(made);
                    let new = Connection::new(name, at, way, Phase::Opening, now);
                    self.connections.push(new);
                }
                None => engine.ended(name, now),
            }
        }
    }
}

impl Service for Rendezvous {
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Surroundings { plane, own_ports, networks, now, .. } = around;
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
