//! The TCP connections of links. Both ends of a link listen, and either connects when its engine orders it. Only
//! connections of a link's peer are accepted.

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
use rand_core::Rng;

/// Bytes of a connection's buffers.
const RECEIVE: usize = 32 << 10;
const TRANSMIT: usize = 64 << 10;
/// Connections on each interface beyond one for each link: those of other hosts, until they are refused.
const EXTRA_CONNECTIONS: usize = 4;
/// Bytes of one read from a connection, or one write to it.
const PIECE: usize = 16 << 10;
/// Time for the peer to answer a SYN.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval of retries for bytes that found no memory, and of polls of connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// ID of a connection on an interface.
#[derive(Clone, Copy)]
enum ConnectionId {
    /// Number of the listener, and the connection.
    Accepted(usize, tcp::Stream),
    Made(ConnectionHandle),
}

/// Bytes that were read from one side and not yet accepted by the other.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    at: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// A stream of a link.
struct Stream {
    link: LinkId,
    id: StreamId,
    /// Index of its interface.
    at: usize,
    name: ConnectionId,
    /// When the attempt to connect started; None if the connection is open.
    connecting: Option<Instant>,
    incoming: Pending,
    outgoing: Pending,
    /// The connection has ended.
    is_over: bool,
}

/// An interface's listeners and connector.
struct Sockets {
    listeners: Vec<Listener>,
    connector: Connector,
}

/// All streams.
pub(super) struct Streams {
    sockets: Vec<Sockets>,
    streams: Vec<Stream>,
    /// When to poll streams without events.
    retry_at: Option<Instant>,
    pub refusals: Refusals,
    /// Seed of the first ports of connectors.
    seed: u16,
}

impl Streams {
    /// No streams, and no listeners.
    pub fn new(rng: &mut dyn Rng) -> Self {
        Streams {
            sockets: Vec::new(),
            streams: Vec::new(),
            retry_at: Some(Instant::ZERO),
            refusals: Refusals::default(),
            seed: rng.next_u32() as u16,
        }
    }

    /// Listens for the peers of these links on the interfaces `networks`, which keep their indices. A listener that no
    /// link needs any more refuses all connections.
    #[cold]
    pub fn configure(&mut self, links: &[Settings], networks: &mut [Network]) {
        let tcp = links.iter().filter(|link| link.transport == LinxTransport::Tcp);
        let ports: Vec<u16> = tcp.map(|link| link.tcp_ports().0).collect();
        if ports.is_empty() {
            return;
        }
        let connections = links.len() + EXTRA_CONNECTIONS;
        let limits = connector::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        while self.sockets.len() < networks.len() {
            let seed = self.seed.wrapping_add(0x1234 * self.sockets.len() as u16);
            let connector = Connector::new(limits, seed);
            self.sockets.push(Sockets { listeners: Vec::new(), connector });
        }
        let outgoing = limits;
        let limits = tcp::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        for (sockets, network) in self.sockets.iter_mut().zip(networks) {
            sockets.connector.set_limits(&mut network.interface, outgoing);
            for listener in &mut sockets.listeners {
                listener.set_limits(&mut network.interface, limits);
            }
            for port in &ports {
                if !sockets.listeners.iter().any(|listener| listener.port() == *port) {
                    let listener = Listener::new(&mut network.interface, *port, limits);
                    sockets.listeners.push(listener);
                }
            }
        }
    }

    /// Ends the streams of a removed link.
    pub fn end_link(&mut self, link: LinkId) {
        for stream in self.streams.iter_mut().filter(|stream| stream.link == link) {
            stream.is_over = true;
        }
        self.retry_at = Some(Instant::ZERO);
    }

    /// Whether streams are to be polled without events.
    pub fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| at <= now)
    }

    /// When streams are to be polled without events.
    pub fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Accepts connections, and receives from all. Returns the amount of work.
    pub fn receive(
        &mut self,
        node: &mut Node,
        links: &[Link],
        networks: &mut [Network],
        now: Instant,
    ) -> usize {
        let sockets = self.sockets.iter_mut().zip(&mut *networks);
        let arrived =
            sockets.fold(false, |any, (sockets, network)| any | sockets.take_events(network));
        if !arrived && !self.is_due(now) {
            return 0;
        }
        self.accept(node, links, networks, now);
        for stream in &mut self.streams {
            let (Some(sockets), Some(network)) =
                (self.sockets.get(stream.at), networks.get_mut(stream.at))
            else {
                continue;
            };
            stream.poll_connecting(sockets, network, node, now);
            stream.receive(sockets, network, node, now);
        }
        self.remove_ended(node, networks, now);
        1
    }

    /// Executes the engine's orders, and sends its bytes. Returns the number of bytes.
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
        for stream in self.streams.iter_mut().filter(|it| it.connecting.is_none() && !it.is_over) {
            let (Some(sockets), Some(network)) =
                (self.sockets.get(stream.at), networks.get_mut(stream.at))
            else {
                continue;
            };
            sent += stream.send(sockets, network, node, now);
        }
        self.remove_ended(node, networks, now);
        let waits = |it: &Stream| it.connecting.is_some() || !it.incoming.is_empty();
        let retry_at = self.retry_at.filter(|at| *at > now).unwrap_or(now + RETRY_INTERVAL);
        self.retry_at = self.streams.iter().any(waits).then_some(retry_at);
        sent
    }

    fn connect(
        &mut self,
        link: &Settings,
        networks: &mut [Network],
    ) -> Option<(usize, ConnectionId)> {
        let address = link.address?;
        let reaches = |network: &Network| network.interface.next_hop(address).is_some();
        let at = networks.iter().position(reaches)?;
        let peer = SocketAddr::new(address, link.tcp_ports().1);
        let connector = &mut self.sockets.get_mut(at)?.connector;
        let made = connector.connect(&mut networks.get_mut(at)?.interface, peer, false)?;
        Some((at, ConnectionId::Made(made)))
    }

    fn accept(&mut self, node: &mut Node, links: &[Link], networks: &mut [Network], now: Instant) {
        let Streams { sockets, streams, refusals, .. } = self;
        for (at, (sockets, network)) in sockets.iter_mut().zip(networks).enumerate() {
            let interface = &mut network.interface;
            for (number, listener) in sockets.listeners.iter_mut().enumerate() {
                while let Some(name) = listener.accept(interface, now) {
                    let from = listener.ends(interface, name).map(|(from, _)| from.ip());
                    let port = listener.port();
                    let is_peer = |link: &&Link| {
                        link.settings.transport == LinxTransport::Tcp
                            && link.settings.address == from
                            && link.settings.tcp_ports().0 == port
                    };
                    let link = links.iter().find(is_peer);
                    let Some(link) = link.filter(|_| from.is_some()) else {
                        listener.abort(interface, name, now);
                        let advice = "no [[linx]] has this host as its `address`";
                        refusals.push(refusal(from, port, "host_not_admitted", advice));
                        continue;
                    };
                    match node.stream_accepted(link.id, now) {
                        Some(id) => {
                            let name = ConnectionId::Accepted(number, name);
                            streams.push(Stream::new(link.id, id, at, name, None));
                        }
                        None => {
                            listener.abort(interface, name, now);
                            let advice = "the link keeps its present connection";
                            refusals.push(refusal(from, port, "connections", advice));
                        }
                    }
                }
            }
        }
    }

    /// Closes and removes streams that have ended.
    fn remove_ended(&mut self, node: &mut Node, networks: &mut [Network], now: Instant) {
        let Streams { sockets, streams, .. } = self;
        streams.retain_mut(|stream| {
            if !stream.is_over {
                return true;
            }
            node.stream_closed(stream.link, stream.id, now);
            if let (Some(sockets), Some(network)) =
                (sockets.get_mut(stream.at), networks.get_mut(stream.at))
            {
                let interface = &mut network.interface;
                match stream.name {
                    ConnectionId::Accepted(number, name) => {
                        if let Some(listener) = sockets.listeners.get_mut(number) {
                            listener.abort(interface, name, now);
                        }
                    }
                    ConnectionId::Made(name) => sockets.connector.close(interface, name, true),
                }
            }
            false
        });
    }
}

impl Sockets {
    /// Whether there are connection events. Consumes them.
    fn take_events(&mut self, network: &mut Network) -> bool {
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
    fn new(
        link: LinkId,
        id: StreamId,
        at: usize,
        name: ConnectionId,
        connecting: Option<Instant>,
    ) -> Self {
        let (incoming, outgoing) = (Pending::default(), Pending::default());
        Stream { link, id, at, name, connecting, incoming, outgoing, is_over: false }
    }

    /// Polls an attempt to connect.
    fn poll_connecting(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        node: &mut Node,
        now: Instant,
    ) {
        let (Some(since), ConnectionId::Made(name)) = (self.connecting, self.name) else { return };
        match sockets.connector.progress(&network.interface, name) {
            Progress::Open { .. } => {
                self.connecting = None;
                node.stream_opened(self.link, self.id, now);
            }
            Progress::Opening if now < since + PATIENCE => {}
            Progress::Opening | Progress::Gone => self.is_over = true,
        }
    }

    /// Passes received bytes to the engine, as many as it takes.
    fn receive(&mut self, sockets: &Sockets, network: &mut Network, node: &mut Node, now: Instant) {
        let interface = &mut network.interface;
        while self.connecting.is_none() && !self.is_over {
            let Pending { bytes, at } = &mut self.incoming;
            if *at == bytes.len() {
                bytes.resize(PIECE, 0);
                let read = match self.name {
                    ConnectionId::Accepted(number, name) => {
                        let Some(listener) = sockets.listeners.get(number) else { return };
                        listener.read(interface, name, bytes)
                    }
                    ConnectionId::Made(name) => sockets.connector.read(interface, name, bytes),
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

    /// Sends the engine's bytes while there is room. Returns their number.
    fn send(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        node: &mut Node,
        now: Instant,
    ) -> usize {
        let interface = &mut network.interface;
        let mut sent = 0;
        loop {
            let Pending { bytes, at } = &mut self.outgoing;
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
                ConnectionId::Accepted(number, name) => {
                    let Some(listener) = sockets.listeners.get(number) else { return sent };
                    listener.write(interface, name, left)
                }
                ConnectionId::Made(name) => sockets.connector.write(interface, name, left),
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
