//! Allocator for payload memory that is freed in the order of allocation.

/// Alignment of every range, so that no two share a cache line.
const GRAIN: usize = 64;

/// Allocation state of a ring of bytes. The bytes are elsewhere.
#[derive(Debug, Default)]
pub struct ByteRing {
    size: usize,
    head: usize,
    used: usize,
}

impl ByteRing {
    /// A ring of `size` bytes (a multiple of 64).
    pub fn new(size: usize) -> Self {
        ByteRing { size, head: 0, used: 0 }
    }

    /// Longest range that callers allocate: half of the ring, so that one can be filled while another is
    /// emptied.
    pub fn longest(&self) -> usize {
        self.size / 2
    }

    /// Allocates a contiguous range of `len` bytes: its offset, and its cost for [`ByteRing::give_back`]. None if there
    /// is no room now.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        let len = len.next_multiple_of(GRAIN);
        if self.used == 0 {
            self.head = 0;
        }
        let skipped = if self.head + len <= self.size { 0 } else { self.size - self.head };
        let cost = skipped + len;
        if cost > self.size - self.used || len > self.size {
            return None;
        }
        let at = (self.head + skipped) % self.size.max(1);
        self.head = at + len;
        self.used += cost;
        Some((at, cost))
    }

    /// Frees the oldest range, with its cost.
    #[inline]
    pub fn give_back(&mut self, cost: usize) {
        self.used -= cost.min(self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Allocated ranges never overlap, and the whole ring can be allocated once all are freed.
        #[test]
        fn allocated_ranges_do_not_overlap(
            pages in 1..8usize, steps in proptest::collection::vec((0..5000usize, any::<bool>()), 0..300),
        ) {
            let size = pages * 4096;
            let mut ring = ByteRing::new(size);
            let mut out: VecDeque<(usize, usize, usize)> = VecDeque::new();
            for (len, take) in steps {
                if !take {
                    if let Some((_, _, cost)) = out.pop_front() {
                        ring.give_back(cost);
                    }
                } else if let Some((at, cost)) = ring.take(len.min(ring.longest())) {
                    let len = len.min(ring.longest());
                    prop_assert!(at + len <= size);
                    for &(other, long, _) in out.iter().filter(|(_, long, _)| *long > 0) {
                        prop_assert!(at + len <= other || other + long <= at);
                    }
                    out.push_back((at, len, cost));
                } else {
                    prop_assert!(!out.is_empty(), "an empty ring has room");
                }
            }
            for (_, _, cost) in out {
                ring.give_back(cost);
            }
            prop_assert_eq!(ring.take(size), Some((0, size)));
        }
    }
}
