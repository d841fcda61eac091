//! Connections that combine a TCP connection and an engine socket under one ID: users read and write the same way over
//! SMC-R and TCP. Shared by [`super::acceptor`] and [`super::connector`].
//!
//! No poll iterates over all connections. TCP and the engine report a connection once, for all its events since the
//! last report. So the handler of a report must drain it: move handshake bytes until none move, or wake the user. The
//! user then reads and writes until no byte moves, or remembers that it stopped before.

mod handshakes;
mod stream;
#[cfg(test)]
mod tests;

use super::engine::{BufferSizes, Engine, Ready, SocketId};
use super::tcp::Tcp;
use crate::SmcDevice;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::Interface;
use net::hosts::accountable;
use slab::Slab;
use verbs::Ctx;

/// Most ready connections handled per poll.
pub(super) const READY_BATCH: usize = 64;

/// ID of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    key: usize,
    generation: u32,
}

impl ConnectionId {
    /// Slot of the connection, which a later connection may reuse.
    pub fn place(self) -> usize {
        self.key
    }
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// SMC-R.
    Smc,
    /// TCP, without SMC or after a fallback.
    Tcp,
}

/// Event for the user of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection is open.
    Opened(ConnectionId, Carrier),
    /// A read or write may succeed again.
    Ready(ConnectionId),
    /// TCP could not be opened; the connection is removed.
    Failed(ConnectionId),
    /// TCP was open, but the SMC handshake failed; the connection is removed. A retry without SMC may succeed.
    Broken(ConnectionId),
}

/// Status of a connection, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// The engine's socket, if there is one.
    pub socket: Option<SocketId>,
    /// The connection is open.
    pub open: bool,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// TCP is not open yet.
    Opening,
    /// TCP is open, but the engine has no socket for a handshake.
    Refused,
    Handshake(SocketId),
    /// The user has closed, but the handshake is finished first, because the peer may already use SMC-R.
    GivenUp(SocketId),
    Smc(SocketId),
    Tcp,
}

#[derive(Debug)]
pub(super) struct Connection<N> {
    pub name: N,
    pub state: State,
    /// When TCP was accepted or the connect began.
    since: Instant,
    /// Our end and the peer's.
    pub ends: (SocketAddr, SocketAddr),
    generation: u32,
    /// The TCP connection exists.
    has_tcp: bool,
    /// Bytes read from TCP that neither the handshake nor, after a fallback, the user has taken.
    unread: Vec<u8>,
    /// An `Event::Ready` is queued.
    ready_queued: bool,
    /// The connection fell back, and the user has not read since.
    awaits_first_read: bool,
    /// Bytes charged in [`Engine::admission`].
    cost: u64,
}

/// Maps engine sockets to connections.
#[derive(Debug, Default)]
struct Sockets {
    /// Indexed by [`SocketId::place`].
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
    /// Sizes of the buffers of further SMC-R connections, if not the engine's own.
    pub sizes: Option<BufferSizes>,
    /// Tag that the engine returns with socket events: [`Engine::poll_event`].
    owner: u32,
    connections: Slab<Connection<T::Name>>,
    /// Connections by their TCP handles.
    names: BTreeMap<T::Name, ConnectionId>,
    sockets: Sockets,
    /// Handshakes in order of their start; may contain finished ones.
    handshakes: VecDeque<ConnectionId>,
    events: VecDeque<Event>,
    /// Bytes charged for each further connection.
    cost: u64,
    /// Connections are incoming: hosts are accounted for in [`Engine::admission`].
    incoming: bool,
    /// Connections per host, by [`accountable`] address.
    of_hosts: BTreeMap<IpAddr, u32>,
    generation: u32,
    /// Number of connection look-ups.
    #[cfg(any(test, feature = "testing"))]
    pub looked: u64,
}

impl<T: Tcp> Connections<T> {
    /// `owner`: tag of the engine's sockets. `cost`: bytes charged per connection. `incoming`: connections come from
    /// admitted hosts.
    pub(super) fn new(tcp: T, owner: u32, cost: u64, incoming: bool) -> Self {
        Connections {
            tcp,
            sizes: None,
            owner,
            connections: Slab::new(),
            names: BTreeMap::new(),
            sockets: Sockets::default(),
            handshakes: VecDeque::new(),
            events: VecDeque::new(),
            cost,
            incoming,
            of_hosts: BTreeMap::new(),
            generation: 0,
            #[cfg(any(test, feature = "testing"))]
            looked: 0,
        }
    }

    /// Tag of these connections' engine sockets.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Adds a TCP connection.
    pub(super) fn insert(
        &mut self,
        name: T::Name,
        ends: (SocketAddr, SocketAddr),
        state: State,
        since: Instant,
    ) -> ConnectionId {
        self.generation = self.generation.wrapping_add(1);
        let (generation, unread) = (self.generation, Vec::new());
        let connection = Connection {
            name,
            state,
            since,
            ends,
            generation,
            has_tcp: true,
            unread,
            ready_queued: false,
            awaits_first_read: false,
            cost: self.cost,
        };
        if self.incoming {
            *self.of_hosts.entry(accountable(ends.1.ip())).or_default() += 1;
        }
        let id = ConnectionId { key: self.connections.insert(connection), generation };
        self.names.insert(name, id);
        self.set_state(id, state);
        id
    }

    /// Changes the state of a connection.
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

    /// Looks up a connection.
    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection<T::Name>> {
        self.connections.get(id.key).filter(|connection| connection.generation == id.generation)
    }

    /// Removes a connection that could not be opened, and reports it.
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

    /// Removes a connection, and releases its charge in [`Engine::admission`].
    fn take_out(&mut self, id: ConnectionId, engine: &mut Engine) -> Connection<T::Name> {
        let connection = self.connections.remove(id.key);
        self.names.remove(&connection.name);
        match self.incoming {
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

    /// Bytes charged for each further connection.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Sets the bytes charged for each further connection.
    pub(super) fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// Number of connections of a host.
    pub(super) fn of_host(&self, host: IpAddr) -> u32 {
        self.of_hosts.get(&accountable(host)).copied().unwrap_or(0)
    }

    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether TCP is not open yet.
    pub fn is_connecting(&self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|connection| connection.state == State::Opening)
    }

    /// The next connection that TCP reports. Skips unknown handles: those are not accepted yet, and are handled when
    /// they are.
    pub(super) fn next_news(&mut self, interface: &mut Interface) -> Option<ConnectionId> {
        loop {
            let name = self.tcp.next_news(interface)?;
            if let Some(&id) = self.names.get(&name) {
                return Some(id);
            }
        }
    }

    /// Handles a TCP report: moves handshake bytes, or wakes the user.
    pub(super) fn handle_tcp_ready<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        #[cfg(any(test, feature = "testing"))]
        {
            self.looked += 1;
        }
        match self.get(id).map(|connection| connection.state) {
            None | Some(State::Opening | State::Refused) => {}
            Some(State::Handshake(socket) | State::GivenUp(socket)) => {
                self.pump_handshake(id, socket, interface, engine, ctx);
            }
            Some(State::Smc(socket)) => self.watch_tcp(id, socket, interface, engine, ctx),
            Some(State::Tcp) => self.wake(id),
        }
    }

    fn wake(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.key) else { return };
        if matches!(connection.state, State::GivenUp(_)) {
            return;
        }
        if !core::mem::replace(&mut connection.ready_queued, true) {
            self.events.push_back(Event::Ready(id));
        }
    }

    /// Handles an event of the engine. Returns false if the socket does not belong to these connections.
    pub fn handle_event<P: SmcDevice + ?Sized>(
        &mut self,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Some(id) = self.sockets.get(socket) else { return false };
        if Self::is_readiness_only(ready) {
            self.wake(id);
        } else {
            self.handle_change(id, socket, ready, interface, engine, ctx);
        }
        true
    }

    /// The connection of an event that reports readiness and no state change, for callers that read and write at once.
    /// Other events go to [`Connections::handle_event`].
    #[inline]
    pub fn ready(&self, socket: SocketId, ready: Ready) -> Option<ConnectionId> {
        self.sockets.get(socket).filter(|_| Self::is_readiness_only(ready))
    }

    /// Whether an event reports readiness and no state change.
    #[inline]
    fn is_readiness_only(ready: Ready) -> bool {
        let changes = Ready::FALLBACK.union(Ready::FAILED).union(Ready::ESTABLISHED);
        !ready.intersects(changes) && ready != Ready::CLC
    }

    /// Handles an event of the engine that changes the connection's state.
    fn handle_change<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.is_given_up(id) {
            self.pump_handshake(id, socket, interface, engine, ctx);
            if ready != Ready::CLC {
                self.end_given_up(id, socket, interface, engine, ctx);
            }
        } else if ready.contains(Ready::FALLBACK) {
            // The Decline goes first.
            self.pump_handshake(id, socket, interface, engine, ctx);
            engine.close(socket, ctx);
            self.sockets.remove(socket);
            self.set_state(id, State::Tcp);
            if let Some(connection) = self.connections.get_mut(id.key) {
                connection.awaits_first_read = true;
            }
        } else if ready.contains(Ready::FAILED) {
            engine.close(socket, ctx);
            self.sockets.remove(socket);
            self.fail(id, interface, engine, ctx.now);
        } else if ready.contains(Ready::ESTABLISHED) {
            self.pump_handshake(id, socket, interface, engine, ctx);
            self.set_state(id, State::Smc(socket));
            // TCP may have reported a reset or FIN before.
            self.watch_tcp(id, socket, interface, engine, ctx);
            // The engine probes the peer by TEST_LINK, for all its connections at once. TCP carries no data.
            if let Some(connection) = self.get(id) {
                self.tcp.make_idle(interface, connection.name);
            }
        } else {
            self.pump_handshake(id, socket, interface, engine, ctx);
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
            if let Some(connection) = connection.filter(|c| c.generation == id.generation) {
                connection.ready_queued = false;
                return Some(event);
            }
        }
    }

    /// Closes a connection, or aborts it. A handshake that has gone so far that the peer may already use SMC-R is
    /// finished first; then the peer gets an ABORT.
    pub fn close<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        abort: bool,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
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

    /// Aborts all connections. Handshakes that must be finished first remain: see [`Connections::is_over`].
    pub fn close_all<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        let ids = self.connections.iter();
        let ids =
            ids.map(|(key, c)| ConnectionId { key, generation: c.generation }).collect::<Vec<_>>();
        for id in ids {
            self.close(id, true, interface, engine, ctx);
        }
    }

    /// Whether no connection remains, including closed ones whose handshake is being finished.
    pub fn is_over(&self) -> bool {
        self.connections.is_empty()
    }

    /// Aborts all connections at once, and stops listener or connector.
    pub(super) fn stop<P: SmcDevice + ?Sized>(
        mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.close_all(interface, engine, ctx);
        let given_up = self.connections.iter().filter_map(|(key, c)| match c.state {
            State::GivenUp(socket) => {
                Some((ConnectionId { key, generation: c.generation }, socket))
            }
            _ => None,
        });
        for (id, socket) in given_up.collect::<Vec<_>>() {
            self.end_given_up(id, socket, interface, engine, ctx);
        }
        self.tcp.stop(interface);
    }

    /// Local and remote address of a connection.
    pub fn ends(&self, id: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.get(id).map(|connection| connection.ends)
    }

    /// The connections, for reports.
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
