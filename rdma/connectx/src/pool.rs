//! The pool of memory keys. A key of the card has 24 bits that firmware chose when it was made, and 8 that software chooses
//! with each use. So that peers cannot tell the next key from those that they know, it is drawn from those that are
//! spare, and its 8 bits from the values that it never had (until it had all of them).

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

/// A key.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// The card's number of it, and its 8 bits.
    number: u32,
    variant: u8,
    /// The values that those had, and how many.
    used: [u64; 4],
    count: u16,
    /// The domain that it belongs to; None: the provider's own.
    domain: Option<PdId>,
    state: State,
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
        self.keys.push(Key { number, variant: 0, used: [0; 4], count: 0, domain: None, state });
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
        let from = match own.len() {
            0 => &mut self.spare,
            few if few < least && !self.spare.is_empty() => &mut self.spare,
            _ => own,
        };
        if from.is_empty() {
            return None;
        }
        let place = from.swap_remove(below(from.len() as u32, rng) as usize);
        let key = self.keys.get_mut(place as usize)?;
        if key.count == 256 {
            (key.used, key.count) = ([0; 4], 0);
        }
        // The value of that rank among those that it never had.
        let mut rank = below(256 - u32::from(key.count), rng);
        for (number, word) in key.used.iter_mut().enumerate() {
            let unused = word.count_zeros();
            if rank < unused {
                let bit = nth_set(!*word, rank);
                *word |= 1 << bit;
                key.count += 1;
                key.variant = 64 * number as u8 + bit as u8;
                break;
            }
            rank -= unused;
        }
        Some(place)
    }

    /// The key at a place, as peers name it.
    pub fn value(&self, place: u32) -> u32 {
        self.keys.get(place as usize).map_or(0, |key| key.number << 8 | u32::from(key.variant))
    }

    /// It is given to a chunk of a region in a domain.
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

    /// It is being taken back.
    pub fn dies(&mut self, place: u32) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            key.state = State::Dying;
        }
    }

    /// It was taken back: the domain that it is spare in, if it is one's.
    pub fn dead(&mut self, place: u32) -> Option<PdId> {
        let key = self.keys.get_mut(place as usize)?;
        key.state = State::Spare;
        if key.domain.is_none() {
            self.spare.push(place);
        }
        key.domain
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
        Some(self.spare.swap_remove(below(self.spare.len() as u32, rng) as usize))
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

/// The place of the bit of this rank among those that are set, of which there are more.
fn nth_set(mut word: u64, mut rank: u32) -> u32 {
    let mut place = 0;
    for half in [32, 16, 8, 4, 2, 1] {
        let below = (word & ((1 << half) - 1)).count_ones();
        if rank >= below {
            rank -= below;
            word >>= half;
            place += half;
        }
    }
    place
}

/// A number below `end`, which is not 0; each as likely as any other, but for 1 in 2^32 / `end`.
fn below(end: u32, rng: &mut dyn RngCore) -> u32 {
    (u64::from(rng.next_u32()) * u64::from(end) >> 32) as u32
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

    #[test]
    fn no_key_comes_twice_before_all_have_come() {
        let mut pool = Pool::default();
        let mut rng = Chance(1);
        (100..108).for_each(|number| pool.add(number));
        let mut seen = BTreeSet::new();
        for _ in 0..8 * 128 {
            let place = pool.draw(&mut Vec::new(), 0, &mut rng).unwrap();
            assert!(seen.insert(pool.value(place)), "{:x}", pool.value(place));
            pool.give(place, PdId(1), MrId(2), 3);
            pool.dies(place);
            assert_eq!(pool.dead(place), Some(PdId(1)));
            pool.put_back(place);
        }
        // A single key has all of its values once.
        let mut own = alloc::vec![0];
        let mut values = BTreeSet::new();
        for _ in 0..256 {
            let place = pool.draw(&mut own, 1, &mut rng).unwrap();
            values.insert(pool.value(place));
            own.push(place);
        }
        assert!(values.len() >= 128);
    }

    #[test]
    fn bits_are_found_by_rank() {
        let mut chance = Chance(5);
        for word in [1, 1 << 63, u64::MAX, chance.next_u64(), chance.next_u64()] {
            let set: Vec<u32> = (0..64).filter(|bit| word >> bit & 1 == 1).collect();
            let found = (0..word.count_ones()).map(|rank| nth_set(word, rank));
            assert_eq!(found.collect::<Vec<_>>(), set);
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
