//! A port on which both SMC-R and TCP are served: TCP listener and engine together, so that its
//! user sees connections and need not know which of the two carries them.
//!
//! A client that offers SMC in its SYN gets a handshake; whoever does not, and whoever falls back,
//! is served over TCP. IPv6 clients are served over TCP alone, as SMC-Rv2 has it.

use super::engine::{Engine, Ready, RecvError, Role, SendError, SocketId};
use crate::rtrs::Context;
use crate::verbs::Provider;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Closed, Limits, Listener, Stream};
use slab::Slab;

/// Most that is read at a time of a handshake.
const PIECE: usize = 512;

/// Name of a connection of a front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(usize);

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// SMC-R.
    Smc,
    /// TCP, by itself or after a fallback.
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Handshake(SocketId),
    Smc(SocketId),
    Tcp,
}

#[derive(Debug)]
struct Connection {
    tcp: Stream,
    /// The TCP connection is there.
    has_tcp: bool,
    remote: SocketAddr,
    local: IpAddr,
    state: State,
    /// Read from TCP and not yet taken by the handshake, or by the user after a fallback.
    rest: Vec<u8>,
    /// Whether its user is to be told.
    told: bool,
}

/// What a connection's user should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is open.
    Opened(ConnectionId, Carrier),
    /// It is worth to read or write again.
    Ready(ConnectionId),
}

/// The front.
#[derive(Debug)]
pub struct Front {
    listener: Listener,
    connections: Slab<Connection>,
    /// By the engine's names.
    sockets: Vec<(SocketId, usize)>,
    events: VecDeque<Event>,
}

impl Front {
    /// Listens on `port` of all addresses of the interface, and offers SMC there.
    pub fn new(interface: &mut Interface, port: u16, limits: Limits) -> Self {
        interface.smc_option().set_port(port, true);
        let listener = Listener::new(interface, port, limits);
        let connections = Slab::with_capacity(limits.connections);
        Front {
            listener,
            connections,
            sockets: Vec::with_capacity(limits.connections),
            events: VecDeque::with_capacity(2 * limits.connections),
        }
    }

    /// Accepts, and moves the bytes of handshakes; to be called after each poll of the interface
    /// in which anything happened, and when the engine's timers have run.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        while let Some(stream) = self.listener.accept(interface, ctx.now) {
            let Some((remote, local)) = self.listener.ends(interface, stream) else { continue };
            let offers = match remote {
                SocketAddr::V4(remote) => {
                    let remote = (*remote.ip(), remote.port());
                    interface.smc_option().take_offer(self.listener.port(), remote)
                }
                SocketAddr::V6(_) => false,
            };
            let state = if offers {
                let Some(socket) = engine.open(Role::Server, local, remote.ip(), ctx) else {
                    // The client waits for an Accept that cannot be made.
                    self.listener.abort(interface, stream, ctx.now);
                    continue;
                };
                State::Handshake(socket)
            } else {
                State::Tcp
            };
            let rest = Vec::new();
            let connection =
                Connection { tcp: stream, has_tcp: true, remote, local, state, rest, told: false };
            let key = self.connections.insert(connection);
            match state {
                State::Handshake(socket) => self.sockets.push((socket, key)),
                _ => self.events.push_back(Event::Opened(ConnectionId(key), Carrier::Tcp)),
            }
        }
        for key in 0..self.connections.capacity() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            match connection.state {
                State::Handshake(socket) => self.shake(key, socket, interface, engine, ctx),
                State::Smc(socket) if connection.has_tcp => {
                    // It carries nothing any more, but tells of a peer that is gone.
                    let gone = self.listener.read(interface, connection.tcp, &mut [0; 64]);
                    if gone == Err(Closed::Gone) {
                        connection.has_tcp = false;
                        self.listener.abort(interface, connection.tcp, ctx.now);
                        engine.handle_tcp_gone(socket, ctx);
                    }
                }
                State::Smc(_) => {}
                State::Tcp => self.wake(key),
            }
        }
    }

    fn wake(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        if !core::mem::replace(&mut connection.told, true) {
            self.events.push_back(Event::Ready(ConnectionId(key)));
        }
    }

    /// Moves the bytes of a handshake, both ways.
    fn shake<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        let Front { listener, connections, .. } = self;
        let connection = &mut connections[key];
        let mut piece = [0; PIECE];
        loop {
            let mut moved = false;
            if connection.rest.is_empty() {
                match listener.read(interface, connection.tcp, &mut piece) {
                    Ok(count) => connection.rest.extend_from_slice(&piece[..count]),
                    // What the client sent before its end is still looked at.
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
                if listener.write(interface, connection.tcp, &piece[..count]) != Ok(count) {
                    engine.handle_tcp_gone(socket, ctx);
                    break;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Takes an event of the engine; false if it is of no socket of this front.
    pub fn handle_event<P: Provider + ?Sized>(
        &mut self,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) -> bool {
        let Some(&(_, key)) = self.sockets.iter().find(|(id, _)| *id == socket) else {
            return false;
        };
        if ready.contains(Ready::FALLBACK) {
            // The Decline goes first.
            self.shake(key, socket, interface, engine, ctx);
            engine.close(socket, ctx);
            self.forget(socket);
            self.connections[key].state = State::Tcp;
            self.events.push_back(Event::Opened(ConnectionId(key), Carrier::Tcp));
        } else if ready.contains(Ready::FAILED) {
            engine.close(socket, ctx);
            self.forget(socket);
            let connection = self.connections.remove(key);
            self.listener.abort(interface, connection.tcp, ctx.now);
        } else if ready.contains(Ready::ESTABLISHED) {
            self.shake(key, socket, interface, engine, ctx);
            self.connections[key].state = State::Smc(socket);
            self.events.push_back(Event::Opened(ConnectionId(key), Carrier::Smc));
        } else {
            self.wake(key);
        }
        true
    }

    fn forget(&mut self, socket: SocketId) {
        self.sockets.retain(|(id, _)| *id != socket);
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            let (Event::Opened(id, _) | Event::Ready(id)) = event;
            if let Some(connection) = self.connections.get_mut(id.0) {
                connection.told = false;
                return Some(event);
            }
        }
    }

    /// Both ends of a connection: the client's, and our address.
    pub fn ends(&self, id: ConnectionId) -> Option<(SocketAddr, IpAddr)> {
        self.connections.get(id.0).map(|connection| (connection.remote, connection.local))
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
        interface: &mut Interface,
        engine: &mut Engine,
    ) -> Result<usize, Closed> {
        let connection = self.connections.get_mut(id.0).ok_or(Closed::Gone)?;
        match connection.state {
            State::Handshake(_) => Ok(0),
            State::Smc(socket) => engine.recv(socket, into).map_err(|error| match error {
                RecvError::Finished => Closed::Finished,
                RecvError::Aborted => Closed::Gone,
            }),
            State::Tcp if !connection.rest.is_empty() => {
                let count = connection.rest.len().min(into.len());
                into[..count].copy_from_slice(&connection.rest[..count]);
                connection.rest.drain(..count);
                Ok(count)
            }
            State::Tcp => self.listener.read(interface, connection.tcp, into),
        }
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) -> Result<usize, Closed> {
        let connection = self.connections.get(id.0).ok_or(Closed::Gone)?;
        match connection.state {
            State::Handshake(_) => Ok(0),
            State::Smc(socket) => engine.send(socket, bytes, ctx).map_err(|error| match error {
                SendError::Closed => Closed::Finished,
                SendError::Aborted | SendError::NoMemory => Closed::Gone,
            }),
            State::Tcp => self.listener.write(interface, connection.tcp, bytes),
        }
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        let Some(connection) = self.connections.get(id.0) else { return };
        match connection.state {
            State::Handshake(socket) | State::Smc(socket) => engine.shutdown(socket, ctx),
            State::Tcp => self.listener.finish(interface, connection.tcp),
        }
    }

    /// Gives a connection up: in order, or with an abort.
    pub fn close<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        abort: bool,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        let Some(connection) = self.connections.try_remove(id.0) else { return };
        if let State::Handshake(socket) | State::Smc(socket) = connection.state {
            self.forget(socket);
            if abort {
                engine.abort(socket, ctx);
            } else {
                engine.close(socket, ctx);
            }
        }
        if !connection.has_tcp {
            return;
        }
        if abort && connection.state == State::Tcp {
            self.listener.abort(interface, connection.tcp, ctx.now);
        } else {
            self.listener.close(interface, connection.tcp, ctx.now);
        }
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.listener.poll_timeout()
    }
}
