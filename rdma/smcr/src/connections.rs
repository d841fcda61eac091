//! TCP connections and the sockets of the engine that grow out of them, under one name each:
//! whatever carries a connection, its user reads and writes the same way. What listens
//! ([`super::acceptor`]) and what connects ([`super::connector`]) share this.
//!
//! Nobody looks at all connections. TCP and the engine say of which there is something new, once for all
//! that is new; so who hears of one does all that can be done for it: hands a handshake's bytes on until
//! none move, or tells its user, who reads and writes until nothing moves, or remembers that it stopped
//! before.

use super::engine::{Engine, Ready, RecvError, SendError, SocketId};
use super::tcp::Tcp;
use super::wire::is_decline;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::Interface;
use net::tcp::Closed;
use slab::Slab;
use verbs::EngineContext;
use verbs::Provider;

/// Most that is read at a time of a handshake.
const PIECE: usize = 512;
/// Handshakes that are looked at when another needs a place.
const EVICTION_SCAN: usize = 64;
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
}

/// The connections of a listener or connector.
#[derive(Debug)]
pub struct Connections<T: Tcp> {
    pub(super) tcp: T,
    /// How the engine's sockets say that they are of these: [`Engine::owner`].
    owner: u32,
    connections: Slab<Connection<T::Name>>,
    /// By the names that TCP and the engine have for them.
    names: BTreeMap<T::Name, ConnectionId>,
    sockets: BTreeMap<SocketId, ConnectionId>,
    /// Handshakes, the oldest first; some are over.
    handshakes: VecDeque<ConnectionId>,
    events: VecDeque<Event>,
    /// Bytes of the buffers of each, out of the engine's books; whether hosts are counted there.
    cost: u64,
    guests: bool,
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
            sockets: BTreeMap::new(),
            handshakes: VecDeque::new(),
            events: VecDeque::new(),
            cost,
            guests,
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
        };
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
            State::Opening | State::Refused => {}
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
            true => engine.admission.leave(connection.ends.1.ip(), self.cost),
            false => engine.admission.give_back(self.cost),
        }
        connection
    }

    /// Bytes of the buffers of each.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// The handshakes that began before `before`: of the host that has the most, the oldest ones, `most` at
    /// most.
    pub(super) fn stalled(&self, before: Instant, most: usize) -> Vec<(IpAddr, SocketId)> {
        let handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        let stalled = handshakes.take_while(|(connection, _)| connection.since <= before);
        let mut stalled: Vec<_> =
            stalled.map(|(c, socket)| (c.ends.1.ip(), c.since, socket)).collect();
        let mut counts = BTreeMap::<_, usize>::new();
        stalled.iter().for_each(|(host, ..)| *counts.entry(*host).or_default() += 1);
        stalled.sort_unstable_by_key(|&(host, since, _)| (Reverse(counts[&host]), host, since));
        stalled.into_iter().take(most).map(|(host, _, socket)| (host, socket)).collect()
    }

    /// Connections that there are.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// The handshake that gives way to a host that comes while there is no room: the oldest of the host that has
    /// the most under way, if that one has two more than who comes. Only the oldest are looked at.
    pub(super) fn evicted_for(&self, comes: IpAddr) -> Option<(IpAddr, SocketId)> {
        let handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        let oldest = handshakes.take(EVICTION_SCAN).map(|(c, socket)| (c.ends.1.ip(), socket));
        let mut counts = BTreeMap::<_, (usize, SocketId)>::new();
        for (host, socket) in oldest {
            counts.entry(host).or_insert((0, socket)).0 += 1;
        }
        let own = counts.get(&comes).map_or(0, |&(count, _)| count);
        let (host, (count, socket)) = counts.into_iter().max_by_key(|(_, (count, _))| *count)?;
        (count >= own + 2).then_some((host, socket))
    }

    /// When the first of the handshakes began that are under way.
    pub(super) fn oldest_handshake(&self) -> Option<Instant> {
        let mut handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        handshakes.next().map(|(connection, _)| connection.since)
    }

    /// A connection whose handshake is under way, and its socket.
    fn handshake(&self, id: ConnectionId) -> Option<(&Connection<T::Name>, SocketId)> {
        match self.get(id)? {
            connection @ &Connection { state: State::Handshake(socket), .. } => {
                Some((connection, socket))
            }
            _ => None,
        }
    }

    /// A handshake has begun. Those that are over leave the list in front, or when half of it may be such.
    fn note_handshake(&mut self, id: ConnectionId) {
        let mut handshakes = core::mem::take(&mut self.handshakes);
        while handshakes.front().is_some_and(|&first| self.handshake(first).is_none()) {
            handshakes.pop_front();
        }
        if handshakes.len() > 2 * self.connections.len() {
            handshakes.retain(|&id| self.handshake(id).is_some());
        }
        handshakes.push_back(id);
        self.handshakes = handshakes;
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
            Some(State::Handshake(socket)) => self.shake(id, socket, interface, engine, ctx),
            Some(State::Smc(socket)) => self.watch(id, socket, interface, engine, ctx),
            Some(State::Tcp) => self.wake(id),
        }
    }

    /// Looks whether the TCP connection beside an SMC-R one is gone, and the peer with it. It carries
    /// nothing any more.
    fn watch<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Connections { tcp, connections, .. } = self;
        let Some(connection) = connections.get_mut(id.key).filter(|c| c.has_tcp) else { return };
        let mut nothing = [0; PIECE];
        loop {
            match tcp.read(interface, connection.name, &mut nothing) {
                Ok(0) => return,
                Err(Closed::Finished) => return engine.handle_tcp_finished(socket, ctx.now),
                Ok(_) => {}
                Err(Closed::Gone) => break,
            }
        }
        connection.has_tcp = false;
        tcp.leave(interface, connection.name, true, ctx.now);
        self.names.remove(&connection.name);
        engine.handle_tcp_gone(socket, ctx);
    }

    fn wake(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.key) else { return };
        if !core::mem::replace(&mut connection.told, true) {
            self.events.push_back(Event::Ready(id));
        }
    }

    /// Moves the bytes of a handshake, both ways.
    pub(super) fn shake<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Connections { tcp, connections, .. } = self;
        let Some(connection) = connections.get_mut(id.key) else { return };
        if !connection.has_tcp {
            return;
        }
        let mut piece = [0; PIECE];
        loop {
            let mut moved = false;
            if connection.rest.is_empty() {
                match tcp.read(interface, connection.name, &mut piece) {
                    Ok(count) => connection.rest.extend_from_slice(&piece[..count]),
                    // What the peer sent before its end is still looked at.
                    Err(Closed::Finished) => {}
                    Err(Closed::Gone) => engine.handle_tcp_gone(socket, ctx),
                }
            }
            let taken = engine.handle_clc_bytes(socket, &connection.rest, ctx, interface);
            connection.rest.drain(..taken);
            moved |= taken > 0;
            loop {
                let count = engine.poll_clc_bytes(socket, &mut piece);
                if count == 0 {
                    break;
                }
                moved = true;
                // A handshake's messages are shorter than the buffer, which was empty.
                if tcp.write(interface, connection.name, &piece[..count]) != Ok(count) {
                    engine.handle_tcp_gone(socket, ctx);
                    break;
                }
            }
            if !moved {
                return;
            }
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
        let Some(&id) = self.sockets.get(&socket) else { return false };
        if ready.contains(Ready::FALLBACK) {
            // The Decline goes first.
            self.shake(id, socket, interface, engine, ctx);
            engine.close(socket, ctx);
            self.sockets.remove(&socket);
            self.set_state(id, State::Tcp);
            if let Some(connection) = self.connections.get_mut(id.key) {
                connection.fresh = true;
            }
        } else if ready.contains(Ready::FAILED) {
            engine.close(socket, ctx);
            self.sockets.remove(&socket);
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
        } else if ready == Ready::CLC {
            self.shake(id, socket, interface, engine, ctx);
        } else {
            self.wake(id);
        }
        true
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
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

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
        interface: &mut Interface,
        engine: &mut Engine,
    ) -> Result<usize, Closed> {
        let connection = self.connections.get_mut(id.key).filter(|c| c.turn == id.turn);
        let connection = connection.ok_or(Closed::Gone)?;
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) => Ok(0),
            State::Smc(socket) => engine.recv(socket, into).map_err(closed),
            State::Tcp => {
                let count = if connection.rest.is_empty() {
                    self.tcp.read(interface, connection.name, into)?
                } else {
                    let count = connection.rest.len().min(into.len());
                    into[..count].copy_from_slice(&connection.rest[..count]);
                    connection.rest.drain(..count);
                    count
                };
                // Both have declined, and what the peer's user reads begins with our Decline.
                let first = connection.fresh && count > 0;
                connection.fresh &= !first;
                if first && is_decline(&into[..count]) {
                    return Err(Closed::Gone);
                }
                Ok(count)
            }
        }
    }

    /// Moves what has arrived over SMC-R back to where it came from, as far as there is room; an
    /// [`Event::Ready`] follows where there is too little. None if the connection does not go over SMC-R.
    pub fn turn_back<P: Provider + ?Sized>(
        &self,
        id: ConnectionId,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Result<(), Closed>> {
        let State::Smc(socket) = self.get(id)?.state else { return None };
        Some(engine.forward(socket, socket, ctx).map_err(closed))
    }

    /// Bytes that a write would take now. If there are none, an [`Event::Ready`] follows.
    pub fn room(&self, id: ConnectionId, interface: &mut Interface, engine: &mut Engine) -> usize {
        let Some(connection) = self.get(id) else { return 0 };
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) => 0,
            State::Smc(socket) => engine.room(socket),
            State::Tcp => self.tcp.room(interface, connection.name),
        }
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, Closed> {
        let connection = self.get(id).ok_or(Closed::Gone)?;
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) => Ok(0),
            State::Smc(socket) => engine.send(socket, bytes, ctx).map_err(|error| match error {
                SendError::Closed => Closed::Finished,
                SendError::Aborted | SendError::NoMemory => Closed::Gone,
            }),
            State::Tcp => self.tcp.write(interface, connection.name, bytes),
        }
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(connection) = self.get(id) else { return };
        match connection.state {
            State::Opening | State::Refused => {}
            State::Handshake(socket) | State::Smc(socket) => engine.shutdown(socket, ctx),
            State::Tcp => self.tcp.finish(interface, connection.name),
        }
    }

    /// Gives a connection up: in order, or with an abort.
    pub fn close<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        abort: bool,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.get(id).is_none() {
            return;
        }
        let connection = self.take_out(id, engine);
        let mut abort_tcp = abort;
        if let State::Handshake(socket) | State::Smc(socket) = connection.state {
            self.sockets.remove(&socket);
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

    /// Ends all connections by an abort, and what they came from.
    pub(super) fn stop<P: Provider + ?Sized>(
        mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let ids = self.connections.iter();
        let ids = ids.map(|(key, c)| ConnectionId { key, turn: c.turn }).collect::<Vec<_>>();
        for id in ids {
            self.close(id, true, interface, engine, ctx);
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
                State::Handshake(socket) | State::Smc(socket) => Some(socket),
                State::Opening | State::Refused | State::Tcp => None,
            },
            open: matches!(c.state, State::Smc(_) | State::Tcp),
        })
    }
}

fn closed(error: RecvError) -> Closed {
    match error {
        RecvError::Finished => Closed::Finished,
        RecvError::Aborted => Closed::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Role;
    use crate::testing::{World, ip};
    use crate::wire::{Decline, Os, PeerId, Reason};
    use core::cell::RefCell;

    /// One TCP connection; what has arrived on it.
    struct One(RefCell<VecDeque<u8>>);

    impl Tcp for One {
        type Name = ();
        fn next_news(&mut self, _: &mut Interface) -> Option<()> {
            None
        }
        fn read(&self, _: &mut Interface, (): (), into: &mut [u8]) -> Result<usize, Closed> {
            let mut arrived = self.0.borrow_mut();
            let count = arrived.len().min(into.len());
            into[..count].fill_with(|| arrived.pop_front().unwrap_or_default());
            Ok(count)
        }
        fn write(&self, _: &mut Interface, (): (), bytes: &[u8]) -> Result<usize, Closed> {
            Ok(bytes.len())
        }
        fn room(&self, _: &mut Interface, (): ()) -> usize {
            0
        }
        fn make_idle(&self, _: &mut Interface, (): ()) {}
        fn finish(&self, _: &mut Interface, (): ()) {}
        fn leave(&mut self, _: &mut Interface, (): (), _: bool, _: Instant) {}
        fn stop(self, _: &mut Interface) {}
    }

    /// What a user reads first after a fallback, when this arrives.
    fn first_read(arrives: &[u8]) -> Result<Vec<u8>, Closed> {
        let mut interface = Interface::new([2; 6], 1500, 1, Instant::ZERO);
        let mut w = World::new(1);
        let mut connections = Connections::new(One(RefCell::default()), 0, 0, false);
        let mut read = [0; 100];
        let id = w.with_engine(0, |engine, ctx, _| {
            let socket = engine.open(Role::Server, [ip(0, 0), ip(1, 0)], 0, ctx).unwrap();
            let end = SocketAddr::from(([10, 0, 0, 1], 7));
            let id = connections.insert((), (end, end), State::Handshake(socket), ctx.now);
            connections.handle_event(socket, Ready::FALLBACK, &mut interface, engine, ctx);
            id
        });
        let engine = &mut w.hosts[0].engine;
        assert_eq!(connections.read(id, &mut read, &mut interface, engine), Ok(0));
        connections.tcp.0.borrow_mut().extend(arrives);
        let count = connections.read(id, &mut read, &mut interface, engine)?;
        // Later it is anybody's data.
        connections.tcp.0.borrow_mut().extend(arrives);
        assert!(connections.read(id, &mut read, &mut interface, engine).is_ok());
        Ok(read[..count].to_vec())
    }

    #[test]
    fn declines_that_cross_are_no_data() {
        let (peer_id, os) = (PeerId([7; 8]), Os::LINUX);
        for version in [1, 2] {
            let reason = Reason::TIMEOUT_CONFIRM_LINK;
            let decline = Decline { version, out_of_sync: false, peer_id, reason, os }.emit();
            assert_eq!(first_read(&decline), Err(Closed::Gone));
            let and_more = [&decline[..], b"GET /"].concat();
            assert_eq!(first_read(&and_more), Err(Closed::Gone));
            let other = [b"GET /", &decline[..]].concat();
            assert_eq!(first_read(&other), Ok(other));
        }
        assert_eq!(first_read(b"GET / HTTP/1.0"), Ok(b"GET / HTTP/1.0".to_vec()));
    }
}
