//! Memory regions, and the remote addresses that peers claim.

use drivers::hal::Window;

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

/// A peer's claim that `rkey` grants bytes at `address`. Only the provider's check turns it into a window, or refuses
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the numbering of the memory's owner.
    pub address: u64,
    /// The owner's key.
    pub rkey: u32,
}
