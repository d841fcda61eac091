//! The resources that protocol engines borrow from their loop.

use drivers::hal::{Arena, Instant};
use rand_core::Rng;

/// Resources of an engine, borrowed for one call.
pub struct Ctx<'a, P: ?Sized> {
    /// The verbs provider.
    pub provider: &'a mut P,
    /// Arena for the memory of sessions.
    pub arena: &'a mut Arena,
    /// Current time.
    pub now: Instant,
    /// Source of keys and UUIDs.
    pub rng: &'a mut dyn Rng,
}
