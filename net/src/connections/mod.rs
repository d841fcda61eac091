//! The TCP connections of an interface. smoltcp implements TCP (RFC 9293); this module dispatches segments, timers and
//! calls of users to the right connection. Each connection has its own socket set, so smoltcp never iterates over
//! others. Segments are looked up by both ends, timers are ordered, and connections to be polled or with events are
//! on lists.
//!
//! An owner is a listener or a connector. [`Connections::next_news`] returns its connections with events: data arrived,
//! written data was acknowledged, or the connection changed its state. All changes since the last call are one event.

mod idle;
mod numbers;
mod opening;
mod owners;
mod paths;
mod service;
mod silence;
#[cfg(test)]
mod tests;

use crate::foreign::Reported;
use crate::isn::{Handshake, Secret};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::listen_table::{self, ListenEntry, ListenTable};
use crate::neighbour::{Hop, Table};
use crate::path_mtu::PathMtus;
use crate::port_addresses::PortAddresses;
use crate::refusal::Refusals;
use crate::routes::Routes;
use crate::seeds::Seeds;
use crate::segment::{self, ACK, Ends, RST, SYN, Segment};
use crate::smoltcp_gaps::narrow_stacks::NarrowStacks;
use crate::smoltcp_gaps::replay::{Replay, alone};
use crate::smoltcp_gaps::{packets, smc_option};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use numbers::{Challenges, Numbers, Verdict};
use paths::Probe;
use silence::{KEEP_ALIVE, Silence};
use slab::Slab;
use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::Socket;
use smoltcp::socket::tcp::{self, State};

/// How long a closed connection waits for the peer's FIN, and how long it may occupy a place that others need while it
/// still has data to send.
const FIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer may leave the data of a closed connection unacknowledged. If frames are lost, a segment is
/// retransmitted after 1, 3, 7 and 15 seconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a poll is repeated in which smoltcp was due but sent nothing.
const STALL_RETRY: Duration = Duration::from_millis(10);
/// Delay before a route is looked up again.
const NO_ROUTE_RETRY: Duration = Duration::from_secs(1);
/// How long a neighbour may be unresolved before an open connection is reset.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(30);
/// Local ports of outgoing connections, used in turn (RFC 6335: dynamic ports).
const PORTS: core::ops::RangeInclusive<u16> = 49152..=65535;
/// Slots of [`Connections::by_hash`], a power of two.
const HASHES: usize = 1024;
/// Sockets of closed connections that an owner keeps for reuse.
const SPARE: usize = 8;
/// Closing connections that are examined when a new one needs a place.
const EVICTION_SCAN: usize = 16;
/// Challenge ACKs a second: of a connection, and of all. The latter varies, so that reaching the limit does not reveal
/// challenges on other connections (CVE-2016-5696).
const CHALLENGES: u32 = 3;
const CHALLENGES_OF_ALL: core::ops::Range<u32> = 24..48;

type MacAddress = [u8; 6];

/// Limits of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, including those being closed.
    pub connections: usize,
    /// Receive buffer of each in bytes.
    pub receive: usize,
    /// Send buffer of each in bytes: data that is not acknowledged.
    pub transmit: usize,
}

/// A listener or connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(usize);

/// Name of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    key: usize,
    turn: u32,
}

/// Whether a user holds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// A user holds it.
    InUse,
    /// Its user has released it, and it is being closed.
    Closing {
        since: Instant,
        /// When the peer last acknowledged remaining data.
        moved: Instant,
        /// Bytes left to send, plus one for our FIN; 0 if only the peer's FIN is missing.
        left: usize,
    },
}

/// Next hop and MTU of a connection.
#[derive(Clone, Copy, Debug)]
struct Path {
    mac: [u8; 6],
    /// Largest packet in bytes.
    mtu: usize,
    /// Expiry. The path is also looked up again when routes, neighbours or path MTUs change.
    until: Instant,
    changes: [u64; 3],
}

struct Connection {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    ends: Ends,
    owner: usize,
    turn: u32,
    life: Life,
    path: Option<Path>,
    /// It waits for its neighbour's resolution.
    awaits_neighbour: bool,
    /// Since when its neighbour is unresolved.
    unresolved_since: Option<Instant>,
    /// Its entry in [`Connections::timers`].
    armed: Option<Instant>,
    /// It is in [`Connections::scheduled`].
    is_scheduled: bool,
    /// It is in [`OwnerState::events`].
    has_event: bool,
    /// Our end offers SMC, and the peer's end does.
    smc: bool,
    smc_peer: bool,
    /// Its buffers are released once no data is under way.
    releases_buffers: bool,
    numbers: Numbers,
    silence: Silence,
    probe: Probe,
    challenges: Challenges,
}

struct OwnerState {
    limits: Limits,
    connections: usize,
    /// Opened by peers, not accepted yet.
    to_accept: VecDeque<Name>,
    /// Connections with an event.
    events: VecDeque<Name>,
    /// Connections being closed, oldest first; some may be gone.
    closing: VecDeque<Name>,
    spare: Vec<tcp::Socket<'static>>,
    /// Its index in [`Connections::ready`], if it is there.
    ready: Option<usize>,
    /// The owner was closed: it is removed with its last connection.
    ended: bool,
    /// Hosts whose connections found no place, until the owner takes them, and the number of further ones.
    turned_away: VecDeque<IpAddr>,
    more_turned_away: u64,
}

impl OwnerState {
    /// Keeps a socket for reuse, unless there are enough or its buffers were released.
    fn keep(&mut self, sockets: &mut SocketSet<'static>, handle: SocketHandle) {
        if let Socket::Tcp(mut socket) = sockets.remove(handle)
            && self.spare.len() < SPARE
            && socket.recv_capacity() == self.limits.receive
        {
            socket.abort();
            self.spare.push(socket);
        }
    }
}

/// Entries of [`OwnerState::turned_away`]. Further hosts are only counted.
const TURNED_AWAY: usize = 16;

/// The parts of an interface that connections use in a call.
pub struct Ctx<'a> {
    /// smoltcp, over IP.
    pub stack: &'a mut Interface,
    pub queue: &'a mut Queue,
    pub neighbours: &'a mut Table,
    pub routes: &'a Routes,
    pub paths: &'a mut PathMtus,
    pub local: &'a PortAddresses,
    pub mtu: usize,
    pub now: Instant,
}

impl Ctx<'_> {
    /// The part that the listen table uses, for packets of `mtu` bytes.
    fn for_listener(&mut self, mtu: usize) -> listen_table::Ctx<'_> {
        listen_table::Ctx { queue: self.queue, mac: self.local.mac, mtu }
    }

    /// MAC address of the next hop to a host, if the neighbour table has it.
    fn next_hop_mac(&self, host: IpAddr) -> Option<MacAddress> {
        self.neighbours.get(self.routes.next_hop(host)?, self.now)
    }

    /// Requests resolution of the next hop to a host.
    fn resolve_hop(&mut self, host: IpAddr) {
        if let Some(hop) = self.routes.next_hop(host) {
            self.neighbours.resolve(hop, self.now);
        }
    }

    /// Generations of routes, neighbours and path MTUs: a cached path is valid while they are equal.
    fn changes(&self) -> [u64; 3] {
        [self.routes.generation, self.neighbours.changes(), self.paths.changes()]
    }

    /// Largest packet that the link takes to `ip`.
    fn link_mtu(&self, ip: IpAddr) -> usize {
        self.mtu.min(self.routes.mtu_to(ip))
    }

    /// Known path MTU to `ip`.
    fn mtu_to(&self, ip: IpAddr) -> usize {
        let most = self.link_mtu(ip);
        self.paths.get(ip, self.now).map_or(most, |(mtu, _)| mtu.min(most))
    }
}

/// State of a connection that is visible to its user: TCP state, bytes to read, bytes to send.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(State, usize, usize);

/// The connections.
pub struct Connections {
    connections: Slab<Connection>,
    by_ends: BTreeMap<Ends, usize>,
    /// Cache: key of the last connection that was looked up with this hash of its ports.
    by_hash: Box<[usize]>,
    timers: BTreeSet<(Instant, usize)>,
    /// Connections to be served by the next poll.
    scheduled: VecDeque<usize>,
    owners: Slab<OwnerState>,
    ready: Vec<Owner>,
    listening: ListenTable,
    secret: Secret,
    turn: u32,
    activity: u64,
    /// An empty set: smoltcp answers segments for it with a reset.
    no_sockets: SocketSet<'static>,
    /// Frames of sockets that are never sent, such as those of replayed handshakes.
    discarded: Queue,
    narrow: NarrowStacks,
    challenges: Challenges,
    /// End of the last time in which the machine was stopped.
    resumed: Instant,
    /// SYNs with the address of another host.
    foreign_syns: u64,
    /// Their reports, and the hosts that were reported recently.
    refusals: Refusals,
    reported: Reported,
}

impl Connection {
    fn socket(&self) -> &tcp::Socket<'static> {
        self.sockets.get(self.handle)
    }

    fn socket_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn seen(&self) -> Seen {
        let socket = self.socket();
        Seen(socket.state(), socket.recv_queue(), socket.send_queue())
    }
}

impl Connections {
    /// No connections; keys are drawn from `seeds`.
    pub fn new(seeds: &mut Seeds) -> Self {
        let secret = Secret::new(seeds);
        Connections {
            connections: Slab::new(),
            by_ends: BTreeMap::new(),
            by_hash: vec![0; HASHES].into(),
            timers: BTreeSet::new(),
            scheduled: VecDeque::new(),
            owners: Slab::new(),
            ready: Vec::new(),
            listening: ListenTable::new(secret),
            secret,
            turn: 0,
            activity: 0,
            no_sockets: SocketSet::new(Vec::new()),
            discarded: Queue::new(2, 128),
            narrow: NarrowStacks::default(),
            challenges: Challenges::default(),
            resumed: Instant::ZERO,
            foreign_syns: 0,
            refusals: Refusals::default(),
            reported: Reported::default(),
        }
    }

    /// A counter that changes with every event of a connection.
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// Owners with events or connections to accept.
    pub fn ready(&self) -> &[Owner] {
        &self.ready
    }

    fn get(&self, name: Name) -> Option<&Connection> {
        self.connections.get(name.key).filter(|connection| connection.turn == name.turn)
    }

    /// The socket of a connection that its user holds.
    pub fn socket(&self, name: Name) -> Option<&tcp::Socket<'static>> {
        let connection = self.get(name).filter(|connection| connection.life == Life::InUse)?;
        Some(connection.socket())
    }

    /// As [`Connections::socket`], for changes; the next poll serves the connection.
    pub fn socket_mut(&mut self, name: Name) -> Option<&mut tcp::Socket<'static>> {
        self.socket(name)?;
        self.schedule(name.key);
        Some(self.connections.get_mut(name.key)?.socket_mut())
    }

    /// Both ends of a connection: the peer's, and ours.
    pub fn ends(&self, name: Name) -> Option<(SocketAddr, SocketAddr)> {
        let ends = self.get(name).filter(|connection| connection.life == Life::InUse)?.ends;
        let peer = SocketAddr::new(ends.remote, ends.remote_port);
        Some((peer, SocketAddr::new(ends.local, ends.local_port)))
    }

    /// Segments with a wrong SYN cookie while cookies were accepted.
    pub fn cookie_guesses(&self) -> u64 {
        self.listening.guesses()
    }

    /// SYNs with the address of another host than their station's.
    pub fn foreign_syns(&self) -> u64 {
        self.foreign_syns
    }

    /// Reports of such SYNs, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    /// Whether both ends of a connection offer SMC.
    pub fn offers_smc(&self, name: Name) -> bool {
        self.get(name).is_some_and(|connection| connection.smc && connection.smc_peer)
    }
}

#[cfg(test)]
impl Connections {
    /// Whether the SYN of a connection between these ends is stored.
    pub fn has_stored_handshake(&self, ends: Ends) -> bool {
        self.listening.is_stored(ends)
    }

    /// The keys of cookies, sequence numbers and limits.
    pub fn keys(&self) -> [[u64; 2]; 4] {
        self.secret.keys()
    }

    /// Number of connections, entries by ends, timers, and connections to be polled.
    pub fn sizes(&self) -> [usize; 4] {
        [self.connections.len(), self.by_ends.len(), self.timers.len(), self.scheduled.len()]
    }
}
