//! Memory of a queue, in units of one size. Takes runs of units, the first that are free.

use alloc::vec::Vec;
use drivers::hal::Window;

/// A window that is given out in parts.
#[derive(Debug)]
pub struct Pool {
    memory: Window,
    unit: usize,
    /// A bit for each free unit.
    free: Vec<u64>,
    units: usize,
}

impl Pool {
    /// A pool of `memory` in units of `unit` bytes. A remainder is left unused.
    pub fn new(memory: Window, unit: usize) -> Pool {
        let units = memory.len() / unit.max(1);
        let mut free = alloc::vec![0u64; units.div_ceil(64)];
        for n in 0..units {
            free[n / 64] |= 1 << (n % 64);
        }
        Pool { memory, unit, free, units }
    }

    /// A pool without memory.
    pub fn empty() -> Pool {
        Pool::new(Window::empty(), 1)
    }

    /// Whether all of it is free.
    pub fn is_unused(&self) -> bool {
        self.free.iter().map(|word| word.count_ones() as usize).sum::<usize>() == self.units
    }

    /// Bytes of a unit.
    pub fn unit(&self) -> usize {
        self.unit
    }

    fn is_free(&self, n: usize) -> bool {
        self.free.get(n / 64).is_some_and(|word| word & 1 << (n % 64) != 0)
    }

    /// Takes `bytes` bytes; None if no run of free units is long enough.
    pub fn take(&mut self, bytes: usize) -> Option<Window> {
        let wanted = bytes.div_ceil(self.unit).max(1);
        let mut first = 0;
        while first + wanted <= self.units {
            match (first..first + wanted).rev().find(|&n| !self.is_free(n)) {
                Some(used) => first = used + 1,
                None => {
                    self.mark(first, wanted, false);
                    return self.memory.slice(first * self.unit, bytes);
                }
            }
        }
        None
    }

    /// Gives a window back to the pool.
    pub fn give(&mut self, window: Window) {
        let offset = window.bus_address().wrapping_sub(self.memory.bus_address()) as usize;
        debug_assert!(offset.is_multiple_of(self.unit) && offset < self.memory.len());
        self.mark(offset / self.unit, window.len().div_ceil(self.unit).max(1), true);
    }

    /// Whether the pool has given out this window.
    #[cfg(test)]
    pub fn owns(&self, window: &Window) -> bool {
        self.memory.contains(window)
    }

    fn mark(&mut self, first: usize, count: usize, free: bool) {
        for n in first..first + count {
            let Some(word) = self.free.get_mut(n / 64) else { return };
            let bit = 1 << (n % 64);
            debug_assert_eq!(*word & bit != 0, !free, "a unit is taken once, and returned once");
            *word = if free { *word | bit } else { *word & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_come_back(
            steps in prop::collection::vec((any::<bool>(), 1usize..20_000), 1..200),
        ) {
            let mut arena = Arena::on_heap(1 << 20);
            let memory = arena.alloc(100 * 4096, 4096).unwrap();
            let mut pool = Pool::new(memory, 4096);
            let mut taken: Vec<Window> = Vec::new();
            for (takes, bytes) in steps {
                if takes {
                    let Some(new) = pool.take(bytes) else { continue };
                    prop_assert!(new.len() == bytes && pool.owns(&new));
                    for old in &taken {
                        let (a, b) = (new.bus_address(), old.bus_address());
                        prop_assert!(a + new.len() as u64 <= b || b + old.len() as u64 <= a);
                    }
                    taken.push(new);
                } else if let Some(old) = taken.pop() {
                    pool.give(old);
                }
            }
            taken.drain(..).for_each(|old| pool.give(old));
            prop_assert_eq!(pool.take(100 * 4096).map(|all| all.len()), Some(100 * 4096));
        }
    }
}
