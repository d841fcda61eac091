//! The keys of all regions.

use alloc::vec::Vec;
use rand_core::Rng;

/// A key, and the chunk of a region that it grants. The region is given by its place in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// 0 for a free entry.
    pub(super) key: u32,
    pub(super) region: u16,
    pub(super) chunk: u16,
}

/// A hash table of keys: open addressing with linear probing, at most half full. We draw keys at random, so a key is
/// its own hash, and peers cannot choose colliding ones.
#[derive(Debug)]
pub(super) struct Keys {
    entries: Vec<Entry>,
    mask: usize,
    used: usize,
    /// Number of keys removed so far.
    removed: u64,
}

impl Keys {
    pub(super) fn new(keys: usize) -> Self {
        let size = (2 * keys.max(8)).next_power_of_two();
        Keys { entries: alloc::vec![Entry::default(); size], mask: size - 1, used: 0, removed: 0 }
    }

    /// Invalidates all grants.
    pub(super) fn revoke_grants(&mut self) {
        self.removed += 1;
    }

    /// Number of keys removed so far. While it is unchanged, grants stay valid.
    #[inline]
    pub(super) fn removed(&self) -> u64 {
        self.removed
    }

    pub(super) fn has_room(&self, keys: usize) -> bool {
        self.used + keys <= self.entries.len() / 2
    }

    /// Index of `key`, or else of the free entry for it.
    #[inline]
    fn probe(&self, key: u32) -> usize {
        let mut at = key as usize & self.mask;
        while let Some(entry) = self.entries.get(at)
            && entry.key != key
            && entry.key != 0
        {
            at = (at + 1) & self.mask;
        }
        at
    }

    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<Entry> {
        self.entries.get(self.probe(key)).filter(|entry| entry.key != 0).copied()
    }

    /// Draws a random key that is neither in use nor zero, and enters it.
    pub(super) fn draw(&mut self, region: u16, chunk: u16, rng: &mut dyn Rng) -> u32 {
        loop {
            let key = rng.next_u32();
            let at = self.probe(key);
            if let Some(entry) = self.entries.get_mut(at)
                && key != 0
                && entry.key == 0
            {
                *entry = Entry { key, region, chunk };
                self.used += 1;
                return key;
            }
        }
    }

    /// Removes a key. Later entries of its probe sequence move up.
    pub(super) fn remove(&mut self, key: u32) {
        let mut hole = self.probe(key);
        let Some(entry) = self.entries.get_mut(hole) else { return };
        if core::mem::take(entry).key == 0 {
            return;
        }
        self.used -= 1;
        self.removed += 1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let Some(other) = self.entries.get(at).filter(|other| other.key != 0) else { return };
            let home = other.key as usize & self.mask;
            // An entry may move unless its home is between the hole and its place.
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                self.entries.swap(hole, at);
                hole = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_core::{Infallible, TryRng};
    use std::collections::HashMap;

    proptest! {
        /// Against a map, with keys that collide often.
        #[test]
        fn keys_are_found_until_removed(steps in proptest::collection::vec((0..40u32, any::<bool>()), 0..200)) {
            struct Fixed(u32);
            impl TryRng for Fixed {
                type Error = Infallible;
                fn try_next_u32(&mut self) -> Result<u32, Infallible> { Ok(self.0) }
                fn try_next_u64(&mut self) -> Result<u64, Infallible> { Ok(self.0 as u64) }
                fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> { Ok(()) }
            }
            let mut keys = Keys::new(16);
            let mut model = HashMap::new();
            for (n, (step, add)) in steps.into_iter().enumerate() {
                let key = 1 + step % 5 + (step / 5) * 32;
                if add && !model.contains_key(&key) && model.len() < 16 {
                    let (region, chunk) = (n as u16, step as u16);
                    prop_assert_eq!(keys.draw(region, chunk, &mut Fixed(key)), key);
                    model.insert(key, Entry { key, region, chunk });
                } else {
                    keys.remove(key);
                    model.remove(&key);
                }
                for key in 1..300 {
                    prop_assert_eq!(keys.find(key), model.get(&key).copied());
                }
            }
        }
    }
}
