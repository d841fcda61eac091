//! The bridge over TCP: the connection that stands in for a device. One machine listens and takes
//! nobody but the other, the newest connection first: a machine that was restarted must not wait
//! for the end of the one it has forgotten. The other connects, again and again.
//!
//! A connection serves one life of the link: when that goes down, it is given up as well, and the
//! next begins with what [`Stream`] says first.

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
use rand_core::RngCore;

/// Bytes of a connection's buffers. What arrives at once must not be more than the interface can
/// queue the answers to: it drops the rest, and TCP waits a second before it sends that again.
const RECEIVE: usize = 32 << 10;
const TRANSMIT: usize = 64 << 10;
/// Connections at a time: the present one, the next, and strangers until they are turned away.
const CONNECTIONS: usize = 4;
/// How long the peer has to answer a SYN. TCP itself would ask again at ever longer intervals.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait before the next attempt: first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// How often there is a look at connections though nothing happens.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes that are taken from a connection at a time.
const PIECE: usize = 16 << 10;

/// How an interface comes to connections.
enum Door {
    Listens(Listener),
    Connects(Connector),
}

impl Door {
    /// Whether something has happened to its connections, or one waits to be accepted.
    fn hears(&mut self, network: &mut Network) -> bool {
        let interface = &mut network.interface;
        let owner = match self {
            Door::Listens(listener) => listener.owner(),
            Door::Connects(connector) => connector.owner(interface),
        };
        if !interface.is_ready(owner) {
            return false;
        }
        match self {
            Door::Listens(listener) => while listener.next_news(interface).is_some() {},
            Door::Connects(connector) => while connector.next_news(interface).is_some() {},
        }
        true
    }
}

/// A connection, on one of the interfaces.
#[derive(Clone, Copy)]
enum Name {
    Accepted(tcp::Stream),
    Made(ConnectionHandle),
}

/// Where the connection stands.
#[derive(Clone, Copy)]
enum Stage {
    /// There is none.
    None,
    /// The peer was asked, then.
    Opening(Instant),
    /// It is there, and waits for the provider to see that the last one has ended.
    Next,
    /// It is used, since then.
    Used(Instant),
}

/// The connection to the other machine.
pub(in crate::gateway) struct Tcp {
    pub stream: Stream,
    peer: SocketAddr,
    listens: bool,
    lost: Duration,
    doors: Vec<Door>,
    stage: Stage,
    /// The connection, and the place of its interface.
    connection: Option<(usize, Name)>,
    /// The provider's link came up over it.
    came_up: bool,
    /// When to ask again, and how long to wait after that.
    ask_at: Instant,
    pause: Duration,
    /// When to look though nothing arrives.
    look_at: Instant,
    /// What there is to send found no room.
    full: bool,
    buffer: Vec<u8>,
    /// Connections that ended by a mistake of the peer's.
    pub violations: u64,
    told: Option<Wrong>,
    pub refusals: Refusals,
}

impl Tcp {
    /// Without a connection, over memory that the peer may write, as `ntb` says. Connections go over
    /// these interfaces, which stay the first of all; that of the bridge itself is none of them.
    #[cold]
    pub fn new(
        ntb: &Ntb,
        peer: IpAddr,
        exposed: Window,
        networks: &mut [Network],
        rng: &mut dyn RngCore,
    ) -> Self {
        let (connections, receive, transmit) = (CONNECTIONS, RECEIVE, TRANSMIT);
        let door = |network: &mut Network| {
            if ntb.listen {
                let limits = tcp::Limits { connections, receive, transmit };
                Door::Listens(Listener::new(&mut network.interface, ntb.port, limits))
            } else {
                let limits = connector::Limits { connections, receive, transmit };
                Door::Connects(Connector::new(limits, rng.next_u32() as u16))
            }
        };
        Tcp {
            stream: Stream::new(exposed),
            peer: SocketAddr::new(peer, ntb.port),
            listens: ntb.listen,
            lost: ntb.lost(),
            doors: networks.iter_mut().map(door).collect(),
            stage: Stage::None,
            connection: None,
            came_up: false,
            ask_at: Instant::ZERO,
            pause: PAUSES[0],
            look_at: Instant::ZERO,
            full: false,
            buffer: vec![0; PIECE],
            violations: 0,
            told: None,
            refusals: Refusals::default(),
        }
    }

    /// Whether this machine listens.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// How the connection stands, in words.
    pub fn report(&self) -> &'static str {
        match self.stage {
            Stage::Used(_) if self.stream.link() => "connected",
            Stage::Used(_) | Stage::Next => "greets the peer",
            _ if self.listens => "waits for the peer",
            _ => "asks the peer",
        }
    }

    /// Carries bytes between the bridge and its connection, and sees to that; `link` is how the
    /// provider's link stands. How much was done.
    pub fn poll(&mut self, networks: &mut [Network], link: State, now: Instant) -> usize {
        let networks = &mut networks[..self.doors.len()];
        let doors = self.doors.iter_mut().zip(&mut *networks);
        let arrived = doors.fold(false, |any, (door, network)| any | door.hears(network));
        self.full &= !arrived;
        let looks = arrived || now >= self.look_at;
        if looks {
            self.look_at = now + LOOK;
            self.accept(networks, now);
            self.ask(networks, now);
            self.see_to_it(networks, link, now);
        } else if self.full || self.stream.outgoing().is_empty() {
            return 0;
        }
        let Stage::Used(_) = self.stage else { return 0 };
        let taken = if looks { self.take(networks, now) } else { 0 };
        taken + self.send(networks, now)
    }

    /// Takes connections of the peer's.
    #[cold]
    fn accept(&mut self, networks: &mut [Network], now: Instant) {
        for at in 0..networks.len() {
            loop {
                let interface = &mut networks[at].interface;
                let Door::Listens(listener) = &mut self.doors[at] else { break };
                let Some(name) = listener.accept(interface, now) else { break };
                let from = listener.ends(interface, name).map(|(from, _)| from.ip());
                if from != Some(self.peer.ip()) {
                    listener.abort(interface, name, now);
                    self.refusals.push(Refusal {
                        who: from,
                        what: "connection",
                        asked: "ntb0 over TCP".into(),
                        reason: "host_not_admitted",
                        advice: format!("only {} may connect, its `tcp`", self.peer.ip()).into(),
                    });
                    continue;
                }
                self.end(networks, now);
                (self.stage, self.connection) = (Stage::Next, Some((at, Name::Accepted(name))));
            }
        }
    }

    /// Asks the peer for a connection, where that is ours to do.
    #[cold]
    fn ask(&mut self, networks: &mut [Network], now: Instant) {
        for (door, network) in self.doors.iter_mut().zip(&mut *networks) {
            if let Door::Connects(connector) = door {
                connector.poll(&mut network.interface, now);
            }
        }
        match (self.stage, self.connection) {
            (Stage::None, _) if now >= self.ask_at => {
                self.ask_at = now + self.pause;
                self.pause = (2 * self.pause).min(PAUSES[1]);
                let reaches = |n: &Network| n.interface.next_hop(self.peer.ip()).is_some();
                let Some(at) = networks.iter().position(reaches) else { return };
                let Door::Connects(connector) = &mut self.doors[at] else { return };
                let made = connector.connect(&mut networks[at].interface, self.peer, false);
                if let Some(name) = made {
                    self.connection = Some((at, Name::Made(name)));
                    self.stage = Stage::Opening(now);
                }
            }
            (Stage::Opening(since), Some((at, Name::Made(name)))) => {
                let Door::Connects(connector) = &mut self.doors[at] else { return };
                match connector.progress(&networks[at].interface, name) {
                    Progress::Open { .. } => self.stage = Stage::Next,
                    Progress::Opening if now < since + PATIENCE => (),
                    _ => self.end(networks, now),
                }
            }
            _ => (),
        }
    }

    /// Begins to use the next connection, and ends one that is of no use.
    #[cold]
    fn see_to_it(&mut self, networks: &mut [Network], link: State, now: Instant) {
        match self.stage {
            Stage::Next if link == State::Down => {
                self.stream.open();
                (self.stage, self.came_up, self.full) = (Stage::Used(now), false, false);
            }
            Stage::Used(_) if link == State::Up => {
                (self.came_up, self.pause, self.told) = (true, PAUSES[0], None);
            }
            Stage::Used(since) if self.came_up || now >= since + self.lost => {
                self.end(networks, now);
            }
            _ => (),
        }
        if let Some(wrong) = self.stream.wrong() {
            self.violations += 1;
            if self.told.replace(wrong) != Some(wrong) {
                log::error!("ntb0: {}: {wrong}", self.peer.ip());
            }
            self.end(networks, now);
        }
    }

    /// Hands over what has arrived; how many bytes.
    fn take(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut taken = 0;
        while let Some((at, name)) = self.connection {
            let interface = &mut networks[at].interface;
            let read = match (&self.doors[at], name) {
                (Door::Listens(door), Name::Accepted(name)) => {
                    door.read(interface, name, &mut self.buffer)
                }
                (Door::Connects(door), Name::Made(name)) => {
                    door.read(interface, name, &mut self.buffer)
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

    /// Sends what there is room for; how many bytes.
    fn send(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut sent = 0;
        while let Some((at, name)) = self.connection
            && !self.stream.outgoing().is_empty()
        {
            let interface = &mut networks[at].interface;
            let bytes = self.stream.outgoing();
            let written = match (&self.doors[at], name) {
                (Door::Listens(door), Name::Accepted(name)) => door.write(interface, name, bytes),
                (Door::Connects(door), Name::Made(name)) => door.write(interface, name, bytes),
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

    /// Gives the connection up, if there is one: the bridge's link is down from now on.
    #[cold]
    fn end(&mut self, networks: &mut [Network], now: Instant) {
        self.stream.close();
        self.stage = Stage::None;
        let Some((at, name)) = self.connection.take() else { return };
        let interface = &mut networks[at].interface;
        match (&mut self.doors[at], name) {
            (Door::Listens(door), Name::Accepted(name)) => door.abort(interface, name, now),
            (Door::Connects(door), Name::Made(name)) => door.close(interface, name, true),
            _ => (),
        }
    }
}
