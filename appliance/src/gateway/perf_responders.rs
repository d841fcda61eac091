//! The peers that operators measure the network against: switched on by `roce.services`.

use super::rdma_stack::RdmaStack;
use crate::config::Config;
use crate::families::{self, MEASURE, OfMeasure};
use drivers::hal::{Hold, Instant};
use net::Interface;
use perf_responders::tcp_control::TcpControl;
use perf_responders::{rping, tools};
use provider_set::ProviderSet;
use verbs::EngineContext;
use verbs::{ConnectionEvent, VerbsError};

/// The servers of the measuring tools.
pub(super) struct Services {
    rping: rping::Server,
    tools: tools::Server,
}

impl Services {
    /// The servers that the configuration wants, over a provider; what goes wrong is logged.
    pub fn of(config: &Config, rdma_stack: Option<&mut RdmaStack>) -> Option<OfMeasure<Self>> {
        let rdma_stack = rdma_stack.filter(|_| config.roce.services)?;
        if !MEASURE {
            log::error!("roce.services: {}", families::missing("measure"));
            return None;
        }
        let made = Services::new(&mut rdma_stack.providers);
        let made = made.inspect_err(|why| log::error!("roce.services: not available: {why}"));
        made.ok().and_then(|services| OfMeasure::hold(|| services))
    }

    /// Listens for all of them.
    fn new(provider: &mut ProviderSet) -> Result<Self, VerbsError> {
        let rping = rping::Server::new(provider)?;
        Ok(Services { rping, tools: tools::Server::new(provider)? })
    }

    /// Takes an event of the connection manager; false if it is about none of them.
    pub fn handle_connection_event(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut EngineContext<'_, ProviderSet>,
    ) -> bool {
        if self.tools.handle_connection_event(event, ctx) {
            return true;
        }
        let EngineContext { provider, arena, now, rng } = ctx;
        self.rping.handle_connection_event(event, *provider, arena, *now, *rng)
    }

    /// Does what is to be done; how much.
    pub fn poll(&mut self, ctx: &mut EngineContext<'_, ProviderSet>) -> usize {
        self.rping.poll(ctx.provider, ctx.now) + self.tools.poll(ctx)
    }

    /// Moves the bytes that clients of the tools exchange over TCP.
    pub fn poll_tcp(
        &mut self,
        front: &mut TcpControl,
        interface: &mut Interface,
        ctx: &mut EngineContext<'_, ProviderSet>,
    ) {
        front.poll(interface, &mut self.tools, ctx);
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tools.poll_timeout()
    }
}
