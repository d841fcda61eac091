//! What the engines work with.

use drivers::hal::{Arena, Instant};
use rand_core::RngCore;

/// What an engine works with, lent for one call.
pub struct EngineContext<'a, P: ?Sized> {
    /// The verbs provider.
    pub provider: &'a mut P,
    /// Where the memory of sessions comes from.
    pub arena: &'a mut Arena,
    /// The present.
    pub now: Instant,
    /// Where keys and UUIDs come from.
    pub rng: &'a mut dyn RngCore,
}
