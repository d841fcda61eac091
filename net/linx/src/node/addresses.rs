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

/// The addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    table: Vec<Local>,
    /// A bit for each that is free.
    free: Vec<u64>,
    taken: usize,
}

impl Addresses {
    /// Addresses 1 to `most`.
    pub fn new(most: u32) -> Addresses {
        let most = most as usize;
        let mut addresses = Addresses {
            table: alloc::vec![Local::Free; most + 1],
            free: alloc::vec![u64::MAX; (most + 1).div_ceil(64)],
            taken: 0,
        };
        addresses.clear();
        addresses
    }

    /// All are free.
    pub fn clear(&mut self) {
        self.table.fill(Local::Free);
        self.free.fill(u64::MAX);
        self.taken = 0;
        // There is no address 0, nor one behind the last.
        if let Some(first) = self.free.first_mut() {
            *first &= !1;
        }
        let used = self.table.len() % 64;
        if let Some(last) = self.free.last_mut()
            && used > 0
        {
            *last &= (1 << used) - 1;
        }
    }

    /// Takes the lowest that is free.
    pub fn take(&mut self, what: Local) -> Option<u32> {
        let word = self.free.iter().position(|&word| word != 0)?;
        let address = 64 * word + self.free[word].trailing_zeros() as usize;
        self.free[word] &= self.free[word] - 1;
        *self.table.get_mut(address)? = what;
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
        self.free[address as usize / 64] |= 1 << (address % 64);
        self.taken -= 1;
        true
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
        for most in [1, 62, 63, 64, 127, 128, 300] {
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
            addresses.clear();
            assert_eq!(addresses.take(Local::Leaving), Some(1));
        }
    }
}
