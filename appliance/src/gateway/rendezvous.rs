//! The TCP connections by which engines over UDP and their peers tell each other what they need to know: a record each
//! way, and then silence for as long as the peer lives. Who says nothing, or more, is turned away.

use super::network::Network;
use super::state::State;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::connector::{self, ConnectionHandle, Connector, Progress};
use net::tcp::{self, Closed, Listener};
use rand_core::RngCore;
use usnic::wire::rendezvous::{Kind, LENGTH, MOST_TEXT, Record};

/// Connections of a port at a time that have said nothing yet: of more, the oldest gives way.
const SILENT: usize = 8;
/// Connections of a port at a time: endpoints of an interface, and the silent ones.
const CONNECTIONS: usize = 64 + SILENT;
/// Connections to others, of an interface.
const ASKED: usize = 64;
/// Bytes of a connection's buffers.
const RECEIVE: usize = 1024;
const TRANSMIT: usize = 1024;
/// How long a connection may take to open, and a record to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an engine does with records. Connections have names, which are given here and never twice.
pub(super) trait Exchange {
    /// Where it listens: places of ports, and TCP ports.
    fn listens(&self) -> Vec<(usize, u16)>;
    /// A peer that is to be asked now, over a connection of this name: the place of a port, and where.
    fn wants(&mut self, connection: u64, now: Instant) -> Option<(usize, SocketAddr)>;
    /// When to ask that again.
    fn deadline(&self) -> Option<Instant>;
    /// What the peer is asked over such a connection.
    fn request(&mut self, connection: u64) -> Option<[u8; LENGTH]>;
    /// A host has asked, at the port of a place; what is answered.
    fn asked(
        &mut self,
        connection: u64,
        at: (usize, u16),
        from: IpAddr,
        record: &[u8; LENGTH],
        now: Instant,
    ) -> Answer;
    /// A peer that was asked has answered, with text if it refuses; whether the connection stays.
    fn answered(
        &mut self,
        connection: u64,
        record: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> bool;
    /// A connection has ended.
    fn ended(&mut self, connection: u64, now: Instant);
    /// Whether it wants a connection, or the end of one, that it did not want before.
    fn take_news(&mut self) -> bool;
    /// Connections that it wants to be ended.
    fn take_over(&mut self) -> Vec<u64>;
}

/// What a host is answered.
pub(super) struct Answer {
    pub bytes: Vec<u8>,
    /// The host is a peer now, as long as the connection stays.
    pub stays: bool,
}

/// How TCP has a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the number of the listener.
    Accepted(usize, tcp::Stream),
    Made(ConnectionHandle),
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is being opened by us.
    Opening,
    /// A record is waited for.
    Listening,
    /// All was said.
    Stands,
}

struct Connection {
    name: u64,
    /// Place of its port.
    at: usize,
    way: Way,
    phase: Phase,
    /// When the phase has to be over.
    until: Instant,
    heard: Vec<u8>,
    /// It has ended; by a reset, or what was said still arrives.
    over: Option<bool>,
}

/// How a port comes to connections.
#[derive(Default)]
struct Doors {
    listeners: Vec<Listener>,
    connector: Option<Connector>,
}

/// All of them, of this loop.
pub(super) struct Rendezvous {
    /// By place of the port.
    doors: Vec<Doors>,
    connections: Vec<Connection>,
    next: u64,
    /// When there is something to do though nothing arrives.
    due: Option<Instant>,
}

impl Rendezvous {
    /// With listeners where the engine wants them; `ports` are the interfaces' numbers by place.
    pub fn new(engine: &dyn Exchange, ports: &[usize], networks: &mut [Network]) -> Self {
        let mut doors: Vec<Doors> = ports.iter().map(|_| Doors::default()).collect();
        let limits = tcp::Limits { connections: CONNECTIONS, receive: RECEIVE, transmit: TRANSMIT };
        for (place, port) in engine.listens() {
            let network = ports.get(place).and_then(|&number| networks.get_mut(number));
            if let (Some(doors), Some(network)) = (doors.get_mut(place), network) {
                doors.listeners.push(Listener::new(&mut network.interface, port, limits));
            }
        }
        Rendezvous { doors, connections: Vec::new(), next: 1, due: Some(Instant::ZERO) }
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Goes on; whether something has changed for the engine.
    fn poll(
        &mut self,
        engine: &mut dyn Exchange,
        (ports, networks): (&[usize], &mut [Network]),
        rng: &mut dyn RngCore,
        now: Instant,
    ) -> bool {
        let mut heard = false;
        for (at, &port) in ports.iter().enumerate() {
            let (Some(doors), Some(network)) = (self.doors.get_mut(at), networks.get_mut(port))
            else {
                continue;
            };
            heard |= doors.hear(network);
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
        let Rendezvous { doors, connections, .. } = self;
        for connection in connections.iter_mut() {
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            let (Some(doors), Some(network)) = (doors.get(connection.at), network) else {
                continue;
            };
            connection.go_on(doors, network, engine, now);
        }
        connections.retain(|connection| {
            let Some(abort) = connection.over else { return true };
            engine.ended(connection.name, now);
            let network = ports.get(connection.at).and_then(|&port| networks.get_mut(port));
            if let (Some(doors), Some(network)) = (doors.get_mut(connection.at), network) {
                doors.end(network, connection.way, abort, now);
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
            let count = self.doors.get(at).map_or(0, |doors| doors.listeners.len());
            for number in 0..count {
                loop {
                    let listener =
                        self.doors.get_mut(at).and_then(|doors| doors.listeners.get_mut(number));
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
            let made = self.doors.get_mut(at).zip(network).and_then(|(doors, network)| {
                let limits =
                    connector::Limits { connections: ASKED, receive: RECEIVE, transmit: TRANSMIT };
                let new = || Connector::new(limits, rng.next_u32() as u16);
                let connector = doors.connector.get_or_insert_with(new);
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

impl Doors {
    /// Whether something has happened to a connection, or one waits to be accepted.
    fn hear(&mut self, network: &mut Network) -> bool {
        let interface = &mut network.interface;
        let mut any = false;
        for listener in &mut self.listeners {
            if interface.is_ready(listener.owner()) {
                any = true;
                while listener.next_news(interface).is_some() {}
            }
        }
        if let Some(connector) = &mut self.connector {
            let owner = connector.owner(interface);
            if interface.is_ready(owner) {
                any = true;
                while connector.next_news(interface).is_some() {}
            }
        }
        any
    }

    fn read(&self, network: &mut Network, way: Way, into: &mut [u8]) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (way, &self.connector) {
            (Way::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.read(interface, stream, into)
            }
            (Way::Made(made), Some(connector)) => connector.read(interface, made, into),
            (Way::Made(_), None) => Err(Closed::Gone),
        }
    }

    /// Writes what fits into the connection's buffer, which was empty: all of it.
    fn write(&self, network: &mut Network, way: Way, bytes: &[u8]) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (way, &self.connector) {
            (Way::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.write(interface, stream, bytes)
            }
            (Way::Made(made), Some(connector)) => connector.write(interface, made, bytes),
            (Way::Made(_), None) => Err(Closed::Gone),
        }
    }

    fn end(&mut self, network: &mut Network, way: Way, abort: bool, now: Instant) {
        let interface = &mut network.interface;
        match (way, &mut self.connector) {
            (Way::Accepted(number, stream), _) => {
                if let Some(listener) = self.listeners.get_mut(number) {
                    match abort {
                        true => listener.abort(interface, stream, now),
                        false => listener.close(interface, stream, now),
                    }
                }
            }
            (Way::Made(made), Some(connector)) => connector.close(interface, made, abort),
            (Way::Made(_), None) => {}
        }
    }

    /// The host at the other end, and our port, of a connection that was accepted.
    fn host(&self, network: &mut Network, way: Way) -> Option<(IpAddr, u16)> {
        let Way::Accepted(number, stream) = way else { return None };
        let listener = self.listeners.get(number)?;
        let (from, _) = listener.ends(&mut network.interface, stream)?;
        Some((from.ip(), listener.port()))
    }
}

impl Connection {
    fn new(name: u64, at: usize, way: Way, phase: Phase, now: Instant) -> Self {
        let until = now + PATIENCE;
        Connection { name, at, way, phase, until, heard: Vec::new(), over: None }
    }

    fn go_on(
        &mut self,
        doors: &Doors,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        if self.over.is_some() {
            return;
        }
        if let (Phase::Opening, Way::Made(made), Some(connector)) =
            (self.phase, self.way, &doors.connector)
        {
            match connector.progress(&network.interface, made) {
                Progress::Opening => {}
                Progress::Gone => self.over = Some(true),
                Progress::Open { .. } => {
                    let request = engine.request(self.name);
                    let sent = request.map(|bytes| doors.write(network, self.way, &bytes));
                    match sent {
                        Some(Ok(LENGTH)) => self.phase = Phase::Listening,
                        _ => self.over = Some(true),
                    }
                }
            }
        }
        if self.phase != Phase::Opening && self.over.is_none() {
            self.listen(doors, network, engine, now);
        }
        if self.phase != Phase::Stands && self.until <= now {
            self.over.get_or_insert(true);
        }
    }

    fn listen(
        &mut self,
        doors: &Doors,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        let mut bytes = [0; LENGTH + MOST_TEXT];
        let length = match doors.read(network, self.way, &mut bytes) {
            Ok(0) => return,
            Ok(length) => length,
            Err(_) => {
                self.over = Some(true);
                return;
            }
        };
        if self.phase == Phase::Stands || self.heard.len() + length > bytes.len() {
            // Nothing belongs behind what was said.
            self.over = Some(true);
            return;
        }
        self.heard.extend(bytes.get(..length).unwrap_or_default());
        let Some((record, text)) = self.heard.split_first_chunk::<LENGTH>() else { return };
        let (stays, abort) = match self.way {
            Way::Accepted(..) => {
                let Some((from, port)) = doors.host(network, self.way) else { return };
                let answer = engine.asked(self.name, (self.at, port), from, record, now);
                let sent = doors.write(network, self.way, &answer.bytes);
                (answer.stays && text.is_empty() && sent.is_ok(), false)
            }
            Way::Made(_) => {
                // The text of a refusal follows.
                let wanted = match Record::parse(record).map(|record| record.kind) {
                    Ok(Kind::Refused(_, length)) => usize::from(length),
                    _ => 0,
                };
                if text.len() < wanted {
                    return;
                }
                (engine.answered(self.name, record, text, now), true)
            }
        };
        self.heard = Vec::new();
        self.phase = Phase::Stands;
        if !stays {
            self.over = Some(abort);
        }
    }
}

impl State {
    /// Goes on with exchanges of engines over UDP; how much was done.
    #[inline]
    pub fn poll_rendezvous(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let State { rendezvous, plane, own_ports, .. } = self;
        let Some(rendezvous) = rendezvous else { return 0 };
        let Some(engine) = plane.udp_engines.exchange() else { return 0 };
        let changed = rendezvous.poll(engine, (own_ports, networks), &mut *plane.rng, now);
        if changed {
            plane.udp_engines.peers_changed();
        }
        usize::from(changed)
    }

    /// When they have something to do though nothing arrives.
    pub fn rendezvous_timeout(&self) -> Option<Instant> {
        self.rendezvous.as_ref().and_then(|rendezvous| rendezvous.due)
    }
}
