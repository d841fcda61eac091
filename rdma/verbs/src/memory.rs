//! Protection domains, memory regions and their keys, and the remote addresses that peers claim.

use super::{ChunksOnDemand, KeyChange, KeyRequest, OnDemandStatus, VerbsError};
use core::net::IpAddr;
use drivers::hal::Window;
use rand_core::Rng;

/// Handle of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Handle of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MrId(pub u32);

bitflags::bitflags! {
    /// Operations that peers may perform on a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// RDMA WRITE.
        const REMOTE_WRITE = 1;
        /// RDMA READ.
        const REMOTE_READ = 2;
        /// Compare-and-swap, fetch-and-add.
        const REMOTE_ATOMIC = 4;
    }
}

/// A registered memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its handle.
    pub id: MrId,
    /// The key that peers must present.
    pub rkey: u32,
    /// The remote address of the first byte.
    pub address: u64,
    /// Its memory.
    pub memory: Window,
}

/// A region of many chunks of one size, each under its own key. Chunk `n` has the remote addresses from `address` + `n`
/// × size on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedRegion {
    /// Its handle.
    pub id: MrId,
    /// The remote address of the first byte of chunk 0.
    pub address: u64,
}

/// A peer's claim that `rkey` grants bytes at `address`. Only the provider's check turns it into a window, or refuses
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the numbering of the memory's owner.
    pub address: u64,
    /// The owner's key.
    pub rkey: u32,
}

/// The verbs of protection domains and memory regions.
pub trait MemoryVerbs {
    /// Makes a protection domain.
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError>;
    /// Destroys a protection domain. `Busy` while regions or queue pairs use it. Objects already released count until
    /// the hardware confirms their end: their memory must not be reused before.
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError>;

    /// For a provider of several devices: the protection domain of the device with the local address `local` that
    /// corresponds to `pd`. Objects made in the returned domain belong to that device.
    fn pd_on(&self, pd: PdId, _local: IpAddr) -> PdId {
        pd
    }

    /// Registers `memory` for remote access under a fresh unpredictable key. Remote addresses of its bytes start at the
    /// region's `address`.
    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError>;
    /// Revokes the region's present key at once and gives it a fresh unpredictable one. Cheap enough for each I/O.
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError>;
    /// Maps the region to other memory under a fresh unpredictable key and revokes the old key (fast registration).
    /// Cheap enough for each I/O.
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError>;
    /// Revokes the region's key; no peer reaches the region until `rotate_key` or `remap`. Hardware may take a moment;
    /// [`MemoryVerbs::dealloc_pd`] returns `Busy` until it is done.
    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError>;
    /// As [`MemoryVerbs::revoke_key`], for callers that wait until the revocation is in effect.
    fn revoke_key_by(
        &mut self,
        region: MrId,
        _request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        self.revoke_key(region).map(KeyChange::Done)
    }
    /// Ends a registration: no peer reaches the memory from now on, so its owner may reuse it.
    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError>;

    /// Registers `count` chunks of `size` bytes for RDMA WRITE, each under a fresh key: in `memory` (at least as many
    /// bytes), or without memory, on demand. `rotate_chunk_key` and `chunk_key` work on single chunks; `revoke_key`
    /// revokes all their keys.
    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError>;
    /// The key of a chunk.
    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError>;
    /// Revokes the key of a chunk and gives it a fresh one, at once or by `request`. Once that is in effect the peer
    /// cannot change the chunk.
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError>;
}

/// Memory that a device exposes to its peer.
pub trait Lending {
    /// Lends `length` bytes of the memory that the device with the local address `local` exposes to its peer. The peer
    /// reads and writes it at any time, whatever keys grant: WRITEs to a region in it go straight there. None if the
    /// device exposes no memory, or has not so many bytes left.
    fn lend(&mut self, local: IpAddr, length: usize) -> Option<Window>;
    /// Takes back memory that [`Lending::lend`] returned, as a whole; false if it was not lent.
    fn take_back(&mut self, memory: Window) -> bool;
}

/// A provider that checks keys in software: its memory verbs are those of its table of regions.
pub trait SoftwareMemory {
    /// The table.
    type Regions: MemoryVerbs + ChunksOnDemand;
    /// The table.
    fn regions(&self) -> &Self::Regions;
    /// The table.
    fn regions_mut(&mut self) -> &mut Self::Regions;
}

impl<T: SoftwareMemory> MemoryVerbs for T {
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.regions_mut().alloc_pd()
    }
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.regions_mut().dealloc_pd(pd)
    }
    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.regions_mut().register(pd, memory, access, rng)
    }
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        self.regions_mut().rotate_key(region, rng)
    }
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.regions_mut().remap(region, memory, rng)
    }
    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.regions_mut().revoke_key(region)
    }
    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.regions_mut().deregister(region)
    }
    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        self.regions_mut().register_chunks(pd, count, size, memory, rng)
    }
    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        self.regions_mut().chunk_key(region, chunk)
    }
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        self.regions_mut().rotate_chunk_key(region, chunk, request, rng)
    }
}

impl<T: SoftwareMemory> ChunksOnDemand for T {
    fn give_memory(&mut self, memory: Window, largest: usize) -> Result<(), VerbsError> {
        self.regions_mut().give_memory(memory, largest)
    }
    fn on_demand(&self) -> Option<OnDemandStatus> {
        self.regions().on_demand()
    }
    fn take_chunk(&mut self, region: MrId, chunk: u16) -> Option<(usize, Window)> {
        self.regions_mut().take_chunk(region, chunk)
    }
    fn back_chunk(&mut self, region: MrId, chunk: u16) -> Option<Window> {
        self.regions_mut().back_chunk(region, chunk)
    }
    fn release_chunk(&mut self, region: MrId, chunk: u16) {
        self.regions_mut().release_chunk(region, chunk);
    }
    fn age_chunks(&mut self, region: MrId) -> u8 {
        self.regions_mut().age_chunks(region)
    }
}
