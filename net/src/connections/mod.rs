//! The TCP connections of an interface. TCP itself (RFC 9293) is smoltcp's; what stands here is that a
//! segment, a timer or a user finds the one connection that it is about. Each connection has a socket set
//! of its own, so that smoltcp never looks at another's; segments are told apart by both ends, timers are
//! in order, and whatever has something to be sent, or news for its owner, is on a list.
//!
//! An owner is a listener or a connector. It learns which of its connections have news
//! ([`Connections::next_news`]): something has arrived, what was written was acknowledged, or the
//! connection has come further or has ended. That is said once for all that happened since it was last
//! asked about.

mod idle;
mod numbers;
mod opening;
mod owners;
mod paths;
mod service;
mod silence;
#[cfg(test)]
mod tests;

use crate::isn::{self, Secret};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::listen_table::{self, Call, ListenEntry, ListenTable};
use crate::neighbour::{Hop, Table};
use crate::path_mtu::PathMtus;
use crate::port_addresses::PortAddresses;
use crate::routes::Routes;
use crate::seeds::Seeds;
use crate::segment::{self, ACK, Ends, RST, SYN, Segment};
use crate::smc_option;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use numbers::{Challenges, Numbers, Verdict};
use paths::{NarrowStacks, Probe};
use silence::{KEEP_ALIVE, Silence};
use slab::Slab;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::Socket;
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{HardwareAddress, IpCidr};

/// How long the peer's farewell is waited for; and how long a connection that is closed and still has
/// something to say may keep others out.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a peer may take nothing of that. Over a network that loses frames, a segment is sent again after
/// 1, 3, 7 and 15 seconds.
const STUCK: Duration = Duration::from_secs(30);
/// When to try again what smoltcp wanted to do at once and could not, and to look for a way where there
/// is none.
const STALLED: Duration = Duration::from_millis(10);
const NO_WAY: Duration = Duration::from_secs(1);
/// How long a neighbour may be silent before a connection that is open is given up.
const LOST: Duration = Duration::from_secs(30);
/// Local ports that are used in turn (RFC 6335: the dynamic ones).
const PORTS: core::ops::RangeInclusive<u16> = 49152..=65535;
/// Places of [`Connections::by_hash`], a power of two.
const HASHES: usize = 1024;
/// Sockets of connections that were, which an owner keeps for the next.
const SPARE: usize = 8;
/// Connections being closed at which is looked when another needs a place.
const LOOKED_AT: usize = 16;
/// Answers in a second to segments that may be forged: of a connection, and of all. The latter varies, so that its end
/// does not show what other connections were sent (CVE-2016-5696).
const CHALLENGES: u32 = 3;
const CHALLENGES_OF_ALL: core::ops::Range<u32> = 24..48;

type MacAddress = [u8; 6];

/// What an owner may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, those being closed among them.
    pub connections: usize,
    /// Bytes of each that have arrived and were not read.
    pub receive: usize,
    /// Bytes of each that were written and not acknowledged.
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

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Its user's.
    Used,
    /// It is being closed.
    Leaving {
        since: Instant,
        /// Since when the peer has taken nothing of what is left to say.
        moved: Instant,
        /// Bytes of that, and one for our end; 0 if only the peer's is missing.
        left: usize,
    },
}

/// Where a connection's frames go.
#[derive(Clone, Copy, Debug)]
struct Path {
    mac: [u8; 6],
    /// Largest packet that it takes.
    mtu: usize,
    /// Until when it need not be looked up, unless routes, neighbours or path MTUs change.
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
    /// It waits for its neighbour to be found.
    waits: bool,
    /// Since when its neighbour is silent.
    silent: Option<Instant>,
    /// When it is looked after though nothing happens.
    armed: Option<Instant>,
    /// It is on the list of those that are looked after with the next poll, and its owner's of news.
    wants: bool,
    news: bool,
    /// It offers SMC, and its peer does.
    smc: bool,
    smc_peer: bool,
    /// It does without its buffers as soon as nothing is under way.
    idles: bool,
    numbers: Numbers,
    silence: Silence,
    probe: Probe,
    challenges: Challenges,
}

struct OwnerState {
    limits: Limits,
    connections: usize,
    /// Opened by peers, and not accepted yet.
    arrived: VecDeque<Name>,
    news: VecDeque<Name>,
    /// Being closed, oldest first; some may be gone.
    leaving: VecDeque<Name>,
    spare: Vec<tcp::Socket<'static>>,
    /// Its place in [`Connections::ready`], if it is there.
    ready: Option<usize>,
    /// It is over when its last connection is.
    over: bool,
    /// Hosts for whose connections there was no place, until somebody asks; and how many more there were.
    turned_away: VecDeque<IpAddr>,
    more_turned_away: u64,
}

impl OwnerState {
    /// Keeps a socket for the next connection, unless there are enough or it has lost its buffers.
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

/// Hosts that an owner keeps which found no place. More are only counted.
const TURNED_AWAY: usize = 16;

/// What the connections have to do with.
pub struct Outside<'a> {
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

impl Outside<'_> {
    /// For a listener's answers, in packets of `mtu` bytes.
    fn for_listener(&mut self, mtu: usize) -> listen_table::Outside<'_> {
        listen_table::Outside { queue: self.queue, mac: self.local.mac, mtu }
    }

    /// The MAC address that frames for a host go to, if the neighbour table knows.
    fn station(&self, host: IpAddr) -> Option<MacAddress> {
        self.neighbours.get(self.routes.next_hop(host)?, self.now)
    }

    /// Has the neighbour table asked for the way to a host.
    fn ask_for(&mut self, host: IpAddr) {
        if let Some(hop) = self.routes.next_hop(host) {
            self.neighbours.resolve(hop, self.now);
        }
    }

    /// Change whenever a path may have become another.
    fn changes(&self) -> [u64; 3] {
        [self.routes.generation, self.neighbours.changes(), self.paths.changes()]
    }

    /// Largest packet that the link takes to `ip`.
    fn link_mtu(&self, ip: IpAddr) -> usize {
        self.mtu.min(self.routes.mtu_to(ip))
    }

    /// Largest packet that passes to `ip`, as far as is known.
    fn mtu_to(&self, ip: IpAddr) -> usize {
        let most = self.link_mtu(ip);
        self.paths.get(ip, self.now).map_or(most, |(mtu, _)| mtu.min(most))
    }
}

/// What a user would see of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(State, usize, usize);

/// The connections.
pub struct Connections {
    connections: Slab<Connection>,
    by_ends: BTreeMap<Ends, usize>,
    /// The key of a connection whose ends have that hash, most of the time: looked at first.
    by_hash: Box<[usize]>,
    timers: BTreeSet<(Instant, usize)>,
    wants: VecDeque<usize>,
    owners: Slab<OwnerState>,
    ready: Vec<Owner>,
    listening: ListenTable,
    secret: Secret,
    turn: u32,
    activity: u64,
    /// No sockets: whoever asks those is told that there is nobody.
    nobody: SocketSet<'static>,
    /// Where new sockets say what nobody is to hear.
    unsaid: Queue,
    narrow: NarrowStacks,
    challenges: Challenges,
    /// When the machine went on after it stood still.
    resumed: Instant,
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
    /// None, with keys of their own.
    pub fn new(seeds: &mut Seeds) -> Self {
        let secret = Secret::new(seeds);
        Connections {
            connections: Slab::new(),
            by_ends: BTreeMap::new(),
            by_hash: vec![0; HASHES].into(),
            timers: BTreeSet::new(),
            wants: VecDeque::new(),
            owners: Slab::new(),
            ready: Vec::new(),
            listening: ListenTable::new(secret),
            secret,
            turn: 0,
            activity: 0,
            nobody: SocketSet::new(Vec::new()),
            unsaid: Queue::new(2, 128),
            narrow: NarrowStacks::default(),
            challenges: Challenges::default(),
            resumed: Instant::ZERO,
        }
    }

    /// Changes whenever some connection has news.
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// The owners that have news, or connections to accept.
    pub fn ready(&self) -> &[Owner] {
        &self.ready
    }

    fn get(&self, name: Name) -> Option<&Connection> {
        self.connections.get(name.key).filter(|connection| connection.turn == name.turn)
    }

    /// The socket of a connection that its user has not given up, to look at.
    pub fn socket(&self, name: Name) -> Option<&tcp::Socket<'static>> {
        let connection = self.get(name).filter(|connection| connection.life == Life::Used)?;
        Some(connection.socket())
    }

    /// As [`Connections::socket`], to do something with; what it has to say then is seen to with the next
    /// poll.
    pub fn socket_mut(&mut self, name: Name) -> Option<&mut tcp::Socket<'static>> {
        self.socket(name)?;
        self.look_after(name.key);
        Some(self.connections.get_mut(name.key)?.socket_mut())
    }

    /// Both ends of a connection: the peer's, and ours.
    pub fn ends(&self, name: Name) -> Option<(SocketAddr, SocketAddr)> {
        let ends = self.get(name).filter(|connection| connection.life == Life::Used)?.ends;
        let peer = SocketAddr::new(ends.remote, ends.remote_port);
        Some((peer, SocketAddr::new(ends.local, ends.local_port)))
    }

    /// Segments with a wrong SYN cookie, while cookies counted.
    pub fn cookie_guesses(&self) -> u64 {
        self.listening.guesses()
    }

    /// Whether both ends of a connection offer SMC.
    pub fn offers_smc(&self, name: Name) -> bool {
        self.get(name).is_some_and(|connection| connection.smc && connection.smc_peer)
    }
}

#[cfg(test)]
impl Connections {
    /// Whether the opening of a connection between these ends is remembered.
    pub fn remembers(&self, ends: Ends) -> bool {
        self.listening.knows(ends)
    }

    /// The keys of cookies, sequence numbers and limits.
    pub fn keys(&self) -> [[u64; 2]; 4] {
        self.secret.keys()
    }

    /// Connections, timers and lists: how much of each there is.
    pub fn sizes(&self) -> [usize; 4] {
        [self.connections.len(), self.by_ends.len(), self.timers.len(), self.wants.len()]
    }
}
