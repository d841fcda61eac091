//! Queue of indices with deadlines, in ascending order. It suits timers with one common delay. An entry with an earlier
//! deadline than the last one is rejected; the caller keeps that timer elsewhere.

use alloc::boxed::Box;
use drivers::hal::Instant;

/// The queue. It contains an index at most once.
#[derive(Debug)]
pub struct Delays {
    /// Deadline and index; the length is a power of two.
    ring: Box<[(Instant, u32)]>,
    first: usize,
    len: usize,
    /// Deadline of the first entry in nanoseconds; the maximum if the queue is empty.
    due: u64,
    /// Deadline of the entry that was added last.
    last: Instant,
}

impl Delays {
    /// A queue for at most `most` entries.
    pub fn new(most: usize) -> Self {
        let ring = alloc::vec![(Instant::ZERO, 0); most.next_power_of_two()].into_boxed_slice();
        Delays { ring, first: 0, len: 0, due: u64::MAX, last: Instant::ZERO }
    }

    /// Whether the deadline of the first entry has passed.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.due <= now.as_nanos()
    }

    /// Deadline and index of the first entry.
    #[inline]
    pub fn front(&self) -> Option<(Instant, u32)> {
        if self.len == 0 {
            return None;
        }
        self.ring.get(self.first).copied()
    }

    /// Removes the first entry.
    #[inline]
    pub fn pop(&mut self) {
        if self.len > 0 {
            self.first = (self.first + 1) & (self.ring.len() - 1);
            self.len -= 1;
        }
        self.due = self.front().map_or(u64::MAX, |(at, _)| at.as_nanos());
    }

    /// Appends an entry; false if the queue is full, or `at` is before the deadline of the last entry.
    #[inline]
    pub fn push(&mut self, place: u32, at: Instant) -> bool {
        if self.len == 0 {
            self.due = at.as_nanos();
        } else if self.len == self.ring.len() || at < self.last {
            return false;
        }
        self.last = at;
        let end = (self.first + self.len) & (self.ring.len() - 1);
        if let Some(entry) = self.ring.get_mut(end) {
            *entry = (at, place);
            self.len += 1;
        }
        true
    }

    /// Removes the entry of an index, at any position.
    pub fn remove(&mut self, place: u32) {
        let mask = self.ring.len() - 1;
        let first = self.first;
        let at = |n: usize| (first + n) & mask;
        let Some(found) = (0..self.len).find(|&n| self.ring[at(n)].1 == place) else { return };
        for n in found..self.len - 1 {
            self.ring[at(n)] = self.ring[at(n + 1)];
        }
        self.len -= 1;
        self.due = self.front().map_or(u64::MAX, |(at, _)| at.as_nanos());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_rejects_out_of_order_deadlines() {
        let at = Instant::from_nanos;
        let mut delays = Delays::new(3);
        for round in 0..10 {
            let now = 100 * round;
            assert!(delays.push(1, at(now + 5)) && delays.push(2, at(now + 5)));
            assert!(!delays.push(3, at(now + 4)));
            assert!(delays.push(4, at(now + 7)) && delays.push(5, at(now + 8)));
            assert!(!delays.push(6, at(now + 9)), "the queue is full");
            delays.remove(2);
            for (place, nanos) in [(1, 5), (4, 7), (5, 8)] {
                assert!(delays.is_due(at(now + nanos)) && !delays.is_due(at(now + nanos - 1)));
                assert_eq!(delays.front(), Some((at(now + nanos), place)));
                delays.pop();
            }
            assert_eq!(delays.front(), None);
        }
    }
}
