//! Servers of measuring tools (rping, perftest, qperf), enabled by `roce.services`.

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
    /// Creates the configured servers over a provider. Errors are logged.
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

    /// Listens for all tools.
    fn new(provider: &mut ProviderSet) -> Result<Self, VerbsError> {
        let rping = rping::Server::new(provider)?;
        Ok(Services { rping, tools: tools::Server::new(provider)? })
    }

    /// Handles an event of the connection manager. False if it belongs to none of the servers.
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

    /// Handles completions and timers. Returns the amount of work.
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

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tools.poll_timeout()
    }
}
