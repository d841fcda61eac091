//! The TCP connections of links. Both ends of a link listen, and either connects; the engine says when. Nobody but a
//! link's peer is taken.

use super::{Link, Settings};
use crate::config::LinxTransport;
use crate::gateway::network::Network;
use ::linx::{LinkId, Node, StreamId, StreamOrder};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::connector::{self, ConnectionHandle, Connector, Progress};
use net::refusal::{Refusal, Refusals};
use net::tcp::{self, Listener};
use rand_core::RngCore;

/// Bytes of a connection's buffers.
const RECEIVE: usize = 32 << 10;
const TRANSMIT: usize = 64 << 10;
/// Connections at a time on each interface, besides one for each link: strangers, until they are turned away.
const STRANGERS: usize = 4;
/// Bytes that are taken from a connection, or given to it, at a time.
const PIECE: usize = 16 << 10;
/// How long the peer has to answer a SYN.
const PATIENCE: Duration = Duration::from_secs(2);
/// When bytes are shown again that found no memory, and attempts to connect are looked at.
const AGAIN: Duration = Duration::from_millis(100);

/// A connection, on one of the interfaces.
#[derive(Clone, Copy)]
enum Name {
    /// By the number of the listener.
    Accepted(usize, tcp::Stream),
    Made(ConnectionHandle),
}

/// Bytes that were taken from one side and that the other has not taken yet.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    at: usize,
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// A stream of a link.
struct Stream {
    link: LinkId,
    id: StreamId,
    /// The place of its interface.
    at: usize,
    name: Name,
    /// Since when it is asked for; None if it is open.
    asked: Option<Instant>,
    incoming: Rest,
    outgoing: Rest,
    /// It has ended.
    is_over: bool,
}

/// How an interface comes to connections.
struct Doors {
    listeners: Vec<Listener>,
    connector: Connector,
}

/// All streams.
pub(super) struct Streams {
    doors: Vec<Doors>,
    streams: Vec<Stream>,
    again: Option<Instant>,
    pub refusals: Refusals,
}

impl Streams {
    /// Over these interfaces, which stay the first of all.
    #[cold]
    pub fn new(links: &[Link], networks: &mut [Network], rng: &mut dyn RngCore) -> Self {
        let tcp = |link: &&Link| link.settings.transport == LinxTransport::Tcp;
        let mut ports: Vec<u16> =
            links.iter().filter(tcp).map(|link| link.settings.tcp_ports().0).collect();
        ports.sort_unstable();
        ports.dedup();
        let connections = links.len() + STRANGERS;
        let limits = tcp::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        let doors = |network: &mut Network| {
            let interface = &mut network.interface;
            let listeners = ports.iter().map(|port| Listener::new(interface, *port, limits));
            let listeners = listeners.collect();
            let limits = connector::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
            Doors { listeners, connector: Connector::new(limits, rng.next_u32() as u16) }
        };
        let doors = match ports.is_empty() {
            true => Vec::new(),
            false => networks.iter_mut().map(doors).collect(),
        };
        Streams {
            doors,
            streams: Vec::new(),
            again: Some(Instant::ZERO),
            refusals: Refusals::default(),
        }
    }

    /// Whether something is to be looked at though nothing has arrived.
    pub fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|at| at <= now)
    }

    /// When that is.
    pub fn deadline(&self) -> Option<Instant> {
        self.again
    }

    /// Takes connections, and what has arrived over them; how much was done.
    pub fn receive(
        &mut self,
        node: &mut Node,
        links: &[Link],
        networks: &mut [Network],
        now: Instant,
    ) -> usize {
        let doors = self.doors.iter_mut().zip(&mut *networks);
        let arrived = doors.fold(false, |any, (doors, network)| any | doors.hear(network));
        if !arrived && !self.is_due(now) {
            return 0;
        }
        self.accept(node, links, networks, now);
        for stream in &mut self.streams {
            let (Some(doors), Some(network)) =
                (self.doors.get(stream.at), networks.get_mut(stream.at))
            else {
                continue;
            };
            stream.look(doors, network, node, now);
            stream.take(doors, network, node, now);
        }
        self.forget(node, networks, now);
        1
    }

    /// Does what the engine orders, and sends what there is; how many bytes.
    pub fn send(
        &mut self,
        node: &mut Node,
        links: &[Link],
        networks: &mut [Network],
        now: Instant,
    ) -> usize {
        while let Some((link, order)) = node.next_stream_order() {
            match order {
                StreamOrder::Open(id) => {
                    let settings = links.iter().find(|it| it.id == link).map(|it| &it.settings);
                    let opened = settings.and_then(|it| self.connect(it, networks));
                    let Some((at, name)) = opened else {
                        node.stream_closed(link, id, now);
                        continue;
                    };
                    self.streams.push(Stream::new(link, id, at, name, Some(now)));
                }
                StreamOrder::Close(id) => {
                    let found = |it: &&mut Stream| it.link == link && it.id == id;
                    if let Some(stream) = self.streams.iter_mut().find(found) {
                        stream.is_over = true;
                    }
                }
            }
        }
        let mut sent = 0;
        for stream in self.streams.iter_mut().filter(|it| it.asked.is_none() && !it.is_over) {
            let (Some(doors), Some(network)) =
                (self.doors.get(stream.at), networks.get_mut(stream.at))
            else {
                continue;
            };
            sent += stream.give(doors, network, node, now);
        }
        self.forget(node, networks, now);
        let waits = |it: &Stream| it.asked.is_some() || !it.incoming.is_empty();
        let again = self.again.filter(|at| *at > now).unwrap_or(now + AGAIN);
        self.again = self.streams.iter().any(waits).then_some(again);
        sent
    }

    fn connect(&mut self, link: &Settings, networks: &mut [Network]) -> Option<(usize, Name)> {
        let address = link.address?;
        let reaches = |network: &Network| network.interface.next_hop(address).is_some();
        let at = networks.iter().position(reaches)?;
        let peer = SocketAddr::new(address, link.tcp_ports().1);
        let connector = &mut self.doors.get_mut(at)?.connector;
        let made = connector.connect(&mut networks.get_mut(at)?.interface, peer, false)?;
        Some((at, Name::Made(made)))
    }

    fn accept(&mut self, node: &mut Node, links: &[Link], networks: &mut [Network], now: Instant) {
        let Streams { doors, streams, refusals, .. } = self;
        for (at, (doors, network)) in doors.iter_mut().zip(networks).enumerate() {
            let interface = &mut network.interface;
            for (number, listener) in doors.listeners.iter_mut().enumerate() {
                while let Some(name) = listener.accept(interface, now) {
                    let from = listener.ends(interface, name).map(|(from, _)| from.ip());
                    let port = listener.port();
                    let meant = |link: &&Link| {
                        link.settings.transport == LinxTransport::Tcp
                            && link.settings.address == from
                            && link.settings.tcp_ports().0 == port
                    };
                    let link = links.iter().find(meant);
                    let Some(link) = link.filter(|_| from.is_some()) else {
                        listener.abort(interface, name, now);
                        let advice = "no [[linx]] has this host as its `address`";
                        refusals.push(refusal(from, port, "host_not_admitted", advice));
                        continue;
                    };
                    match node.stream_accepted(link.id, now) {
                        Some(id) => {
                            let name = Name::Accepted(number, name);
                            streams.push(Stream::new(link.id, id, at, name, None));
                        }
                        None => {
                            listener.abort(interface, name, now);
                            let advice = "the link has a connection that it keeps";
                            refusals.push(refusal(from, port, "connections", advice));
                        }
                    }
                }
            }
        }
    }

    /// Gives up streams that are over.
    fn forget(&mut self, node: &mut Node, networks: &mut [Network], now: Instant) {
        let Streams { doors, streams, .. } = self;
        streams.retain_mut(|stream| {
            if !stream.is_over {
                return true;
            }
            node.stream_closed(stream.link, stream.id, now);
            if let (Some(doors), Some(network)) =
                (doors.get_mut(stream.at), networks.get_mut(stream.at))
            {
                let interface = &mut network.interface;
                match stream.name {
                    Name::Accepted(number, name) => {
                        if let Some(listener) = doors.listeners.get_mut(number) {
                            listener.abort(interface, name, now);
                        }
                    }
                    Name::Made(name) => doors.connector.close(interface, name, true),
                }
            }
            false
        });
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
        let owner = self.connector.owner(interface);
        if interface.is_ready(owner) {
            any = true;
            while self.connector.next_news(interface).is_some() {}
        }
        any
    }
}

impl Stream {
    fn new(link: LinkId, id: StreamId, at: usize, name: Name, asked: Option<Instant>) -> Self {
        let (incoming, outgoing) = (Rest::default(), Rest::default());
        Stream { link, id, at, name, asked, incoming, outgoing, is_over: false }
    }

    /// Looks how far an attempt to connect is.
    fn look(&mut self, doors: &Doors, network: &mut Network, node: &mut Node, now: Instant) {
        let (Some(since), Name::Made(name)) = (self.asked, self.name) else { return };
        match doors.connector.progress(&network.interface, name) {
            Progress::Open { .. } => {
                self.asked = None;
                node.stream_opened(self.link, self.id, now);
            }
            Progress::Opening if now < since + PATIENCE => {}
            Progress::Opening | Progress::Gone => self.is_over = true,
        }
    }

    /// Hands over what has arrived, as far as the engine takes it.
    fn take(&mut self, doors: &Doors, network: &mut Network, node: &mut Node, now: Instant) {
        let interface = &mut network.interface;
        while self.asked.is_none() && !self.is_over {
            let Rest { bytes, at } = &mut self.incoming;
            if *at == bytes.len() {
                bytes.resize(PIECE, 0);
                let read = match self.name {
                    Name::Accepted(number, name) => {
                        let Some(listener) = doors.listeners.get(number) else { return };
                        listener.read(interface, name, bytes)
                    }
                    Name::Made(name) => doors.connector.read(interface, name, bytes),
                };
                *at = 0;
                bytes.truncate(*read.as_ref().unwrap_or(&0));
                match read {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(_) => self.is_over = true,
                }
            }
            let left = bytes.get(*at..).unwrap_or_default();
            let taken = node.stream_receive(self.link, self.id, left, now);
            *at += taken;
            if taken == 0 {
                return;
            }
        }
    }

    /// Sends what there is room for; how many bytes.
    fn give(
        &mut self,
        doors: &Doors,
        network: &mut Network,
        node: &mut Node,
        now: Instant,
    ) -> usize {
        let interface = &mut network.interface;
        let mut sent = 0;
        loop {
            let Rest { bytes, at } = &mut self.outgoing;
            if *at == bytes.len() {
                if !node.stream_has_work(self.link) {
                    return sent;
                }
                bytes.resize(PIECE, 0);
                let length = node.stream_transmit(self.link, self.id, bytes, now);
                bytes.truncate(length);
                *at = 0;
                if length == 0 {
                    return sent;
                }
            }
            let left = bytes.get(*at..).unwrap_or_default();
            let written = match self.name {
                Name::Accepted(number, name) => {
                    let Some(listener) = doors.listeners.get(number) else { return sent };
                    listener.write(interface, name, left)
                }
                Name::Made(name) => doors.connector.write(interface, name, left),
            };
            match written {
                Ok(0) => return sent,
                Ok(count) => {
                    *at += count;
                    sent += count;
                }
                Err(_) => {
                    self.is_over = true;
                    return sent;
                }
            }
        }
    }
}

fn refusal(who: Option<IpAddr>, port: u16, reason: &'static str, advice: &'static str) -> Refusal {
    let asked = format!("LINX over TCP, port {port}");
    Refusal { who, what: "connection", asked, reason, advice: advice.into() }
}
