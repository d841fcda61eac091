//! A port on which both SMC-R and TCP are served: TCP listener and engine together, so that its
//! user sees connections and need not know which of the two carries them.
//!
//! A client that offers SMC in its SYN gets a handshake; whoever does not, and whoever falls back,
//! is served over TCP. IPv6 clients are served over TCP alone, as SMC-Rv2 has it.

use super::admission::Gate;
use super::engine::{Engine, Ready, Role};
use super::joint::State;
pub use super::joint::{Carrier, Connected, ConnectionId, Event, Joint};
use crate::rtrs::Context;
use crate::verbs::Provider;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Limits, Listener};

/// The front.
#[derive(Debug)]
pub struct Front {
    joint: Joint<Listener>,
    gate: Gate,
    /// When handshakes that stall next make room for others.
    evicts: Option<Instant>,
}

/// How long a handshake may take before it gives way to others where there is no room: first contacts take a
/// few round trips.
const STALLED: Duration = Duration::from_millis(500);
/// How often that is looked at, and how many give way at a time.
const EVICTION: (Duration, usize) = (Duration::from_millis(50), 8);

impl Front {
    /// Listens on `port` of all addresses of the interface, and if it `offers` does so with SMC.
    pub fn new(
        interface: &mut Interface,
        port: u16,
        offers: bool,
        limits: Limits,
        gate: Gate,
    ) -> Self {
        let listener = Listener::new(interface, port, limits);
        listener.offer_smc(interface, offers);
        let cost = (limits.receive + limits.transmit) as u64;
        Front { joint: Joint::new(listener, cost, true), gate, evicts: None }
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
            let offers = listener.offers_smc(interface, stream);
            let (host, cost) = (remote.ip(), self.joint.cost());
            let listener = &mut self.joint.tcp;
            if !engine.admission.admit(host, &self.gate, offers, cost) {
                listener.abort(interface, stream, ctx.now);
                continue;
            }
            let state = if offers {
                let Some(socket) = engine.open(Role::Server, [local, remote.ip()], 0, ctx) else {
                    // The client waits for an Accept that cannot be made.
                    engine.admission.leave(host, cost);
                    listener.abort(interface, stream, ctx.now);
                    continue;
                };
                State::Handshake(socket)
            } else {
                State::Tcp
            };
            let local = SocketAddr::new(local, self.joint.tcp.port());
            self.joint.insert(stream, (local, remote), state, ctx.now);
        }
        self.make_room(interface, engine, ctx);
        self.joint.poll_all(interface, engine, ctx);
    }

    /// Where there is no room for another connection, handshakes that stall give way: the oldest ones of the
    /// host that has the most of them.
    fn make_room<P: Provider + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Context<'_, P>,
    ) {
        if !self.joint.tcp.is_full(interface) {
            self.evicts = None;
            return;
        }
        let (now, (pause, most)) = (ctx.now, EVICTION);
        if self.evicts.is_some_and(|at| now < at) {
            return;
        }
        let before = Instant::from_nanos(now.as_nanos().saturating_sub(STALLED.as_nanos() as u64));
        for (host, socket) in self.joint.stalled(before, most) {
            engine.admission.gave_way(host, &self.gate);
            self.joint.handle_event(socket, Ready::FAILED, interface, engine, ctx);
        }
        let next = self.joint.oldest_handshake().map(|since| since + STALLED);
        self.evicts = next.map(|at| at.max(now + pause));
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.joint.tcp.poll_timeout(), self.evicts])
    }
}

/// What its user does with connections.
impl Deref for Front {
    type Target = Joint<Listener>;
    fn deref(&self) -> &Self::Target {
        &self.joint
    }
}

impl DerefMut for Front {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.joint
    }
}
