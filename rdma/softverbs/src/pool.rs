//! Memory for chunks on demand: a buddy allocator, with a reserve that peers' WRITEs may not use, and blocks that ports
//! are still sending from.

use drivers::hal::{Buddy, BuddyBlock, Retired, Through, TransmitProgress, Window};

/// Bytes of the smallest block.
const UNIT: usize = 512;
/// Blocks that may wait for a port before a list has to grow.
const RETIRED: usize = 256;

/// An allocated block. Its holder returns it once.
pub type Block = BuddyBlock<UNIT>;

/// Statistics of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Times that a peer's WRITE found no memory and got an RNR NAK.
    pub short: u64,
    /// Lowest number of free bytes so far.
    pub lowest: usize,
}

/// The pool.
#[derive(Debug)]
pub struct Pool {
    blocks: Buddy<UNIT>,
    /// Released blocks from which a port may still send.
    retired: Retired<Block>,
    /// Bytes of the block that is reserved: peers' WRITEs may not use it.
    kept: usize,
    /// Statistics.
    pub counters: PoolCounters,
}

impl Pool {
    /// A pool of no memory.
    pub fn empty() -> Self {
        Self::new(Window::empty(), UNIT)
    }

    /// A pool over `memory`. Peers' WRITEs leave room for one block of `largest` bytes, so that requests that have
    /// arrived can always be served.
    pub fn new(memory: Window, largest: usize) -> Self {
        let blocks = Buddy::new(memory);
        let counters = PoolCounters { short: 0, lowest: blocks.available() };
        Pool { blocks, retired: Retired::default(), kept: largest, counters }
    }

    /// Total bytes.
    pub fn capacity(&self) -> usize {
        self.blocks.capacity()
    }

    /// Free bytes, perhaps in many blocks.
    pub fn available(&self) -> usize {
        self.blocks.available()
    }

    /// Allocates a block of at least `bytes` bytes for a peer's WRITE.
    pub fn alloc_for_peer(&mut self, bytes: usize) -> Option<Block> {
        let block = self.alloc(bytes)?;
        if !self.blocks.has_free(self.kept) {
            self.free(block);
            return None;
        }
        Some(block)
    }

    /// Allocates a block of at least `bytes` bytes.
    pub fn alloc(&mut self, bytes: usize) -> Option<Block> {
        let block = self.blocks.alloc(bytes)?;
        self.counters.lowest = self.counters.lowest.min(self.blocks.available());
        Some(block)
    }

    /// From now on [`Pool::retire`] waits for `ports` ports.
    pub fn wait_for_ports(&mut self, ports: usize) {
        self.retired = Retired::new(ports, RETIRED);
    }

    /// Releases a block from which a port may still send.
    #[inline]
    pub fn retire(&mut self, block: Block, through: Through) {
        if let Some(block) = self.retired.put(block, through) {
            self.free(block);
        }
    }

    /// Whether any block waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Frees the blocks that a port has finished sending. Call it for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        let mut retired = core::mem::take(&mut self.retired);
        retired.note(port, progress, |block| self.free(block));
        self.retired = retired;
    }

    /// Frees a block at once.
    pub fn free(&mut self, block: Block) {
        self.blocks.free(block);
    }

    /// The memory of a block.
    pub fn window(&self, block: Block) -> Window {
        self.blocks.window(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use std::vec::Vec;

    fn pool(bytes: usize, largest: usize) -> Pool {
        Pool::new(Arena::on_heap(bytes + 4096).alloc(bytes, 4096).unwrap(), largest)
    }

    #[test]
    fn peers_leave_room_for_one_large_block() {
        let mut pool = pool(16 * 4096, 8192);
        let mut blocks = Vec::new();
        while let Some(block) = pool.alloc_for_peer(512) {
            blocks.push(block);
        }
        assert_eq!(pool.available(), 8192);
        let kept = pool.alloc(8192).unwrap();
        assert!(pool.alloc(1).is_none());
        pool.free(kept);
        blocks.drain(..).for_each(|block| pool.free(block));
        assert_eq!(pool.alloc(16 * 4096).map(|b| pool.window(b).len()), Some(16 * 4096));
    }
}
