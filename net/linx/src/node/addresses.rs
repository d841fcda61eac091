//! Allocator of our link addresses on a link: from 1 upwards, lowest free address first.

use alloc::vec::Vec;

/// Use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// Not in use.
    Free,
    /// An endpoint, by its index.
    Endpoint(u32),
    /// An endpoint of the peer whose signals we forward to another endpoint of the peer, by its link address.
    Peer(u32),
    /// Unpublished, UNPUBLISH_ACK pending.
    AwaitAck,
}

/// The addresses. The tables grow with the highest address used.
#[derive(Debug)]
pub(super) struct Addresses {
    most: u32,
    table: Vec<Local>,
    /// A bit for each free address.
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

    /// Frees all addresses.
    pub fn clear(&mut self) {
        *self = Addresses::new(self.most);
    }

    /// Allocates the lowest free address.
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

    /// Use of an address; None if it is free.
    #[inline]
    pub fn get(&self, address: u32) -> Option<Local> {
        self.table.get(address as usize).copied().filter(|&it| it != Local::Free)
    }

    /// Marks an address as unpublished. It stays allocated until `release`.
    pub fn unpublish(&mut self, address: u32) {
        if let Some(local) = self.table.get_mut(address as usize)
            && *local != Local::Free
        {
            *local = Local::AwaitAck;
        }
    }

    /// Frees an unpublished address. False if it is not unpublished.
    pub fn release(&mut self, address: u32) -> bool {
        match self.table.get_mut(address as usize) {
            Some(local) if *local == Local::AwaitAck => *local = Local::Free,
            _ => return false,
        }
        let word = address as usize / 64;
        self.free[word] |= 1 << (address % 64);
        self.words[word / 64] |= 1 << (word % 64);
        self.taken -= 1;
        true
    }

    /// Whether an address is valid.
    pub fn is_address(&self, address: u32) -> bool {
        address != 0 && address <= self.most
    }

    /// Number of addresses that are not free.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Indices of the endpoints that have an address.
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
    fn lowest_address_is_reused_after_its_release() {
        for most in [1, 62, 63, 64, 127, 128, 300, 4095, 4096, 65_536] {
            let mut addresses = Addresses::new(most);
            for expected in 1..=most {
                assert_eq!(addresses.take(Local::Endpoint(expected)), Some(expected));
            }
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            assert!(!addresses.release(1), "not unpublished");
            addresses.unpublish(1);
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            assert!(addresses.release(1));
            assert!(!addresses.release(1));
            assert!(!addresses.release(0) && !addresses.release(most + 1));
            assert_eq!(addresses.taken(), most as usize - 1);
            assert_eq!(addresses.take(Local::Peer(7)), Some(1));
            assert_eq!((addresses.get(1), addresses.get(0)), (Some(Local::Peer(7)), None));
            // The lowest first, independent of the order of release.
            let freed: Vec<u32> = (2..=most).rev().step_by(61).collect();
            freed.iter().for_each(|&address| addresses.unpublish(address));
            freed.iter().for_each(|&address| assert!(addresses.release(address)));
            let again: Vec<u32> =
                freed.iter().filter_map(|_| addresses.take(Local::Endpoint(0))).collect();
            assert!(again.iter().eq(freed.iter().rev()), "{most}");
            assert_eq!(addresses.take(Local::Endpoint(0)), None);
            addresses.clear();
            assert_eq!(addresses.take(Local::AwaitAck), Some(1));
        }
    }
}
