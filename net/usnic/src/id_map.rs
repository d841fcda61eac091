//! Hash table from 64-bit names to indices, with a fixed capacity. It uses open addressing, and a hash with a
//! secret, so that a peer cannot cause collisions by its choice of names.

use alloc::vec::Vec;

/// Marks a free entry. No index has this value.
const FREE: u32 = u32::MAX;

/// The table.
#[derive(Debug)]
pub struct IdMap {
    /// Name and index; the length is a power of two, and at most half of the entries are in use.
    entries: Vec<(u64, u32)>,
    secret: u64,
    count: usize,
}

impl IdMap {
    /// A table for `most` names.
    pub fn new(most: usize, secret: u64) -> Self {
        let size = (2 * most.max(4)).next_power_of_two();
        IdMap { entries: alloc::vec![(0, FREE); size], secret: secret | 1, count: 0 }
    }

    /// Number of names.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline]
    fn home(&self, name: u64) -> usize {
        let mixed = (name ^ self.secret.rotate_left(32)).wrapping_mul(self.secret);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.entries.len() - 1)
    }

    /// Position of the entry for a name, or of the free entry where it would be inserted.
    #[inline]
    fn find(&self, name: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(name);
        // Ends, because at least half of the entries are free.
        while let Some(&(other, place)) = self.entries.get(at)
            && place != FREE
            && other != name
        {
            at = (at + 1) & mask;
        }
        at
    }

    /// The index of a name.
    #[inline]
    pub fn get(&self, name: u64) -> Option<u32> {
        self.entries.get(self.find(name)).map(|entry| entry.1).filter(|&place| place != FREE)
    }

    /// Adds a name; false if the table is full, or has the name already.
    pub fn insert(&mut self, name: u64, place: u32) -> bool {
        let at = self.find(name);
        let room = 2 * (self.count + 1) <= self.entries.len();
        match self.entries.get_mut(at) {
            Some(entry) if room && entry.1 == FREE && place != FREE => {
                *entry = (name, place);
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: u64) {
        let mask = self.entries.len() - 1;
        let mut hole = self.find(name);
        if self.entries[hole].1 == FREE {
            return;
        }
        self.count -= 1;
        self.entries[hole].1 = FREE;
        // Later entries of the probe sequence move into the hole.
        let mut at = (hole + 1) & mask;
        while self.entries[at].1 != FREE {
            let home = self.home(self.entries[at].0);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = core::mem::replace(&mut self.entries[at], (0, FREE));
                hole = at;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsim::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn id_map_behaves_as_a_map() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let most = rng.within(1..40) as usize;
            let mut map = IdMap::new(most, seed.wrapping_mul(0x1234_5678_9abc_def1));
            let mut model = BTreeMap::new();
            for step in 0..1000u32 {
                let name = rng.within(0..60) << (seed % 40);
                if rng.chance(500) {
                    let new = !model.contains_key(&name);
                    let taken = map.insert(name, step);
                    assert!(!taken || new);
                    assert!(taken || !new || model.len() >= most);
                    if taken {
                        model.insert(name, step);
                    }
                } else {
                    map.remove(name);
                    model.remove(&name);
                }
                assert_eq!(map.len(), model.len());
                for name in (0..60).map(|name| name << (seed % 40)) {
                    assert_eq!(map.get(name), model.get(&name).copied());
                }
            }
        }
    }
}
