//! Connections to servers, over SMC-R or TCP: connector and engine together, so that their user
//! need not know which of the two carries them. A server that does not offer SMC, or declines, is
//! spoken to over TCP.

use super::engine::{Engine, Role};
use super::joint::State;
pub use super::joint::{Carrier, Connected, ConnectionId, Event, Joint};
use crate::rtrs::Context;
use crate::verbs::Provider;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use drivers::hal::Instant;
use net::Interface;
use net::connector::{Connector, Limits, Progress};

/// Connections over one interface.
#[derive(Debug)]
pub struct Back {
    joint: Joint<Connector>,
}

impl Back {
    /// Without any connection. `seed` as in [`Connector::new`].
    pub fn new(limits: Limits, seed: u16) -> Self {
        let cost = (limits.receive + limits.transmit) as u64;
        Back { joint: Joint::new(Connector::new(limits, seed), cost, false) }
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
        let cost = self.joint.cost();
        if !engine.admission.take(cost) {
            return None;
        }
        let link = self.joint.tcp.connect(interface, peer, smc && peer.is_ipv4());
        let link = link.and_then(|link| Some((link, self.joint.tcp.local(interface, link)?)));
        if link.is_none() {
            engine.admission.give_back(cost);
        }
        let (link, local) = link?;
        Some(self.joint.insert(link, (local, peer), State::Opening, now))
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
                Some(state) => {
                    self.joint.set_state(id, state);
                    if state == State::Refused {
                        self.joint.fail(id, interface, engine, ctx.now);
                    }
                }
                None => self.joint.fail(id, interface, engine, ctx.now),
            }
        }
        self.joint.poll_all(interface, engine, ctx);
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.joint.tcp.poll_timeout()
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
                let socket = ends.and_then(|(ours, peer)| {
                    engine.open(Role::Client, [ours.ip(), peer.ip()], 0, ctx)
                });
                // The server waits for a Proposal that cannot be made: without SMC it may go.
                Some((id, Some(socket.map_or(State::Refused, State::Handshake))))
            }
            Progress::Gone => Some((id, None)),
        })
    }
}

/// What its user does with connections.
impl Deref for Back {
    type Target = Joint<Connector>;
    fn deref(&self) -> &Self::Target {
        &self.joint
    }
}

impl DerefMut for Back {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.joint
    }
}
