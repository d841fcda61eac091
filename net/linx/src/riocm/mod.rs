//! RIOCM: LINX's connection manager over RapidIO messages, version 2. Connections between configured ends carry
//! messages in order between link addresses. The engine does no I/O: received RapidIO messages and the time are
//! arguments, and [`Riocm::poll_transmit`] returns messages to be sent.
//!
//! A user adds ports and connections, connects them ([`Riocm::connect`]), sends, and takes events from
//! [`Riocm::next_event`], in order: messages delivered before the end of a connection come before its end, and none
//! after.
//!
//! RapidIO loses nothing and RIOCM retransmits nothing: an error in one packet ends the connection, and its user
//! connects again. There is no flow control: an end without memory for a message must end the connection. To prevent
//! that, [`Riocm::is_congested`] reports when messages should be left in the mailbox, which stops all senders to that
//! mailbox.

mod arrival;
mod assembly;
mod config;
mod connection;
mod counters;
mod down;
mod establish;
mod ready;
mod send;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{BadConfig, Config, ConnectionConfig, Fragmentation, MOST_CONNECTIONS};
pub use connection::{Agreed, State};
pub use counters::{Counters, StrayCounters};
pub use down::{Down, Fault};
pub use send::SendError;
pub use transmit::Transmit;

use crate::pool::{Chain, Pool};
use crate::rng::Rng;
use crate::wire::riocm::LARGEST;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use config::{DEFAULT_MTU, LEAST_MTU};
use connection::Connection;
use drivers::hal::{Instant, Timers};
use ready::Ready;
use send::Outgoing;
use slab::Slab;

/// No message.
const NONE: u32 = u32::MAX;

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    cid: u8,
    number: u32,
}

impl ConnectionId {
    /// Its id on the wire.
    pub fn cid(self) -> u8 {
        self.cid
    }
}

/// A received message. It holds memory of the connection: the receiver must free its chain.
#[derive(Debug)]
pub struct Message {
    /// Link address of the sender.
    pub source: u32,
    /// Link address of the receiver.
    pub destination: u32,
    /// Its bytes.
    pub chain: Chain,
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// Messages can be sent.
    Connected(ConnectionId),
    /// The connection has ended. `connect` starts a new one.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// Cause.
        why: Down,
        /// Messages that were not sent, or not completely.
        unsent: usize,
    },
    /// A message was received.
    Message {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Memory passed to [`Riocm::send_windows`] is no longer in use.
    Sent {
        /// The connection.
        connection: ConnectionId,
        /// The user's name for it.
        cookie: u64,
        /// It was sent; if not, the connection ended first.
        done: bool,
    },
    /// There is room to send again, after [`SendError::Full`].
    Room(ConnectionId),
}

/// A RapidIO port.
#[derive(Debug)]
struct Port {
    name: Box<str>,
    id: u16,
    mtu: u16,
}

/// Status of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// State.
    pub state: State,
    /// Name of its RapidIO port.
    pub port: String,
    /// Whether the port exists.
    pub has_port: bool,
    /// Device ids of both ends.
    pub ids: (u16, u16),
    /// RIOCM ports of both ends.
    pub ports: (u16, u16),
    /// Mailbox of the peer.
    pub peer_mailbox: u8,
    /// Connection ids: ours, which the peer uses, and the peer's.
    pub cids: (u16, u16),
    /// Generations of both ends.
    pub generations: (u8, u8),
    /// Negotiated parameters, once it is connected.
    pub agreed: Agreed,
    /// Counters.
    pub counters: Counters,
}

/// The engine.
#[derive(Debug)]
pub struct Riocm {
    config: Config,
    ports: Vec<Option<Port>>,
    /// By connection id; 0 is unused.
    connections: Vec<Option<Connection>>,
    /// By RapidIO port, device id and port of the peer, and our port.
    by_ends: BTreeMap<(usize, u16, u16, u16), u8>,
    timers: Timers,
    ready: Ready,
    outgoing: Slab<Outgoing>,
    /// The message whose last packet was returned to the caller, which may still read it.
    last: Option<(u8, u32)>,
    out: transmit::Out,
    events: VecDeque<Event>,
    strays: StrayCounters,
    /// Latest time passed by a caller.
    now: Instant,
    number: u32,
    generation: u8,
    rng: Rng,
}

impl Riocm {
    /// An engine. `secret` is random: retries of different machines are spread by it, and generations differ between
    /// boots.
    pub fn new(config: Config, pool: &Pool, secret: u64) -> Riocm {
        let mut rng = Rng::new(secret);
        Riocm {
            config,
            ports: Vec::new(),
            connections: (0..=MOST_CONNECTIONS).map(|_| None).collect(),
            by_ends: BTreeMap::new(),
            timers: Timers::with_room(MOST_CONNECTIONS + 1),
            ready: Ready::new(),
            outgoing: Slab::with_capacity(config.sends),
            last: None,
            out: transmit::Out::new(),
            events: VecDeque::with_capacity(pool.pieces() + config.sends + 4 * MOST_CONNECTIONS),
            strays: StrayCounters::default(),
            now: Instant::ZERO,
            number: 0,
            generation: rng.next() as u8,
            rng,
        }
    }

    /// Adds a RapidIO port, and returns its number. Connections configured for a port of this name use it from now on.
    /// `mtu` is its longest message in bytes; 0 if unknown.
    pub fn add_port(&mut self, name: &str, id: u16, mtu: u16) -> Result<usize, BadConfig> {
        let mtu = if mtu == 0 { DEFAULT_MTU } else { mtu };
        if mtu <= LEAST_MTU || usize::from(mtu) > LARGEST {
            return Err(BadConfig::Mtu(mtu));
        }
        if self.ports.iter().flatten().any(|port| &*port.name == name) {
            return Err(BadConfig::PortExists);
        }
        let port = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if port == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[port] = Some(Port { name: name.into(), id, mtu });
        for cid in 1..=MOST_CONNECTIONS as u8 {
            if self.at(cid).is_some_and(|it| it.port.is_none() && &*it.port_name == name) {
                self.assign_port(cid, port);
            }
        }
        Ok(port)
    }

    /// Removes a RapidIO port. Its connections end, and wait for a port of the same name.
    pub fn remove_port(&mut self, pool: &mut Pool, port: usize) {
        for cid in 1..=MOST_CONNECTIONS as u8 {
            let Some(connection) = self.at(cid).filter(|it| it.port == Some(port)) else {
                continue;
            };
            connection.port = None;
            let key = (port, connection.peer_id, connection.peer_port, connection.my_port);
            self.by_ends.remove(&key);
            self.end(pool, cid, Down::PortGone);
        }
        if let Some(port) = self.ports.get_mut(port) {
            *port = None;
        }
    }

    /// Adds a connection, which is not connected yet.
    pub fn create(
        &mut self,
        pool: &mut Pool,
        config: &ConnectionConfig<'_>,
        now: Instant,
    ) -> Result<ConnectionId, BadConfig> {
        let mtu = config.mtu;
        if mtu != 0 && (mtu <= LEAST_MTU || usize::from(mtu) > LARGEST) {
            return Err(BadConfig::Mtu(mtu));
        }
        if config.peer_mailbox > 3 {
            return Err(BadConfig::Mailbox(config.peer_mailbox));
        }
        let most = config.max_message as usize;
        if config.receive_bytes / 2 < most || config.send_bytes < most || config.sends == 0 {
            return Err(BadConfig::TooLittle);
        }
        let same = |it: &Connection| {
            let ends = (&*it.port_name, it.peer_id, it.peer_port, it.my_port);
            ends == (config.port, config.peer_id, config.peer_port, config.my_port)
        };
        if self.connections.iter().flatten().any(same) {
            return Err(BadConfig::Exists);
        }
        let free = (1..=MOST_CONNECTIONS).find(|&cid| self.connections[cid].is_none());
        let cid = free.ok_or(BadConfig::Full)? as u8;
        let wanted = config.receive_bytes + config.send_bytes;
        let receive = pool.open(config.receive_bytes).ok_or(BadConfig::Memory { wanted })?;
        let Some(send) = pool.open(config.send_bytes) else {
            pool.close(receive);
            return Err(BadConfig::Memory { wanted });
        };
        self.number += 1;
        let id = ConnectionId { cid, number: self.number };
        let mut connection = Connection::new(id, config, (receive, send), &self.config);
        // One generation for each connection, not for each attempt: LINX for Linux keeps the first one that it
        // receives.
        connection.generation = self.generation;
        self.generation = self.generation.wrapping_add(1);
        self.connections[usize::from(cid)] = Some(connection);
        let named = |port: &Option<Port>| port.as_ref().is_some_and(|it| &*it.name == config.port);
        if let Some(port) = self.ports.iter().position(named) {
            self.assign_port(cid, port);
        }
        self.now = self.now.max(now);
        let pause = self.retry_pause();
        self.timers.set(cid.into(), Some(now + pause));
        Ok(id)
    }

    /// Removes a connection. If it was established, its CONN_RESET is sent first.
    pub fn destroy(&mut self, pool: &mut Pool, id: ConnectionId) {
        if self.by_id(id).is_none() {
            return;
        }
        self.reap(pool);
        self.end(pool, id.cid, Down::Asked);
        self.timers.set(id.cid.into(), None);
        let Some(connection) = self.by_id(id) else { return };
        connection.is_dying = true;
        if !connection.owed.reset {
            self.free_connection(pool, id.cid);
        }
    }

    /// Frees a connection.
    fn free_connection(&mut self, pool: &mut Pool, cid: u8) {
        let Some(connection) = self.connections[usize::from(cid)].take() else { return };
        if let Some(port) = connection.port {
            let key = (port, connection.peer_id, connection.peer_port, connection.my_port);
            self.by_ends.remove(&key);
        }
        self.ready.remove(cid);
        pool.close(connection.receive_account);
        pool.close(connection.send_account);
    }

    /// Connects: CONN_REQs are sent until the connection is established, after a pause if one has just ended. False if
    /// it is connecting or connected already, or unknown.
    pub fn connect(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.by_id(id) else { return false };
        if connection.state != State::Disconnected || connection.is_dying {
            return false;
        }
        if connection.is_wanted {
            return false;
        }
        if connection.is_pausing {
            connection.is_wanted = true;
        } else {
            connection.state = State::Connecting;
        }
        connection.agreed =
            Agreed { mtu: connection.wanted_mtu, heartbeat: connection.user_heartbeat };
        (connection.sequence, connection.message_id) = (0, 0);
        true
    }

    /// Ends a connection.
    pub fn disconnect(&mut self, pool: &mut Pool, id: ConnectionId) {
        self.end_by(pool, id, Down::Asked);
    }

    /// Ends a connection because of a fault that a higher layer has detected.
    pub fn end_by(&mut self, pool: &mut Pool, id: ConnectionId, why: Down) {
        if self.by_id(id).is_some() {
            self.reap(pool);
            self.end(pool, id.cid, why);
        }
    }

    /// Handles timers that are due, and frees the message returned last. [`Riocm::poll_transmit`] does the same.
    #[inline]
    pub fn poll(&mut self, pool: &mut Pool, now: Instant) {
        self.now = self.now.max(now);
        self.reap(pool);
        if self.timers.first().is_some_and(|at| at <= now) {
            self.poll_timers(pool, now);
        }
    }

    #[inline(never)]
    fn poll_timers(&mut self, pool: &mut Pool, now: Instant) {
        while let Some(cid) = self.timers.take_due(now) {
            self.timer(pool, cid as u8, now);
        }
    }

    /// Whether events are pending.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Riocm::poll_transmit`] is due without other calls.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// Whether a connection has no room for two more packets of maximum length (early packets are counted in its memory
    /// already): messages should be left in the mailbox until some were read.
    pub fn is_congested(&self, pool: &Pool) -> bool {
        let mut connections = self.connections.iter().flatten();
        connections
            .any(|it| it.state == State::Connected && pool.room(it.receive_account) < 2 * LARGEST)
    }

    /// Status of a connection.
    pub fn status(&self, id: ConnectionId) -> Option<Status> {
        let it = self.connections.get(usize::from(id.cid))?.as_ref().filter(|it| it.id == id)?;
        Some(Status {
            state: it.state,
            port: (*it.port_name).into(),
            has_port: it.port.is_some(),
            ids: (it.my_id, it.peer_id),
            ports: (it.my_port, it.peer_port),
            peer_mailbox: it.peer_mailbox,
            cids: (id.cid.into(), it.peer_cid),
            generations: (it.generation, it.peer_generation),
            agreed: it.agreed,
            counters: it.counters,
        })
    }

    /// Counters of packets without a connection.
    pub fn strays(&self) -> StrayCounters {
        self.strays
    }

    /// Assigns a port to a connection.
    fn assign_port(&mut self, cid: u8, number: usize) {
        let Some(Some(port)) = self.ports.get(number) else { return };
        let (my_id, mtu) = (port.id, port.mtu);
        let Some(connection) = self.at(cid) else { return };
        connection.port = Some(number);
        connection.my_id = my_id;
        connection.wanted_mtu =
            if connection.user_mtu == 0 { mtu } else { connection.user_mtu.min(mtu) };
        if connection.state == State::Connecting || connection.is_wanted {
            connection.agreed.mtu = connection.wanted_mtu;
        }
        let key = (number, connection.peer_id, connection.peer_port, connection.my_port);
        self.by_ends.insert(key, cid);
    }

    #[inline]
    fn at(&mut self, cid: u8) -> Option<&mut Connection> {
        self.connections.get_mut(usize::from(cid))?.as_mut()
    }

    #[inline]
    fn by_id(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.at(id.cid).filter(|it| it.id == id)
    }

    /// Adds a connection to the ready list, if a packet can be sent.
    #[inline]
    fn make_ready(&mut self, cid: u8) {
        let Riocm { connections, ready, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(usize::from(cid)) {
            connection.make_ready(ready);
        }
    }
}
