//! TCP connections and the sockets of the engine that grow out of them, under one name each:
//! whatever carries a connection, its user reads and writes the same way. What listens
//! ([`super::acceptor`]) and what connects ([`super::connector`]) share this.
//!
//! Nobody looks at all connections. TCP and the engine say of which there is something new, once for all
//! that is new; so who hears of one does all that can be done for it: hands a handshake's bytes on until
//! none move, or tells its user, who reads and writes until nothing moves, or remembers that it stopped
//! before.

mod handshakes;
mod stream;
#[cfg(test)]
mod tests;

use super::engine::{Engine, Ready, SocketId};
use super::tcp::Tcp;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::Interface;
use net::hosts::accountable;
use slab::Slab;
use verbs::EngineContext;
use verbs::Provider;

/// Connections whose news are looked at before others have their turn.
pub(super) const NEWS: usize = 64;

/// Name of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    key: usize,
    turn: u32,
}

impl ConnectionId {
    /// Its place among the connections that there are, which another one may have later.
    pub fn place(self) -> usize {
        self.key
    }
}

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// SMC-R.
    Smc,
    /// TCP, by itself or after a fallback.
    Tcp,
}

/// What a connection's user should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is open.
    Opened(ConnectionId, Carrier),
    /// It is worth to read or write again.
    Ready(ConnectionId),
    /// It was never opened, and is gone.
    Failed(ConnectionId),
    /// Its TCP connection was open, and the handshake of SMC broke off: it is gone. Without SMC it may be had.
    Broken(ConnectionId),
}

/// A connection, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The engine's socket, if there is one.
    pub socket: Option<SocketId>,
    /// It is open.
    pub open: bool,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// TCP is not open yet.
    Opening,
    /// TCP is open, and there is no room for a handshake.
    Refused,
    Handshake(SocketId),
    /// Its user has given it up, and the handshake is finished all the same: the peer may be on SMC-R already.
    GivenUp(SocketId),
    Smc(SocketId),
    Tcp,
}

#[derive(Debug)]
pub(super) struct Connection<N> {
    pub name: N,
    pub state: State,
    /// Since when.
    since: Instant,
    /// Our end and the peer's.
    pub ends: (SocketAddr, SocketAddr),
    turn: u32,
    /// The TCP connection is there.
    has_tcp: bool,
    /// Read from TCP and not yet taken by the handshake, or by the user after a fallback.
    rest: Vec<u8>,
    /// Its user is to be told.
    told: bool,
    /// It has fallen back, and nothing was read since.
    fresh: bool,
    /// Bytes of its buffers, out of the engine's books.
    cost: u64,
}

/// Which connection a socket of the engine is of.
#[derive(Debug, Default)]
struct Sockets {
    /// By the places of the sockets.
    all: Vec<Option<(SocketId, ConnectionId)>>,
}

impl Sockets {
    #[inline]
    fn get(&self, socket: SocketId) -> Option<ConnectionId> {
        let found = self.all.get(socket.place())?.as_ref();
        found.filter(|(of, _)| *of == socket).map(|(_, id)| *id)
    }

    fn insert(&mut self, socket: SocketId, id: ConnectionId) {
        let place = socket.place();
        if self.all.len() <= place {
            self.all.resize(place + 1, None);
        }
        self.all[place] = Some((socket, id));
    }

    fn remove(&mut self, socket: SocketId) {
        let place = self.all.get_mut(socket.place());
        place.and_then(|place| place.take_if(|(of, _)| *of == socket));
    }
}

/// The connections of a listener or connector.
#[derive(Debug)]
pub struct Connections<T: Tcp> {
    pub(super) tcp: T,
    /// How the engine's sockets say that they are of these: [`Engine::poll_event`].
    owner: u32,
    connections: Slab<Connection<T::Name>>,
    /// By the names that TCP and the engine have for them.
    names: BTreeMap<T::Name, ConnectionId>,
    sockets: Sockets,
    /// Handshakes, the oldest first; some are over.
    handshakes: VecDeque<ConnectionId>,
    events: VecDeque<Event>,
    /// Bytes of the buffers of the next; whether hosts are counted in the engine's books.
    cost: u64,
    guests: bool,
    /// How many hosts have, by who is accountable.
    of_hosts: BTreeMap<IpAddr, u32>,
    turn: u32,
    /// Connections that were looked at.
    #[cfg(any(test, feature = "testing"))]
    pub looked: u64,
}

impl<T: Tcp> Connections<T> {
    /// `owner`: what the engine's sockets say whose they are; `cost`: bytes of the buffers of each
    /// connection; `guests`: they are of hosts that were admitted.
    pub(super) fn new(tcp: T, owner: u32, cost: u64, guests: bool) -> Self {
        Connections {
            tcp,
            owner,
            connections: Slab::new(),
            names: BTreeMap::new(),
            sockets: Sockets::default(),
            handshakes: VecDeque::new(),
            events: VecDeque::new(),
            cost,
            guests,
            of_hosts: BTreeMap::new(),
            turn: 0,
            #[cfg(any(test, feature = "testing"))]
            looked: 0,
        }
    }

    /// What the engine's sockets of these connections say whose they are.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Takes a TCP connection in.
    pub(super) fn insert(
        &mut self,
        name: T::Name,
        ends: (SocketAddr, SocketAddr),
        state: State,
        since: Instant,
    ) -> ConnectionId {
        self.turn = self.turn.wrapping_add(1);
        let (turn, rest) = (self.turn, Vec::new());
        let connection = Connection {
            name,
            state,
            since,
            ends,
            turn,
            has_tcp: true,
            rest,
            told: false,
            fresh: false,
            cost: self.cost,
        };
        if self.guests {
            *self.of_hosts.entry(accountable(ends.1.ip())).or_default() += 1;
        }
        let id = ConnectionId { key: self.connections.insert(connection), turn };
        self.names.insert(name, id);
        self.set_state(id, state);
        id
    }

    /// Moves a connection on.
    pub(super) fn set_state(&mut self, id: ConnectionId, state: State) {
        let Some(connection) = self.connections.get_mut(id.key) else { return };
        connection.state = state;
        match state {
            State::Opening | State::Refused | State::GivenUp(_) => {}
            State::Handshake(socket) => {
                self.sockets.insert(socket, id);
                self.note_handshake(id);
            }
            State::Smc(_) => self.events.push_back(Event::Opened(id, Carrier::Smc)),
            State::Tcp => self.events.push_back(Event::Opened(id, Carrier::Tcp)),
        }
    }

    /// The connection with a name.
    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection<T::Name>> {
        self.connections.get(id.key).filter(|connection| connection.turn == id.turn)
    }

    /// One that could not be opened.
    pub(super) fn fail(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        now: Instant,
    ) {
        if self.get(id).is_none() {
            return;
        }
        let connection = self.take_out(id, engine);
        self.tcp.leave(interface, connection.name, true, now);
        self.events.push_back(match connection.state {
            State::Opening => Event::Failed(id),
            _ => Event::Broken(id),
        });
    }

    /// Takes a connection out, and what it had out of the books.
    fn take_out(&mut self, id: ConnectionId, engine: &mut Engine) -> Connection<T::Name> {
        let connection = self.connections.remove(id.key);
        self.names.remove(&connection.name);
        match self.guests {
            true => {
                let host = connection.ends.1.ip();
                engine.admission.leave(host, connection.cost);
                if let Entry::Occupied(mut count) = self.of_hosts.entry(accountable(host)) {
                    *count.get_mut() -= 1;
                    if *count.get() == 0 {
                        count.remove();
                    }
                }
            }
            false => engine.admission.give_back(connection.cost),
        }
        connection
    }

    /// Bytes of the buffers of the next.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// The buffers of the next connections have so many bytes.
    pub(super) fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// Connections that a host has.
    pub(super) fn of_host(&self, host: IpAddr) -> u32 {
        self.of_hosts.get(&accountable(host)).copied().unwrap_or(0)
    }

    /// Connections that there are.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether TCP is not open yet.
    pub fn is_connecting(&self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|connection| connection.state == State::Opening)
    }

    /// The next connection of which TCP has something new. One that is not known here was not accepted yet,
    /// and is looked at when it is.
    pub(super) fn next_news(&mut self, interface: &mut Interface) -> Option<ConnectionId> {
        loop {
            let name = self.tcp.next_news(interface)?;
            if let Some(&id) = self.names.get(&name) {
                return Some(id);
            }
        }
    }

    /// TCP has something new of a connection: moves the bytes of its handshake, or wakes its user.
    pub(super) fn hear<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        #[cfg(any(test, feature = "testing"))]
        {
            self.looked += 1;
        }
        match self.get(id).map(|connection| connection.state) {
            None | Some(State::Opening | State::Refused) => {}
            Some(State::Handshake(socket) | State::GivenUp(socket)) => {
                self.shake(id, socket, interface, engine, ctx);
            }
            Some(State::Smc(socket)) => self.watch(id, socket, interface, engine, ctx),
            Some(State::Tcp) => self.wake(id),
        }
    }

    fn wake(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.key) else { return };
        if matches!(connection.state, State::GivenUp(_)) {
            return;
        }
        if !core::mem::replace(&mut connection.told, true) {
            self.events.push_back(Event::Ready(id));
        }
    }

    /// Takes an event of the engine; false if it is of no socket of these.
    pub fn handle_event<P: Provider + ?Sized>(
        &mut self,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let Some(id) = self.sockets.get(socket) else { return false };
        if Self::is_worth_a_look(ready) {
            self.wake(id);
        } else {
            self.handle_change(id, socket, ready, interface, engine, ctx);
        }
        true
    }

    /// The connection of which an event of the engine says that it is worth to read or write again, and nothing else: for
    /// who does so at once. Other events are for [`Connections::handle_event`].
    #[inline]
    pub fn ready(&self, socket: SocketId, ready: Ready) -> Option<ConnectionId> {
        self.sockets.get(socket).filter(|_| Self::is_worth_a_look(ready))
    }

    /// Whether an event says that and nothing else.
    #[inline]
    fn is_worth_a_look(ready: Ready) -> bool {
        let changes = Ready::FALLBACK.union(Ready::FAILED).union(Ready::ESTABLISHED);
        !ready.intersects(changes) && ready != Ready::CLC
    }

    /// Takes an event of the engine that changes a connection.
    fn handle_change<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.is_given_up(id) {
            self.shake(id, socket, interface, engine, ctx);
            if ready != Ready::CLC {
                self.end_given_up(id, socket, interface, engine, ctx);
            }
        } else if ready.contains(Ready::FALLBACK) {
            // The Decline goes first.
            self.shake(id, socket, interface, engine, ctx);
            engine.close(socket, ctx);
            self.sockets.remove(socket);
            self.set_state(id, State::Tcp);
            if let Some(connection) = self.connections.get_mut(id.key) {
                connection.fresh = true;
            }
        } else if ready.contains(Ready::FAILED) {
            engine.close(socket, ctx);
            self.sockets.remove(socket);
            self.fail(id, interface, engine, ctx.now);
        } else if ready.contains(Ready::ESTABLISHED) {
            self.shake(id, socket, interface, engine, ctx);
            self.set_state(id, State::Smc(socket));
            // What TCP had to say may have come before.
            self.watch(id, socket, interface, engine, ctx);
            // The engine asks the peer by link tests, for all its connections at once, and TCP carries no data.
            if let Some(connection) = self.get(id) {
                self.tcp.make_idle(interface, connection.name);
            }
        } else {
            self.shake(id, socket, interface, engine, ctx);
        }
    }

    /// The next event, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { self.next_event() }
    }

    fn next_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            let (Event::Opened(id, _) | Event::Ready(id)) = event else { return Some(event) };
            let connection = self.connections.get_mut(id.key);
            if let Some(connection) = connection.filter(|c| c.turn == id.turn) {
                connection.told = false;
                return Some(event);
            }
        }
    }

    /// Gives a connection up: in order, or with an abort. A handshake that has gone so far that the peer may be on
    /// SMC-R is finished first, and then the peer is told.
    pub fn close<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        abort: bool,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        match self.get(id).map(|connection| (connection.state, connection.has_tcp)) {
            None | Some((State::GivenUp(_), _)) => return,
            Some((State::Handshake(socket), true)) if engine.is_committed(socket) => {
                return self.set_state(id, State::GivenUp(socket));
            }
            Some(_) => {}
        }
        let connection = self.take_out(id, engine);
        let mut abort_tcp = abort;
        if let State::Handshake(socket) | State::Smc(socket) = connection.state {
            self.sockets.remove(socket);
            abort_tcp &= matches!(connection.state, State::Handshake(_));
            if abort {
                engine.abort(socket, ctx);
            } else {
                engine.close(socket, ctx);
            }
        }
        if connection.has_tcp {
            self.tcp.leave(interface, connection.name, abort_tcp, ctx.now);
        }
    }

    /// Ends all connections by an abort. Handshakes that are finished first are left: [`Connections::is_over`].
    pub fn close_all<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let ids = self.connections.iter();
        let ids = ids.map(|(key, c)| ConnectionId { key, turn: c.turn }).collect::<Vec<_>>();
        for id in ids {
            self.close(id, true, interface, engine, ctx);
        }
    }

    /// Whether there is no connection, and no handshake that is finished though its user has given it up.
    pub fn is_over(&self) -> bool {
        self.connections.is_empty()
    }

    /// Ends what connections came from, and those that are left at once.
    pub(super) fn stop<P: Provider + ?Sized>(
        mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.close_all(interface, engine, ctx);
        let given_up = self.connections.iter().filter_map(|(key, c)| match c.state {
            State::GivenUp(socket) => Some((ConnectionId { key, turn: c.turn }, socket)),
            _ => None,
        });
        for (id, socket) in given_up.collect::<Vec<_>>() {
            self.end_given_up(id, socket, interface, engine, ctx);
        }
        self.tcp.stop(interface);
    }

    /// Both ends of a connection: ours, and the peer's.
    pub fn ends(&self, id: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.get(id).map(|connection| connection.ends)
    }

    /// The connections, as they are shown.
    pub fn connected(&self) -> impl Iterator<Item = Connected> + '_ {
        self.connections.iter().map(|(_, c)| Connected {
            local: c.ends.0,
            remote: c.ends.1,
            socket: match c.state {
                State::Handshake(socket) | State::GivenUp(socket) | State::Smc(socket) => {
                    Some(socket)
                }
                State::Opening | State::Refused | State::Tcp => None,
            },
            open: matches!(c.state, State::Smc(_) | State::Tcp),
        })
    }
}
