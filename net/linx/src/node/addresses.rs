//! Link addresses of ours on a link: from 1 upwards, the lowest that is free first.

use alloc::vec::Vec;

/// What an address stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// Nobody.
    Free,
    /// An endpoint, by its place.
    Endpoint(u32),
    /// A name of the peer's on whose behalf signals are sent to another of the peer's, by its link address.
    Peer(u32),
    /// Nobody any more; but the peer has not said that it has forgotten.
    Leaving,
}

/// The addresses. The tables grow with the highest that was in use.
#[derive(Debug)]
pub(super) struct Addresses {
    most: u32,
    table: Vec<Local>,
    /// A bit for each in the table that is free.
    free: Vec<u64>,
    /// A bit for each word of `free` that is not 0.
    words: Vec<u64>,
    taken: usize,
}

impl Addresses {
    /// Addresses 1 to `most`.
    pub fn new(most: u32) -> Addresses {
        let (free, words) = (alloc::vec![0], alloc::vec![0]);
        Addresses { most, table: alloc::vec![Local::Free], free, words, taken: 0 }
    }

    /// All are free.
    pub fn clear(&mut self) {
        *self = Addresses::new(self.most);
    }

    /// Takes the lowest that is free.
    pub fn take(&mut self, what: Local) -> Option<u32> {
        if let Some(at) = self.words.iter().position(|&words| words != 0) {
            let word = 64 * at + self.words[at].trailing_zeros() as usize;
            let free = self.free.get_mut(word)?;
            let address = 64 * word + free.trailing_zeros() as usize;
            *free &= *free - 1;
            if *free == 0 {
                self.words[at] &= self.words[at] - 1;
            }
            *self.table.get_mut(address)? = what;
            self.taken += 1;
            return Some(address as u32);
        }
        let address = self.table.len();
        if address > self.most as usize {
            return None;
        }
        self.table.push(what);
        self.free.resize(address / 64 + 1, 0);
        self.words.resize(address / 4096 + 1, 0);
        self.taken += 1;
        Some(address as u32)
    }

    /// What an address stands for.
    #[inline]
    pub fn get(&self, address: u32) -> Option<Local> {
        self.table.get(address as usize).copied().filter(|&it| it != Local::Free)
    }

    /// It stands for nobody any more.
    pub fn leave(&mut self, address: u32) {
        if let Some(local) = self.table.get_mut(address as usize)
            && *local != Local::Free
        {
            *local = Local::Leaving;
        }
    }

    /// Frees one that is leaving; false if it is not.
    pub fn release(&mut self, address: u32) -> bool {
        match self.table.get_mut(address as usize) {
            Some(local) if *local == Local::Leaving => *local = Local::Free,
            _ => return false,
        }
        let word = address as usize / 64;
        self.free[word] |= 1 << (address % 64);
        self.words[word / 64] |= 1 << (word % 64);
        self.taken -= 1;
        true
    }

    /// Whether there can be such an address.
    pub fn is_address(&self, address: u32) -> bool {
        address != 0 && address <= self.most
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Those that stand for endpoints: their places.
    pub fn endpoints(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.iter().filter_map(|local| match local {
            Local::Endpoint(place) => Some(*place),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_first_and_none_before_it_was_released() {
        for most in [1, 62, 63, 64, 127, 128, 300, 4095, 4096, 65_536] {
            let mut addresses = Addresses::new(most);
            for expected in 1..=most {
                assert_eq!(addresses.take(Local::Endpoint(expected)), Some(expected));
            }
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            assert!(!addresses.release(1), "it is not leaving");
            addresses.leave(1);
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            assert!(addresses.release(1));
            assert!(!addresses.release(1));
            assert!(!addresses.release(0) && !addresses.release(most + 1));
            assert_eq!(addresses.taken(), most as usize - 1);
            assert_eq!(addresses.take(Local::Peer(7)), Some(1));
            assert_eq!((addresses.get(1), addresses.get(0)), (Some(Local::Peer(7)), None));
            // The lowest first, whatever the order in which they were given back.
            let freed: Vec<u32> = (2..=most).rev().step_by(61).collect();
            freed.iter().for_each(|&address| addresses.leave(address));
            freed.iter().for_each(|&address| assert!(addresses.release(address)));
            let again: Vec<u32> =
                freed.iter().filter_map(|_| addresses.take(Local::Endpoint(0))).collect();
            assert!(again.iter().eq(freed.iter().rev()), "{most}");
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            addresses.clear();
            assert_eq!(addresses.take(Local::Leaving), Some(1));
        }
    }
}
