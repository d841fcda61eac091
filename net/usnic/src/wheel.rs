//! Hierarchical timing wheel for the objects of a table. It contains each object at most once.
//!
//! Timers are postponed far more often than they expire. So a postponed object stays in its slot until that slot
//! expires, and only then the object's deadline is checked: postponing a timer costs one comparison. Deadlines are
//! rounded up to ticks of 16 µs.

use alloc::vec::Vec;
use drivers::hal::Instant;

/// Nanoseconds of a tick, as a power of two.
const TICK: u32 = 14;
/// Slots of a level, as a power of two: one word a level is the bitmap of occupied slots.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// 16 µs · 64^5: five hours. Objects with later deadlines are returned by then.
const LEVELS: usize = 5;
/// No object.
const NONE: u32 = u32::MAX;
/// Marks an object that is in no slot.
const NOWHERE: u16 = u16::MAX;

/// Slot of an object, and its links in the slot's list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    tick: u64,
    before: u32,
    after: u32,
    slot: u16,
}

/// The wheel. Objects are identified by their indices in their table.
#[derive(Debug)]
pub struct Wheel {
    entries: Vec<Entry>,
    heads: [[u32; SLOTS]; LEVELS],
    taken: [u64; LEVELS],
    /// A bit for each level with an occupied slot.
    levels: u32,
    /// All objects before this tick were returned.
    now: u64,
    /// No occupied slot begins before this tick.
    soonest: u64,
    /// `soonest` in nanoseconds.
    soonest_nanos: u64,
}

impl Wheel {
    /// A wheel for so many objects.
    pub fn new(objects: usize, now: Instant) -> Self {
        let entry = Entry { tick: 0, before: NONE, after: NONE, slot: NOWHERE };
        Wheel {
            entries: alloc::vec![entry; objects],
            heads: [[NONE; SLOTS]; LEVELS],
            taken: [0; LEVELS],
            levels: 0,
            now: now.as_nanos() >> TICK,
            soonest: 0,
            soonest_nanos: 0,
        }
    }

    /// Schedules an object at `at` at the latest. It may be returned earlier.
    #[inline]
    pub fn schedule(&mut self, place: u32, at: Instant) {
        let tick = (at.as_nanos() >> TICK) + 1;
        match self.entries.get(place as usize) {
            None => (),
            Some(entry) if entry.slot != NOWHERE && entry.tick <= tick => (),
            Some(_) => self.place(place, tick),
        }
    }

    /// Removes an object.
    pub fn cancel(&mut self, place: u32) {
        self.unlink(place);
    }

    /// Whether [`Wheel::take_due`] may have an object to return.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.soonest_nanos
    }

    /// Removes an object whose slot has expired, and returns its index.
    pub fn take_due(&mut self, now: Instant) -> Option<u32> {
        let until = now.as_nanos() >> TICK;
        if until < self.soonest {
            return None;
        }
        loop {
            let first = self.next();
            let Some((level, slot, tick)) = first.filter(|slot| slot.2 <= until) else {
                self.now = self.now.max(until + 1);
                self.set_soonest(first.map_or(u64::MAX, |slot| slot.2));
                return None;
            };
            self.now = self.now.max(tick);
            let head = self.heads[level][slot];
            if level == 0 {
                self.unlink(head);
                return Some(head);
            }
            // The objects of a slot of a higher level are distributed over the levels below.
            let mut place = head;
            self.heads[level][slot] = NONE;
            self.release(level, slot);
            while let Some(entry) = self.entries.get_mut(place as usize) {
                let (tick, after) = (entry.tick, entry.after);
                entry.slot = NOWHERE;
                self.place(place, tick);
                place = after;
            }
        }
    }

    /// When the first object is due; `deadline` returns the current deadline of an object. Postponed objects are moved
    /// to their new slots, and objects without a deadline are removed, so that the caller's wait does not end early for
    /// them.
    pub fn first_due(&mut self, deadline: impl Fn(u32) -> Option<Instant>) -> Option<Instant> {
        while let Some((level, slot, _)) = self.next() {
            // A list is not sorted, so in a slot of a higher level any object may be the earliest.
            let mut place = self.heads[level][slot];
            let mut first: Option<u64> = None;
            while let Some(entry) = self.entries.get(place as usize) {
                let (tick, after) = (entry.tick, entry.after);
                let at = deadline(place).map(|at| (at.as_nanos() >> TICK) + 1);
                match at.map(|at| at.min(self.top())) {
                    Some(at) if at > tick => {
                        self.unlink(place);
                        self.place(place, at);
                    }
                    Some(_) => first = Some(first.map_or(tick, |first| first.min(tick))),
                    None => self.unlink(place),
                }
                place = after;
            }
            if let Some(tick) = first {
                return Some(Instant::from_nanos(tick << TICK));
            }
        }
        None
    }

    /// Level, slot and first tick of the first occupied slot. Of two that begin at the same tick, the one of the higher
    /// level, because it has to be distributed first.
    #[inline]
    fn next(&self) -> Option<(usize, usize, u64)> {
        let mut first: Option<(usize, usize, u64)> = None;
        let mut levels = self.levels;
        while levels != 0 {
            let level = levels.ilog2() as usize;
            levels &= !(1 << level);
            let Some(&taken) = self.taken.get(level) else { break };
            let shift = BITS * level as u32;
            let current = self.now >> shift;
            let ahead = taken.rotate_right((current % SLOTS as u64) as u32);
            let slot = current + u64::from(ahead.trailing_zeros());
            let tick = slot << shift;
            if first.is_none_or(|(_, _, earliest)| tick < earliest) {
                first = Some((level, slot as usize % SLOTS, tick));
            }
        }
        first
    }

    #[inline]
    fn set_soonest(&mut self, tick: u64) {
        self.soonest = tick;
        self.soonest_nanos = if tick > u64::MAX >> TICK { u64::MAX } else { tick << TICK };
    }

    /// The last tick that has a slot.
    fn top(&self) -> u64 {
        self.now | ((1 << (BITS * LEVELS as u32)) - 1)
    }

    fn place(&mut self, place: u32, tick: u64) {
        self.unlink(place);
        let tick = tick.clamp(self.now, self.top());
        self.set_soonest(self.soonest.min(tick));
        // The level of the highest digit in which the tick differs from now.
        let differs = (tick ^ self.now) | (SLOTS as u64 - 1);
        let level = ((63 - differs.leading_zeros()) / BITS) as usize;
        let slot = (tick >> (BITS * level as u32)) as usize % SLOTS;
        let head = core::mem::replace(&mut self.heads[level][slot], place);
        if let Some(next) = self.entries.get_mut(head as usize) {
            next.before = place;
        }
        self.taken[level] |= 1 << slot;
        self.levels |= 1 << level;
        if let Some(entry) = self.entries.get_mut(place as usize) {
            *entry = Entry { tick, before: NONE, after: head, slot: (level * SLOTS + slot) as u16 };
        }
    }

    fn unlink(&mut self, place: u32) {
        let Some(entry) = self.entries.get_mut(place as usize) else { return };
        let Entry { before, after, slot, .. } = *entry;
        if slot == NOWHERE {
            return;
        }
        entry.slot = NOWHERE;
        let (level, slot) = (usize::from(slot) / SLOTS, usize::from(slot) % SLOTS);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.after = after,
            None => self.heads[level][slot] = after,
        }
        if let Some(entry) = self.entries.get_mut(after as usize) {
            entry.before = before;
        }
        if self.heads[level][slot] == NONE {
            self.release(level, slot);
        }
    }

    /// Marks a slot as empty.
    #[inline]
    fn release(&mut self, level: usize, slot: usize) {
        self.taken[level] &= !(1 << slot);
        if self.taken[level] == 0 {
            self.levels &= !(1 << level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use netsim::Rng;
    use std::collections::BTreeMap;

    const TICK_NANOS: u64 = 1 << TICK;

    /// Compares the wheel with a map: no object is returned before its deadline, or more than a tick late.
    #[test]
    fn objects_expire_when_they_are_due() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut now = Instant::from_nanos(rng.within(0..1 << 40));
            let mut wheel = Wheel::new(16, now);
            let mut model: BTreeMap<u32, Instant> = BTreeMap::new();
            for _ in 0..400 {
                let place = rng.within(0..16) as u32;
                let bits = rng.within(1..42);
                let far = rng.within(0..1 << bits);
                match rng.within(0..4) {
                    0 | 1 => {
                        let at = now + Duration::from_nanos(far);
                        wheel.schedule(place, at);
                        let known = model.entry(place).or_insert(at);
                        *known = at.min(*known);
                    }
                    2 => {
                        wheel.cancel(place);
                        model.remove(&place);
                    }
                    _ => {
                        let at = now + Duration::from_nanos(far);
                        let first = wheel.first_due(|place| model.get(&place).copied());
                        assert_eq!(first.is_some(), !model.is_empty());
                        now = at;
                        while let Some(place) = wheel.take_due(now) {
                            let due = model.remove(&place).expect("the wheel contains it");
                            // Objects with deadlines hours ahead are returned early.
                            assert!(due <= now || due.since(now) > Duration::from_secs(3600));
                            if due > now {
                                wheel.schedule(place, due);
                                model.insert(place, due);
                                break;
                            }
                        }
                        let late = model.values().min().map(|due| now.nanos_since(*due));
                        assert!(
                            late.is_none_or(|late| late <= 2 * TICK_NANOS),
                            "{late:?}, seed {seed}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn first_due_ignores_postponed_objects() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut wheel = Wheel::new(3, at(0));
        for (place, time) in [(0, 100), (1, 200), (2, 100_000)] {
            wheel.schedule(place, at(time));
        }
        let deadlines = [Some(at(50_000)), None, Some(at(100_000))];
        let first = wheel.first_due(|place| deadlines[place as usize]).unwrap();
        assert!(first >= at(50_000) && first < at(50_040), "{first:?}");
        assert_eq!(wheel.take_due(at(49_000)), None);
        assert_eq!(wheel.take_due(at(50_040)), Some(0));
        assert_eq!(wheel.take_due(at(99_000)), None);
        assert_eq!(wheel.take_due(at(100_040)), Some(2));
        assert_eq!(wheel.first_due(|_| None), None);
    }
}
