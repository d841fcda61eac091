//! Table of the requests of a mirror's user, by number. Iteration visits only occupied entries.

use super::requests::Slot;
use alloc::vec::Vec;

/// A table of requests with a fixed capacity.
#[derive(Debug)]
pub(super) struct Slots {
    /// By number: the request and its index in `taken`.
    all: Vec<Option<(Slot, usize)>>,
    free: Vec<usize>,
    /// Numbers of the occupied entries, unordered.
    taken: Vec<usize>,
}

impl Slots {
    /// A table for `depth` requests.
    pub fn new(depth: usize) -> Self {
        let free = (0..depth).rev().collect();
        Slots { all: alloc::vec![None; depth], free, taken: Vec::with_capacity(depth) }
    }

    /// Adds a request and returns its number; None if the table is full.
    pub fn insert(&mut self, slot: Slot) -> Option<usize> {
        let number = self.free.pop()?;
        self.all[number] = Some((slot, self.taken.len()));
        self.taken.push(number);
        Some(number)
    }

    /// A copy of a request.
    pub fn get(&self, number: usize) -> Option<Slot> {
        self.all.get(number)?.map(|(slot, _)| slot)
    }

    /// A mutable reference to a request.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Slot> {
        self.all.get_mut(number)?.as_mut().map(|(slot, _)| slot)
    }

    /// Removes a request.
    pub fn remove(&mut self, number: usize) -> Option<Slot> {
        let (slot, place) = self.all.get_mut(number)?.take()?;
        self.taken.swap_remove(place);
        if let Some(&moved) = self.taken.get(place)
            && let Some(Some((_, index))) = self.all.get_mut(moved)
        {
            *index = place;
        }
        self.free.push(number);
        Some(slot)
    }

    /// All requests.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.taken.iter().filter_map(|&number| Some(&self.all.get(number)?.as_ref()?.0))
    }

    /// Changes all requests.
    pub fn for_each(&mut self, mut change: impl FnMut(&mut Slot)) {
        for &number in &self.taken {
            if let Some(Some((slot, _))) = self.all.get_mut(number) {
                change(slot);
            }
        }
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Operation, Request};
    use drivers::hal::{Instant, Window};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn slot(tag: u64) -> Slot {
        let (operation, sector, data) = (Operation::Flush, 0, Window::empty());
        Slot::new(Request { tag: tag.into(), operation, sector, data }, Instant::ZERO)
    }

    proptest! {
        /// Compares the table with a map.
        #[test]
        fn requests_are_found_by_number(steps in proptest::collection::vec((0..3u8, 0..8usize), 0..100)) {
            let (mut slots, mut model) = (Slots::new(8), BTreeMap::new());
            for (tag, (what, number)) in (0..).zip(steps) {
                match what {
                    0 | 1 => match slots.insert(slot(tag)) {
                        Some(number) => prop_assert!(model.insert(number, tag).is_none()),
                        None => prop_assert_eq!(model.len(), 8),
                    },
                    _ => {
                        let removed = slots.remove(number).map(|slot| slot.request.tag.word);
                        prop_assert_eq!(removed, model.remove(&number));
                    }
                }
                let mut tags: Vec<u64> = slots.iter().map(|slot| slot.request.tag.word).collect();
                let mut known: Vec<u64> = model.values().copied().collect();
                tags.sort_unstable();
                known.sort_unstable();
                prop_assert_eq!(tags, known);
                for (&number, &tag) in &model {
                    prop_assert_eq!(slots.get(number).map(|slot| slot.request.tag.word), Some(tag));
                }
                prop_assert_eq!(slots.is_empty(), model.is_empty());
            }
        }
    }
}
