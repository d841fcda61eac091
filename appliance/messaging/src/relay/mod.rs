//! The messaging gateway: a rule listens on a port over SMC-R and TCP, or on a message transport. It relays each
//! connection to one of its servers, over TCP, SMC-R or a message transport.
//!
//! Data is read from one side only if the other side has room for it, so all data of a connection is in the buffers of
//! its two ends. Half-closes and aborts are forwarded. SMC's urgent byte stays at its position in the stream, without
//! its mark, because the TCP here has no urgent data. Names are not resolved.
//!
//! Connections with events wait in a queue for their turn, in which at most `TURN` bytes move each way. A connection
//! with more data goes to the end of the queue. A connection without data or room leaves the queue, and returns with
//! the next event.

mod adjust;
pub mod balance;
mod ending;
mod endpoints;
mod ends;
pub mod frames;
mod messages;
pub mod pipe;
mod probe;
pub mod proxy;
mod rule;
mod servers;
mod streams;
mod timer;

pub use ending::Ending;
pub use rule::{Counters, Notice, Rule};

use crate::messages::{MessageConnection, Messages};
use crate::transport::{Event, Over, Transport};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use balance::{Backend, Balance};
use core::time::Duration;
use drivers::hal::{Instant, Timers};
use endpoints::Endpoints;
use messages::Conversation;
use net::Interface;
use net::tcp::{Closed, Owner};
use pipe::{Pipe, Side, Sides};
use probe::Probe;
use slab::Slab;
use smcr::SmcDevice;
use smcr::acceptor::{Acceptor, Connected};
use smcr::connector::Connector;
use smcr::engine::{Engine, Ready, SocketId};
use streams::{Backs, Fronts, Stream};
use verbs::Ctx;

/// Bytes moved in one step.
const PIECE: usize = 32 << 10;
/// Bytes of a connection moved each way before the next connection's turn.
const TURN: usize = 64 << 10;
/// Notices that wait for the loop. The oldest are dropped first.
const MAX_NOTICES: usize = 16;

/// The interfaces that carry connections.
pub trait Interfaces {
    /// Number of interfaces.
    fn count(&self) -> usize;
    /// The interface with number `at`, below [`Interfaces::count`].
    fn get(&mut self, at: usize) -> &mut Interface;
}

/// Context of relaying: all that rules use.
pub struct World<'a, 'b, P: SmcDevice + ?Sized> {
    /// The interfaces.
    pub interfaces: &'a mut dyn Interfaces,
    /// The engine of SMC-R.
    pub engine: &'a mut Engine,
    /// Buffer for one step; empty at first.
    pub piece: &'a mut Vec<u8>,
    /// Context of the engine, with its provider.
    pub ctx: &'a mut Ctx<'b, P>,
    /// Message transports.
    pub messages: &'a mut Messages<'b>,
}

/// ID of one side's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Over TCP or SMC-R.
    Stream(Stream),
    /// Over a message transport.
    Message(MessageConnection),
}

/// A relayed connection.
#[derive(Debug)]
struct Relayed {
    front: Place,
    back: Option<Place>,
    backend: usize,
    /// Servers that could not be reached.
    tried: u64,
    /// The SMC-R handshake with this server failed: connect over TCP alone.
    tcp_only: bool,
    /// The server is reached.
    open: bool,
    /// Pipes to the server, and to the client.
    pipes: [Pipe; 2],
    /// Start of the connect timeout, or time of the last data.
    since: Instant,
    /// Idle timeout. None: never.
    patience: Option<Duration>,
    /// The connection is in the queue.
    queued: bool,
    /// State of messages, if one side carries messages.
    conversation: Option<Box<Conversation>>,
}

/// A running rule.
#[derive(Debug)]
pub struct Relay {
    rule: Rule,
    /// The first of the [`OWNERS`] owner numbers of its fronts and backs, for the engine and [`Relay::poll`].
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
    /// Connections that may have data to move. If a connection ended and its key was reused, the new connection gets an
    /// extra turn.
    queue: VecDeque<usize>,
    /// Timers of connections.
    timers: Timers,
    /// The next deadline of a probe.
    probes_due: Option<Instant>,
    /// Notice about ended connections that is not due yet.
    ended: Option<Notice>,
    last_ended_notice: Option<Instant>,
    ended_due: Option<Instant>,
}

/// Owner numbers of a rule: one for each front and back. There are fewer interfaces than these allow.
pub const OWNERS: u32 = 256;

/// Owner numbers of the listener on a message transport, and of connections to servers over message transports,
/// relative to the rule's first one.
const MESSAGE_FRONT: u32 = OWNERS - 2;
const MESSAGE_BACK: u32 = OWNERS - 1;

/// Owner numbers of the front and the back on an interface, relative to the rule's first one.
fn numbers(at: usize) -> [u32; 2] {
    let front = 2 * at as u32;
    [front, front + 1]
}

impl Relay {
    /// Listens on all interfaces. `first_owner` is the first of [`OWNERS`] numbers that no other user of the engine
    /// has; `seed` as in [`Connector::new`].
    pub fn new(
        rule: Rule,
        interfaces: &mut dyn Interfaces,
        first_owner: u32,
        seed: u16,
        now: Instant,
    ) -> Self {
        let all = 0..interfaces.count();
        let front = |port| {
            let fronts = all.clone().map(|at| {
                let (interface, owner) = (interfaces.get(at), first_owner + numbers(at)[0]);
                let limits = (rule.limits, rule.beyond_clients());
                Acceptor::new(interface, port, rule.offers, limits, rule.gate.clone(), owner)
            });
            fronts.collect()
        };
        let mut fronts: Vec<Acceptor> = rule.listen.port().map_or_else(Vec::new, front);
        let places = rule.to_servers();
        let back =
            |at| Connector::new(places, rule.cost_of_server(), seed, first_owner + numbers(at)[1]);
        let mut backs: Vec<Connector> = all.map(back).collect();
        fronts.iter_mut().for_each(|front| front.sizes = rule.buffers);
        backs.iter_mut().for_each(|back| back.sizes = rule.buffers);
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
            ended: None,
            last_ended_notice: None,
            ended_due: None,
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

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of connections.
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

    /// The next notice for the operator.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Its fronts and backs: interface, name in [`Interface::ready`], and owner number.
    pub fn owners(&mut self, interfaces: &mut dyn Interfaces) -> Vec<(usize, Owner, u32)> {
        let mut owners = Vec::new();
        for (at, front) in self.fronts.iter().enumerate() {
            owners.push((at, front.tcp_owner(), front.owner()));
        }
        for (at, back) in self.backs.iter_mut().enumerate() {
            owners.push((at, back.tcp_owner(interfaces.get(at)), back.owner()));
        }
        owners
    }

    /// Side and interface of the front or back with an owner number.
    fn place_of(&self, owner: u32) -> Option<(Side, usize)> {
        let number = owner.checked_sub(self.first_owner)?;
        let at = number as usize / 2;
        let side = if number.is_multiple_of(2) { Side::Frontend } else { Side::Backend };
        let count = match side {
            Side::Frontend => self.fronts.len(),
            Side::Backend => self.backs.len(),
        };
        (at < count).then_some((side, at))
    }

    /// Handles some events of the front or back with this owner number. Call it while [`Interface::ready`] names the
    /// front or back, and [`Relay::work`] afterwards.
    pub fn poll<P: SmcDevice + ?Sized>(&mut self, owner: u32, world: &mut World<'_, '_, P>) {
        let Some((side, at)) = self.place_of(owner) else { return };
        let World { interfaces, engine, ctx, .. } = &mut *world;
        let interface = interfaces.get(at);
        match side {
            Side::Frontend => self.fronts[at].poll(interface, engine, ctx),
            Side::Backend => self.backs[at].poll(interface, engine, ctx),
        }
        self.handle_connections(side, at, world);
    }

    /// Handles an event of the engine's socket `socket`, for the front or back with this owner number. Call
    /// [`Relay::work`] afterwards.
    pub fn handle_event<P: SmcDevice + ?Sized>(
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
        self.handle_connections(side, at, world);
    }

    /// Handles the connection events of a front or back.
    fn handle_connections<P: SmcDevice + ?Sized>(
        &mut self,
        side: Side,
        at: usize,
        world: &mut World<'_, '_, P>,
    ) {
        match side {
            Side::Frontend => loop {
                let mut front = Fronts { acceptors: &mut self.fronts, at, world: &mut *world };
                let Some(event) = front.next_event() else { return };
                self.front_event(event.map(Place::Stream), world);
            },
            Side::Backend => loop {
                let connectors = &mut self.backs;
                let mut back = Backs { connectors, at, smc: false, world: &mut *world };
                let Some(event) = back.next_event() else { return };
                self.back_event(event.map(Place::Stream), world);
            },
        }
    }

    fn front_event<P: SmcDevice + ?Sized>(
        &mut self,
        event: Event<Place>,
        world: &mut World<'_, '_, P>,
    ) {
        match event {
            Event::Opened(place, over) => self.accept(place, over, world),
            Event::Ready(place) | Event::Failed(place) | Event::Broken(place) => {
                if let Some(&key) = self.by_front.get(&place) {
                    self.queue(key);
                }
            }
            Event::Refused(count) => self.refuse_excess(count, world),
        }
    }

    /// A message transport has refused `count` peers, because the rule has all its connections.
    #[cold]
    fn refuse_excess<P: SmcDevice + ?Sized>(&mut self, count: u64, world: &mut World<'_, '_, P>) {
        self.counters.refused += count;
        let (reason, advice) = (
            "connections",
            "the rule has all its connections: raise rule.N.connections, or close some",
        );
        self.note_refused(None, reason, advice.into(), world);
        // The others are only counted.
        if count > 1 {
            world.engine.admission.refusals.count("connection", reason, count - 1);
        }
    }

    fn back_event<P: SmcDevice + ?Sized>(
        &mut self,
        event: Event<Place>,
        world: &mut World<'_, '_, P>,
    ) {
        let (Event::Opened(id, _) | Event::Ready(id) | Event::Failed(id) | Event::Broken(id)) =
            event
        else {
            return;
        };
        let Some(&key) = self.by_back.get(&id) else {
            if let Some(probe) = self.probes.iter().position(|p| Place::Stream(p.place) == id) {
                self.finish_probe(
                    probe,
                    matches!(event, Event::Opened(..) | Event::Ready(_)),
                    world,
                );
            }
            return;
        };
        match event {
            Event::Opened(_, over) => self.reached(key, over, world),
            Event::Ready(_) => self.queue(key),
            Event::Failed(_) => self.dial_another(key, world),
            Event::Broken(_) => self.dial_over_tcp(key, world),
            Event::Refused(_) => {}
        }
    }

    /// Queues a connection for its turn.
    fn queue(&mut self, key: usize) {
        if let Some(relayed) = self.relayed.get_mut(key)
            && !core::mem::replace(&mut relayed.queued, true)
        {
            self.queue.push_back(key);
        }
    }

    /// Moves data of up to `turns` connections. Returns their number.
    pub fn work<P: SmcDevice + ?Sized>(
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

    /// Number of visits to connections.
    #[cfg(test)]
    pub(crate) fn looked(&self) -> u64 {
        let fronts = self.fronts.iter().map(|front| front.looked);
        fronts.chain(self.backs.iter().map(|back| back.looked)).sum()
    }

    /// Whether connections wait for their turn in [`Relay::work`].
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Adds an accepted connection, and dials a server.
    fn accept<P: SmcDevice + ?Sized>(
        &mut self,
        front: Place,
        over: Over,
        world: &mut World<'_, '_, P>,
    ) {
        match over {
            Over::Smc => self.counters.smc += 1,
            Over::Tcp => self.counters.tcp += 1,
            Over::Linx | Over::Usnic | Over::RioCm => self.counters.messages += 1,
        }
        let key = self.relayed.insert(Relayed {
            front,
            back: None,
            backend: 0,
            tried: 0,
            tcp_only: false,
            open: false,
            pipes: [Pipe::default(); 2],
            since: world.ctx.now,
            patience: None,
            queued: false,
            conversation: None,
        });
        self.timers.make_room(key);
        self.by_front.insert(front, key);
        self.dial(key, world);
    }

    /// Moves data of a connection, in one turn.
    fn serve<P: SmcDevice + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        if self.is_conversation(key) {
            return self.converse(key, world);
        }
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
            // The server is not reached yet: only check whether the client is gone.
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
}
