//! `mpi-mirror`: towards each peer we are a rank of its job that sends back what it gets ([`usnic::ob1`]). Such a
//! rank wants more of the engine than other services.

use drivers::hal::Arena;
use usnic::ob1::MEMORY;

/// Bytes of the engine's memory: what the longest message wants, if the machine has twice as much.
pub(super) fn memory(arena: &Arena) -> usize {
    let most = arena.available() / 2;
    if most >= MEMORY { MEMORY } else { most.checked_ilog2().map_or(0, |bits| 1 << bits) }
}
