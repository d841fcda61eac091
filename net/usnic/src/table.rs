//! Tables and queues of places in them, made once for as many as there may be.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Values of which each is free or in use. One that is free keeps what it was, until it is used again: who names a
/// place knows that it is in use.
#[derive(Debug)]
pub struct Table<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Table<T> {
    /// A table of so many, all free.
    pub fn new(most: usize) -> Self {
        Table {
            values: (0..most).map(|_| T::default()).collect(),
            free: (0..most as u32).rev().collect(),
        }
    }
}

impl<T> Table<T> {
    /// How many there may be.
    pub fn capacity(&self) -> usize {
        self.values.len()
    }

    /// Whether none is free.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The place of one that was free, and what it was last.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, &mut T)> {
        let place = self.free.pop()?;
        let value = self.values.get_mut(place as usize)?;
        Some((place, value))
    }

    /// One is free again, which was in use.
    #[inline]
    pub fn give_back(&mut self, place: u32) {
        debug_assert!(self.free.len() < self.values.len());
        // As many as there may be fit: nothing is allocated.
        self.free.push(place);
    }

    /// The value at a place, if there is such a place.
    #[inline]
    pub fn get(&self, place: u32) -> Option<&T> {
        self.values.get(place as usize)
    }

    /// See `get`.
    #[inline]
    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.values.get_mut(place as usize)
    }
}

/// A queue of places, in which each stands at most once.
#[derive(Debug)]
pub struct Queue {
    /// A power of two of them.
    ring: Box<[u32]>,
    first: usize,
    len: usize,
}

impl Queue {
    /// A queue with room for so many.
    pub fn new(most: usize) -> Self {
        let ring = alloc::vec![0; most.next_power_of_two()].into_boxed_slice();
        Queue { ring, first: 0, len: 0 }
    }

    /// Whether nothing stands in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many stand in it.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first.
    #[inline]
    pub fn front(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        self.ring.get(self.first).copied()
    }

    /// Takes out the first.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let place = self.front()?;
        self.first = (self.first + 1) & (self.ring.len() - 1);
        self.len -= 1;
        Some(place)
    }

    /// Puts one behind all others.
    #[inline]
    pub fn push(&mut self, place: u32) {
        debug_assert!(self.len < self.ring.len());
        let at = (self.first + self.len) & (self.ring.len() - 1);
        if let Some(entry) = self.ring.get_mut(at) {
            *entry = place;
            self.len += 1;
        }
    }

    /// Takes one out, wherever it stands.
    pub fn remove(&mut self, place: u32) {
        for _ in 0..self.len {
            if let Some(other) = self.pop()
                && other != place
            {
                self.push(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_goes_round() {
        let mut queue = Queue::new(3);
        for round in 0..10 {
            (0..3).for_each(|n| queue.push(10 * round + n));
            queue.remove(10 * round + 1);
            assert_eq!(queue.front(), Some(10 * round));
            assert_eq!(
                [queue.pop(), queue.pop(), queue.pop()],
                [Some(10 * round), Some(10 * round + 2), None]
            );
        }
    }

    #[test]
    fn a_table_gives_each_place_once() {
        let mut table: Table<u8> = Table::new(3);
        let mut places: Vec<u32> = (0..3).map(|_| table.take().expect("one is free").0).collect();
        assert!(table.is_full() && table.take().is_none() && table.get(3).is_none());
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2]);
        table.give_back(1);
        assert_eq!(table.take().map(|(place, _)| place), Some(1));
    }
}
