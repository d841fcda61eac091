//! Deadlines of the objects in a table, at most one for each: an indexed heap. A change costs the logarithm of the
//! number of deadlines. An object without a deadline costs nothing.

use alloc::vec::Vec;
use drivers::hal::Instant;

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// The deadlines. Objects are identified by their indices in their table.
#[derive(Debug)]
pub struct Timers {
    heap: Vec<(Instant, u32)>,
    places: Vec<u32>,
}

impl Timers {
    /// Timers for `objects` objects, without deadlines.
    pub fn new(objects: usize) -> Timers {
        Timers { heap: Vec::with_capacity(objects), places: alloc::vec![NOWHERE; objects] }
    }

    /// Sets or clears the deadline of an object.
    pub fn set(&mut self, object: u32, at: Option<Instant>) {
        let Some(&place) = self.places.get(object as usize) else { return };
        match (at, place) {
            (None, NOWHERE) => (),
            (None, place) => {
                let place = place as usize;
                self.heap.swap_remove(place);
                self.places[object as usize] = NOWHERE;
                if let Some(&(_, moved)) = self.heap.get(place) {
                    self.places[moved as usize] = place as u32;
                    self.settle(place);
                }
            }
            (Some(at), NOWHERE) => {
                self.places[object as usize] = self.heap.len() as u32;
                self.heap.push((at, object));
                self.settle(self.heap.len() - 1);
            }
            (Some(at), place) => {
                self.heap[place as usize].0 = at;
                self.settle(place as usize);
            }
        }
    }

    /// The first deadline.
    #[inline]
    pub fn first(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.0)
    }

    /// Removes and returns an object whose deadline has expired.
    #[inline]
    pub fn take_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, object) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.set(object, None);
        Some(object)
    }

    /// Restores the heap order for the entry at an index.
    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { return };
            if self.heap[place] <= self.heap[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places[self.heap[place].1 as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsim::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn objects_expire_in_order() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut timers = Timers::new(20);
            let mut model = BTreeMap::new();
            for _ in 0..300 {
                let object = rng.within(0..20) as u32;
                let at = Instant::from_nanos(rng.within(0..1000));
                match rng.within(0..4) {
                    0 => {
                        timers.set(object, None);
                        model.remove(&object);
                    }
                    1 => {
                        while let Some(due) = timers.take_due(at) {
                            let was = model.remove(&due).unwrap();
                            assert!(was <= at && model.values().all(|other| *other >= was));
                        }
                        assert!(model.values().all(|other| *other > at), "seed {seed}");
                    }
                    _ => {
                        timers.set(object, Some(at));
                        model.insert(object, at);
                    }
                }
                assert_eq!(timers.first(), model.values().min().copied(), "seed {seed}");
            }
        }
    }
}
