//! Regions that get memory from a pool with the first byte that a peer writes.

use super::region::{Backing, ChunkKeys, Registration};
use super::{Memory, Refusal, random_page};
use alloc::vec::Vec;
use drivers::hal::Window;
use rand_core::Rng;
use verbs::{Access, MrId, PdId, Region, VerbsError};

/// Memory that the pool provides with a peer's first byte.
#[derive(Debug, Default)]
pub(super) struct OnDemandRegion {
    pub(super) memory: Option<Window>,
    /// Bytes of the region.
    pub(super) length: usize,
    /// Number of bytes that peers wrote so far, or were granted to write.
    pub(super) written: u64,
    /// End of the bytes ever written to this memory.
    pub(super) top: usize,
}

impl OnDemandRegion {
    /// Destination of a peer's `length` bytes; takes memory from the pool if the region has none.
    pub(super) fn write(
        &mut self,
        offset: usize,
        length: usize,
        pool: &mut Vec<Window>,
    ) -> Result<Window, Refusal> {
        if self.memory.is_none() {
            self.memory = self.fitting(pool).map(|place| pool.swap_remove(place));
        }
        let memory = self.memory.ok_or(Refusal::NoMemory)?;
        let window = memory.slice(offset, length).ok_or(Refusal::Range)?;
        self.written += length as u64;
        self.top = self.top.max(offset + length);
        Ok(window)
    }

    /// Place of the last memory in the pool that is as long as the region.
    fn fitting(&self, pool: &[Window]) -> Option<usize> {
        pool.iter().rposition(|memory| memory.len() == self.length)
    }

    /// Detaches its memory, zeroed.
    pub(super) fn take(&mut self) -> Option<Window> {
        let memory = self.memory.take()?;
        if let Some(written) = memory.slice(0, core::mem::take(&mut self.top)) {
            written.fill(0);
        }
        Some(memory)
    }
}

impl Memory {
    /// Registers a region of `length` bytes for RDMA WRITE that has no memory yet.
    pub fn register_on_demand(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let address = random_page(rng);
        let id = self.insert(
            Registration {
                pd,
                backing: Backing::OnDemandRegion(OnDemandRegion {
                    length,
                    ..OnDemandRegion::default()
                }),
                access: Access::REMOTE_WRITE,
                address,
                chunk: length,
                keys: ChunkKeys::One(0),
            },
            1,
        )?;
        let rkey = self.rotate(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory: Window::empty() })
    }

    /// Adds memory to the pool of on-demand regions.
    pub fn add_to_odp_pool(&mut self, memory: Window) {
        self.odp_pool.push(memory);
    }

    /// Number of pieces of `length` bytes in the pool.
    pub fn odp_pool(&self, length: usize) -> usize {
        self.odp_pool.iter().filter(|memory| memory.len() == length).count()
    }

    /// The memory of an on-demand region, if it has any, and how many bytes peers have written to it.
    pub fn on_demand_memory(&self, id: MrId) -> Option<(Window, u64)> {
        match &self.regions.get(id.0)?.backing {
            Backing::OnDemandRegion(OnDemandRegion { memory: Some(memory), written, .. }) => {
                Some((*memory, *written))
            }
            _ => None,
        }
    }

    /// Detaches the memory of an on-demand region, zeroed, until a peer writes again.
    pub fn take_on_demand_memory(&mut self, id: MrId) -> Option<Window> {
        match &mut self.regions.get_mut(id.0)?.backing {
            Backing::OnDemandRegion(lazy) => {
                // Includes the grant of a message that is still arriving.
                self.keys.revoke_grants();
                lazy.take()
            }
            _ => None,
        }
    }
}
