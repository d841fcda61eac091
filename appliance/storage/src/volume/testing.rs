//! A model of a disk for tests.

use alloc::collections::VecDeque;
use drivers::hal::{self, Arena, Disk, DiskError, Features, Geometry, SubmitError, Window};
use std::vec::Vec;

/// A disk in memory with a cache that only a flush makes durable; completes in reverse order.
pub struct ModelDisk {
    geometry: Geometry,
    cache: Window,
    /// Contents after a power cut.
    pub durable: Vec<u8>,
    depth: usize,
    queue: VecDeque<hal::Request>,
    /// Number of queued requests that it was notified of. It does not execute the others.
    notified: usize,
    /// First sector and bytes of data of each submitted request.
    pub taken: Vec<(u64, usize)>,
    /// Requests that start there fail.
    pub bad_sector: Option<u64>,
}

impl ModelDisk {
    /// A disk of 64 sectors.
    pub fn new(arena: &mut Arena, depth: usize) -> Self {
        let geometry = Geometry {
            sectors: 64,
            logical_block: 512,
            physical_block: 4096,
            max_transfer: 2048,
            max_discard_sectors: 16,
            discard_granularity: 512,
            max_write_zeroes_sectors: 0,
            features: Features::VOLATILE_CACHE | Features::DISCARD,
        };
        let cache = arena.alloc(64 * 512, 512).unwrap();
        let durable = alloc::vec![0; 64 * 512];
        ModelDisk {
            geometry,
            cache,
            durable,
            depth,
            queue: VecDeque::new(),
            notified: 0,
            taken: Vec::new(),
            bad_sector: None,
        }
    }

    /// Sets the block size and the largest transfer in bytes.
    pub fn with_blocks(mut self, logical_block: u32, max_transfer: u32) -> Self {
        (self.geometry.logical_block, self.geometry.max_transfer) = (logical_block, max_transfer);
        self
    }

    /// Adds support for writes through the cache.
    pub fn with_write_through(mut self) -> Self {
        self.geometry.features |= Features::WRITE_THROUGH;
        self
    }
}

impl Disk for ModelDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn depth(&self) -> usize {
        self.depth
    }
    fn submit(&mut self, request: &hal::Request) -> Result<(), SubmitError> {
        let most = self.geometry.max_transfer.max(self.geometry.logical_block) as usize;
        assert!(request.data.len() <= most, "parts fit the disk");
        if self.queue.len() == self.depth {
            return Err(SubmitError::Full);
        }
        self.queue.push_back(*request);
        self.taken.push((request.sector, request.data.len()));
        Ok(())
    }
    fn flush_queue(&mut self) {
        self.notified = self.queue.len();
    }
    fn poll(&mut self) -> Option<hal::Completion> {
        self.notified = self.notified.checked_sub(1)?;
        let request = self.queue.remove(self.notified)?;
        let at = request.sector as usize * 512;
        let bad = self.bad_sector == Some(request.sector);
        match request.operation {
            _ if bad => {}
            hal::Operation::Read => {
                let part = self.cache.slice(at, request.data.len()).unwrap();
                request.data.write_window(0, &part).unwrap();
            }
            hal::Operation::Write => self.cache.write_window(at, &request.data).unwrap(),
            hal::Operation::WriteThrough => {
                self.cache.write_window(at, &request.data).unwrap();
                request.data.read(0, &mut self.durable[at..at + request.data.len()]).unwrap();
            }
            hal::Operation::Flush => self.cache.read(0, &mut self.durable).unwrap(),
            hal::Operation::Discard { sectors } => {
                self.cache.slice(at, sectors as usize * 512).unwrap().fill(0)
            }
            hal::Operation::WriteZeroes { .. } => unreachable!("not offered"),
        }
        let result = if bad { Err(DiskError::Io) } else { Ok(()) };
        Some(hal::Completion { tag: request.tag, result })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}
