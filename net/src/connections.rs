//! The TCP connections of an interface. TCP itself (RFC 9293) is smoltcp's; what stands here is that a
//! segment, a timer or a user finds the one connection that it is about. Each connection has a socket set
//! of its own, so that smoltcp never looks at another's; segments are told apart by both ends, timers are
//! in order, and whatever has something to be sent, or news for its owner, is on a list.
//!
//! An owner is a listener or a connector. It learns which of its connections have news
//! ([`Connections::next_news`]): something has arrived, what was written was acknowledged, or the
//! connection has come further or has ended. That is said once for all that happened since it was last
//! asked about.

use crate::isn::{self, Secret};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::listen_table::{self, Call, ListenEntry, ListenTable};
use crate::neighbour::{Hop, Table};
use crate::port_addresses::PortAddresses;
use crate::routes::Routes;
use crate::segment::{ACK, Ends, RST, SYN, Segment};
use crate::smc_option;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
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
/// How often a silent peer is asked whether it is there, and how long it may leave that without an answer.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
const SILENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(30);
/// How long a peer may leave our SYN without an answer.
const PATIENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// Local ports that are used in turn (RFC 6335: the dynamic ones).
const PORTS: core::ops::RangeInclusive<u16> = 49152..=65535;
/// Sockets of connections that were, which an owner keeps for the next.
const SPARE: usize = 8;
/// Connections being closed at which is looked when another needs a place.
const LOOKED_AT: usize = 16;

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
    /// Until when it need not be looked up, unless routes or neighbours change.
    until: Instant,
    routes: u64,
    neighbours: u64,
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
}

/// What the connections have to do with.
pub struct Outside<'a> {
    /// smoltcp, over IP.
    pub stack: &'a mut Interface,
    pub queue: &'a mut Queue,
    pub neighbours: &'a mut Table,
    pub routes: &'a Routes,
    pub local: &'a PortAddresses,
    pub mtu: usize,
    pub now: Instant,
}

impl Outside<'_> {
    fn for_listener(&mut self) -> listen_table::Outside<'_> {
        listen_table::Outside { queue: self.queue, mac: self.local.mac, mtu: self.mtu }
    }
}

/// What a user would see of a connection.
#[derive(PartialEq, Eq)]
struct Seen(State, usize, usize);

/// The connections.
pub struct Connections {
    connections: Slab<Connection>,
    by_ends: BTreeMap<Ends, usize>,
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
    /// None. `seed` must not be predictable.
    pub fn new(seed: u64) -> Self {
        let secret = Secret::new(seed);
        Connections {
            connections: Slab::new(),
            by_ends: BTreeMap::new(),
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

    /// A new owner.
    pub fn open_owner(&mut self, limits: Limits) -> Owner {
        Owner(self.owners.insert(OwnerState {
            limits,
            connections: 0,
            arrived: VecDeque::new(),
            news: VecDeque::new(),
            leaving: VecDeque::new(),
            spare: Vec::new(),
            ready: None,
            over: false,
        }))
    }

    /// Ends an owner: its connections are reset.
    pub fn close_owner(&mut self, owner: Owner, now: Instant) {
        let of_it = self.connections.iter().filter(|(_, c)| c.owner == owner.0);
        let names: Vec<Name> = of_it.map(|(key, c)| Name { key, turn: c.turn }).collect();
        for name in names {
            self.leave(name, true, now);
        }
        if let Some(state) = self.owners.get_mut(owner.0) {
            state.arrived.clear();
            state.news.clear();
            state.over = true;
        }
        self.is_done(owner);
        if self.owners.get(owner.0).is_some_and(|state| state.connections == 0) {
            self.owners.remove(owner.0);
        }
    }

    /// Listens on a port for an owner.
    pub fn listen(&mut self, port: u16, owner: Owner) {
        let Some(state) = self.owners.get(owner.0) else { return };
        self.listening
            .open(port, ListenEntry { owner: owner.0, receive: state.limits.receive, smc: false });
    }

    /// Whether a port is listened on.
    pub fn is_listened_on(&self, port: u16) -> bool {
        self.listening.get(port).is_some()
    }

    /// Listens no more.
    pub fn close_port(&mut self, port: u16, owner: Owner) {
        self.listening.close(port, owner.0);
    }

    /// Says whether SMC is offered on a port.
    pub fn offer_smc(&mut self, port: u16, owner: Owner, on: bool) {
        self.listening.offer_smc(port, owner.0, on);
    }

    /// Whether an owner has no place for another connection, and whether a place will be free because a
    /// connection is being closed.
    pub fn is_full(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_none_or(|state| state.connections >= state.limits.connections)
    }

    /// Whether a connection of an owner is being closed, so that its place will be free.
    pub fn is_closing_one(&self, owner: Owner) -> bool {
        let state = self.owners.get(owner.0);
        state.is_some_and(|state| state.leaving.iter().any(|&name| self.get(name).is_some()))
    }

    /// The next connection that a peer has opened.
    pub fn accept(&mut self, owner: Owner) -> Option<Name> {
        let name = self.owners.get_mut(owner.0)?.arrived.pop_front();
        self.is_done(owner);
        name
    }

    /// The next connection that has news, if its user has not given it up. Whoever reads and writes until
    /// there is no more to read and no room to write is told when there is again.
    pub fn next_news(&mut self, owner: Owner) -> Option<Name> {
        let name = loop {
            let Some(name) = self.owners.get_mut(owner.0)?.news.pop_front() else { break None };
            let connection = self.connections.get_mut(name.key).filter(|c| c.turn == name.turn);
            if let Some(connection) = connection.filter(|c| c.life == Life::Used) {
                connection.news = false;
                break Some(name);
            }
        };
        self.is_done(owner);
        name
    }

    /// Whether an owner is among [`Connections::ready`].
    pub fn is_ready(&self, owner: Owner) -> bool {
        self.owners.get(owner.0).is_some_and(|state| state.ready.is_some())
    }

    /// Takes an owner from the list if it has no news any more.
    fn is_done(&mut self, owner: Owner) {
        let Some(state) = self.owners.get_mut(owner.0) else { return };
        if !state.arrived.is_empty() || !state.news.is_empty() {
            return;
        }
        if let Some(place) = state.ready.take() {
            self.ready.swap_remove(place);
            let moved = self.ready.get(place).and_then(|other| self.owners.get_mut(other.0));
            if let Some(moved) = moved {
                moved.ready = Some(place);
            }
        }
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

    /// Whether both ends of a connection offer SMC.
    pub fn offers_smc(&self, name: Name) -> bool {
        self.get(name).is_some_and(|connection| connection.smc && connection.smc_peer)
    }

    /// Gives a connection up: in order, what was written still arrives, or by a reset.
    pub fn leave(&mut self, name: Name, abort: bool, now: Instant) {
        let used = self.get(name).filter(|connection| connection.life == Life::Used);
        if used.is_none() {
            return;
        }
        let Some(connection) = self.connections.get_mut(name.key) else { return };
        connection.life = Life::Leaving { since: now, moved: now, left: usize::MAX };
        let owner = connection.owner;
        let socket = connection.socket_mut();
        if abort {
            socket.abort();
        } else {
            socket.set_timeout(Some(SILENCE));
            socket.close();
        }
        if let Some(state) = self.owners.get_mut(owner) {
            state.leaving.push_back(name);
            // Those that are gone are in front mostly; they are not let pile up behind others.
            if state.leaving.len() > 2 * state.connections {
                let connections = &self.connections;
                let there =
                    |name: &Name| connections.get(name.key).is_some_and(|c| c.turn == name.turn);
                state.leaving.retain(there);
            }
        }
        self.look_after(name.key);
    }

    /// Begins to connect to a peer; `port` is where the search for a local one begins, and the next from
    /// then on. None if there is no room or no way.
    pub fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
        outside: &mut Outside<'_>,
    ) -> Option<Name> {
        if self.is_full(owner) || peer.port() == 0 {
            return None;
        }
        outside.routes.next_hop(peer.ip())?;
        let local: IpAddr = outside.stack.get_source_address(&peer.ip().into())?.into();
        let local_port = self.free_port(port)?;
        let (remote, remote_port) = (peer.ip(), peer.port());
        let ends = Ends { local_port, remote_port, remote, local };
        let mut socket = self.spare_socket(owner.0)?;
        // Before it is open: set later, the first question would be asked at once.
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(PATIENCE));
        let number = self.secret.number(ends, outside.now);
        let mut stack = self.stack_of(number, local, outside);
        socket.connect(stack.context(), (remote, remote_port), (local, local_port)).ok()?;
        let name = self.insert(ends, owner.0, socket);
        self.connections[name.key].smc = smc && local.is_ipv4();
        self.look_after(name.key);
        Some(name)
    }

    /// A local port that no connection has.
    fn free_port(&self, next: &mut u16) -> Option<u16> {
        for _ in PORTS {
            let port = *next;
            *next = if port >= *PORTS.end() { *PORTS.start() } else { port + 1 };
            let nobody = IpAddr::from([0; 4]);
            let first = Ends { local_port: port, remote_port: 0, remote: nobody, local: nobody };
            let taken =
                self.by_ends.range(first..).next().is_some_and(|(e, _)| e.local_port == port);
            if !taken && self.listening.get(port).is_none() {
                return Some(port);
            }
        }
        None
    }

    /// A socket for a new connection of an owner.
    fn spare_socket(&mut self, owner: usize) -> Option<tcp::Socket<'static>> {
        let state = self.owners.get_mut(owner)?;
        let mut socket = state.spare.pop().unwrap_or_else(|| {
            let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
            tcp::Socket::new(buffer(state.limits.receive), buffer(state.limits.transmit))
        });
        socket.set_nagle_enabled(false);
        Some(socket)
    }

    /// A smoltcp interface for one address, whose first connection begins with this sequence number.
    fn stack_of(&mut self, number: u32, local: IpAddr, outside: &Outside<'_>) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = isn::seed(number);
        let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
        let mtu = outside.mtu;
        let mut link = Link { received: None, queue: &mut self.unsaid, mtu, framing };
        let mut stack = Interface::new(config, &mut link, to_smoltcp(outside.now));
        let prefix = if local.is_ipv4() { 32 } else { 128 };
        stack.update_ip_addrs(|list| list.extend([IpCidr::new(local.into(), prefix)]));
        stack
    }

    fn insert(&mut self, ends: Ends, owner: usize, socket: tcp::Socket<'static>) -> Name {
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let key = self.connections.insert(Connection {
            sockets,
            handle,
            ends,
            owner,
            turn,
            life: Life::Used,
            path: None,
            waits: false,
            silent: None,
            armed: None,
            wants: false,
            news: false,
            smc: false,
            smc_peer: false,
        });
        self.by_ends.insert(ends, key);
        if let Some(state) = self.owners.get_mut(owner) {
            state.connections += 1;
        }
        Name { key, turn }
    }

    fn remove(&mut self, key: usize) {
        let Some(mut connection) = self.connections.try_remove(key) else { return };
        self.by_ends.remove(&connection.ends);
        if let Some(armed) = connection.armed {
            self.timers.remove(&(armed, key));
        }
        let Some(state) = self.owners.get_mut(connection.owner) else { return };
        state.connections -= 1;
        if state.over && state.connections == 0 {
            self.owners.remove(connection.owner);
        } else if let Socket::Tcp(mut socket) = connection.sockets.remove(connection.handle)
            && state.spare.len() < SPARE
        {
            socket.abort();
            state.spare.push(socket);
        }
    }

    /// Takes in a segment. Its frame came from the MAC address `from`.
    pub fn handle_segment(
        &mut self,
        frame: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        outside: &mut Outside<'_>,
    ) {
        let Some(packet) = frame.get(ETHERNET_HEADER..segment.end) else { return };
        let mut key = self.by_ends.get(&segment.ends).copied();
        // One that is over and has only its reset to send: the peer is told by the answer to this.
        let over = |connection: &Connection| {
            connection.life != Life::Used && connection.socket().state() == State::Closed
        };
        if let Some(old) = key.filter(|&key| self.connections.get(key).is_some_and(over)) {
            self.remove(old);
            key = None;
            // Not by a cookie: what acknowledges our SYN would be a connection once more.
            if !segment.opens() {
                return self.refuse(packet, from, outside);
            }
        }
        let key = key.or_else(|| self.admit(packet, segment, from, outside));
        if let Some(key) = key {
            self.deliver(key, packet, segment, from, outside);
        }
    }

    /// Has smoltcp take in a segment of a connection.
    fn deliver(
        &mut self,
        key: usize,
        packet: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        outside: &mut Outside<'_>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.seen();
        // An answer that cannot wait goes where the segment came from, if nothing better is known.
        let to = connection.path.map_or(from, |path| path.mac);
        let framing = Framing::Ip { from: outside.local.mac, to, smc: connection.smc };
        let (queue, mtu) = (&mut *outside.queue, outside.mtu);
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(outside.now);
        outside.stack.poll_ingress_single(at, &mut link, &mut connection.sockets);
        if before.0 == State::SynSent && connection.socket().state() == State::Established {
            connection.smc_peer = smc_option::offers(segment.options);
            connection.socket_mut().set_timeout(Some(SILENCE));
        }
        self.note(key, &before);
        self.look_after(key);
    }

    /// A segment that is of no connection: it may open one, or complete that; all else is told that there
    /// is nobody.
    fn admit(
        &mut self,
        packet: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        outside: &mut Outside<'_>,
    ) -> Option<usize> {
        let ends = segment.ends;
        if segment.flags & RST != 0 {
            self.listening.forget(ends);
            return None;
        }
        let entry = self.listening.get(ends.local_port);
        if let Some(entry) = entry
            && (segment.opens() || segment.flags & (ACK | SYN) == ACK)
        {
            if segment.opens() {
                if self.has_room(entry.owner, outside.now) {
                    let hop = outside.routes.next_hop(ends.remote);
                    let known = hop.and_then(|hop| outside.neighbours.get(hop, outside.now));
                    let (to, now) = (known.unwrap_or(from), outside.now);
                    self.listening.answer(entry, segment, to, &mut outside.for_listener(), now);
                    return None;
                }
            } else if let Some(call) = self.listening.complete(segment, outside.now) {
                if self.has_room(entry.owner, outside.now)
                    && let Some(key) = self.open(ends, entry.owner, &call, outside)
                {
                    return Some(key);
                }
            } else if self.listening.knows(ends) {
                // What was sent ahead of it is missing; the peer will send both again.
                return None;
            }
        }
        self.refuse(packet, from, outside);
        None
    }

    /// Tells the sender of a segment that there is nobody.
    fn refuse(&mut self, packet: &[u8], from: [u8; 6], outside: &mut Outside<'_>) {
        let framing = Framing::Ip { from: outside.local.mac, to: from, smc: false };
        let (queue, mtu) = (&mut *outside.queue, outside.mtu);
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(outside.now);
        outside.stack.poll_ingress_single(at, &mut link, &mut self.nobody);
    }

    /// Whether an owner has a place for another connection, be it that of one which is being closed.
    fn has_room(&mut self, owner: usize, now: Instant) -> bool {
        let Some(state) = self.owners.get(owner).filter(|state| !state.over) else { return false };
        if state.connections < state.limits.connections {
            return true;
        }
        let mut slowest = None;
        for &name in state.leaving.iter().take(LOOKED_AT) {
            let Some(connection) = self.get(name) else { continue };
            let Life::Leaving { since, .. } = connection.life else { continue };
            // Only the peer has something to say still, or we have a reset that waits for the neighbour.
            if matches!(connection.socket().state(), State::FinWait2 | State::Closed) {
                slowest = Some(name.key);
                break;
            }
            if since + FAREWELL <= now && slowest.is_none() {
                slowest = Some(name.key);
            }
        }
        // It has something to say still, and no place to say it from.
        slowest.is_some_and(|key| {
            self.remove(key);
            true
        })
    }

    /// Makes the connection whose opening a segment completes, as far as the SYN-ACK that was said.
    fn open(
        &mut self,
        ends: Ends,
        owner: usize,
        call: &Call,
        outside: &mut Outside<'_>,
    ) -> Option<usize> {
        let mut socket = self.spare_socket(owner)?;
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(SILENCE));
        socket.listen((ends.local, ends.local_port)).ok()?;
        let mut stack = self.stack_of(call.ours, ends.local, outside);
        let name = self.insert(ends, owner, socket);
        let mut packet = [0; 100];
        let length = listen_table::call_again(ends, call, &mut packet);
        let at = to_smoltcp(outside.now);
        let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
        let (received, queue) = (Some(&packet[..length]), &mut self.unsaid);
        let mut link = Link { received, queue, mtu: outside.mtu, framing };
        let connection = &mut self.connections[name.key];
        stack.poll_ingress_single(at, &mut link, &mut connection.sockets);
        stack.poll_egress(at, &mut link, &mut connection.sockets);
        connection.smc = call.offer.smc;
        connection.smc_peer = call.offer.smc;
        let number = listen_table::number(self.unsaid.front());
        while !self.unsaid.is_empty() {
            self.unsaid.pop();
        }
        if number != Some(call.ours) {
            self.remove(name.key);
            return None;
        }
        if let Some(state) = self.owners.get_mut(owner) {
            state.arrived.push_back(name);
        }
        self.tell(owner);
        Some(name.key)
    }

    /// Tells the user of a connection if it would see anything else than before.
    fn note(&mut self, key: usize, before: &Seen) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.life != Life::Used || connection.seen() == *before {
            return;
        }
        let (owner, name) = (connection.owner, Name { key, turn: connection.turn });
        let known = core::mem::replace(&mut connection.news, true);
        if let Some(state) = self.owners.get_mut(owner).filter(|_| !known) {
            state.news.push_back(name);
        }
        self.tell(owner);
    }

    fn tell(&mut self, owner: usize) {
        self.activity += 1;
        if let Some(state) = self.owners.get_mut(owner)
            && state.ready.is_none()
        {
            state.ready = Some(self.ready.len());
            self.ready.push(Owner(owner));
        }
    }

    /// Something became known of the neighbour that a connection waited for.
    pub fn settled(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.waits = false;
        }
        self.look_after(key);
    }

    /// Has all connections looked after with the next poll.
    pub fn look_after_all(&mut self) {
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.look_after(key));
    }

    /// Resets all connections, with the next polls.
    pub fn shut_down(&mut self) {
        self.connections.iter_mut().for_each(|(_, connection)| connection.socket_mut().abort());
        self.look_after_all();
    }

    /// Whether some connection waits for a poll.
    pub fn wants_poll(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Has a connection looked after with the next poll.
    fn look_after(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && !core::mem::replace(&mut connection.wants, true)
        {
            self.wants.push_back(key);
        }
    }

    /// When a poll has something to do, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        Instant::first([timer, self.listening.poll_timeout()])
    }

    /// Sends what there is to send, as long as the queue has room, and does what is due.
    pub fn poll(&mut self, outside: &mut Outside<'_>) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= outside.now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(key) {
                connection.armed = None;
            }
            self.look_after(key);
        }
        let now = outside.now;
        self.listening.poll(&mut outside.for_listener(), now);
        while !outside.queue.is_full()
            && let Some(key) = self.wants.pop_front()
        {
            self.serve(key, outside);
        }
    }

    /// Lets a connection send one frame.
    fn serve(&mut self, key: usize, outside: &mut Outside<'_>) {
        let now = outside.now;
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.wants = false;
        if let Life::Leaving { moved, left, .. } = connection.life {
            // A reset could cost the peer what it has not read yet, and so could a question of ours,
            // whose answer finds nobody.
            if left == 0
                && moved + FAREWELL <= now
                && connection.socket().state() == State::FinWait2
            {
                return self.remove(key);
            }
            // What still arrives is of no interest.
            let _ = connection.socket_mut().recv(|bytes| (bytes.len(), ()));
        }
        let before = connection.seen();
        let due = match self.path(key, outside) {
            Ok(mac) => {
                let Some(connection) = self.connections.get_mut(key) else { return };
                let framing = Framing::Ip { from: outside.local.mac, to: mac, smc: connection.smc };
                let (queue, mtu) = (&mut *outside.queue, outside.mtu);
                let mut link = Link { received: None, queue, mtu, framing };
                let at = to_smoltcp(now);
                let sent = outside.stack.poll_egress(at, &mut link, &mut connection.sockets);
                let due = outside.stack.poll_at(at, &connection.sockets);
                if due.is_some_and(|due| due <= at) && sent != PollResult::None {
                    self.note(key, &before);
                    return self.look_after(key);
                }
                due.map(|due| if due <= at { now + STALLED } else { from_smoltcp(due) })
            }
            Err(due) => due,
        };
        self.note(key, &before);
        let farewell = self.see_off(key, now);
        self.arm(key, Instant::first([due, farewell]));
    }

    /// The MAC address that a connection's frames go to; or when to look again, if nobody says it before.
    fn path(&mut self, key: usize, outside: &mut Outside<'_>) -> Result<[u8; 6], Option<Instant>> {
        let now = outside.now;
        let Some(connection) = self.connections.get_mut(key) else { return Err(None) };
        let (routes, neighbours) = (outside.routes.generation, outside.neighbours.changes());
        if let Some(path) = connection.path
            && (path.routes, path.neighbours) == (routes, neighbours)
            && now < path.until
        {
            return Ok(path.mac);
        }
        connection.path = None;
        let hop = outside.routes.next_hop(connection.ends.remote);
        let again = match hop.map(|hop| (hop, outside.neighbours.hop(hop, now))) {
            Some((_, Hop::At(mac, until))) => {
                let neighbours = outside.neighbours.changes();
                connection.path = Some(Path { mac, until, routes, neighbours });
                connection.silent = None;
                return Ok(mac);
            }
            Some((hop, Hop::Asked)) => {
                if !core::mem::replace(&mut connection.waits, true) {
                    outside.neighbours.wait(hop, key);
                }
                None
            }
            Some((_, Hop::Silent(until))) => Some(until),
            None => Some(now + NO_WAY),
        };
        if again.is_some() {
            let since = *connection.silent.get_or_insert(now);
            let opening = connection.socket().state() == State::SynSent;
            if opening || since + LOST <= now {
                connection.socket_mut().abort();
            }
        }
        // Nobody hears the reset.
        let over = matches!(connection.socket().state(), State::Closed | State::TimeWait);
        Err(again.filter(|_| !over))
    }

    /// Sees to a connection that is being closed, when it has nothing to send at present; when to look at
    /// it again.
    fn see_off(&mut self, key: usize, now: Instant) -> Option<Instant> {
        let connection = self.connections.get_mut(key)?;
        let Life::Leaving { since, moved, left } = connection.life else { return None };
        let socket = connection.socket();
        let state = socket.state();
        if state == State::Closed && connection.waits {
            // The reset goes out once the neighbour is known; or nobody hears it, which ends the wait as well.
            return None;
        }
        if matches!(state, State::Closed | State::TimeWait) {
            // All is said; to wait for stray packets of the past is not worth a place.
            self.remove(key);
            return None;
        }
        let still = match state {
            State::FinWait2 => 0,
            // Our end of the connection is something to say, too.
            _ => socket.send_queue() + 1,
        };
        let moved = if left > still { now } else { moved };
        let end = moved + if still == 0 { FAREWELL } else { STUCK };
        connection.life = Life::Leaving { since, moved, left: still };
        if now < end {
            return Some(end);
        }
        if state != State::FinWait2 {
            connection.socket_mut().abort();
        }
        self.look_after(key);
        None
    }

    /// Has a connection looked after at `due`, or before: a timer that is put off is not moved.
    fn arm(&mut self, key: usize, due: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(armed) = connection.armed {
            if due.is_some_and(|due| armed <= due) {
                return;
            }
            self.timers.remove(&(armed, key));
        }
        connection.armed = due;
        if let Some(due) = due {
            self.timers.insert((due, key));
        }
    }
}

#[cfg(test)]
impl Connections {
    /// Whether the opening of a connection between these ends is remembered.
    pub fn remembers(&self, ends: Ends) -> bool {
        self.listening.knows(ends)
    }

    /// Connections, timers and lists: how much of each there is.
    pub fn sizes(&self) -> [usize; 4] {
        [self.connections.len(), self.by_ends.len(), self.timers.len(), self.wants.len()]
    }
}
