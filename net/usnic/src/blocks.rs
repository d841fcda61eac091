//! Buddy allocator for incoming messages and for data kept for retransmission: one window, divided into blocks of
//! powers of two. Its metadata is allocated at construction, outside of the window.

use alloc::vec::Vec;
use drivers::hal::Window;

/// Bytes of the smallest block.
pub const UNIT: usize = 128;
/// Orders of blocks: up to 2^23 units, a gigabyte.
const ORDERS: usize = 24;
/// No unit.
const NONE: u32 = u32::MAX;
/// Marks a unit that is not the first of a free block.
const USED: u8 = u8::MAX;

/// An allocated block. Its holder frees it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: u32,
    order: u8,
}

impl Block {
    /// Bytes that it takes from the pool.
    pub fn size(self) -> usize {
        UNIT << self.order
    }
}

/// The allocator.
#[derive(Debug)]
pub struct Blocks {
    all: Window,
    /// First free block of each order.
    heads: [u32; ORDERS],
    /// A bit for each order that has free blocks.
    present: u32,
    /// By unit: order of the free block that begins there.
    orders: Vec<u8>,
    /// By unit: previous and next block in the free list.
    links: Vec<(u32, u32)>,
    /// By order: the block that was freed last. Such blocks are merged only when an allocation needs it. The second
    /// link of each is the block freed before it.
    spare: [u32; ORDERS],
    available: usize,
}

impl Blocks {
    /// An allocator over `memory`.
    pub fn new(memory: Window) -> Self {
        let units = (memory.len() / UNIT).min(1 << (ORDERS - 1));
        let mut blocks = Blocks {
            all: memory,
            heads: [NONE; ORDERS],
            present: 0,
            orders: alloc::vec![USED; units],
            links: alloc::vec![(NONE, NONE); units],
            spare: [NONE; ORDERS],
            available: units * UNIT,
        };
        let mut first = 0;
        while first < units {
            let aligned = if first == 0 { ORDERS - 1 } else { first.trailing_zeros() as usize };
            let order = aligned.min((units - first).ilog2() as usize);
            blocks.insert(first as u32, order);
            first += 1 << order;
        }
        blocks
    }

    /// Bytes that are free, perhaps in many blocks.
    pub fn available(&self) -> usize {
        self.available
    }

    /// Bytes that a block of at least `bytes` bytes takes from the pool; None if no pool is large enough.
    pub fn size_of(bytes: usize) -> Option<usize> {
        order(bytes).map(|order| UNIT << order)
    }

    /// Allocates a block of at least `bytes` bytes.
    #[inline]
    pub fn alloc(&mut self, bytes: usize) -> Option<Block> {
        let wanted = order(bytes)?;
        let spare = self.spare.get_mut(wanted)?;
        let first = *spare;
        let first = if let Some((_, before)) = self.links.get(first as usize) {
            *spare = *before;
            first
        } else {
            self.split(wanted).or_else(|| {
                self.merge_spares();
                self.split(wanted)
            })?
        };
        self.available -= UNIT << wanted;
        Some(Block { first, order: wanted as u8 })
    }

    /// Frees a block.
    #[inline]
    pub fn free(&mut self, block: Block) {
        self.available += block.size();
        if let Some(spare) = self.spare.get_mut(usize::from(block.order))
            && let Some((_, before)) = self.links.get_mut(block.first as usize)
        {
            *before = core::mem::replace(spare, block.first);
        }
    }

    /// Removes a block of an order from the free lists, and splits a larger block if necessary.
    #[inline(never)]
    fn split(&mut self, wanted: usize) -> Option<u32> {
        let found = wanted + self.present.checked_shr(wanted as u32)?.trailing_zeros() as usize;
        let first = *self.heads.get(found).filter(|&&head| head != NONE)?;
        self.remove(first, found);
        for half in (wanted..found).rev() {
            self.insert(first + (1 << half), half);
        }
        Some(first)
    }

    /// Adds a block to the free lists, merged with its buddy if that is free.
    #[inline(never)]
    fn merge(&mut self, mut first: u32, mut order: usize) {
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

    #[cold]
    fn merge_spares(&mut self) {
        for order in 0..ORDERS {
            let mut spare = core::mem::replace(&mut self.spare[order], NONE);
            while let Some(&(_, before)) = self.links.get(spare as usize) {
                self.merge(spare, order);
                spare = before;
            }
        }
    }

    /// The first `bytes` bytes of a block.
    #[inline]
    pub fn window(&self, block: Block, bytes: usize) -> Window {
        let (at, size) = (block.first as usize * UNIT, block.size());
        self.all.slice(at, bytes.min(size)).unwrap_or(Window::empty())
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
    use netsim::Rng;

    /// Blocks do not overlap, are large enough, and merge again, for any size of the pool.
    #[test]
    fn blocks_do_not_overlap_and_merge_again() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let units = rng.within(1..300) as usize;
            let memory = Arena::on_heap(units * UNIT + 8192).alloc(units * UNIT, 4096).unwrap();
            let mut blocks = Blocks::new(memory);
            let mut held: Vec<(Block, Window)> = Vec::new();
            for _ in 0..100 {
                let bytes = rng.within(0..9000) as usize;
                if rng.chance(600) {
                    let Some(block) = blocks.alloc(bytes) else { continue };
                    let window = blocks.window(block, bytes);
                    assert_eq!(window.len(), bytes);
                    let whole = blocks.window(block, usize::MAX);
                    let (start, end) =
                        (whole.bus_address(), whole.bus_address() + whole.len() as u64);
                    assert!(held.iter().all(|(_, other)| {
                        let from = other.bus_address();
                        end <= from || from + other.len() as u64 <= start
                    }));
                    held.push((block, whole));
                } else if !held.is_empty() {
                    let at = rng.within(0..held.len() as u64) as usize;
                    blocks.free(held.swap_remove(at).0);
                }
                let taken: usize = held.iter().map(|(block, _)| block.size()).sum();
                assert_eq!(blocks.available(), units * UNIT - taken);
            }
            held.into_iter().for_each(|(block, _)| blocks.free(block));
            let largest = 1 << units.ilog2();
            assert!(blocks.alloc(largest * UNIT).is_some(), "seed {seed}");
        }
    }
}
