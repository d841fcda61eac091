//! The bridge over TCP: a connection in place of a device. One machine listens. It accepts only the other machine, and
//! a new connection replaces the present one, so that a restarted peer need not wait for its former connection to time
//! out. The other machine connects, and retries.
//!
//! When the link goes down, its connection is closed. The next connection starts with the greeting of [`Stream`].

use crate::config::Ntb;
use crate::gateway::network::Network;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use drivers::ntb::Ntb as _;
use drivers::ntb::stream::{Stream, Wrong};
use net::connector::{self, ConnectionHandle, Connector, Progress};
use net::refusal::{Refusal, Refusals};
use net::tcp::{self, Listener};
use ntrdma::State;
use rand_core::Rng;

/// Bytes of a connection's buffers. The receive buffer is limited, because the interface can queue only so many ACKs
/// and drops the rest, after which TCP waits a second before it retransmits.
const RECEIVE: usize = 32 << 10;
const TRANSMIT: usize = 64 << 10;
/// Maximum of connections: the present one, the next one, and those of other hosts until they are refused.
const CONNECTIONS: usize = 4;
/// Time for the peer to answer a SYN. TCP itself would retransmit at ever longer intervals.
const PATIENCE: Duration = Duration::from_secs(1);
/// Wait before the next attempt: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Poll interval of connections without events.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes that one read takes from a connection.
const PIECE: usize = 16 << 10;

/// An interface's listener or connector.
enum Endpoint {
    Listens(Listener),
    Connects(Connector),
}

impl Endpoint {
    /// Whether there are connection events. Consumes them.
    fn take_events(&mut self, network: &mut Network) -> bool {
        let interface = &mut network.interface;
        let owner = match self {
            Endpoint::Listens(listener) => listener.owner(),
            Endpoint::Connects(connector) => connector.owner(interface),
        };
        if !interface.is_ready(owner) {
            return false;
        }
        match self {
            Endpoint::Listens(listener) => while listener.next_news(interface).is_some() {},
            Endpoint::Connects(connector) => while connector.next_news(interface).is_some() {},
        }
        true
    }
}

/// ID of a connection on an interface.
#[derive(Clone, Copy)]
enum ConnectionId {
    Accepted(tcp::Stream),
    Made(ConnectionHandle),
}

/// State of the connection.
#[derive(Clone, Copy)]
enum Stage {
    /// No connection.
    None,
    /// A SYN was sent at this time.
    Opening(Instant),
    /// Open. It waits until the provider has noticed the end of the former one.
    Next,
    /// In use since this time.
    Used(Instant),
}

/// The connection to the other machine.
pub(in crate::gateway) struct Tcp {
    pub stream: Stream,
    peer: SocketAddr,
    listens: bool,
    lost: Duration,
    endpoints: Vec<Endpoint>,
    stage: Stage,
    /// Index of its interface, and ID.
    connection: Option<(usize, ConnectionId)>,
    /// The provider's link came up over this connection.
    came_up: bool,
    /// Time of the next attempt to connect.
    connect_at: Instant,
    /// Wait after that attempt.
    pause: Duration,
    /// Time of the next poll without events.
    poll_at: Instant,
    /// Unsent bytes found no room.
    full: bool,
    buffer: Vec<u8>,
    /// Connections that ended by a violation of the peer.
    pub violations: u64,
    /// The violation that was logged last.
    logged: Option<Wrong>,
    pub refusals: Refusals,
}

impl Tcp {
    /// Creates it without a connection. The peer may write the memory `exposed`. Connections use the interfaces
    /// `networks`, which keep their indices. The bridge's own interface is not among them.
    #[cold]
    pub fn new(
        ntb: &Ntb,
        peer: IpAddr,
        exposed: Window,
        networks: &mut [Network],
        rng: &mut dyn Rng,
    ) -> Self {
        let (connections, receive, transmit) = (CONNECTIONS, RECEIVE, TRANSMIT);
        let endpoint = |network: &mut Network| {
            if ntb.listen {
                let limits = tcp::Limits { connections, receive, transmit };
                Endpoint::Listens(Listener::new(&mut network.interface, ntb.port, limits))
            } else {
                let limits = connector::Limits { connections, receive, transmit };
                Endpoint::Connects(Connector::new(limits, rng.next_u32() as u16))
            }
        };
        Tcp {
            stream: Stream::new(exposed),
            peer: SocketAddr::new(peer, ntb.port),
            listens: ntb.listen,
            lost: ntb.lost(),
            endpoints: networks.iter_mut().map(endpoint).collect(),
            stage: Stage::None,
            connection: None,
            came_up: false,
            connect_at: Instant::ZERO,
            pause: PAUSES[0],
            poll_at: Instant::ZERO,
            full: false,
            buffer: vec![0; PIECE],
            violations: 0,
            logged: None,
            refusals: Refusals::default(),
        }
    }

    /// Whether this machine listens.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// State of the connection, for reports.
    pub fn report(&self) -> &'static str {
        match self.stage {
            Stage::Used(_) if self.stream.link() => "connected",
            Stage::Used(_) | Stage::Next => "greets the peer",
            _ if self.listens => "waits for the peer",
            _ => "asks the peer",
        }
    }

    /// Maintains the connection, and carries bytes between it and the bridge. `link` is the state of the provider's
    /// link. Returns the amount of work.
    pub fn poll(&mut self, networks: &mut [Network], link: State, now: Instant) -> usize {
        let networks = &mut networks[..self.endpoints.len()];
        let endpoints = self.endpoints.iter_mut().zip(&mut *networks);
        let arrived =
            endpoints.fold(false, |any, (endpoint, network)| any | endpoint.take_events(network));
        self.full &= !arrived;
        let polls = arrived || now >= self.poll_at;
        if polls {
            self.poll_at = now + POLL_INTERVAL;
            self.accept(networks, now);
            self.connect(networks, now);
            self.update(networks, link, now);
        } else if self.full || self.stream.outgoing().is_empty() {
            return 0;
        }
        let Stage::Used(_) = self.stage else { return 0 };
        let taken = if polls { self.take(networks, now) } else { 0 };
        taken + self.send(networks, now)
    }

    /// Accepts connections of the peer, and refuses other hosts.
    #[cold]
    fn accept(&mut self, networks: &mut [Network], now: Instant) {
        for at in 0..networks.len() {
            loop {
                let interface = &mut networks[at].interface;
                let Endpoint::Listens(listener) = &mut self.endpoints[at] else { break };
                let Some(name) = listener.accept(interface, now) else { break };
                let from = listener.ends(interface, name).map(|(from, _)| from.ip());
                if from != Some(self.peer.ip()) {
                    listener.abort(interface, name, now);
                    self.refusals.push(Refusal {
                        who: from,
                        what: "connection",
                        asked: "ntb0 over TCP".into(),
                        reason: "host_not_admitted",
                        advice: format!(
                            "only the host in its `tcp`, {}, may connect",
                            self.peer.ip()
                        )
                        .into(),
                    });
                    continue;
                }
                self.end(networks, now);
                (self.stage, self.connection) =
                    (Stage::Next, Some((at, ConnectionId::Accepted(name))));
            }
        }
    }

    /// Connects to the peer, if this machine does not listen.
    #[cold]
    fn connect(&mut self, networks: &mut [Network], now: Instant) {
        for (endpoint, network) in self.endpoints.iter_mut().zip(&mut *networks) {
            if let Endpoint::Connects(connector) = endpoint {
                connector.poll(&mut network.interface, now);
            }
        }
        match (self.stage, self.connection) {
            (Stage::None, _) if now >= self.connect_at => {
                self.connect_at = now + self.pause;
                self.pause = (2 * self.pause).min(PAUSES[1]);
                let reaches = |n: &Network| n.interface.next_hop(self.peer.ip()).is_some();
                let Some(at) = networks.iter().position(reaches) else { return };
                let Endpoint::Connects(connector) = &mut self.endpoints[at] else { return };
                let made = connector.connect(&mut networks[at].interface, self.peer, false);
                if let Some(name) = made {
                    self.connection = Some((at, ConnectionId::Made(name)));
                    self.stage = Stage::Opening(now);
                }
            }
            (Stage::Opening(since), Some((at, ConnectionId::Made(name)))) => {
                let Endpoint::Connects(connector) = &mut self.endpoints[at] else { return };
                match connector.progress(&networks[at].interface, name) {
                    Progress::Open { .. } => self.stage = Stage::Next,
                    Progress::Opening if now < since + PATIENCE => (),
                    _ => self.end(networks, now),
                }
            }
            _ => (),
        }
    }

    /// Starts to use an open connection. Ends one whose link is down, timed out, or has a violation.
    #[cold]
    fn update(&mut self, networks: &mut [Network], link: State, now: Instant) {
        match self.stage {
            Stage::Next if link == State::Down => {
                self.stream.open();
                (self.stage, self.came_up, self.full) = (Stage::Used(now), false, false);
            }
            Stage::Used(_) if link == State::Up => {
                (self.came_up, self.pause, self.logged) = (true, PAUSES[0], None);
            }
            Stage::Used(since) if self.came_up || now >= since + self.lost => {
                self.end(networks, now);
            }
            _ => (),
        }
        if let Some(wrong) = self.stream.wrong() {
            self.violations += 1;
            if self.logged.replace(wrong) != Some(wrong) {
                log::error!("ntb0: {}: {wrong}", self.peer.ip());
            }
            self.end(networks, now);
        }
    }

    /// Passes received bytes to the bridge. Returns their number.
    fn take(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut taken = 0;
        while let Some((at, name)) = self.connection {
            let interface = &mut networks[at].interface;
            let read = match (&self.endpoints[at], name) {
                (Endpoint::Listens(listener), ConnectionId::Accepted(name)) => {
                    listener.read(interface, name, &mut self.buffer)
                }
                (Endpoint::Connects(connector), ConnectionId::Made(name)) => {
                    connector.read(interface, name, &mut self.buffer)
                }
                _ => break,
            };
            match read {
                Ok(0) => break,
                Ok(count) => {
                    taken += count;
                    self.stream.receive(&self.buffer[..count]);
                }
                Err(_) => self.end(networks, now),
            }
        }
        taken
    }

    /// Sends as many of the bridge's bytes as there is room for. Returns their number.
    fn send(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut sent = 0;
        while let Some((at, name)) = self.connection
            && !self.stream.outgoing().is_empty()
        {
            let interface = &mut networks[at].interface;
            let bytes = self.stream.outgoing();
            let written = match (&self.endpoints[at], name) {
                (Endpoint::Listens(listener), ConnectionId::Accepted(name)) => {
                    listener.write(interface, name, bytes)
                }
                (Endpoint::Connects(connector), ConnectionId::Made(name)) => {
                    connector.write(interface, name, bytes)
                }
                _ => break,
            };
            match written {
                Ok(0) => {
                    self.full = true;
                    break;
                }
                Ok(count) => {
                    sent += count;
                    self.stream.sent(count);
                }
                Err(_) => self.end(networks, now),
            }
        }
        sent
    }

    /// Ends the connection, if there is one, and takes the bridge's link down.
    #[cold]
    fn end(&mut self, networks: &mut [Network], now: Instant) {
        self.stream.close();
        self.stage = Stage::None;
        let Some((at, name)) = self.connection.take() else { return };
        let interface = &mut networks[at].interface;
        match (&mut self.endpoints[at], name) {
            (Endpoint::Listens(listener), ConnectionId::Accepted(name)) => {
                listener.abort(interface, name, now)
            }
            (Endpoint::Connects(connector), ConnectionId::Made(name)) => {
                connector.close(interface, name, true)
            }
            _ => (),
        }
    }
}
