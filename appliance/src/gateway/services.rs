//! The peers that operators measure the fabric against: switched on by `roce.services`.

use super::fabric::Fabric;
use super::plane::Plane;
use crate::config::Config;
use drivers::hal::Instant;
use net::Interface;
use rdma::devices::Devices;
use rdma::rtrs::Context;
use rdma::services::front::Front;
use rdma::services::{rping, tools};
use rdma::verbs::{ConnectionEvent, VerbsError};

/// The servers of the measuring tools.
pub(super) struct Services {
    rping: rping::Server,
    tools: tools::Server,
}

impl Services {
    /// The servers that the configuration wants, over a provider; what goes wrong is logged.
    pub fn of(config: &Config, fabric: Option<&mut Fabric>) -> Option<Self> {
        let fabric = fabric.filter(|_| config.roce.services)?;
        let made = Services::new(&mut fabric.devices);
        made.inspect_err(|why| log::error!("roce.services: the fabric refused: {why:?}")).ok()
    }

    /// Listens for all of them.
    fn new(provider: &mut Devices) -> Result<Self, VerbsError> {
        let rping = rping::Server::new(provider)?;
        Ok(Services { rping, tools: tools::Server::new(provider)? })
    }

    /// Takes an event of the connection manager; false if it is about none of them.
    pub fn handle_connection_event(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Context<'_, Devices>,
    ) -> bool {
        if self.tools.handle_connection_event(event, ctx) {
            return true;
        }
        let Context { provider, arena, now, rng } = ctx;
        self.rping.handle_connection_event(event, *provider, arena, *now, *rng)
    }

    /// Does what is to be done; how much.
    pub fn poll(&mut self, ctx: &mut Context<'_, Devices>) -> usize {
        self.rping.poll(ctx.provider, ctx.now) + self.tools.poll(ctx)
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tools.poll_timeout()
    }
}

impl Plane {
    /// Moves the bytes that clients of the tools exchange over TCP.
    pub fn poll_front(&mut self, front: &mut Front, interface: &mut Interface, now: Instant) {
        let (Some(services), Some(fabric)) = (&mut self.services, &mut self.fabric) else { return };
        let (arena, rng) = (&mut self.arena, &mut *self.rng);
        let mut ctx = Context { provider: &mut fabric.devices, arena, now, rng };
        front.poll(interface, &mut services.tools, &mut ctx);
    }
}
