//! One registration: where the bytes of a region are, and the keys of its chunks.

use super::Refusal;
use super::on_demand_region::OnDemandRegion;
use crate::pool::Block;
use alloc::vec::Vec;
use drivers::hal::Window;
use verbs::{Access, PdId};

/// Contents of a chunk on demand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    pub(super) block: Option<Block>,
    /// Offset in the chunk of the block's first byte.
    pub(super) start: u32,
    /// Number of bytes written from `start` on.
    pub(super) written: u32,
    /// Whether the owner has taken it: peers cannot write.
    pub(super) taken: bool,
    /// Number of `age_chunks` calls since a peer first wrote to it while its owner has not taken it.
    pub(super) age: u8,
}

/// Where the bytes of a region are.
#[derive(Debug)]
pub(super) enum Backing {
    Fixed(Window),
    /// Indexed by chunk.
    OnDemand(Vec<Arrival>),
    OnDemandRegion(OnDemandRegion),
}

/// The keys of a region, indexed by chunk; 0 for a revoked key.
#[derive(Debug)]
pub(super) enum ChunkKeys {
    One(u32),
    Many(Vec<u32>),
}

impl ChunkKeys {
    pub(super) fn get_mut(&mut self, chunk: u16) -> Option<&mut u32> {
        match self {
            ChunkKeys::One(key) => Some(key).filter(|_| chunk == 0),
            ChunkKeys::Many(keys) => keys.get_mut(usize::from(chunk)),
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u32] {
        match self {
            ChunkKeys::One(key) => core::slice::from_mut(key),
            ChunkKeys::Many(keys) => keys,
        }
    }
}

#[derive(Debug)]
pub(super) struct Registration {
    pub(super) pd: PdId,
    pub(super) backing: Backing,
    pub(super) access: Access,
    /// Remote address of the first byte.
    pub(super) address: u64,
    /// Bytes of a chunk.
    pub(super) chunk: usize,
    pub(super) keys: ChunkKeys,
}

impl Registration {
    /// Offset in a chunk of the claimed bytes.
    #[inline]
    pub(super) fn offset(&self, chunk: u16, alleged: u64, length: u32) -> Result<usize, Refusal> {
        let start = self.address.wrapping_add(usize::from(chunk) as u64 * self.chunk as u64);
        let offset = alleged.checked_sub(start).ok_or(Refusal::Range)?;
        let offset = usize::try_from(offset).map_err(|_| Refusal::Range)?;
        let end = offset.checked_add(length as usize).ok_or(Refusal::Range)?;
        if end <= self.chunk { Ok(offset) } else { Err(Refusal::Range) }
    }

    #[inline]
    pub(super) fn fixed(&self, chunk: u16, offset: usize, length: u32) -> Result<Window, Refusal> {
        match &self.backing {
            Backing::Fixed(memory) => memory
                .slice(usize::from(chunk) * self.chunk + offset, length as usize)
                .ok_or(Refusal::Range),
            Backing::OnDemand(_) | Backing::OnDemandRegion(_) => Err(Refusal::Range),
        }
    }

    pub(super) fn arrival(&mut self, chunk: u16) -> Option<&mut Arrival> {
        match &mut self.backing {
            Backing::Fixed(_) | Backing::OnDemandRegion(_) => None,
            Backing::OnDemand(arrivals) => arrivals.get_mut(usize::from(chunk)),
        }
    }
}
