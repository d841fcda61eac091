//! The pool of memory keys. A key of the card has 24 bits that firmware chose when it was made, and 8 that software chooses
//! with each use. So that peers cannot tell the next key from those that they know, it is drawn from those that are
//! spare, and its 8 bits from the values that it did not have lately.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rand_core::RngCore;
use verbs::{MrId, PdId};

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a pool.
    Spare,
    /// It was drawn, and given to the chunk of a region.
    Given(MrId, u16),
    /// It is being taken back, or no chunk's any more.
    Dying,
}

/// Uses after which the values of a key that were taken count as former ones, and the former ones may come again: of the
/// 256 values at least 64 can be drawn at any time.
const LATELY: u8 = 96;

/// A set of values of 8 bits.
#[derive(Clone, Copy, Debug, Default)]
struct Values([u64; 4]);

impl Values {
    #[inline]
    fn has(&self, value: u8) -> bool {
        self.0[usize::from(value >> 6)] >> (value & 63) & 1 == 1
    }

    #[inline]
    fn add(&mut self, value: u8) {
        self.0[usize::from(value >> 6)] |= 1 << (value & 63);
    }
}

/// A key.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// The card's number of it, and its 8 bits.
    number: u32,
    variant: u8,
    /// How many values it had lately, and which; those that it had before these.
    count: u8,
    lately: Values,
    before: Values,
    /// The domain that it belongs to; None: the provider's own.
    domain: Option<PdId>,
    state: State,
}

impl Key {
    /// As peers name it.
    #[inline]
    fn value(&self) -> u32 {
        self.number << 8 | u32::from(self.variant)
    }

    /// Gives it a value that it did not have lately: the first free one from a random start on, in random steps. A quarter of
    /// them is free at least, and an odd step reaches all 256.
    #[inline]
    fn vary(&mut self, start: u8, step: u8) {
        if self.count == LATELY {
            (self.before, self.lately, self.count) = (self.lately, Values::default(), 0);
        }
        let mut value = start;
        while self.lately.has(value) || self.before.has(value) {
            value = value.wrapping_add(step | 1);
        }
        self.lately.add(value);
        (self.variant, self.count) = (value, self.count + 1);
    }
}

/// All keys.
#[derive(Debug, Default)]
pub struct Pool {
    keys: Vec<Key>,
    /// Their places by number.
    places: BTreeMap<u32, u32>,
    /// Those that belong to no user's domain.
    spare: Vec<u32>,
}

impl Pool {
    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Pool::default();
    }

    /// Adds a key that was made.
    pub fn add(&mut self, number: u32) {
        let place = self.keys.len() as u32;
        let state = State::Spare;
        let (lately, before) = (Values::default(), Values::default());
        self.keys.push(Key { number, variant: 0, count: 0, lately, before, domain: None, state });
        self.places.insert(number, place);
        self.spare.push(place);
    }

    /// How many belong to no user's domain.
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Draws a key of those that are spare in a domain, or, if there are none, or fewer than `least`, of those that belong
    /// to none.
    pub fn draw(&mut self, own: &mut Vec<u32>, least: usize, rng: &mut dyn RngCore) -> Option<u32> {
        let few = own.len() < least && !self.spare.is_empty();
        if !(own.is_empty() || few) {
            return self.draw_of(own, rng).map(|(place, _)| place);
        }
        let mut spare = core::mem::take(&mut self.spare);
        let drawn = self.draw_of(&mut spare, rng);
        self.spare = spare;
        drawn.map(|(place, _)| place)
    }

    /// Draws one of these; its value too.
    #[inline(always)]
    pub fn draw_of(&mut self, spare: &mut Vec<u32>, rng: &mut dyn RngCore) -> Option<(u32, u32)> {
        if spare.is_empty() {
            return None;
        }
        let [start, step, a, b] = rng.next_u32().to_le_bytes();
        let random = u32::from_le_bytes([0, 0, a, b]);
        let place = spare.swap_remove(below(spare.len(), random));
        let key = self.keys.get_mut(place as usize)?;
        key.vary(start, step);
        Some((place, key.value()))
    }

    /// The key at a place, as peers name it.
    pub fn value(&self, place: u32) -> u32 {
        self.keys.get(place as usize).map_or(0, Key::value)
    }

    /// It is given to a chunk of a region in a domain.
    #[inline]
    pub fn give(&mut self, place: u32, domain: PdId, region: MrId, chunk: u16) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            (key.domain, key.state) = (Some(domain), State::Given(region, chunk));
        }
    }

    /// It belongs to a domain from now on, or to none.
    pub fn belongs_to(&mut self, place: u32, domain: Option<PdId>) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            key.domain = domain;
        }
    }

    /// It is being taken back; its value.
    #[inline]
    pub fn dies(&mut self, place: u32) -> u32 {
        let Some(key) = self.keys.get_mut(place as usize) else { return 0 };
        key.state = State::Dying;
        key.value()
    }

    /// It was taken back: its value, and the domain that it is spare in, if it is one's.
    #[inline]
    pub fn dead(&mut self, place: u32) -> (u32, Option<PdId>) {
        let Some(key) = self.keys.get_mut(place as usize) else { return (0, None) };
        key.state = State::Spare;
        if key.domain.is_none() {
            self.spare.push(place);
        }
        (key.value(), key.domain)
    }

    /// Puts a spare key to those that belong to no domain.
    pub fn put_back(&mut self, place: u32) {
        self.belongs_to(place, None);
        self.spare.push(place);
    }

    /// Takes one out of those that belong to no domain, for one.
    pub fn take_any(&mut self, rng: &mut dyn RngCore) -> Option<u32> {
        if self.spare.is_empty() {
            return None;
        }
        Some(self.spare.swap_remove(below(self.spare.len(), rng.next_u32())))
    }

    /// The place of a key that a peer has taken back, and whose it was; None if that is known already.
    pub fn taken_by_peer(&self, value: u32) -> Option<(u32, MrId, u16)> {
        let place = *self.places.get(&(value >> 8))?;
        let key = self.keys.get(place as usize)?;
        match key.state {
            State::Given(region, chunk) if u32::from(key.variant) == value & 0xff => {
                Some((place, region, chunk))
            }
            _ => None,
        }
    }
}

/// A number below `end`, which is not 0; each as likely as any other, but for 1 in 2^32 / `end`, or 2^16 / `end` if but the
/// upper half of the bits is random.
fn below(end: usize, random: u32) -> usize {
    ((u64::from(random) * end as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// Numbers that are good enough here.
    struct Chance(u64);

    impl RngCore for Chance {
        fn next_u32(&mut self) -> u32 {
            self.next_u64() as u32
        }
        fn next_u64(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 ^ self.0 >> 33
        }
        fn fill_bytes(&mut self, into: &mut [u8]) {
            into.iter_mut().for_each(|byte| *byte = self.next_u64() as u8);
        }
    }

    /// Draws a key, which is given and taken back; its value.
    fn use_one(pool: &mut Pool, rng: &mut dyn RngCore) -> u32 {
        let place = pool.draw(&mut Vec::new(), 0, rng).unwrap();
        let value = pool.value(place);
        pool.give(place, PdId(1), MrId(2), 3);
        pool.dies(place);
        assert_eq!(pool.dead(place), (value, Some(PdId(1))));
        pool.put_back(place);
        value
    }

    #[test]
    fn no_key_comes_again_soon() {
        let (mut pool, mut rng) = (Pool::default(), Chance(1));
        (100..108).for_each(|number| pool.add(number));
        let mut lately: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for _ in 0..8 * 4000 {
            let value = use_one(&mut pool, &mut rng);
            seen.insert(value);
            let of_it = lately.entry(value >> 8).or_default();
            assert!(!of_it.iter().rev().take(LATELY.into()).any(|old| *old == value), "{value:x}");
            of_it.push(value);
        }
        // In the end all come, of all, about as often as others.
        assert_eq!((seen.len(), lately.len()), (8 * 256, 8));
        let mut counts = [0; 256];
        lately.values().flatten().for_each(|value| counts[*value as usize & 0xff] += 1);
        assert!(counts.iter().all(|count| (100..150).contains(count)), "{counts:?}");
    }

    /// Whatever numbers there are: a value is found.
    #[test]
    fn bad_numbers_end() {
        struct Same(u64);
        impl RngCore for Same {
            fn next_u32(&mut self) -> u32 {
                self.0 as u32
            }
            fn next_u64(&mut self) -> u64 {
                self.0
            }
            fn fill_bytes(&mut self, into: &mut [u8]) {
                into.fill(self.0 as u8);
            }
        }
        for number in [0, u64::MAX, 0x0102_0304_0506_0708] {
            let mut pool = Pool::default();
            (1..4).for_each(|number| pool.add(number));
            (0..2000).for_each(|_| _ = use_one(&mut pool, &mut Same(number)));
        }
    }

    #[test]
    fn a_key_that_a_peer_takes_back_is_known_once() {
        let mut pool = Pool::default();
        pool.add(9);
        let place = pool.draw(&mut Vec::new(), 0, &mut Chance(3)).unwrap();
        let value = pool.value(place);
        assert_eq!(pool.taken_by_peer(value), None, "it is not given");
        pool.give(place, PdId(1), MrId(2), 3);
        assert_eq!(pool.taken_by_peer(value ^ 1), None);
        assert_eq!(pool.taken_by_peer(value), Some((place, MrId(2), 3)));
        pool.dies(place);
        assert_eq!(pool.taken_by_peer(value), None);
        assert_eq!(pool.draw(&mut Vec::new(), 0, &mut Chance(3)), None);
    }
}
