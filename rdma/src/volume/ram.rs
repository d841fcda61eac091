//! A volume in DMA memory. Reads lend its memory out, so that it is sent from where it lies. A write
//! that overtakes such a read shows in it, sector by sector, as it may on any disk; if it comes just
//! between a packet's checksum and its way out, the peer drops the packet and gets it again.
//!
//! Several loops may have the same volume. Of two that use the same sector at the same time, with one
//! of them writing, neither order nor whole sectors are certain, as with Linux's own RAM disk.

use super::{Completion, Operation, Request, Submitted, Volume, VolumeError, check};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};
use drivers::hal::{Features, Geometry, Window};

/// Largest discard or write-zeroes in sectors (1 MiB), so that none holds the loop up for long.
const MAX_ZEROES: u32 = 2048;

/// Memory is zeroed in stretches of this many bytes, each when it is first used: a large volume
/// would otherwise hold the boot up.
const STRETCH: usize = 64 << 10;

// State of a stretch.
const UNUSED: u8 = 0;
/// A loop zeroes it just now.
const ZEROING: u8 = 1;
const READY: u8 = 2;

/// A RAM volume. What is written to it is gone with the power, flushed or not.
#[derive(Debug)]
pub struct RamVolume {
    memory: Window,
    geometry: Geometry,
    /// By stretch.
    states: Arc<[AtomicU8]>,
}

impl RamVolume {
    /// A volume over `memory`; a rest that fills no block of 4 KiB is left unused.
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
        let stretches = 0..memory.len().div_ceil(STRETCH);
        let states = stretches.map(|_| AtomicU8::new(UNUSED)).collect();
        RamVolume { memory, geometry, states }
    }

    /// The same volume once more, for another loop.
    pub fn share(&self) -> Self {
        RamVolume { memory: self.memory, geometry: self.geometry, states: self.states.clone() }
    }

    /// The part of `bytes` bytes from `start`, in which nothing is left of former uses of the
    /// memory.
    fn part(&self, start: usize, bytes: usize) -> Result<Window, VolumeError> {
        let part = self.memory.slice(start, bytes).ok_or(VolumeError::PastEnd)?;
        for stretch in start / STRETCH..(start + bytes).div_ceil(STRETCH) {
            if self.states[stretch].load(Ordering::Acquire) != READY {
                self.zero(stretch);
            }
        }
        Ok(part)
    }

    /// Zeroes a stretch, or waits the microseconds until another loop has done it.
    #[cold]
    fn zero(&self, stretch: usize) {
        let state = &self.states[stretch];
        let (take, free) = (Ordering::Acquire, Ordering::Acquire);
        if state.compare_exchange(UNUSED, ZEROING, take, free).is_ok() {
            let from = stretch * STRETCH;
            let length = STRETCH.min(self.memory.len() - from);
            if let Some(memory) = self.memory.slice(from, length) {
                memory.fill(0);
            }
            state.store(READY, Ordering::Release);
        }
        while state.load(Ordering::Acquire) != READY {
            core::hint::spin_loop();
        }
    }
}

impl Volume for RamVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        check(&self.geometry, request)?;
        // Sectors were checked against the size of the memory: the products do not overflow.
        // A flush names no sector.
        let start = (request.sector as usize).saturating_mul(512);
        match request.operation {
            Operation::Read => return Ok(Submitted::Lent(self.part(start, request.data.len())?)),
            Operation::Write { .. } => {
                let part = self.part(start, request.data.len())?;
                part.write_window(0, &request.data).map_err(|_| VolumeError::PastEnd)?;
            }
            Operation::Flush => {}
            Operation::Discard { sectors }
            | Operation::WriteZeroes { sectors }
            | Operation::SecureErase { sectors } => {
                self.part(start, sectors as usize * 512)?.fill(0)
            }
        }
        Ok(Submitted::Done)
    }

    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        None
    }

    fn into_memory(self: Box<Self>) -> Option<Window> {
        Some(self.memory)
    }
}
