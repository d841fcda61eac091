//! Connections to servers, over SMC-R or TCP: connector and engine together, so that their user
//! need not know which of the two carries them. A server that does not offer SMC, or declines, is
//! spoken to over TCP.

pub use super::connections::{Carrier, Connected, ConnectionId, Connections, Event};
use super::connections::{NEWS, State};
use super::engine::{Engine, Role};
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use drivers::hal::Instant;
use net::Interface;
use net::connector::{Connector as TcpConnector, Limits, Progress};
use net::tcp::Owner;
use verbs::EngineContext;
use verbs::Provider;

/// Connections over one interface.
#[derive(Debug)]
pub struct Connector {
    connections: Connections<TcpConnector>,
}

impl Connector {
    /// Without any connection. `seed` as in [`TcpConnector::new`]; `owner`: how the engine's sockets say that they
    /// are of this connector ([`Engine::poll_event`]); `cost`: bytes of the engine's books that a connection takes, which
    /// somebody else may have paid for.
    pub fn new(limits: Limits, cost: u64, seed: u16, owner: u32) -> Self {
        Connector {
            connections: Connections::new(TcpConnector::new(limits, seed), owner, cost, false),
        }
    }

    /// Has other limits from the next connection on.
    pub fn adjust(&mut self, limits: Limits, cost: u64, interface: &mut Interface) {
        self.connections.tcp.set_limits(interface, limits);
        self.connections.set_cost(cost);
    }

    /// Its name among those of [`Interface::ready`]; always of the same interface.
    pub fn tcp_owner(&mut self, interface: &mut Interface) -> Owner {
        self.connections.tcp.owner(interface)
    }

    /// Begins to connect; `smc` offers SMC. An [`Event::Opened`], [`Event::Failed`] or [`Event::Broken`] follows. None
    /// if there is no room or no way.
    pub fn connect(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        peer: SocketAddr,
        smc: bool,
        now: Instant,
    ) -> Option<ConnectionId> {
        let cost = self.connections.cost();
        if !engine.admission.take(cost) {
            return None;
        }
        let link = self.connections.tcp.connect(interface, peer, smc && peer.is_ipv4());
        let link = link.and_then(|link| Some((link, self.connections.tcp.local(interface, link)?)));
        if link.is_none() {
            engine.admission.give_back(cost);
        }
        let (link, local) = link?;
        Some(self.connections.insert(link, (local, peer), State::Opening, now))
    }

    /// Sees to what is new of connections, some at a time: to be called while [`Interface::ready`] names it.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        for _ in 0..NEWS {
            let Some(id) = self.connections.next_news(interface) else { break };
            if self.connections.is_connecting(id) {
                self.opened(id, interface, engine, ctx);
            }
            self.connections.hear(id, interface, engine, ctx);
        }
    }

    /// Something is new of a connection that is being opened: it may be open, for its handshake or for TCP, or
    /// be gone.
    fn opened<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(connection) = self.connections.get(id) else { return };
        let (ours, peer) = connection.ends;
        match self.connections.tcp.progress(interface, connection.name) {
            Progress::Opening => {}
            Progress::Open { smc: false } => self.connections.set_state(id, State::Tcp),
            Progress::Open { smc: true } => {
                let (ends, owner) = ([ours.ip(), peer.ip()], self.connections.owner());
                if let Some(socket) = engine.open(Role::Client, ends, owner, ctx) {
                    self.connections.set_state(id, State::Handshake(socket));
                } else {
                    // The server waits for a Proposal that cannot be made: without SMC it may go.
                    self.connections.set_state(id, State::Refused);
                    self.connections.fail(id, interface, engine, ctx.now);
                }
            }
            Progress::Gone => self.connections.fail(id, interface, engine, ctx.now),
        }
    }

    /// Ends everything: connections end by an abort, and handshakes with them.
    pub fn stop<P: Provider + ?Sized>(
        self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.connections.stop(interface, engine, ctx);
    }
}

/// What its user does with connections.
impl Deref for Connector {
    type Target = Connections<TcpConnector>;
    fn deref(&self) -> &Self::Target {
        &self.connections
    }
}

impl DerefMut for Connector {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connections
    }
}
