//! A volume in DMA memory. Reads lend that memory, so responses are sent without a copy. A write
//! that overtakes such a read shows in it, sector by sector, as it may on any disk. If the write comes
//! between the checksum of a packet and its transmission, the peer drops the packet, and it is retransmitted.
//!
//! Loops on several cores may share a volume: each has a [`RamVolume`] over the same [`RamMemory`].

use super::{Completion, Operation, Parts, Request, Submitted, Volume, VolumeError, check};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, Ordering};
use drivers::hal::{Features, Geometry, Window};

/// Largest discard or write-zeroes in sectors (1 MiB), so that none delays the loop for long.
const MAX_ZEROES: u32 = 2048;

/// Bytes of a stretch. Each stretch is zeroed when it is first used, because zeroing a large volume at once would
/// delay the boot.
const STRETCH: usize = 64 << 10;

// States of a stretch.
const UNUSED: u8 = 0;
const ZEROING: u8 = 1;
const ZEROED: u8 = 2;

/// The memory of a RAM volume. The last holder returns it to the arena.
#[derive(Debug)]
pub struct RamMemory {
    memory: Window,
    /// State of each stretch.
    stretches: Vec<AtomicU8>,
}

impl RamMemory {
    /// Memory whose stretches are all unused.
    pub fn new(memory: Window) -> Self {
        let count = memory.len().div_ceil(STRETCH);
        let stretches = core::iter::repeat_with(|| AtomicU8::new(UNUSED)).take(count).collect();
        RamMemory { memory, stretches }
    }

    /// The whole memory.
    pub fn window(&self) -> Window {
        self.memory
    }

    /// The part of `bytes` bytes from `start`, with no data of former uses of the memory.
    #[inline]
    fn part(&self, start: usize, bytes: usize) -> Result<Window, VolumeError> {
        let part = self.memory.slice(start, bytes).ok_or(VolumeError::PastEnd)?;
        for stretch in start / STRETCH..(start + bytes).div_ceil(STRETCH) {
            // A core that loads ZEROED (acquire) also sees the zeroes, and its writes come after them.
            if self.stretches[stretch].load(Ordering::Acquire) != ZEROED {
                self.zero(stretch)?;
            }
        }
        Ok(part)
    }

    /// Zeroes a stretch before its first use, or spins until another core has zeroed it.
    #[cold]
    fn zero(&self, stretch: usize) -> Result<(), VolumeError> {
        let state = &self.stretches[stretch];
        let from = stretch * STRETCH;
        let length = STRETCH.min(self.memory.len() - from);
        let memory = self.memory.slice(from, length).ok_or(VolumeError::PastEnd)?;
        let ours =
            state.compare_exchange(UNUSED, ZEROING, Ordering::Acquire, Ordering::Acquire).is_ok();
        if ours {
            memory.fill(0);
            state.store(ZEROED, Ordering::Release);
        }
        while state.load(Ordering::Acquire) != ZEROED {
            core::hint::spin_loop();
        }
        Ok(())
    }
}

/// A RAM volume. A power failure loses its data, flushed or not.
#[derive(Debug)]
pub struct RamVolume {
    shared: Arc<RamMemory>,
    geometry: Geometry,
}

impl RamVolume {
    /// A volume over `memory`. A remainder of less than 4 KiB is left unused.
    pub fn new(memory: Window, read_only: bool) -> Self {
        let mut features = Features::DISCARD | Features::WRITE_ZEROES | Features::SECURE_ERASE;
        features.set(Features::READ_ONLY, read_only);
        let geometry = Geometry {
            sectors: (memory.len() / 4096 * 8) as u64,
            logical_block: 512,
            physical_block: 4096,
            max_transfer: u32::MAX,
            max_discard_sectors: MAX_ZEROES,
            discard_granularity: 4096,
            max_write_zeroes_sectors: MAX_ZEROES,
            features,
        };
        RamVolume { shared: Arc::new(RamMemory::new(memory)), geometry }
    }

    /// The same volume for the loop of another core.
    pub fn of_shared(shared: Arc<RamMemory>, geometry: Geometry) -> Self {
        RamVolume { shared, geometry }
    }
}

impl Volume for RamVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        check(&self.geometry, request)?;
        // `check` compared the sectors with the size of the memory, so the products do not overflow.
        // A flush may have any sector.
        let start = (request.sector as usize).saturating_mul(512);
        let shared = &*self.shared;
        match request.operation {
            Operation::Read => return Ok(Submitted::Lent(shared.part(start, request.data.len())?)),
            Operation::Write { .. } => {
                let part = shared.part(start, request.data.len())?;
                part.write_window(0, &request.data).map_err(|_| VolumeError::PastEnd)?;
            }
            Operation::Flush => {}
            Operation::Discard { sectors }
            | Operation::WriteZeroes { sectors }
            | Operation::SecureErase { sectors } => {
                shared.part(start, sectors as usize * 512)?.fill(0)
            }
        }
        Ok(Submitted::Done)
    }

    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        None
    }

    fn is_idle(&self) -> bool {
        true
    }

    /// All requests complete at once.
    fn releases_memory(&self) -> bool {
        true
    }

    fn shared_memory(&self) -> Option<&Arc<RamMemory>> {
        Some(&self.shared)
    }

    fn into_parts(self: Box<Self>) -> Parts {
        Parts { shared: Some(self.shared), ..Parts::default() }
    }
}
