//! Memory regions and what peers say about them.

use drivers::hal::Window;

/// Name of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Name of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MrId(pub u32);

bitflags::bitflags! {
    /// What peers may do to a region.
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
    /// Its name here.
    pub id: MrId,
    /// The key that a peer has to name.
    pub rkey: u32,
    /// The address that a peer has to name for the first byte.
    pub address: u64,
    /// Its memory.
    pub memory: Window,
}

/// A region of many chunks of one size, each under a key of its own. Peers address chunk `n` from
/// `address` + `n` × size on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedRegion {
    /// Its name here.
    pub id: MrId,
    /// The address that a peer has to name for the first byte of chunk 0.
    pub address: u64,
}

/// How the memory for chunks on demand stands, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDemandStatus {
    /// In all.
    pub capacity: usize,
    /// Free now.
    pub available: usize,
    /// The least that was ever free.
    pub lowest: usize,
    /// Times that a peer's WRITE found none and was put off by an RNR NAK.
    pub short: u64,
}

/// What a peer alleges: that `length` bytes at `address` are granted under `rkey`. It becomes a
/// window, or a refusal, only by the provider's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the owner's numbering.
    pub address: u64,
    /// The owner's key.
    pub rkey: u32,
}
