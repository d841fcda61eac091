//! Physical region pages (NVMe 1.4, 4.3): the addresses of a command's data, page by page. A window is contiguous on
//! the bus, so its pages follow each other.

use crate::hal::{Cells, Window};
use core::sync::atomic::AtomicU64;

/// Entries of a command's list.
pub const LIST: usize = 256;
/// Bytes of a list: a power of two, so that no list crosses a page.
pub const LIST_BYTES: usize = LIST * 8;
/// Most bytes of a transfer at any alignment: the pages of a list, besides the first page.
pub const MOST_TRANSFER: u32 = (LIST * 4096) as u32;

/// The lists of all commands that can be in flight.
pub struct Lists {
    entries: Cells<AtomicU64>,
    bus: u64,
    /// Bytes of a page.
    page: u64,
}

impl Lists {
    /// Lists for `count` commands, a power of two, in memory of `count` times [`LIST_BYTES`], aligned to its size.
    pub fn new(memory: &Window, count: usize, page: u64) -> Option<Self> {
        let entries = Cells::new(memory, 0, count * LIST)?;
        Some(Lists { entries, bus: memory.bus_address(), page })
    }

    /// Bus address of list `index`.
    pub fn address(&self, index: usize) -> u64 {
        self.bus + (index * LIST_BYTES) as u64
    }

    /// Writes words to the beginning of list `index`. For a command whose data is not described by the list.
    pub fn put(&self, index: usize, words: &[u64]) {
        for (n, &word) in words.iter().enumerate() {
            self.entries.store(index * LIST + n, word);
        }
    }

    /// Both PRP entries of a command whose data is `len` bytes at `bus`, using list `index` if necessary. None if the
    /// data is not aligned to 4 bytes, or too long.
    #[inline]
    pub fn describe(&self, index: usize, bus: u64, len: usize) -> Option<[u64; 2]> {
        if !bus.is_multiple_of(4) {
            return None;
        }
        let first = self.page - (bus & (self.page - 1));
        let len = len as u64;
        if len <= first {
            return Some([bus, 0]);
        }
        let next = bus + first;
        if len - first <= self.page {
            return Some([bus, next]);
        }
        self.list(index, next, len - first).map(|list| [bus, list])
    }

    fn list(&self, index: usize, next: u64, len: u64) -> Option<u64> {
        let count = len.div_ceil(self.page);
        if count > LIST as u64 {
            return None;
        }
        for n in 0..count {
            self.entries.store(index * LIST + n as usize, next + n * self.page);
        }
        Some(self.address(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use proptest::prelude::*;
    use std::vec::Vec;

    const COUNT: usize = 4;

    /// The pages that a controller finds: address and length of each.
    fn pages(lists: &Lists, memory: &Window, prps: [u64; 2], len: u64) -> Vec<(u64, u64)> {
        let page = lists.page;
        let first = (page - prps[0] % page).min(len);
        let mut found = std::vec![(prps[0], first)];
        let mut left = len - first;
        if left > page {
            let mut at = (prps[1] - memory.bus_address()) as usize;
            assert!(at.is_multiple_of(LIST_BYTES));
            while left > 0 {
                found.push((memory.load64(at), left.min(page)));
                left -= left.min(page);
                at += 8;
            }
        } else if left > 0 {
            found.push((prps[1], left));
        }
        found
    }

    proptest! {
        #[test]
        fn pages_follow_each_other_and_cover_the_data(
            index in 0..COUNT,
            word in 0u64..40_000,
            sectors in 1usize..=(MOST_TRANSFER as usize / 512),
            shift in 12u32..=16,
        ) {
            let memory = Arena::on_heap(COUNT * LIST_BYTES * 2).alloc(COUNT * LIST_BYTES, 4096);
            let memory = memory.unwrap();
            let lists = Lists::new(&memory, COUNT, 1 << shift).unwrap();
            let (bus, len) = (0x1234_0000 + word * 4, sectors * 512);
            let prps = lists.describe(index, bus, len).unwrap();
            let mut at = bus;
            let found = pages(&lists, &memory, prps, len as u64);
            for (n, (address, len)) in found.into_iter().enumerate() {
                prop_assert_eq!(address, at);
                prop_assert!(n == 0 || address.is_multiple_of(1 << shift));
                at += len;
            }
            prop_assert_eq!(at, bus + len as u64);
        }
    }

    #[test]
    fn unaligned_or_too_long_data_is_refused() {
        let memory = Arena::on_heap(COUNT * LIST_BYTES * 2).alloc(COUNT * LIST_BYTES, 4096);
        let lists = Lists::new(&memory.unwrap(), COUNT, 4096).unwrap();
        assert_eq!(lists.describe(0, 0x1002, 512), None);
        assert_eq!(lists.describe(0, 0x1004, MOST_TRANSFER as usize + 4096), None);
        assert!(lists.describe(0, 0x1ffc, MOST_TRANSFER as usize).is_some());
    }
}
