//! A port on which both SMC-R and TCP are served: TCP listener and engine together, so that its
//! user sees connections and need not know which of the two carries them.
//!
//! A client that offers SMC in its SYN gets a handshake; whoever does not, and whoever falls back,
//! is served over TCP. IPv6 clients are served over TCP alone, as SMC-Rv2 has it.

use super::engine::{Engine, Ready, Role, SocketId};
pub use super::joint::{Carrier, Connected, ConnectionId, Event};
use super::joint::{Joint, State};
use crate::rtrs::Context;
use crate::verbs::Provider;
use core::net::SocketAddr;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Closed, Limits, Listener};

/// The front.
#[derive(Debug)]
pub struct Front {
    joint: Joint<Listener>,
}

impl Front {
    /// Listens on `port` of all addresses of the interface, and if it `offers` does so with SMC.
    pub fn new(interface: &mut Interface, port: u16, offers: bool, limits: Limits) -> Self {
        interface.smc_option().set_port(port, offers);
        let listener = Listener::new(interface, port, limits);
        Front { joint: Joint::new(listener, limits.connections) }
    }

    /// Accepts, and moves the bytes of handshakes; to be called after each poll of the interface
    /// in which anything happened, and when the engine's timers have run.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        while let Some(stream) = self.joint.tcp.accept(interface, ctx.now) {
            let listener = &mut self.joint.tcp;
            let Some((remote, local)) = listener.ends(interface, stream) else { continue };
            let offers = match remote {
                SocketAddr::V4(remote) => {
                    let remote = (*remote.ip(), remote.port());
                    interface.smc_option().take_offer(listener.port(), remote)
                }
                SocketAddr::V6(_) => false,
            };
            let state = if offers {
                let Some(socket) = engine.open(Role::Server, local, remote.ip(), ctx) else {
                    // The client waits for an Accept that cannot be made.
                    listener.abort(interface, stream, ctx.now);
                    continue;
                };
                State::Handshake(socket)
            } else {
                State::Tcp
            };
            let local = SocketAddr::new(local, self.joint.tcp.port());
            self.joint.insert(stream, (local, remote), state);
        }
        self.joint.poll(interface, engine, ctx);
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
        self.joint.handle_event(socket, ready, interface, engine, ctx)
    }

    /// The next event, if any. Of a connection whose handshake breaks off nothing was heard.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.joint.poll_event()?;
            if !matches!(event, Event::Failed(_)) {
                return Some(event);
            }
        }
    }

    /// Both ends of a connection: ours, and the client's.
    pub fn ends(&self, id: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.joint.get(id).map(|connection| connection.ends)
    }

    /// The connections, as they are shown.
    pub fn connected(&self) -> impl Iterator<Item = Connected> + '_ {
        self.joint.connected()
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
        interface: &mut Interface,
        engine: &mut Engine,
    ) -> Result<usize, Closed> {
        self.joint.read(id, into, interface, engine)
    }

    /// Bytes that a write would take now. If there are none, an [`Event::Ready`] follows.
    pub fn room(&self, id: ConnectionId, interface: &mut Interface, engine: &mut Engine) -> usize {
        self.joint.room(id, interface, engine)
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
        self.joint.write(id, bytes, interface, engine, ctx)
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        self.joint.finish(id, interface, engine, ctx);
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
        self.joint.close(id, abort, interface, engine, ctx);
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.joint.tcp.poll_timeout()
    }
}
