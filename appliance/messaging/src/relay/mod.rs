//! The messaging gateway: a rule listens on a port, over SMC-R and TCP, and relays each connection
//! to one of its servers, over TCP or SMC-R.
//!
//! What one side has no room for is not read from the other, so that all that is kept of a
//! connection is in the buffers of its two ends. Half-closes and aborts go across. SMC's urgent byte
//! stays in its place in the stream, without its mark: TCP here has none. Names are not looked up.
//!
//! Connections of which there is something new wait in a queue for their turn, in which [`TURN`] bytes go
//! each way at most. Who has more goes to the end of the queue; who has no more to move, or nowhere to put it,
//! leaves it, and comes back with what arrives next, or with room.

pub mod balance;
mod endpoints;
pub mod pipe;
mod probe;
pub mod proxy;
mod timer;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use balance::{Backend, Balance};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use endpoints::Endpoints;
use net::tcp::{Closed, Limits, Owner};
use net::{Interface, connector};
use pipe::{Pipe, Side, Sides};
use probe::Probe;
use proxy::MAX_HEADER;
use slab::Slab;
use smcr::acceptor::{Acceptor, Carrier, Connected, ConnectionId, Event};
use smcr::admission::Gate;
use smcr::connector::Connector;
use smcr::engine::{Engine, Ready, SocketId};
use softverbs::timers::Timers;
use verbs::EngineContext;
use verbs::Provider;

/// Most that is moved at a time.
const PIECE: usize = 32 << 10;
/// Bytes of a connection that are moved each way before others have their turn.
const TURN: usize = 64 << 10;
/// News that wait for the loop; the oldest go first.
const MAX_NOTICES: usize = 16;

/// What is relayed where.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The port that it listens on.
    pub listen: u16,
    /// Whether SMC-R is offered to clients.
    pub offers: bool,
    /// The servers, at most [`balance::MAX_BACKENDS`].
    pub backends: Vec<SocketAddr>,
    /// Whether SMC-R is offered to servers.
    pub smc: bool,
    /// Whether servers are told the client's address.
    pub proxy: bool,
    /// How long a server may take to answer over TCP. An SMC handshake has times of its own.
    pub connect_timeout: Duration,
    /// How long a connection may be silent.
    pub idle_timeout: Option<Duration>,
    /// How often servers are asked whether they are there.
    pub health_interval: Option<Duration>,
    /// Who may connect.
    pub gate: Gate,
    /// Of the TCP connections on either side.
    pub limits: Limits,
}

/// What a rule counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that came over SMC-R.
    pub smc: u64,
    /// Clients that came over TCP.
    pub tcp: u64,
    /// Servers that were reached over SMC-R.
    pub smc_servers: u64,
    /// Clients for whom there was no server.
    pub refused: u64,
    /// Connections that ended by a loss on either side.
    pub aborted: u64,
    /// Connections that were silent for too long.
    pub timed_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// A server came, or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Where it is.
    pub backend: SocketAddr,
    /// It answers.
    pub up: bool,
}

/// The interfaces that connections come and go over.
pub trait Interfaces {
    /// How many there are.
    fn count(&self) -> usize;
    /// The one with number `at`, which is smaller than that.
    fn get(&mut self, at: usize) -> &mut Interface;
}

/// What relaying is done with.
pub struct World<'a, 'b, P: Provider + ?Sized> {
    /// The interfaces.
    pub interfaces: &'a mut dyn Interfaces,
    /// The engine of SMC-R.
    pub engine: &'a mut Engine,
    /// Room for what is moved at a time; empty at first.
    pub piece: &'a mut Vec<u8>,
    /// The provider under it.
    pub ctx: &'a mut EngineContext<'b, P>,
}

/// A connection: over which interface, and its name there.
type Place = (usize, ConnectionId);

/// A relayed connection.
#[derive(Debug)]
struct Relayed {
    front: Place,
    back: Option<Place>,
    backend: usize,
    /// Servers that could not be reached.
    tried: u64,
    /// SMC-R has come to nothing with this server: it is spoken to over TCP.
    plain: bool,
    /// The server is reached.
    open: bool,
    /// To the server, to the client.
    pipes: [Pipe; 2],
    /// When patience with the server, or with silence, began.
    since: Instant,
    /// It stands in the queue.
    queued: bool,
}

/// A rule at work.
#[derive(Debug)]
pub struct Relay {
    rule: Rule,
    /// The first of [`OWNERS`] numbers by which the engine and [`Relay::poll`] know its fronts and backs.
    first_owner: u32,
    fronts: Vec<Acceptor>,
    backs: Vec<Connector>,
    relayed: Slab<Relayed>,
    by_front: BTreeMap<Place, usize>,
    by_back: BTreeMap<Place, usize>,
    probes: Vec<Probe>,
    balance: Balance,
    counters: Counters,
    notices: VecDeque<Notice>,
    /// Connections that may have something to move. One that is gone may have left its place to another,
    /// which then has a turn too many.
    queue: VecDeque<usize>,
    /// Of connections, and when questions to servers end.
    timers: Timers,
    probes_due: Option<Instant>,
}

/// Numbers of a rule's fronts and backs, of which there is one for each interface; there are fewer interfaces.
pub const OWNERS: u32 = 256;

/// The numbers of the front and the back on an interface, among a rule's.
fn numbers(at: usize) -> [u32; 2] {
    let front = 2 * at as u32;
    [front, front + 1]
}

impl Relay {
    /// Listens on all interfaces. `first_owner`: the first of [`OWNERS`] numbers that nobody else has with the
    /// engine; `seed` as in [`Connector::new`].
    pub fn new(
        rule: Rule,
        interfaces: &mut dyn Interfaces,
        first_owner: u32,
        seed: u16,
        now: Instant,
    ) -> Self {
        let limits = rule.limits;
        let all = 0..interfaces.count();
        let fronts = all.clone().map(|at| {
            let (interface, owner) = (interfaces.get(at), first_owner + numbers(at)[0]);
            Acceptor::new(interface, rule.listen, rule.offers, limits, rule.gate.clone(), owner)
        });
        let fronts = fronts.collect();
        let places = connector::Limits {
            connections: limits.connections + rule.backends.len(),
            receive: limits.receive,
            transmit: limits.transmit,
        };
        let back = |at| Connector::new(places, seed, first_owner + numbers(at)[1]);
        let backs = all.map(back).collect();
        let balance = Balance::new(&rule.backends, rule.health_interval, now);
        Relay {
            first_owner,
            fronts,
            backs,
            relayed: Slab::new(),
            by_front: BTreeMap::new(),
            by_back: BTreeMap::new(),
            probes: Vec::new(),
            balance,
            counters: Counters::default(),
            notices: VecDeque::new(),
            queue: VecDeque::new(),
            timers: Timers::default(),
            probes_due: None,
            rule,
        }
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The servers.
    pub fn backends(&self) -> &[Backend] {
        self.balance.backends()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.relayed.len()
    }

    /// The TCP connections and SMC sockets, with the numbers of their interfaces.
    pub fn connected(&self) -> impl Iterator<Item = (usize, Connected)> + '_ {
        let fronts = self.fronts.iter().enumerate();
        let fronts = fronts.flat_map(|(at, front)| front.connected().map(move |c| (at, c)));
        let backs = self.backs.iter().enumerate();
        fronts.chain(backs.flat_map(|(at, back)| back.connected().map(move |c| (at, c))))
    }

    /// A server came or went.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Its fronts and backs: the interface that each is on, its name among those of [`Interface::ready`], and
    /// its number.
    pub fn owners(&mut self, interfaces: &mut dyn Interfaces) -> Vec<(usize, Owner, u32)> {
        let mut owners = Vec::new();
        for (at, (front, back)) in self.fronts.iter().zip(&mut self.backs).enumerate() {
            owners.push((at, front.tcp_owner(), front.owner()));
            owners.push((at, back.tcp_owner(interfaces.get(at)), back.owner()));
        }
        owners
    }

    /// Where the front or back with a number is.
    fn place_of(&self, owner: u32) -> Option<(Side, usize)> {
        let number = owner.checked_sub(self.first_owner)?;
        let at = number as usize / 2;
        let side = if number.is_multiple_of(2) { Side::Frontend } else { Side::Backend };
        (at < self.fronts.len()).then_some((side, at))
    }

    /// Sees to what is new of the connections of the front or back with this number, some at a time: to be
    /// called while [`Interface::ready`] names it. Then [`Relay::work`].
    pub fn poll<P: Provider + ?Sized>(&mut self, owner: u32, world: &mut World<'_, '_, P>) {
        let Some((side, at)) = self.place_of(owner) else { return };
        let World { interfaces, engine, ctx, .. } = &mut *world;
        let interface = interfaces.get(at);
        match side {
            Side::Frontend => self.fronts[at].poll(interface, engine, ctx),
            Side::Backend => self.backs[at].poll(interface, engine, ctx),
        }
        self.hear(side, at, world);
    }

    /// Takes an event of a socket of the engine whose owner has this number. Then [`Relay::work`].
    pub fn handle_event<P: Provider + ?Sized>(
        &mut self,
        owner: u32,
        socket: SocketId,
        ready: Ready,
        world: &mut World<'_, '_, P>,
    ) {
        let Some((side, at)) = self.place_of(owner) else { return };
        let World { interfaces, engine, ctx, .. } = &mut *world;
        let interface = interfaces.get(at);
        match side {
            Side::Frontend => self.fronts[at].handle_event(socket, ready, interface, engine, ctx),
            Side::Backend => self.backs[at].handle_event(socket, ready, interface, engine, ctx),
        };
        self.hear(side, at, world);
    }

    /// Hears what a front or back has to say of its connections.
    fn hear<P: Provider + ?Sized>(&mut self, side: Side, at: usize, world: &mut World<'_, '_, P>) {
        match side {
            Side::Frontend => {
                while let Some(event) = self.fronts[at].poll_event() {
                    self.front_event(at, event, world);
                }
            }
            Side::Backend => {
                while let Some(event) = self.backs[at].poll_event() {
                    self.back_event(at, event, world);
                }
            }
        }
    }

    fn front_event<P: Provider + ?Sized>(
        &mut self,
        at: usize,
        event: Event,
        world: &mut World<'_, '_, P>,
    ) {
        match event {
            Event::Opened(id, carrier) => self.welcome((at, id), carrier, world),
            Event::Ready(id) | Event::Failed(id) | Event::Broken(id) => {
                if let Some(&key) = self.by_front.get(&(at, id)) {
                    self.queue(key);
                }
            }
        }
    }

    fn back_event<P: Provider + ?Sized>(
        &mut self,
        at: usize,
        event: Event,
        world: &mut World<'_, '_, P>,
    ) {
        let (Event::Opened(id, _) | Event::Ready(id) | Event::Failed(id) | Event::Broken(id)) =
            event;
        let Some(&key) = self.by_back.get(&(at, id)) else {
            if let Some(probe) = self.probes.iter().position(|p| p.place == (at, id)) {
                self.probed(probe, event, world);
            }
            return;
        };
        match event {
            Event::Opened(_, carrier) => self.reached(key, carrier, world),
            Event::Ready(_) => self.queue(key),
            Event::Failed(_) => self.dial_another(key, world),
            Event::Broken(_) => self.dial_plainly(key, world),
        }
    }

    /// Has what can be moved of a connection moved, in its turn.
    fn queue(&mut self, key: usize) {
        if let Some(relayed) = self.relayed.get_mut(key)
            && !core::mem::replace(&mut relayed.queued, true)
        {
            self.queue.push_back(key);
        }
    }

    /// Moves what can be moved, of so many connections at most; of how many.
    pub fn work<P: Provider + ?Sized>(
        &mut self,
        turns: usize,
        world: &mut World<'_, '_, P>,
    ) -> usize {
        for done in 0..turns {
            let Some(key) = self.queue.pop_front() else { return done };
            if let Some(relayed) = self.relayed.get_mut(key) {
                relayed.queued = false;
                self.serve(key, world);
            }
        }
        turns
    }

    /// Connections that were looked at.
    #[cfg(test)]
    pub(crate) fn looked(&self) -> u64 {
        let fronts = self.fronts.iter().map(|front| front.looked);
        fronts.chain(self.backs.iter().map(|back| back.looked)).sum()
    }

    /// Whether connections wait for their turn in [`Relay::work`].
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// A client has come.
    fn welcome<P: Provider + ?Sized>(
        &mut self,
        front: Place,
        carrier: Carrier,
        world: &mut World<'_, '_, P>,
    ) {
        match carrier {
            Carrier::Smc => self.counters.smc += 1,
            Carrier::Tcp => self.counters.tcp += 1,
        }
        let key = self.relayed.insert(Relayed {
            front,
            back: None,
            backend: 0,
            tried: 0,
            plain: false,
            open: false,
            pipes: [Pipe::default(); 2],
            since: world.ctx.now,
            queued: false,
        });
        self.timers.make_room(key);
        self.by_front.insert(front, key);
        self.dial(key, world);
    }

    /// Begins to connect to a server that was not tried yet.
    fn dial<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        loop {
            let Some(backend) = self.balance.choose(self.relayed[key].tried) else {
                self.counters.refused += 1;
                return self.end(key, true, world);
            };
            let relayed = &mut self.relayed[key];
            relayed.tried |= 1 << backend;
            relayed.backend = backend;
            relayed.plain = false;
            if self.connect(key, world) {
                return;
            }
            self.balance.left(backend);
            self.backend_failed(backend);
        }
    }

    /// Begins to connect to the server of a connection; false if there is no way or no room.
    fn connect<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) -> bool {
        let (relayed, now) = (&mut self.relayed[key], world.ctx.now);
        let address = self.balance.backends()[relayed.backend].address;
        let smc = self.rule.smc && !relayed.plain && !world.engine.doubts(address.ip(), now);
        let Some(place) = connect(&mut self.backs, address, smc, world) else { return false };
        relayed.back = Some(place);
        relayed.since = now;
        self.by_back.insert(place, key);
        self.timers.put(key, now + self.rule.connect_timeout);
        true
    }

    /// The server answers over TCP, but the handshake of SMC has broken off: it is spoken to without.
    fn dial_plainly<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        let relayed = &mut self.relayed[key];
        if let Some(place) = relayed.back.take() {
            self.by_back.remove(&place);
        }
        if core::mem::replace(&mut relayed.plain, true) || !self.connect(key, world) {
            let backend = self.relayed[key].backend;
            self.balance.left(backend);
            self.backend_failed(backend);
            self.dial(key, world);
        }
    }

    /// The server that was dialled does not answer.
    fn dial_another<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        let relayed = &mut self.relayed[key];
        let backend = relayed.backend;
        if let Some(place) = relayed.back.take() {
            self.by_back.remove(&place);
            self.hang_up(Side::Backend, place, true, world);
            self.balance.left(backend);
            self.backend_failed(backend);
        }
        self.dial(key, world);
    }

    fn backend_failed(&mut self, backend: usize) {
        if self.balance.failed(backend) {
            self.tell(backend, false);
        }
    }

    fn tell(&mut self, backend: usize, up: bool) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        let backend = self.balance.backends()[backend].address;
        self.notices.push_back(Notice { backend, up });
    }

    /// The server of a connection is reached.
    fn reached<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        carrier: Carrier,
        world: &mut World<'_, '_, P>,
    ) {
        self.counters.smc_servers += u64::from(carrier == Carrier::Smc);
        let relayed = &mut self.relayed[key];
        relayed.open = true;
        relayed.since = world.ctx.now;
        let (backend, front, back) = (relayed.backend, relayed.front, relayed.back);
        if self.balance.answered(backend, true) {
            self.tell(backend, true);
        }
        if let Some(idle) = self.rule.idle_timeout {
            self.timers.put(key, world.ctx.now + idle);
        }
        if let (true, Some((at, id))) = (self.rule.proxy, back) {
            let mut header = [0; MAX_HEADER];
            let ends = self.fronts[front.0].ends(front.1);
            let (local, remote) = ends.unwrap_or((NOBODY, NOBODY));
            let length = proxy::header(remote, local, &mut header);
            let header = &header[..length];
            let World { interfaces, engine, ctx, .. } = world;
            // The first that is written finds an empty buffer, which is larger.
            let written = self.backs[at].write(id, header, interfaces.get(at), engine, ctx);
            if written != Ok(header.len()) {
                return self.end(key, true, world);
            }
        }
        self.queue(key);
    }

    /// Moves what can be moved of a connection, in one turn.
    fn serve<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        let Relay { fronts, backs, relayed, counters, .. } = self;
        let relayed = &mut relayed[key];
        let mut piece = core::mem::take(world.piece);
        piece.resize(PIECE, 0);
        let mut both = Endpoints { fronts, backs, front: relayed.front, back: relayed.back, world };
        let mut more = false;
        let lost = if relayed.open {
            let [there, here] = &mut relayed.pipes;
            let there = there.flow(Side::Frontend, &mut both, &mut piece, TURN);
            let here = here.flow(Side::Backend, &mut both, &mut piece, TURN);
            let moved = (there.unwrap_or(0), here.unwrap_or(0));
            more = moved.0 >= TURN || moved.1 >= TURN;
            counters.bytes_in += moved.0 as u64;
            counters.bytes_out += moved.1 as u64;
            if moved != (0, 0) {
                relayed.since = both.world.ctx.now;
            }
            there.is_err() || here.is_err()
        } else {
            // Only whether the client is still there.
            both.read(Side::Frontend, &mut []) == Err(Closed::Gone)
        };
        *world.piece = piece;
        if lost {
            counters.aborted += 1;
            self.end(key, true, world);
        } else if relayed.pipes.iter().all(|pipe| pipe.finished) {
            self.end(key, false, world);
        } else if more {
            self.queue(key);
        }
    }

    /// Ends a connection on both sides, in order or with an abort.
    fn end<P: Provider + ?Sized>(&mut self, key: usize, abort: bool, world: &mut World<'_, '_, P>) {
        let relayed = self.relayed.remove(key);
        self.timers.forget(key);
        self.by_front.remove(&relayed.front);
        self.hang_up(Side::Frontend, relayed.front, abort, world);
        if let Some(back) = relayed.back {
            self.by_back.remove(&back);
            self.hang_up(Side::Backend, back, abort, world);
            self.balance.left(relayed.backend);
        }
    }

    /// Ends all connections on both sides, by an abort: what is under way does not arrive any more.
    pub fn shut_down<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let keys: Vec<usize> = self.relayed.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.end(key, true, world));
    }

    /// Ends the rule: its connections, those that are not relayed yet among them, by an abort. Its port is free.
    pub fn stop<P: Provider + ?Sized>(mut self, world: &mut World<'_, '_, P>) {
        self.shut_down(world);
        let World { interfaces, engine, ctx, .. } = world;
        for (at, front) in self.fronts.into_iter().enumerate() {
            front.stop(interfaces.get(at), engine, ctx);
        }
        for (at, back) in self.backs.into_iter().enumerate() {
            back.stop(interfaces.get(at), engine, ctx);
        }
    }

    fn hang_up<P: Provider + ?Sized>(
        &mut self,
        side: Side,
        (at, id): Place,
        abort: bool,
        world: &mut World<'_, '_, P>,
    ) {
        let World { interfaces, engine, ctx, .. } = world;
        let interface = interfaces.get(at);
        match side {
            Side::Frontend => self.fronts[at].close(id, abort, interface, engine, ctx),
            Side::Backend => self.backs[at].close(id, abort, interface, engine, ctx),
        }
    }
}

/// A client whose address is not known any more.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED), 0);

/// Begins to connect over the interface on the way to a server.
fn connect<P: Provider + ?Sized>(
    backs: &mut [Connector],
    address: SocketAddr,
    smc: bool,
    world: &mut World<'_, '_, P>,
) -> Option<Place> {
    let mut all = 0..backs.len();
    let at = all.find(|&at| world.interfaces.get(at).next_hop(address.ip()).is_some())?;
    let World { interfaces, engine, ctx, .. } = world;
    let id = backs[at].connect(interfaces.get(at), engine, address, smc, ctx.now)?;
    Some((at, id))
}
