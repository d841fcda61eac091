//! A port on which both SMC-R and TCP are served: TCP listener and engine together, so that its
//! user sees connections and need not know which of the two carries them.
//!
//! A client that offers SMC in its SYN gets a handshake; whoever does not, and whoever falls back,
//! is served over TCP. IPv6 clients are served over TCP alone, as SMC-Rv2 has it.

use super::admission::Gate;
pub use super::connections::{Carrier, Connected, ConnectionId, Connections, Event};
use super::connections::{NEWS, State};
use super::engine::{Engine, Ready, Role};
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Limits, Listener};
use verbs::EngineContext;
use verbs::Provider;

/// The listener of a port on one interface, and the connections that came by it.
#[derive(Debug)]
pub struct Acceptor {
    connections: Connections<Listener>,
    gate: Gate,
    /// Connections at a time.
    places: usize,
    /// When handshakes that stall next make room for others.
    evicts: Option<Instant>,
}

/// How long a handshake may take before it gives way to others where there is no room: first contacts take a
/// few round trips.
const STALLED: Duration = Duration::from_millis(500);
/// How often that is looked at, and how many give way at a time.
const EVICTION: (Duration, usize) = (Duration::from_millis(50), 8);
/// Connections that are accepted before others have their turn.
const ACCEPTED: usize = 16;
/// Places for those who come while all others are taken, until it is decided whether another gives way.
const OVERFLOW: usize = 8;

/// Bytes of the buffers of a connection.
fn cost(limits: Limits) -> u64 {
    (limits.receive + limits.transmit) as u64
}

fn with_overflow(limits: Limits) -> Limits {
    Limits { connections: limits.connections + OVERFLOW, ..limits }
}

impl Acceptor {
    /// Listens on `port` of all addresses of the interface, and if it `offers` does so with SMC. `owner`: how
    /// the engine's sockets say that they are of this acceptor ([`Engine::poll_event`]). `beyond`: bytes that a connection
    /// takes beyond its buffers, out of the engine's books.
    pub fn new(
        interface: &mut Interface,
        port: u16,
        offers: bool,
        (limits, beyond): (Limits, u64),
        gate: Gate,
        owner: u32,
    ) -> Self {
        let listener = Listener::new(interface, port, with_overflow(limits));
        listener.offer_smc(interface, offers);
        Acceptor {
            connections: Connections::new(listener, owner, cost(limits) + beyond, true),
            gate,
            places: limits.connections,
            evicts: None,
        }
    }

    /// Has other limits, and lets others in, from the next connection on. Connections that there are stay, but for those
    /// of hosts that the gate admits no more: these end.
    pub fn adjust<P: Provider + ?Sized>(
        &mut self,
        (limits, beyond): (Limits, u64),
        gate: Gate,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.connections.tcp.set_limits(interface, with_overflow(limits));
        self.connections.set_cost(cost(limits) + beyond);
        self.places = limits.connections;
        self.evicts = None;
        for id in self.connections.shaking() {
            let host = self.connections.ends(id).map(|(_, remote)| remote.ip());
            if host.is_some_and(|host| !gate.hosts.admits(host)) {
                self.connections.close(id, true, interface, engine, ctx);
            }
        }
        self.gate = gate;
    }

    /// Its name among those of [`Interface::ready`].
    pub fn tcp_owner(&self) -> net::tcp::Owner {
        self.connections.tcp.owner()
    }

    /// Accepts, and sees to what is new of connections, some at a time: to be called while
    /// [`Interface::ready`] names it, and when [`Acceptor::poll_timeout`] has come.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        for _ in 0..ACCEPTED {
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
            if self.connections.len() >= self.places {
                let Some((other, socket)) = self.connections.evicted_for(host) else {
                    engine.admission.leave(host, cost);
                    engine.admission.found_no_place(host, &self.gate);
                    self.connections.tcp.abort(interface, stream, ctx.now);
                    continue;
                };
                engine.admission.gave_way(other, &self.gate);
                self.connections.handle_event(socket, Ready::FAILED, interface, engine, ctx);
            }
            let state = if offers {
                let Some(socket) = engine.open(Role::Server, [local, remote.ip()], owner, ctx)
                else {
                    // The client waits for an Accept that cannot be made.
                    engine.admission.leave(host, cost);
                    engine.admission.has_no_socket(host, &self.gate);
                    self.connections.tcp.abort(interface, stream, ctx.now);
                    continue;
                };
                State::Handshake(socket)
            } else {
                State::Tcp
            };
            let local = SocketAddr::new(local, self.connections.tcp.port());
            let id = self.connections.insert(stream, (local, remote), state, ctx.now);
            // What has come already may have been told of before it was accepted.
            self.connections.hear(id, interface, engine, ctx);
        }
        while let Some(host) = self.connections.tcp.next_turned_away(interface) {
            engine.admission.found_no_place(host, &self.gate);
        }
        let more = self.connections.tcp.more_turned_away(interface);
        engine.admission.more_found_no_place(more);
        for _ in 0..NEWS {
            let Some(id) = self.connections.next_news(interface) else { break };
            self.connections.hear(id, interface, engine, ctx);
        }
        self.make_room(interface, engine, ctx);
    }

    /// Where there is no room for another connection, handshakes that stall give way: the oldest ones of the
    /// host that has the most of them.
    fn make_room<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.connections.len() < self.places {
            self.evicts = None;
            return;
        }
        let (now, (pause, most)) = (ctx.now, EVICTION);
        if self.evicts.is_some_and(|at| now < at) {
            return;
        }
        let before = Instant::from_nanos(now.as_nanos().saturating_sub(STALLED.as_nanos() as u64));
        for (host, socket) in self.connections.stalled(before, most) {
            engine.admission.gave_way(host, &self.gate);
            self.connections.handle_event(socket, Ready::FAILED, interface, engine, ctx);
        }
        let next = self.connections.oldest_handshake().map(|since| since + STALLED);
        self.evicts = next.map(|at| at.max(now + pause));
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.connections.tcp.poll_timeout(), self.evicts])
    }

    /// Listens no more, and ends all connections by an abort. Handshakes that have gone far are finished first: until
    /// [`Connections::is_over`] it is to be polled, and then stopped.
    pub fn end<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.connections.tcp.stop_listening(interface);
        while let Some(stream) = self.connections.tcp.accept(interface, ctx.now) {
            self.connections.tcp.abort(interface, stream, ctx.now);
        }
        self.connections.close_all(interface, engine, ctx);
    }

    /// Ends everything at once: nobody listens any more, and connections end by an abort.
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
