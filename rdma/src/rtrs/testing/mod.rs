//! For tests: a fabric in memory, with a gateway and its clients on it.

/// A context of everything in a world, with the memory of the gateway or of the clients.
macro_rules! context {
    ($world:expr, $arena:ident) => {
        &mut crate::rtrs::Context {
            provider: &mut $world.fabric,
            arena: &mut $world.$arena,
            now: $world.now,
            rng: &mut $world.rng,
        }
    };
}
pub(crate) use context;

mod loopback;
mod world;

pub use loopback::Loopback;
pub use world::{World, user_io};
