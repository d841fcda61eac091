//! Connections to servers, over SMC-R or TCP: connector and engine together, so that their user
//! need not know which of the two carries them. A server that does not offer SMC, or declines, is
//! spoken to over TCP.

use super::engine::{Engine, Ready, Role, SocketId};
pub use super::joint::{Carrier, Connected, ConnectionId, Event};
use super::joint::{Joint, State};
use crate::rtrs::Context;
use crate::verbs::Provider;
use core::net::SocketAddr;
use net::Interface;
use net::connector::{Connector, Limits, Progress};
use net::tcp::Closed;

/// Connections over one interface.
#[derive(Debug)]
pub struct Back {
    joint: Joint<Connector>,
}

impl Back {
    /// Without any connection. `seed` as in [`Connector::new`].
    pub fn new(limits: Limits, seed: u16) -> Self {
        let connections = limits.connections;
        Back { joint: Joint::new(Connector::new(limits, seed), connections) }
    }

    /// Begins to connect; `smc` offers SMC. An [`Event::Opened`] or [`Event::Failed`] follows. None
    /// if there is no room or no way.
    pub fn connect(
        &mut self,
        interface: &mut Interface,
        peer: SocketAddr,
        smc: bool,
    ) -> Option<ConnectionId> {
        let link = self.joint.tcp.connect(interface, peer, smc && peer.is_ipv4())?;
        let local = self.joint.tcp.local(interface, link)?;
        Some(self.joint.insert(link, (local, peer), State::Opening))
    }

    /// Sees to connections that are being opened, and moves the bytes of handshakes; to be called
    /// as [`super::front::Front::poll`] is.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        self.joint.tcp.poll(interface, ctx.now);
        while let Some((id, state)) = self.next_opened(interface, engine, ctx) {
            match state {
                Some(state) => self.joint.set_state(id, state),
                None => self.joint.fail(id, interface, ctx.now),
            }
        }
        self.joint.poll(interface, engine, ctx);
    }

    /// A connection that has left the opening behind: for its handshake, for TCP, or for nothing.
    fn next_opened<P: Provider + ?Sized>(
        &self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) -> Option<(ConnectionId, Option<State>)> {
        let connector = &self.joint.tcp;
        self.joint.opening().find_map(|(id, link)| match connector.progress(interface, link) {
            Progress::Opening => None,
            Progress::Open { smc: false } => Some((id, Some(State::Tcp))),
            Progress::Open { smc: true } => {
                let ends = self.joint.get(id).map(|connection| connection.ends);
                let socket = ends
                    .and_then(|(ours, peer)| engine.open(Role::Client, ours.ip(), peer.ip(), ctx));
                // The server waits for a Proposal that cannot be made.
                Some((id, socket.map(State::Handshake)))
            }
            Progress::Gone => Some((id, None)),
        })
    }

    /// Takes an event of the engine; false if it is of no socket of these.
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

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.joint.poll_event()
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

    /// The connections, as they are shown.
    pub fn connected(&self) -> impl Iterator<Item = Connected> + '_ {
        self.joint.connected()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.joint.len()
    }
}
