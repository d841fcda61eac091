//! Memory on demand: a region or chunk without memory gets it from a pool when a peer begins to write.

use super::{MrId, PdId, Region, VerbsError};
use drivers::hal::Window;
use rand_core::Rng;

/// Use of the memory for chunks on demand, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDemandStatus {
    /// Total.
    pub capacity: usize,
    /// Free now.
    pub available: usize,
    /// Lowest that was ever free.
    pub lowest: usize,
    /// Times that a peer's WRITE found no memory and got an RNR NAK.
    pub short: u64,
}

/// Chunks that have memory from the first packet of a peer's WRITE until their owner releases it.
/// [`MemoryVerbs::register_chunks`](super::MemoryVerbs::register_chunks) registers them, without memory.
pub trait ChunksOnDemand {
    /// Gives the provider memory for chunks on demand, permanently. Such a chunk has memory from the first packet of a
    /// peer's WRITE until its owner releases it. While no memory is free, peers' WRITEs get RNR NAKs; one block of
    /// `largest` bytes stays reserved for `back_chunk`. `Invalid` if the provider has memory already.
    fn give_memory(&mut self, memory: Window, largest: usize) -> Result<(), VerbsError>;
    /// Use of that memory; None if there is none.
    fn on_demand(&self) -> Option<OnDemandStatus>;
    /// Takes the bytes that a peer wrote into a chunk on demand: their offset in the chunk, and their memory. Peers
    /// cannot write to the chunk until it is released. None if the chunk is empty.
    fn take_chunk(&mut self, region: MrId, chunk: u16) -> Option<(usize, Window)>;
    /// Extends the memory of a taken chunk down to offset 0; its contents stay. Returns all of it, or None if no memory
    /// is free.
    fn back_chunk(&mut self, region: MrId, chunk: u16) -> Option<Window>;
    /// Releases the memory of a taken chunk.
    fn release_chunk(&mut self, region: MrId, chunk: u16);
    /// Increments the age of each chunk on demand that a peer wrote and the owner has not taken. Returns the highest
    /// age in the region: the number of calls since the WRITE that has waited longest began; 0 if none waits.
    fn age_chunks(&mut self, region: MrId) -> u8;
}

/// Regions that have memory from a peer's first WRITE until their owner takes it.
pub trait RegionsOnDemand {
    /// Registers `length` bytes for RDMA WRITE without memory. The pool provides the memory when a peer begins to
    /// write; while the pool is empty, the peer gets an RNR NAK. `Invalid` if the device of `pd` does not support this.
    fn register_on_demand(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError>;
    /// Adds memory to the pool of on-demand regions. It must be zeroed. Regions of its length take it.
    fn add_to_odp_pool(&mut self, memory: Window);
    /// Number of pieces of `length` bytes in the pool.
    fn odp_pool(&self, length: usize) -> usize;
    /// The memory of an on-demand region, if it has any, and the total number of bytes that peers have written to it.
    fn on_demand_memory(&self, region: MrId) -> Option<(Window, u64)>;
    /// Detaches the memory of an on-demand region, until a peer writes again. The written bytes are lost.
    fn take_on_demand_memory(&mut self, region: MrId) -> Option<Window>;
}
