//! Serves one port over both SMC-R and TCP: joins a TCP listener and the engine, so that the user handles connections
//! regardless of their transport.
//!
//! A client that offers SMC in its SYN gets a handshake. Clients without SMC, and clients that fall back, are served
//! over TCP. IPv6 clients are served over TCP only, as SMC-Rv2 specifies.

use super::admission::Gate;
pub use super::connections::{Carrier, Connected, ConnectionId, Connections, Event};
use super::connections::{READY_BATCH, State};
use super::engine::{Engine, Ready, Role};
use crate::SmcDevice;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Limits, Listener};
use verbs::Ctx;

/// The listener of a port on one interface, and the connections that it accepted.
#[derive(Debug)]
pub struct Acceptor {
    connections: Connections<Listener>,
    gate: Gate,
    /// Most concurrent connections.
    max_connections: usize,
    /// When stalled handshakes are evicted next; None while there is room.
    next_eviction: Option<Instant>,
}

/// Age after which a handshake may be evicted when the listener is full: a first contact takes a few round trips.
const STALL_TIME: Duration = Duration::from_millis(500);
/// Pause between evictions of stalled handshakes, and most evicted at a time.
const EVICTION: (Duration, usize) = (Duration::from_millis(50), 8);
/// Most connections accepted per poll.
const ACCEPT_BATCH: usize = 16;
/// Places beyond the limit, for connections that arrive while the listener is full: `poll` then evicts another
/// connection or refuses the new one.
const OVERFLOW: usize = 8;

/// Buffer bytes of one connection.
fn cost(limits: Limits) -> u64 {
    (limits.receive + limits.transmit) as u64
}

fn with_overflow(limits: Limits) -> Limits {
    Limits { connections: limits.connections + OVERFLOW, ..limits }
}

impl Acceptor {
    /// Listens on `port` of all addresses of the interface; `offers`: with the SMC option. `owner`: tag that the engine
    /// returns with the events of this acceptor's sockets ([`Engine::poll_event`]). `extra`: bytes charged per
    /// connection in [`Engine::admission`], besides its buffers.
    pub fn new(
        interface: &mut Interface,
        port: u16,
        offers: bool,
        (limits, extra): (Limits, u64),
        gate: Gate,
        owner: u32,
    ) -> Self {
        let listener = Listener::new(interface, port, with_overflow(limits));
        listener.offer_smc(interface, offers);
        Acceptor {
            connections: Connections::new(listener, owner, cost(limits) + extra, true),
            gate,
            max_connections: limits.connections,
            next_eviction: None,
        }
    }

    /// Changes limits and gate for future connections. Present connections stay, except handshakes of hosts that the
    /// new gate does not admit: these are aborted.
    pub fn adjust<P: SmcDevice + ?Sized>(
        &mut self,
        (limits, extra): (Limits, u64),
        gate: Gate,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.connections.tcp.set_limits(interface, with_overflow(limits));
        self.connections.set_cost(cost(limits) + extra);
        self.max_connections = limits.connections;
        self.next_eviction = None;
        for id in self.connections.handshaking() {
            let host = self.connections.ends(id).map(|(_, remote)| remote.ip());
            if host.is_some_and(|host| !gate.hosts.admits(host)) {
                self.connections.close(id, true, interface, engine, ctx);
            }
        }
        self.gate = gate;
    }

    /// The listener's name in [`Interface::ready`].
    pub fn tcp_owner(&self) -> net::tcp::Owner {
        self.connections.tcp.owner()
    }

    /// Accepts connections and handles TCP readiness, a bounded number per call. To be called while
    /// [`Interface::ready`] returns this acceptor's name, and at [`Acceptor::poll_timeout`].
    pub fn poll<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        for _ in 0..ACCEPT_BATCH {
            let Some(stream) = self.connections.tcp.accept(interface, ctx.now) else { break };
            let listener = &mut self.connections.tcp;
            let Some((remote, local)) = listener.ends(interface, stream) else { continue };
            let offers = listener.offers_smc(interface, stream);
            let (host, cost, owner) =
                (remote.ip(), self.connections.cost(), self.connections.owner());
            let here = self.connections.of_host(host);
            if !engine.admission.admit(host, &self.gate, offers, cost, here) {
                self.connections.tcp.abort(interface, stream, ctx.now);
                continue;
            }
            if self.connections.len() >= self.max_connections {
                let Some((other, socket)) = self.connections.evicted_for(host) else {
                    engine.admission.leave(host, cost);
                    engine.admission.refuse_full(host, &self.gate);
                    self.connections.tcp.abort(interface, stream, ctx.now);
                    continue;
                };
                engine.admission.note_evicted(other, &self.gate);
                self.connections.handle_event(socket, Ready::FAILED, interface, engine, ctx);
            }
            let state = if offers {
                let Some(socket) = engine.open(Role::Server, [local, remote.ip()], owner, ctx)
                else {
                    // The client waits for an Accept that cannot be sent.
                    engine.admission.leave(host, cost);
                    engine.admission.refuse_no_socket(host, &self.gate);
                    self.connections.tcp.abort(interface, stream, ctx.now);
                    continue;
                };
                if let Some(sizes) = self.connections.sizes {
                    engine.set_buffer_sizes(socket, sizes);
                }
                State::Handshake(socket)
            } else {
                State::Tcp
            };
            let local = SocketAddr::new(local, self.connections.tcp.port());
            let id = self.connections.insert(stream, (local, remote), state, ctx.now);
            // Bytes that arrived before the accept may have been reported already.
            self.connections.handle_tcp_ready(id, interface, engine, ctx);
        }
        while let Some(host) = self.connections.tcp.next_turned_away(interface) {
            engine.admission.refuse_full(host, &self.gate);
        }
        let more = self.connections.tcp.more_turned_away(interface);
        engine.admission.count_refused_full(more);
        for _ in 0..READY_BATCH {
            let Some(id) = self.connections.next_news(interface) else { break };
            self.connections.handle_tcp_ready(id, interface, engine, ctx);
        }
        self.evict_stalled(interface, engine, ctx);
    }

    /// When the listener is full, evicts stalled handshakes: the oldest ones of the host that has the most of them.
    fn evict_stalled<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.connections.len() < self.max_connections {
            self.next_eviction = None;
            return;
        }
        let (now, (pause, most)) = (ctx.now, EVICTION);
        if self.next_eviction.is_some_and(|at| now < at) {
            return;
        }
        let before =
            Instant::from_nanos(now.as_nanos().saturating_sub(STALL_TIME.as_nanos() as u64));
        for (host, socket) in self.connections.stalled(before, most) {
            engine.admission.note_evicted(host, &self.gate);
            self.connections.handle_event(socket, Ready::FAILED, interface, engine, ctx);
        }
        let next = self.connections.oldest_handshake().map(|since| since + STALL_TIME);
        self.next_eviction = next.map(|at| at.max(now + pause));
    }

    /// When `poll` has work without any frame having arrived.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.connections.tcp.poll_timeout(), self.next_eviction])
    }

    /// Stops listening, and aborts all connections. Handshakes past the point of no return ([`Engine::is_committed`])
    /// are finished first: poll until [`Connections::is_over`], then call [`Acceptor::stop`].
    pub fn end<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.connections.tcp.stop_listening(interface);
        while let Some(stream) = self.connections.tcp.accept(interface, ctx.now) {
            self.connections.tcp.abort(interface, stream, ctx.now);
        }
        self.connections.close_all(interface, engine, ctx);
    }

    /// Stops listening, and aborts all connections at once.
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
impl Deref for Acceptor {
    type Target = Connections<Listener>;
    fn deref(&self) -> &Self::Target {
        &self.connections
    }
}

impl DerefMut for Acceptor {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connections
    }
}
