//! RIOCM: LINX's connection manager over RapidIO messages, version 2. Connections between configured ends, each of
//! which carries messages in order between link addresses. It does no I/O: RapidIO messages and the time come in as
//! arguments, and what is to be sent comes out of [`Riocm::poll_transmit`].
//!
//! A user adds ports and connections, wants them connected ([`Riocm::connect`]), sends, and takes what has happened
//! from [`Riocm::next_event`], in the order in which it happened: what was delivered before the end of a connection
//! comes before the news of that, and nothing comes after it.
//!
//! RapidIO loses nothing and RIOCM repeats nothing: what goes wrong with one packet ends the connection, and its user
//! wants it connected again. There is no flow control either: who has no memory for a message has to end the
//! connection. [`Riocm::is_congested`] says beforehand when it is better to leave messages in the mailbox, which
//! holds their senders up (all senders to that mailbox).

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
use crate::timers::Timers;
use crate::wire::riocm::LARGEST;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use config::{DEFAULT_MTU, LEAST_MTU};
use connection::Connection;
use drivers::hal::Instant;
use ready::Ready;
use send::Outgoing;
use slab::Slab;

/// No message.
const NONE: u32 = u32::MAX;

/// Names a connection.
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

/// A message that has arrived. Its memory is the connection's: whoever has read it gives it back to the pool.
#[derive(Debug)]
pub struct Message {
    /// Link address of the sender.
    pub source: u32,
    /// Link address of the receiver.
    pub destination: u32,
    /// Its bytes.
    pub chain: Chain,
}

/// Something that has happened to a connection.
#[derive(Debug)]
pub enum Event {
    /// Messages can be sent.
    Connected(ConnectionId),
    /// It is over. `connect` begins anew.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        why: Down,
        /// Messages that were given to be sent and were not, or not wholly.
        unsent: usize,
    },
    /// A message has arrived.
    Message {
        /// The connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// A message that was sent from the user's own memory is out of use.
    Sent {
        /// The connection.
        connection: ConnectionId,
        /// By which its user knows it.
        cookie: u64,
        /// It was handed to RapidIO; else the connection ended first.
        done: bool,
    },
    /// There is room to send again, after there was none.
    Room(ConnectionId),
}

/// A port of RapidIO.
#[derive(Debug)]
struct Port {
    name: Box<str>,
    id: u16,
    mtu: u16,
}

/// What is told of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// State of its machine.
    pub state: State,
    /// Name of its RapidIO port, and whether that is there.
    pub port: String,
    /// See `port`.
    pub has_port: bool,
    /// Device ids of both ends.
    pub ids: (u16, u16),
    /// RIOCM ports of both ends.
    pub ports: (u16, u16),
    /// Mailbox of the peer.
    pub peer_mailbox: u8,
    /// Connection ids: what the peer calls it, and what it is called there.
    pub cids: (u16, u16),
    /// Generations of both ends.
    pub generations: (u8, u8),
    /// What is agreed, once it is connected.
    pub agreed: Agreed,
    /// What is counted.
    pub counters: Counters,
}

/// The engine.
#[derive(Debug)]
pub struct Riocm {
    config: Config,
    ports: Vec<Option<Port>>,
    /// By connection id; 0 is nobody's.
    connections: Vec<Option<Connection>>,
    /// By RapidIO port, device id and port of the peer, and our port.
    by_ends: BTreeMap<(usize, u16, u16, u16), u8>,
    timers: Timers,
    ready: Ready,
    outgoing: Slab<Outgoing>,
    /// The message whose last packet was given out, and may still be looked at.
    last: Option<(u8, u32)>,
    out: transmit::Out,
    events: VecDeque<Event>,
    strays: StrayCounters,
    /// The time, as it was last told.
    now: Instant,
    number: u32,
    generation: u8,
    rng: Rng,
}

impl Riocm {
    /// An engine. `secret` is random: it makes retries of different machines fall apart, and generations of different
    /// lives differ.
    pub fn new(config: Config, pool: &Pool, secret: u64) -> Riocm {
        let mut rng = Rng::new(secret);
        Riocm {
            config,
            ports: Vec::new(),
            connections: (0..=MOST_CONNECTIONS).map(|_| None).collect(),
            by_ends: BTreeMap::new(),
            timers: Timers::new(MOST_CONNECTIONS + 1),
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

    /// A RapidIO port is there: its number. Connections that are configured for a port of this name use it from now
    /// on. `mtu` is the longest message in bytes that it carries; 0 if it is not known.
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
                self.adopt(cid, port);
            }
        }
        Ok(port)
    }

    /// A RapidIO port has gone. Its connections end, and wait as orphans for one of the same name.
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
        // One for each connection, not for each attempt: LINX for Linux keeps to the first that it heard of.
        connection.generation = self.generation;
        self.generation = self.generation.wrapping_add(1);
        self.connections[usize::from(cid)] = Some(connection);
        let named = |port: &Option<Port>| port.as_ref().is_some_and(|it| &*it.name == config.port);
        if let Some(port) = self.ports.iter().position(named) {
            self.adopt(cid, port);
        }
        self.now = self.now.max(now);
        let pause = self.retry_pause();
        self.timers.set(cid.into(), Some(now + pause));
        Ok(id)
    }

    /// Removes a connection: its CONN_RESET is still sent if it was up, and then it is gone.
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
            self.bury(pool, id.cid);
        }
    }

    /// Forgets a connection.
    fn bury(&mut self, pool: &mut Pool, cid: u8) {
        let Some(connection) = self.connections[usize::from(cid)].take() else { return };
        if let Some(port) = connection.port {
            let key = (port, connection.peer_id, connection.peer_port, connection.my_port);
            self.by_ends.remove(&key);
        }
        self.ready.remove(cid);
        pool.close(connection.receive_account);
        pool.close(connection.send_account);
    }

    /// Wants a connection: CONN_REQs go out until it is there, after a pause if one has just ended. False if it is wanted already, or unknown.
    pub fn connect(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.by_id(id) else { return false };
        if connection.state != State::Disconnected || connection.is_dying {
            return false;
        }
        if connection.is_wanted {
            return false;
        }
        if connection.rests {
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

    /// Ends a connection because of what its peer told those above.
    pub fn end_by(&mut self, pool: &mut Pool, id: ConnectionId, why: Down) {
        if self.by_id(id).is_some() {
            self.reap(pool);
            self.end(pool, id.cid, why);
        }
    }

    /// Does what is due, and takes back the memory of what was given out last: [`Riocm::poll_transmit`] does as much.
    #[inline(always)]
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

    /// Whether something has happened that was not told.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What has happened next.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Riocm::poll_transmit`] is to be called, if nothing comes before.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// Whether a connection has no room for two more of its longest packets (and 63 that came early beside it are
    /// counted in its memory already): messages are better left in the mailbox until some were taken.
    pub fn is_congested(&self, pool: &Pool) -> bool {
        let mut connections = self.connections.iter().flatten();
        connections
            .any(|it| it.state == State::Connected && pool.room(it.receive_account) < 2 * LARGEST)
    }

    /// What is told of a connection.
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

    /// Counters of what belongs to no connection.
    pub fn strays(&self) -> StrayCounters {
        self.strays
    }

    /// A connection has a port.
    fn adopt(&mut self, cid: u8, number: usize) {
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

    /// Puts a connection among those with something to send.
    #[inline]
    fn make_ready(&mut self, cid: u8) {
        let Riocm { connections, ready, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(usize::from(cid)) {
            connection.make_ready(ready);
        }
    }
}
