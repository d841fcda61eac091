//! The peers that operators measure the fabric against: switched on by `roce.services`.

use rdma::roce::Roce;
use rdma::rtrs::Context;
use rdma::services::rping;
use rdma::verbs::{ConnectionEvent, VerbsError};

/// The servers of the measuring tools.
pub(super) struct Services {
    rping: rping::Server,
}

impl Services {
    /// Listens for all of them.
    pub fn new(provider: &mut Roce) -> Result<Self, VerbsError> {
        Ok(Services { rping: rping::Server::new(provider)? })
    }

    /// Takes an event of the connection manager; false if it is about none of them.
    pub fn handle_connection_event(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Context<'_, Roce>,
    ) -> bool {
        let Context { provider, arena, now, rng } = ctx;
        self.rping.handle_connection_event(event, *provider, arena, *now, *rng)
    }

    /// Does what is to be done; how much.
    pub fn poll(&mut self, ctx: &mut Context<'_, Roce>) -> usize {
        self.rping.poll(ctx.provider, ctx.now)
    }
}
