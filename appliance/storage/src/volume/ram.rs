//! A volume in DMA memory. Reads lend its memory out, so that it is sent from where it lies. A write
//! that overtakes such a read shows in it, sector by sector, as it may on any disk; if it comes just
//! between a packet's checksum and its way out, the peer drops the packet and gets it again.

use super::{Completion, Operation, Parts, Request, Submitted, Volume, VolumeError, check};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Features, Geometry, Window};

/// Largest discard or write-zeroes in sectors (1 MiB), so that none holds the loop up for long.
const MAX_ZEROES: u32 = 2048;

/// Memory is zeroed in stretches of this many bytes, each when it is first used: a large volume
/// would otherwise hold the boot up.
const STRETCH: usize = 64 << 10;

/// A RAM volume. What is written to it is gone with the power, flushed or not.
#[derive(Debug)]
pub struct RamVolume {
    memory: Window,
    geometry: Geometry,
    /// A bit for each stretch: it was zeroed.
    zeroed: Vec<u64>,
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
        let zeroed = alloc::vec![0; memory.len().div_ceil(STRETCH).div_ceil(64)];
        RamVolume { memory, geometry, zeroed }
    }

    /// The part of `bytes` bytes from `start`, in which nothing is left of former uses of the
    /// memory.
    #[inline]
    fn part(&mut self, start: usize, bytes: usize) -> Result<Window, VolumeError> {
        let part = self.memory.slice(start, bytes).ok_or(VolumeError::PastEnd)?;
        for stretch in start / STRETCH..(start + bytes).div_ceil(STRETCH) {
            if self.zeroed[stretch / 64] & 1 << (stretch % 64) == 0 {
                self.zero(stretch)?;
            }
        }
        Ok(part)
    }

    /// Zeroes a stretch before its first use.
    #[cold]
    fn zero(&mut self, stretch: usize) -> Result<(), VolumeError> {
        self.zeroed[stretch / 64] |= 1 << (stretch % 64);
        let from = stretch * STRETCH;
        let length = STRETCH.min(self.memory.len() - from);
        self.memory.slice(from, length).ok_or(VolumeError::PastEnd)?.fill(0);
        Ok(())
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

    fn is_idle(&self) -> bool {
        true
    }

    fn into_parts(self: Box<Self>) -> Parts {
        Parts { memory: Some(self.memory), ..Parts::default() }
    }
}
