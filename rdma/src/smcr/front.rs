//! A port on which both SMC-R and TCP are served: TCP listener and engine together, so that its
//! user sees connections and need not know which of the two carries them.
//!
//! A client that offers SMC in its SYN gets a handshake; whoever does not, and whoever falls back,
//! is served over TCP. IPv6 clients are served over TCP alone, as SMC-Rv2 has it.

use super::engine::{Engine, Role};
use super::joint::State;
pub use super::joint::{Carrier, Connected, ConnectionId, Event, Joint};
use crate::rtrs::Context;
use crate::verbs::Provider;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use drivers::hal::Instant;
use net::Interface;
use net::tcp::{Limits, Listener};

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
                let Some(socket) = engine.open(Role::Server, [local, remote.ip()], 0, ctx) else {
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
        self.joint.poll_all(interface, engine, ctx);
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.joint.tcp.poll_timeout()
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
