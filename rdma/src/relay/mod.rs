//! The messaging gateway: a rule listens on a port, over SMC-R and TCP, and relays each connection
//! to one of its servers, over TCP or SMC-R.
//!
//! What one side has no room for is not read from the other, so that all that is kept of a
//! connection is in the buffers of its two ends. Half-closes and aborts go across. SMC's urgent byte
//! stays in its place in the stream, without its mark: TCP here has none. Names are not looked up.

pub mod balance;
mod both;
pub mod pipe;
mod probe;
pub mod proxy;
mod timer;

use crate::rtrs::Context;
use crate::smcr::admission::Gate;
use crate::smcr::back::Back;
use crate::smcr::engine::{Engine, Ready, SocketId};
use crate::smcr::front::{Carrier, Connected, ConnectionId, Event, Front};
use crate::verbs::Provider;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use balance::{Backend, Balance};
use both::Both;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::tcp::{Closed, Limits};
use net::{Interface, connector};
use pipe::{Pipe, Side, Sides};
use probe::Probe;
use proxy::MAX_HEADER;
use slab::Slab;

/// Most that is moved at a time.
const PIECE: usize = 32 << 10;
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
    pub ctx: &'a mut Context<'b, P>,
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
    /// When its timer runs.
    timer: Option<Instant>,
}

/// A rule at work.
#[derive(Debug)]
pub struct Relay {
    rule: Rule,
    fronts: Vec<Front>,
    backs: Vec<Back>,
    relayed: Slab<Relayed>,
    by_front: BTreeMap<Place, usize>,
    by_back: BTreeMap<Place, usize>,
    probes: Vec<Probe>,
    balance: Balance,
    counters: Counters,
    notices: VecDeque<Notice>,
    /// Connections by when their timers run, and when questions to servers end.
    timers: BTreeSet<(Instant, usize)>,
    probes_due: Option<Instant>,
}

impl Relay {
    /// Listens on all interfaces. `seed` as in [`Back::new`].
    pub fn new(rule: Rule, interfaces: &mut dyn Interfaces, seed: u16, now: Instant) -> Self {
        let limits = rule.limits;
        let all = 0..interfaces.count();
        let fronts = all.clone().map(|at| {
            let interface = interfaces.get(at);
            Front::new(interface, rule.listen, rule.offers, limits, rule.gate.clone())
        });
        let fronts = fronts.collect();
        let places = connector::Limits {
            connections: limits.connections + rule.backends.len(),
            receive: limits.receive,
            transmit: limits.transmit,
        };
        let backs = all.map(|_| Back::new(places, seed)).collect();
        let balance = Balance::new(&rule.backends, rule.health_interval, now);
        Relay {
            fronts,
            backs,
            relayed: Slab::new(),
            by_front: BTreeMap::new(),
            by_back: BTreeMap::new(),
            probes: Vec::new(),
            balance,
            counters: Counters::default(),
            notices: VecDeque::new(),
            timers: BTreeSet::new(),
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

    /// Sees to what has happened on the interface `at`; to be called after each poll of it in which
    /// anything happened, and when the engine's timers have run.
    pub fn poll<P: Provider + ?Sized>(&mut self, at: usize, world: &mut World<'_, '_, P>) {
        let interface = world.interfaces.get(at);
        self.fronts[at].poll(interface, world.engine, world.ctx);
        self.backs[at].poll(interface, world.engine, world.ctx);
        self.work(world);
    }

    /// Takes an event of the engine; false if it is of no socket of this rule.
    pub fn handle_event<P: Provider + ?Sized>(
        &mut self,
        socket: SocketId,
        ready: Ready,
        world: &mut World<'_, '_, P>,
    ) -> bool {
        let World { interfaces, engine, ctx, .. } = world;
        let ours = (0..self.fronts.len()).any(|at| {
            let interface = interfaces.get(at);
            self.fronts[at].handle_event(socket, ready, interface, engine, ctx)
                || self.backs[at].handle_event(socket, ready, interface, engine, ctx)
        });
        if ours {
            self.work(world);
        }
        ours
    }

    /// Deals with what is to be told of all connections.
    fn work<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        for at in 0..self.fronts.len() {
            while let Some(event) = self.fronts[at].poll_event() {
                match event {
                    Event::Opened(id, carrier) => self.welcome((at, id), carrier, world),
                    Event::Ready(id) | Event::Failed(id) | Event::Broken(id) => {
                        if let Some(&key) = self.by_front.get(&(at, id)) {
                            self.serve(key, world);
                        }
                    }
                }
            }
        }
        for at in 0..self.backs.len() {
            while let Some(event) = self.backs[at].poll_event() {
                let (Event::Opened(id, _)
                | Event::Ready(id)
                | Event::Failed(id)
                | Event::Broken(id)) = event;
                if let Some(probe) = self.probes.iter().position(|p| p.place == (at, id)) {
                    self.probed(probe, event, world);
                    continue;
                }
                let Some(&key) = self.by_back.get(&(at, id)) else { continue };
                match event {
                    Event::Opened(_, carrier) => self.reached(key, carrier, world),
                    Event::Ready(_) => self.serve(key, world),
                    Event::Failed(_) => self.dial_another(key, world),
                    Event::Broken(_) => self.dial_plainly(key, world),
                }
            }
        }
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
            timer: None,
        });
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
        self.arm(key, now + self.rule.connect_timeout);
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
            self.hang_up(Side::Back, place, true, world);
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
            self.arm(key, world.ctx.now + idle);
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
        self.serve(key, world);
    }

    /// Moves what can be moved.
    fn serve<P: Provider + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        let Relay { fronts, backs, relayed, counters, .. } = self;
        let relayed = &mut relayed[key];
        let mut piece = core::mem::take(world.piece);
        piece.resize(PIECE, 0);
        let mut both = Both { fronts, backs, front: relayed.front, back: relayed.back, world };
        let lost = if relayed.open {
            let [there, here] = &mut relayed.pipes;
            let there = there.flow(Side::Front, &mut both, &mut piece);
            let here = here.flow(Side::Back, &mut both, &mut piece);
            let moved = (there.unwrap_or(0), here.unwrap_or(0));
            counters.bytes_in += moved.0 as u64;
            counters.bytes_out += moved.1 as u64;
            if moved != (0, 0) {
                relayed.since = both.world.ctx.now;
            }
            there.is_err() || here.is_err()
        } else {
            // Only whether the client is still there.
            both.read(Side::Front, &mut []) == Err(Closed::Gone)
        };
        *world.piece = piece;
        if lost {
            counters.aborted += 1;
            self.end(key, true, world);
        } else if relayed.pipes.iter().all(|pipe| pipe.finished) {
            self.end(key, false, world);
        }
    }

    /// Ends a connection on both sides, in order or with an abort.
    fn end<P: Provider + ?Sized>(&mut self, key: usize, abort: bool, world: &mut World<'_, '_, P>) {
        let relayed = self.relayed.remove(key);
        if let Some(at) = relayed.timer {
            self.timers.remove(&(at, key));
        }
        self.by_front.remove(&relayed.front);
        self.hang_up(Side::Front, relayed.front, abort, world);
        if let Some(back) = relayed.back {
            self.by_back.remove(&back);
            self.hang_up(Side::Back, back, abort, world);
            self.balance.left(relayed.backend);
        }
    }

    /// Ends all connections on both sides, by an abort: what is under way does not arrive any more.
    pub fn shut_down<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let keys: Vec<usize> = self.relayed.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.end(key, true, world));
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
            Side::Front => self.fronts[at].close(id, abort, interface, engine, ctx),
            Side::Back => self.backs[at].close(id, abort, interface, engine, ctx),
        }
    }
}

/// A client whose address is not known any more.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED), 0);

/// Begins to connect over the interface on the way to a server.
fn connect<P: Provider + ?Sized>(
    backs: &mut [Back],
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
