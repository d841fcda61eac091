//! Deadlines of the objects in a table: a heap by time, with at most one entry per object.
//!
//! Timers are postponed far more often than they expire. So an entry keeps its time until that moment comes, and only
//! then is the object's deadline checked. Postponing a timer costs a comparison, and only objects that may be due are
//! examined, however many objects there are. Before a wait, [`Timers::first_due`] moves the first entries to their
//! present places, so that a postponed timer does not end the wait.

use super::Instant;
use alloc::vec::Vec;

/// In `heap_places`: the object is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// An entry of the heap.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    /// Place of the object in its table.
    place: u32,
}

/// The heap. Its objects are identified by their places in their table.
#[derive(Debug, Default)]
pub struct Timers {
    /// A binary heap: the entry at `n` is no later than those at `2n + 1` and `2n + 2`.
    heap: Vec<Entry>,
    /// For each object its index in the heap.
    heap_places: Vec<u32>,
    /// Number of entries taken out because they were due.
    pub taken: u64,
}

impl Timers {
    /// A heap with room for `objects` objects.
    pub fn with_room(objects: usize) -> Self {
        let (heap, heap_places) = (Vec::with_capacity(objects), alloc::vec![NOWHERE; objects]);
        Timers { heap, heap_places, taken: 0 }
    }

    /// Makes room for the object at `place`, so that no other call allocates.
    pub fn make_room(&mut self, place: usize) {
        if place >= self.heap_places.len() {
            self.heap_places.resize(place + 1, NOWHERE);
        }
        self.heap.reserve(self.heap_places.len() - self.heap.len());
    }

    /// Number of objects in the heap.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// The first moment at which [`Timers::take_due`] may return an object.
    #[inline]
    pub fn first(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Schedules an object for `at`, or earlier if it has an earlier entry.
    #[inline]
    pub fn put(&mut self, place: usize, at: Instant) {
        let Some(&found) = self.heap_places.get(place) else { return };
        match self.heap.get_mut(found as usize) {
            Some(entry) if entry.at <= at => (),
            Some(entry) => {
                entry.at = at;
                self.rise(found as usize);
            }
            None => self.add(Entry { at, place: place as u32 }),
        }
    }

    /// Schedules an object for `at`, earlier or later than before, or removes it.
    pub fn set(&mut self, place: usize, at: Option<Instant>) {
        let Some(at) = at else { return self.forget(place) };
        self.put(place, at);
        if let Some(&found) = self.heap_places.get(place)
            && let Some(entry) = self.heap.get_mut(found as usize)
            && entry.at < at
        {
            entry.at = at;
            self.sink(found as usize);
        }
    }

    /// When the first object is due; `deadline` returns the deadline of the object at a place. Entries of postponed
    /// timers move to their present place, and those of objects without a deadline are removed, so that they do not
    /// wake a caller that is about to wait.
    pub fn first_due(&mut self, deadline: impl Fn(usize) -> Option<Instant>) -> Option<Instant> {
        while let Some(first) = self.heap.first_mut() {
            match deadline(first.place as usize) {
                Some(at) if at > first.at => {
                    first.at = at;
                    self.sink(0);
                }
                Some(_) => return Some(first.at),
                None => self.take_out(0),
            }
        }
        None
    }

    /// Takes out an object that is due; returns its place.
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        let first = *self.heap.first().filter(|entry| entry.at <= now)?;
        self.take_out(0);
        self.taken += 1;
        Some(first.place as usize)
    }

    /// Removes an object.
    pub fn forget(&mut self, place: usize) {
        let found = self.heap_places.get(place).copied().unwrap_or(NOWHERE);
        if found != NOWHERE {
            self.take_out(found as usize);
        }
    }

    #[inline(never)]
    fn add(&mut self, entry: Entry) {
        self.heap.push(entry);
        self.rise(self.heap.len() - 1);
    }

    /// Removes the entry at index `number`.
    fn take_out(&mut self, number: usize) {
        let gone = self.heap.swap_remove(number);
        self.note(gone.place, NOWHERE);
        if number < self.heap.len() {
            // The entry moved here from the end may belong higher or lower.
            self.sink(number);
            self.rise(number);
        }
    }

    fn note(&mut self, place: u32, number: u32) {
        if let Some(known) = self.heap_places.get_mut(place as usize) {
            *known = number;
        }
    }

    #[inline(never)]
    fn rise(&mut self, mut number: usize) {
        let Some(&own) = self.heap.get(number) else { return };
        while number > 0 {
            let above = (number - 1) / 2;
            let Some(&other) = self.heap.get(above).filter(|other| other.at > own.at) else {
                break;
            };
            self.write(number, other);
            number = above;
        }
        self.write(number, own);
    }

    fn sink(&mut self, mut number: usize) {
        let Some(&own) = self.heap.get(number) else { return };
        loop {
            let below = 2 * number + 1;
            let earlier = match (self.heap.get(below), self.heap.get(below + 1)) {
                (Some(left), Some(right)) if right.at < left.at => below + 1,
                (Some(_), _) => below,
                (None, _) => break,
            };
            let Some(&other) = self.heap.get(earlier).filter(|other| other.at < own.at) else {
                break;
            };
            self.write(number, other);
            number = earlier;
        }
        self.write(number, own);
    }

    fn write(&mut self, number: usize, entry: Entry) {
        if let Some(place) = self.heap.get_mut(number) {
            *place = entry;
        }
        self.note(entry.place, number as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn at(n: u32) -> Instant {
        Instant::from_nanos(n.into())
    }

    proptest! {
        /// Against a map: objects come out in order, each at its earliest time, or at the time that was set.
        #[test]
        fn objects_come_out_in_order(
            steps in proptest::collection::vec((0..5u8, 0..24usize, 0..1000u32), 0..300),
        ) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<usize, u32> = BTreeMap::new();
            for (what, place, time) in steps {
                match what {
                    0 | 1 => {
                        timers.make_room(place);
                        timers.put(place, at(time));
                        let known = model.entry(place).or_insert(time);
                        *known = time.min(*known);
                    }
                    2 => {
                        timers.forget(place);
                        model.remove(&place);
                    }
                    3 => {
                        timers.make_room(place);
                        timers.set(place, Some(at(time)));
                        model.insert(place, time);
                    }
                    _ => match timers.take_due(at(time)) {
                        Some(place) => {
                            let earliest = *model.values().min().unwrap();
                            prop_assert!(earliest <= time);
                            prop_assert_eq!(model.remove(&place), Some(earliest));
                        }
                        None => prop_assert!(model.values().all(|&known| known > time)),
                    },
                }
                prop_assert_eq!(timers.first(), model.values().min().map(|&time| at(time)));
            }
        }
    }

    #[test]
    fn postponed_timer_does_not_end_a_wait() {
        let mut timers = Timers::default();
        (0..6).for_each(|place| timers.make_room(place));
        for (place, time) in [(0, 10), (1, 20), (2, 30), (3, 40), (4, 50)] {
            timers.put(place, at(time));
        }
        // Object 0 is postponed behind object 2, object 1 has no deadline, object 3 is behind the first due one.
        let deadlines = [Some(at(35)), None, Some(at(30)), None, Some(at(90))];
        assert_eq!(timers.first_due(|place| deadlines[place]), Some(at(30)));
        let places = core::iter::from_fn(|| timers.take_due(at(100)));
        assert_eq!(places.collect::<Vec<_>>(), [2, 0, 3, 4]);
        assert_eq!(timers.first_due(|_| Some(at(1))), None);
        timers.put(5, at(10));
        assert_eq!((timers.first_due(|_| None), timers.len()), (None, 0));
    }

    #[test]
    fn put_does_not_allocate_after_make_room() {
        let mut timers = Timers::default();
        (0..100).for_each(|place| timers.make_room(place));
        let room = timers.heap.capacity();
        for n in 0..1000 {
            timers.put((n * 7 % 100) as usize, at(1000 - n));
        }
        assert_eq!((timers.heap.len(), timers.heap.capacity()), (100, room));
    }
}
