//! `mpi-mirror`: towards each peer we act as a rank of its job that echoes messages ([`usnic::ob1`]). It needs more of
//! the engine's memory than other services.

use drivers::hal::Arena;
use usnic::ob1::MEMORY;

/// Returns the bytes of the engine's memory: enough for the longest message, if the machine has twice as much.
pub(super) fn memory(arena: &Arena) -> usize {
    let most = arena.available() / 2;
    if most >= MEMORY { MEMORY } else { most.checked_ilog2().map_or(0, |bits| 1 << bits) }
}
