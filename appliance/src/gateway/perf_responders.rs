//! Servers of measuring tools (rping, perftest, qperf), enabled by `roce.services`.

use super::plane_user::{PlaneUser, Setup};
use super::storage::Storage;
use crate::families::{self, MEASURE};
use drivers::hal::Instant;
use net::Interface;
use net::refusal::Refusals;
use perf_responders::tcp_control::TcpControl;
use perf_responders::{rping, tools};
use provider_set::ProviderSet;
use verbs::{ConnectionEvent, Ctx, VerbsError};

/// The servers of the measuring tools.
pub(super) struct PerfResponders {
    rping: rping::Server,
    tools: tools::Server,
}

impl PerfResponders {
    /// Listens for all tools.
    fn new(provider: &mut ProviderSet) -> Result<Self, VerbsError> {
        let rping = rping::Server::new(provider)?;
        Ok(PerfResponders { rping, tools: tools::Server::new(provider)? })
    }

    /// Refused clients of the tools.
    pub fn refusals(&mut self) -> &mut Refusals {
        self.tools.refusals()
    }

    /// Moves the bytes that clients of the tools exchange over TCP.
    pub fn poll_tcp(
        &mut self,
        front: &mut TcpControl,
        interface: &mut Interface,
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        front.poll(interface, &mut self.tools, ctx);
    }
}

impl PlaneUser for PerfResponders {
    fn of(setup: &mut Setup<'_>) -> Option<Self> {
        if !setup.config.roce.services {
            return None;
        }
        if !MEASURE {
            log::error!("roce.services: {}", families::missing("measure"));
            return None;
        }
        let made = PerfResponders::new(setup.ctx.provider);
        made.inspect_err(|why| log::error!("roce.services: not available: {why}")).ok()
    }

    fn on_connection(&mut self, event: &ConnectionEvent, ctx: &mut Ctx<'_, ProviderSet>) -> bool {
        if self.tools.handle_connection_event(event, ctx) {
            return true;
        }
        let Ctx { provider, arena, now, rng } = ctx;
        self.rping.handle_connection_event(event, *provider, arena, *now, *rng)
    }

    fn poll(&mut self, _: &mut Storage, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        self.rping.poll(ctx.provider, ctx.now) + self.tools.poll(ctx)
    }

    fn deadline(&self) -> Option<Instant> {
        self.tools.poll_timeout()
    }

    /// The tools poll their memory.
    fn is_idle(&self) -> bool {
        false
    }
}
