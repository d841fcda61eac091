//! Memory for chunks on demand: one window, allocated in blocks of powers of two (a buddy allocator). Its bookkeeping
//! is allocated at construction, outside of that memory.

use alloc::vec::Vec;
use drivers::hal::{Retired, Through, TransmitProgress, Window};

/// Bytes of the smallest block.
const UNIT: usize = 512;
/// Orders of blocks: up to 2^21 units, a gigabyte.
const ORDERS: usize = 22;
/// Blocks that may wait for a port before a list has to grow.
const RETIRED: usize = 256;
/// No unit: the end of a list.
const NONE: u32 = u32::MAX;
/// The unit does not begin a free block.
const USED: u8 = u8::MAX;

/// An allocated block. Its holder returns it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: u32,
    order: u8,
}

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
    all: Window,
    /// First free block of each order, and a bit mask of the orders that have one.
    heads: [u32; ORDERS],
    present: u32,
    /// For each unit: order of the free block that begins there, and its neighbours in the list.
    orders: Vec<u8>,
    links: Vec<(u32, u32)>,
    free: usize,
    /// Released blocks from which a port may still send.
    retired: Retired<Block>,
    /// Order of the block that is reserved: peers' WRITEs may not use it.
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
        let units = (memory.len() / UNIT).min(NONE as usize);
        let mut pool = Pool {
            all: memory,
            heads: [NONE; ORDERS],
            present: 0,
            orders: alloc::vec![USED; units],
            links: alloc::vec![(NONE, NONE); units],
            free: 0,
            retired: Retired::default(),
            kept: order(largest).unwrap_or(ORDERS - 1),
            counters: PoolCounters::default(),
        };
        let mut first = 0;
        while first < units {
            let aligned = if first == 0 { ORDERS - 1 } else { first.trailing_zeros() as usize };
            let fits = (units - first).ilog2() as usize;
            let order = aligned.min(fits).min(ORDERS - 1);
            pool.insert(first as u32, order);
            first += 1 << order;
        }
        pool.free = units * UNIT;
        pool.counters.lowest = pool.free;
        pool
    }

    /// Total bytes.
    pub fn capacity(&self) -> usize {
        self.orders.len() * UNIT
    }

    /// Free bytes, perhaps in many blocks.
    pub fn available(&self) -> usize {
        self.free
    }

    /// Allocates a block of at least `bytes` bytes for a peer's WRITE.
    pub fn alloc_for_peer(&mut self, bytes: usize) -> Option<Block> {
        let block = self.alloc(bytes)?;
        if self.present >> self.kept == 0 {
            self.free(block);
            return None;
        }
        Some(block)
    }

    /// Allocates a block of at least `bytes` bytes.
    pub fn alloc(&mut self, bytes: usize) -> Option<Block> {
        let wanted = order(bytes)?;
        let found = wanted + (self.present >> wanted).trailing_zeros() as usize;
        let first = *self.heads.get(found).filter(|&&head| head != NONE)?;
        self.remove(first, found);
        for half in (wanted..found).rev() {
            self.insert(first + (1 << half), half);
        }
        self.free -= UNIT << wanted;
        self.counters.lowest = self.counters.lowest.min(self.free);
        Some(Block { first, order: wanted as u8 })
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
        let (mut first, mut order) = (block.first, usize::from(block.order));
        self.free += UNIT << order;
        while order + 1 < ORDERS {
            let buddy = first ^ 1 << order;
            if self.orders.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.remove(buddy, order);
            first = first.min(buddy);
            order += 1;
        }
        self.insert(first, order);
    }

    /// The memory of a block.
    pub fn window(&self, block: Block) -> Window {
        let (at, size) = (block.first as usize * UNIT, UNIT << block.order);
        self.all.slice(at, size).unwrap_or(Window::empty())
    }

    fn insert(&mut self, first: u32, order: usize) {
        let head = core::mem::replace(&mut self.heads[order], first);
        self.orders[first as usize] = order as u8;
        self.links[first as usize] = (NONE, head);
        if let Some((before, _)) = self.links.get_mut(head as usize) {
            *before = first;
        }
        self.present |= 1 << order;
    }

    fn remove(&mut self, first: u32, order: usize) {
        let (before, after) = self.links[first as usize];
        self.orders[first as usize] = USED;
        match self.links.get_mut(before as usize) {
            Some((_, next)) => *next = after,
            None => self.heads[order] = after,
        }
        if let Some((previous, _)) = self.links.get_mut(after as usize) {
            *previous = before;
        }
        if self.heads[order] == NONE {
            self.present &= !(1 << order);
        }
    }
}

/// Order of the smallest block of at least `bytes` bytes.
fn order(bytes: usize) -> Option<usize> {
    let units = bytes.div_ceil(UNIT).max(1).checked_next_power_of_two()?;
    Some(units.ilog2() as usize).filter(|&order| order < ORDERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use proptest::prelude::*;

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

    proptest! {
        /// Blocks do not overlap, are large enough, and merge again, for any size of the pool.
        #[test]
        fn blocks_do_not_overlap_and_merge_again(
            units in 1..200usize, steps in proptest::collection::vec((0..5000usize, any::<bool>()), 0..200),
        ) {
            let mut pool = pool(units * UNIT, UNIT);
            let whole = pool.present;
            let mut held: Vec<Block> = Vec::new();
            for (n, add) in steps {
                if add {
                    let Some(block) = pool.alloc(n) else { continue };
                    let new = pool.window(block);
                    prop_assert!(new.len() >= n);
                    for other in &held {
                        let old = pool.window(*other);
                        let (a, b) = (new.bus_address(), old.bus_address());
                        prop_assert!(a + new.len() as u64 <= b || b + old.len() as u64 <= a);
                    }
                    held.push(block);
                } else if !held.is_empty() {
                    let block = held.swap_remove(n % held.len());
                    pool.free(block);
                }
            }
            held.drain(..).for_each(|block| pool.free(block));
            prop_assert_eq!(pool.available(), units * UNIT);
            prop_assert_eq!(pool.present, whole);
        }
    }
}
