//! Buddy allocator: DMA memory, divided into blocks of powers of two. Its bookkeeping is allocated at construction,
//! outside of that memory.

use super::Window;
use alloc::vec::Vec;

/// Orders of blocks: up to 2^23 units.
const ORDERS: usize = 24;
/// No unit: the end of a list.
const NONE: u32 = u32::MAX;
/// Marks a unit that is not the first of a free block.
const USED: u8 = u8::MAX;

/// An allocated block of an allocator with the same smallest block. Its holder frees it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuddyBlock<const UNIT: usize> {
    first: u32,
    order: u8,
}

impl<const UNIT: usize> BuddyBlock<UNIT> {
    /// Bytes that it takes from the allocator.
    pub fn size(self) -> usize {
        UNIT << self.order
    }
}

/// The allocator. `UNIT`: bytes of the smallest block.
#[derive(Debug)]
pub struct Buddy<const UNIT: usize> {
    all: Window,
    /// First free block of each order.
    heads: [u32; ORDERS],
    /// A bit for each order that has free blocks.
    present: u32,
    /// By unit: order of the free block that begins there.
    orders: Vec<u8>,
    /// By unit: previous and next block in the list of free blocks.
    links: Vec<(u32, u32)>,
    /// By order: the last block of [`Buddy::free_unmerged`]. The second link of each is the block freed before it.
    spare: [u32; ORDERS],
    available: usize,
}

impl<const UNIT: usize> Buddy<UNIT> {
    /// An allocator over `memory`.
    pub fn new(memory: Window) -> Self {
        let units = (memory.len() / UNIT).min(NONE as usize);
        let mut blocks = Buddy {
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
            let fits = (units - first).ilog2() as usize;
            let order = aligned.min(fits).min(ORDERS - 1);
            blocks.insert(first as u32, order);
            first += 1 << order;
        }
        blocks
    }

    /// Total bytes.
    pub fn capacity(&self) -> usize {
        self.orders.len() * UNIT
    }

    /// Free bytes, perhaps in many blocks.
    pub fn available(&self) -> usize {
        self.available
    }

    /// Whether a block of at least `bytes` bytes is free, apart from those of [`Buddy::free_unmerged`].
    pub fn has_free(&self, bytes: usize) -> bool {
        self.present >> order::<UNIT>(bytes).unwrap_or(ORDERS - 1) != 0
    }

    /// Bytes that a block of at least `bytes` bytes takes from the allocator; None if no allocator is large enough.
    pub fn size_of(bytes: usize) -> Option<usize> {
        order::<UNIT>(bytes).map(|order| UNIT << order)
    }

    /// Allocates a block of at least `bytes` bytes.
    #[inline]
    pub fn alloc(&mut self, bytes: usize) -> Option<BuddyBlock<UNIT>> {
        let wanted = order::<UNIT>(bytes)?;
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
        Some(BuddyBlock { first, order: wanted as u8 })
    }

    /// Frees a block, merged with its buddy if that is free.
    #[inline]
    pub fn free(&mut self, block: BuddyBlock<UNIT>) {
        self.available += block.size();
        self.merge(block.first, block.order.into());
    }

    /// Frees a block for the next allocation of this size. It is merged only when an allocation needs it.
    #[inline]
    pub fn free_unmerged(&mut self, block: BuddyBlock<UNIT>) {
        self.available += block.size();
        if let Some(spare) = self.spare.get_mut(usize::from(block.order))
            && let Some((_, before)) = self.links.get_mut(block.first as usize)
        {
            *before = core::mem::replace(spare, block.first);
        }
    }

    /// The memory of a block.
    #[inline]
    pub fn window(&self, block: BuddyBlock<UNIT>) -> Window {
        self.front(block, block.size())
    }

    /// The first `bytes` bytes of a block, or all of them.
    #[inline]
    pub fn front(&self, block: BuddyBlock<UNIT>, bytes: usize) -> Window {
        let (at, size) = (block.first as usize * UNIT, block.size());
        self.all.slice(at, bytes.min(size)).unwrap_or(Window::empty())
    }

    /// Removes a block of an order from the lists of free blocks, and splits a larger block if necessary.
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

    /// Adds a block to the lists of free blocks, merged with its buddy if that is free.
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
fn order<const UNIT: usize>(bytes: usize) -> Option<usize> {
    let units = bytes.div_ceil(UNIT).max(1).checked_next_power_of_two()?;
    Some(units.ilog2() as usize).filter(|&order| order < ORDERS)
}

#[cfg(test)]
mod tests {
    use super::super::Arena;
    use super::*;
    use proptest::prelude::*;

    const UNIT: usize = 128;

    proptest! {
        /// Blocks do not overlap, are large enough, and merge again, for any size of the memory.
        #[test]
        fn blocks_do_not_overlap_and_merge_again(
            units in 1..300usize, steps in proptest::collection::vec((0..9000usize, 0..4u8), 0..200),
        ) {
            let memory = Arena::on_heap(units * UNIT + 8192).alloc(units * UNIT, 4096).unwrap();
            let mut buddy = Buddy::<UNIT>::new(memory);
            let whole = buddy.present;
            let mut held: Vec<BuddyBlock<UNIT>> = Vec::new();
            for (n, what) in steps {
                if what < 2 {
                    let Some(block) = buddy.alloc(n) else { continue };
                    prop_assert_eq!(buddy.front(block, n).len(), n);
                    let new = buddy.window(block);
                    for other in &held {
                        let old = buddy.window(*other);
                        let (a, b) = (new.bus_address(), old.bus_address());
                        prop_assert!(a + new.len() as u64 <= b || b + old.len() as u64 <= a);
                    }
                    held.push(block);
                } else if !held.is_empty() {
                    let block = held.swap_remove(n % held.len());
                    if what == 2 { buddy.free(block) } else { buddy.free_unmerged(block) }
                }
                let taken: usize = held.iter().map(|block| block.size()).sum();
                prop_assert_eq!(buddy.available(), units * UNIT - taken);
            }
            held.drain(..).for_each(|block| buddy.free_unmerged(block));
            let largest = buddy.alloc(UNIT << units.ilog2());
            prop_assert!(largest.is_some());
            largest.into_iter().for_each(|block| buddy.free(block));
            buddy.merge_spares();
            prop_assert_eq!(buddy.present, whole);
        }
    }
}
