//! Connections to servers over SMC-R or TCP: joins a TCP connector and the engine, so that the user handles connections
//! regardless of their transport. Without SMC in the server's SYN-ACK, or after a Decline, TCP carries the connection.

pub use super::connections::{Carrier, Connected, ConnectionId, Connections, Event};
use super::connections::{READY_BATCH, State};
use super::engine::{Engine, Role};
use crate::SmcDevice;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use drivers::hal::Instant;
use net::Interface;
use net::connector::{Connector as TcpConnector, Limits, Progress};
use net::tcp::Owner;
use verbs::Ctx;

/// Connections over one interface.
#[derive(Debug)]
pub struct Connector {
    connections: Connections<TcpConnector>,
}

impl Connector {
    /// Creates a connector without connections. `seed` as in [`TcpConnector::new`]. `owner`: tag that the engine
    /// returns with the events of this connector's sockets ([`Engine::poll_event`]). `cost`: bytes charged per
    /// connection in [`Engine::admission`]; 0 if the caller accounts for them elsewhere.
    pub fn new(limits: Limits, cost: u64, seed: u16, owner: u32) -> Self {
        Connector {
            connections: Connections::new(TcpConnector::new(limits, seed), owner, cost, false),
        }
    }

    /// Changes the limits for future connections.
    pub fn adjust(&mut self, limits: Limits, cost: u64, interface: &mut Interface) {
        self.connections.tcp.set_limits(interface, limits);
        self.connections.set_cost(cost);
    }

    /// The connector's name in [`Interface::ready`]. `interface` must be the same in all calls.
    pub fn tcp_owner(&mut self, interface: &mut Interface) -> Owner {
        self.connections.tcp.owner(interface)
    }

    /// Starts a connection; `smc`: with the SMC option. An [`Event::Opened`], [`Event::Failed`] or [`Event::Broken`]
    /// follows. Returns None without room or without a route.
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

    /// Handles TCP readiness, a bounded number of connections per call. To be called while [`Interface::ready`] returns
    /// this connector's name.
    pub fn poll<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        for _ in 0..READY_BATCH {
            let Some(id) = self.connections.next_news(interface) else { break };
            if self.connections.is_connecting(id) {
                self.opened(id, interface, engine, ctx);
            }
            self.connections.handle_tcp_ready(id, interface, engine, ctx);
        }
    }

    /// Checks a connection that is being opened: TCP is still opening, open with or without SMC, or gone.
    fn opened<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(connection) = self.connections.get(id) else { return };
        let (ours, peer) = connection.ends;
        match self.connections.tcp.progress(interface, connection.name) {
            Progress::Opening => {}
            Progress::Open { smc: false } => self.connections.set_state(id, State::Tcp),
            Progress::Open { smc: true } => {
                let (ends, owner) = ([ours.ip(), peer.ip()], self.connections.owner());
                if let Some(socket) = engine.open(Role::Client, ends, owner, ctx) {
                    if let Some(sizes) = self.connections.sizes {
                        engine.set_buffer_sizes(socket, sizes);
                    }
                    self.connections.set_state(id, State::Handshake(socket));
                } else {
                    // The server waits for a Proposal that cannot be sent. A retry without SMC may succeed.
                    self.connections.set_state(id, State::Refused);
                    self.connections.fail(id, interface, engine, ctx.now);
                }
            }
            Progress::Gone => self.connections.fail(id, interface, engine, ctx.now),
        }
    }

    /// Aborts all connections and handshakes.
    pub fn stop<P: SmcDevice + ?Sized>(
        self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.connections.stop(interface, engine, ctx);
    }
}

/// Gives users the operations on connections.
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
