//! The pool of memory keys. A key of the card has 24 bits that the firmware chose when it was made, and 8 bits that
//! software chooses at each use. A key is drawn at random from the spare keys, and its 8 bits from the values that it
//! did not have recently, so that peers cannot predict the next key from those that they know.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rand_core::Rng;
use verbs::{MrId, PdId};

/// State of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a list of spare keys.
    Spare,
    /// Granted to the chunk of a region.
    Granted(MrId, u16),
    /// Drawn but not granted, or being revoked.
    Revoking,
}

/// Number of uses after which the recent values of a key become its former values, and the former values may recur: at
/// least 64 of the 256 values can be drawn at any time.
const RECENT_VALUES: u8 = 96;

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
    /// Number and set of its recent values, and the set of its former values.
    count: u8,
    recent: Values,
    former: Values,
    /// The domain of the key; None for the provider's own.
    domain: Option<PdId>,
    state: State,
}

impl Key {
    /// The key on the wire.
    #[inline]
    fn value(&self) -> u32 {
        self.number << 8 | u32::from(self.variant)
    }

    /// Chooses a value that it did not have recently: the first free one from a random start, in random steps. At least
    /// a quarter of the values is free, and an odd step reaches all 256.
    #[inline]
    fn vary(&mut self, start: u8, step: u8) {
        if self.count == RECENT_VALUES {
            (self.former, self.recent, self.count) = (self.recent, Values::default(), 0);
        }
        let mut value = start;
        while self.recent.has(value) || self.former.has(value) {
            value = value.wrapping_add(step | 1);
        }
        self.recent.add(value);
        (self.variant, self.count) = (value, self.count + 1);
    }
}

/// All keys.
#[derive(Debug, Default)]
pub struct Pool {
    keys: Vec<Key>,
    /// Indexes of the keys by number.
    places: BTreeMap<u32, u32>,
    /// Spare keys of no user's domain.
    spare: Vec<u32>,
}

impl Pool {
    /// Removes all keys.
    pub fn clear(&mut self) {
        *self = Pool::default();
    }

    /// Adds a new key.
    pub fn add(&mut self, number: u32) {
        let place = self.keys.len() as u32;
        let state = State::Spare;
        let (recent, former) = (Values::default(), Values::default());
        self.keys.push(Key { number, variant: 0, count: 0, recent, former, domain: None, state });
        self.places.insert(number, place);
        self.spare.push(place);
    }

    /// Number of spare keys of no user's domain.
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Draws a spare key of a domain, or, if it has fewer than `least`, one of no domain.
    pub fn draw(&mut self, own: &mut Vec<u32>, least: usize, rng: &mut dyn Rng) -> Option<u32> {
        let few = own.len() < least && !self.spare.is_empty();
        if !(own.is_empty() || few) {
            return self.draw_of(own, rng).map(|(place, _)| place);
        }
        let mut spare = core::mem::take(&mut self.spare);
        let drawn = self.draw_of(&mut spare, rng);
        self.spare = spare;
        drawn.map(|(place, _)| place)
    }

    /// Draws one of `spare`; returns its place and its key on the wire.
    #[inline]
    pub fn draw_of(&mut self, spare: &mut Vec<u32>, rng: &mut dyn Rng) -> Option<(u32, u32)> {
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

    /// The key on the wire at a place.
    pub fn value(&self, place: u32) -> u32 {
        self.keys.get(place as usize).map_or(0, Key::value)
    }

    /// Grants a key to a chunk of a region in a domain.
    #[inline]
    pub fn grant(&mut self, place: u32, domain: PdId, region: MrId, chunk: u16) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            (key.domain, key.state) = (Some(domain), State::Granted(region, chunk));
        }
    }

    /// Sets the domain of a key, or none.
    pub fn set_domain(&mut self, place: u32, domain: Option<PdId>) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            key.domain = domain;
        }
    }

    /// Marks a key as being revoked; returns the key on the wire.
    #[inline]
    pub fn revoke(&mut self, place: u32) -> u32 {
        let Some(key) = self.keys.get_mut(place as usize) else { return 0 };
        key.state = State::Revoking;
        key.value()
    }

    /// Makes a revoked key spare; returns the key on the wire, and its domain, if it is a user's.
    #[inline]
    pub fn revoked(&mut self, place: u32) -> (u32, Option<PdId>) {
        let Some(key) = self.keys.get_mut(place as usize) else { return (0, None) };
        key.state = State::Spare;
        if key.domain.is_none() {
            self.spare.push(place);
        }
        (key.value(), key.domain)
    }

    /// Makes a spare key one of no domain.
    pub fn put_back(&mut self, place: u32) {
        self.set_domain(place, None);
        self.spare.push(place);
    }

    /// Takes out a spare key of no domain, for use in a domain.
    pub fn take_spare(&mut self, rng: &mut dyn Rng) -> Option<u32> {
        if self.spare.is_empty() {
            return None;
        }
        Some(self.spare.swap_remove(below(self.spare.len(), rng.next_u32())))
    }

    /// The place of a key that a peer has invalidated, and its chunk; None if the key is not granted.
    pub fn invalidated_by_peer(&self, value: u32) -> Option<(u32, MrId, u16)> {
        let place = *self.places.get(&(value >> 8))?;
        let key = self.keys.get(place as usize)?;
        match key.state {
            State::Granted(region, chunk) if u32::from(key.variant) == value & 0xff => {
                Some((place, region, chunk))
            }
            _ => None,
        }
    }
}

/// A number below `end`, which is not 0. All are equally likely except for 1 in 2^32 / `end`, or 2^16 / `end` if only
/// the upper half of the bits is random.
fn below(end: usize, random: u32) -> usize {
    ((u64::from(random) * end as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use rand_core::{Infallible, TryRng};

    /// A simple random number generator for tests.
    struct TestRng(u64);

    impl TryRng for TestRng {
        type Error = Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Infallible> {
            Ok(self.next_u64() as u32)
        }
        fn try_next_u64(&mut self) -> Result<u64, Infallible> {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            Ok(self.0 ^ self.0 >> 33)
        }
        fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
            into.iter_mut().for_each(|byte| *byte = self.next_u64() as u8);
            Ok(())
        }
    }

    /// Draws a key, grants and revokes it; returns the key on the wire.
    fn use_key(pool: &mut Pool, rng: &mut dyn Rng) -> u32 {
        let place = pool.draw(&mut Vec::new(), 0, rng).unwrap();
        let value = pool.value(place);
        pool.grant(place, PdId(1), MrId(2), 3);
        pool.revoke(place);
        assert_eq!(pool.revoked(place), (value, Some(PdId(1))));
        pool.put_back(place);
        value
    }

    #[test]
    fn key_values_do_not_recur_soon() {
        let (mut pool, mut rng) = (Pool::default(), TestRng(1));
        (100..108).for_each(|number| pool.add(number));
        let mut recent: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for _ in 0..8 * 4000 {
            let value = use_key(&mut pool, &mut rng);
            seen.insert(value);
            let of_it = recent.entry(value >> 8).or_default();
            assert!(
                !of_it.iter().rev().take(RECENT_VALUES.into()).any(|old| *old == value),
                "{value:x}"
            );
            of_it.push(value);
        }
        // In the end all values occur, about equally often.
        assert_eq!((seen.len(), recent.len()), (8 * 256, 8));
        let mut counts = [0; 256];
        recent.values().flatten().for_each(|value| counts[*value as usize & 0xff] += 1);
        assert!(counts.iter().all(|count| (100..150).contains(count)), "{counts:?}");
    }

    /// A value is found with any random numbers.
    #[test]
    fn key_is_drawn_with_any_random_numbers() {
        struct Same(u64);
        impl TryRng for Same {
            type Error = Infallible;

            fn try_next_u32(&mut self) -> Result<u32, Infallible> {
                Ok(self.0 as u32)
            }
            fn try_next_u64(&mut self) -> Result<u64, Infallible> {
                Ok(self.0)
            }
            fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
                into.fill(self.0 as u8);
                Ok(())
            }
        }
        for number in [0, u64::MAX, 0x0102_0304_0506_0708] {
            let mut pool = Pool::default();
            (1..4).for_each(|number| pool.add(number));
            (0..2000).for_each(|_| _ = use_key(&mut pool, &mut Same(number)));
        }
    }

    #[test]
    fn key_invalidated_by_a_peer_is_found_once() {
        let mut pool = Pool::default();
        pool.add(9);
        let place = pool.draw(&mut Vec::new(), 0, &mut TestRng(3)).unwrap();
        let value = pool.value(place);
        assert_eq!(pool.invalidated_by_peer(value), None, "the key is not granted");
        pool.grant(place, PdId(1), MrId(2), 3);
        assert_eq!(pool.invalidated_by_peer(value ^ 1), None);
        assert_eq!(pool.invalidated_by_peer(value), Some((place, MrId(2), 3)));
        pool.revoke(place);
        assert_eq!(pool.invalidated_by_peer(value), None);
        assert_eq!(pool.draw(&mut Vec::new(), 0, &mut TestRng(3)), None);
    }
}
