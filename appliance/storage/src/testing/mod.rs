//! Test support: a gateway and its clients on a link in memory.

/// A context of the gateway or of the hosts in a world.
macro_rules! context {
    ($world:expr, gateway) => {
        &mut verbs::Ctx {
            provider: $world.wire.gateway(),
            arena: &mut $world.arena,
            now: $world.now,
            rng: &mut $world.rng,
        }
    };
    ($world:expr, host) => {
        &mut verbs::Ctx {
            provider: $world.wire.host(),
            arena: &mut $world.client_arena,
            now: $world.now,
            rng: &mut $world.rng,
        }
    };
}
pub(crate) use context;

mod loopback;
mod world;

pub use loopback::{Forgery, Loopback};
pub use world::{Context, SOIL, User, Wire, World, user_io, with_late_keys};
