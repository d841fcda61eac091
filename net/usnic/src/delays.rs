//! Places with a moment each, where most moments are the same time ahead: a queue in the order of the moments. What
//! would have to stand before others is not taken; whoever has it puts it elsewhere.

use alloc::boxed::Box;
use drivers::hal::Instant;

/// The queue. A place stands in it at most once.
#[derive(Debug)]
pub struct Delays {
    /// A power of two of them.
    ring: Box<[(Instant, u32)]>,
    first: usize,
    len: usize,
    /// The moment of the first in nanoseconds, or the end of time; and of the last that came.
    due: u64,
    last: Instant,
}

impl Delays {
    /// A queue with room for so many.
    pub fn new(most: usize) -> Self {
        let ring = alloc::vec![(Instant::ZERO, 0); most.next_power_of_two()].into_boxed_slice();
        Delays { ring, first: 0, len: 0, due: u64::MAX, last: Instant::ZERO }
    }

    /// Whether the first's moment has come.
    #[inline(always)]
    pub fn is_due(&self, now: Instant) -> bool {
        self.due <= now.as_nanos()
    }

    /// The first: its moment and its place.
    #[inline]
    pub fn front(&self) -> Option<(Instant, u32)> {
        if self.len == 0 {
            return None;
        }
        self.ring.get(self.first).copied()
    }

    /// Takes out the first.
    #[inline]
    pub fn pop(&mut self) {
        if self.len > 0 {
            self.first = (self.first + 1) & (self.ring.len() - 1);
            self.len -= 1;
        }
        self.due = self.front().map_or(u64::MAX, |(at, _)| at.as_nanos());
    }

    /// Puts a place behind all others, unless one of these has a later moment; whether that was done.
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

    /// Takes a place out, wherever it stands.
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
    fn what_would_be_out_of_order_is_not_taken() {
        let at = Instant::from_nanos;
        let mut delays = Delays::new(3);
        for round in 0..10 {
            let now = 100 * round;
            assert!(delays.push(1, at(now + 5)) && delays.push(2, at(now + 5)));
            assert!(!delays.push(3, at(now + 4)));
            assert!(delays.push(4, at(now + 7)) && delays.push(5, at(now + 8)));
            assert!(!delays.push(6, at(now + 9)), "there is no room");
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
