//! Tables with a fixed capacity, and queues of indices into them.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// A table whose values are free or in use. A free value keeps its contents until it is reused. Callers access only
/// indices that are in use.
#[derive(Debug)]
pub struct Table<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Table<T> {
    /// A table of `most` free values.
    pub fn new(most: usize) -> Self {
        Table {
            values: (0..most).map(|_| T::default()).collect(),
            free: (0..most as u32).rev().collect(),
        }
    }
}

impl<T> Table<T> {
    /// Number of values.
    pub fn capacity(&self) -> usize {
        self.values.len()
    }

    /// Whether all values are in use.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a free value into use; returns its index, and the value with its former contents.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, &mut T)> {
        let place = self.free.pop()?;
        let value = self.values.get_mut(place as usize)?;
        Some((place, value))
    }

    /// Frees the value at an index.
    #[inline]
    pub fn give_back(&mut self, place: u32) {
        debug_assert!(self.free.len() < self.values.len());
        // The capacity suffices for all values, so this does not allocate.
        self.free.push(place);
    }

    /// The value at an index, if it exists.
    #[inline]
    pub fn get(&self, place: u32) -> Option<&T> {
        self.values.get(place as usize)
    }

    /// The mutable value at an index, if it exists.
    #[inline]
    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.values.get_mut(place as usize)
    }
}

/// A queue of indices, which contains an index at most once.
#[derive(Debug)]
pub struct Queue {
    /// The length is a power of two.
    ring: Box<[u32]>,
    first: usize,
    len: usize,
}

impl Queue {
    /// A queue for at most `most` indices.
    pub fn new(most: usize) -> Self {
        let ring = alloc::vec![0; most.next_power_of_two()].into_boxed_slice();
        Queue { ring, first: 0, len: 0 }
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of indices in it.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first index.
    #[inline]
    pub fn front(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        self.ring.get(self.first).copied()
    }

    /// Removes and returns the first index.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let place = self.front()?;
        self.first = (self.first + 1) & (self.ring.len() - 1);
        self.len -= 1;
        Some(place)
    }

    /// Appends an index.
    #[inline]
    pub fn push(&mut self, place: u32) {
        debug_assert!(self.len < self.ring.len());
        let at = (self.first + self.len) & (self.ring.len() - 1);
        if let Some(entry) = self.ring.get_mut(at) {
            *entry = place;
            self.len += 1;
        }
    }

    /// Removes an index at any position.
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
    fn queue_wraps_around() {
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
    fn table_allocates_each_index_once() {
        let mut table: Table<u8> = Table::new(3);
        let mut places: Vec<u32> = (0..3).map(|_| table.take().expect("one is free").0).collect();
        assert!(table.is_full() && table.take().is_none() && table.get(3).is_none());
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2]);
        table.give_back(1);
        assert_eq!(table.take().map(|(place, _)| place), Some(1));
    }
}
