//! The appliance's random number generator: a CSPRNG (ChaCha) that is seeded from all entropy sources of the machine,
//! and reseeded periodically. So no single source determines its secret, and machines resumed from the same snapshot
//! draw equal numbers only until the next reseeding.

use rand_chacha::ChaCha12Rng;
use rand_core::{Infallible, Rng, SeedableRng, TryRng};

/// Bytes of a seed.
pub const SEED: usize = 32;
/// Maximum number of draws between two seedings.
const DRAWS: u32 = 1 << 16;
/// Maximum number of ticks between two seedings: some 20 seconds.
const TICKS: u64 = 1 << 36;

/// Entropy sources that can be read at any time, on any core.
#[derive(Clone, Copy, Debug)]
pub struct EntropySources {
    /// The processor's random number generator; None if it has none.
    pub cpu: fn() -> Option<[u8; SEED]>,
    /// A counter of the processor that always advances and differs between machines.
    pub ticks: fn() -> u64,
}

impl EntropySources {
    /// No sources, for reproducible tests.
    pub const NONE: EntropySources = EntropySources { cpu: || None, ticks: || 0 };
}

/// A generator that reseeds itself.
#[derive(Debug)]
pub struct Randomness {
    generator: ChaCha12Rng,
    sources: EntropySources,
    draws: u32,
    since: u64,
}

impl Randomness {
    /// A generator with this seed, which must be unpredictable.
    pub fn new(seed: [u8; SEED], sources: EntropySources) -> Self {
        let since = (sources.ticks)();
        Randomness { generator: ChaCha12Rng::from_seed(seed), sources, draws: 0, since }
    }

    /// Mixes `input` into the state. The new key is the next output of the generator XORed with `input`: knowledge of
    /// one of the two does not reveal the key.
    pub fn absorb(&mut self, input: &[u8; SEED]) {
        let mut key = [0; SEED];
        self.generator.fill_bytes(&mut key);
        key.iter_mut().zip(input).for_each(|(byte, more)| *byte ^= more);
        self.generator = ChaCha12Rng::from_seed(key);
    }

    /// Counts a draw, and reseeds first if that is due.
    #[inline]
    fn draw(&mut self) -> &mut ChaCha12Rng {
        self.draws += 1;
        let ticks = (self.sources.ticks)();
        if self.draws > DRAWS || ticks.wrapping_sub(self.since) > TICKS {
            self.reseed(ticks);
        }
        &mut self.generator
    }

    #[cold]
    fn reseed(&mut self, ticks: u64) {
        (self.draws, self.since) = (1, ticks);
        let mut counter = [0; SEED];
        counter[..8].copy_from_slice(&ticks.to_le_bytes());
        self.absorb(&counter);
        if let Some(fresh) = (self.sources.cpu)() {
            self.absorb(&fresh);
        }
    }
}

impl TryRng for Randomness {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.draw().try_next_u32()
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.draw().try_next_u64()
    }

    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        self.draw().try_fill_bytes(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::vec::Vec;

    fn drawn(random: &mut Randomness, count: u32) -> Vec<u64> {
        (0..count).map(|_| random.next_u64()).collect()
    }

    #[test]
    fn every_input_changes_the_output() {
        let with = |inputs: &[[u8; SEED]]| {
            let mut random = Randomness::new([1; SEED], EntropySources::NONE);
            inputs.iter().for_each(|input| random.absorb(input));
            random.next_u64()
        };
        let all =
            [with(&[]), with(&[[0; SEED]]), with(&[[2; SEED]]), with(&[[2; SEED], [3; SEED]])];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[n + 1..].contains(one));
        }
    }

    #[test]
    fn copies_of_one_state_differ_after_many_draws() {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let cpu = || Some([NEXT.fetch_add(1, Ordering::Relaxed) as u8; SEED]);
        let sources = EntropySources { cpu, ..EntropySources::NONE };
        let mut copies = [0; 2].map(|_| Randomness::new([1; SEED], sources));
        let before = copies.each_mut().map(|copy| drawn(copy, DRAWS));
        assert_eq!(before[0], before[1]);
        let after = copies.each_mut().map(|copy| drawn(copy, 100));
        assert!(after[0].iter().zip(&after[1]).all(|(one, other)| one != other));
    }

    #[test]
    fn copies_of_one_state_differ_after_a_while() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let sources =
            EntropySources { ticks: || NOW.load(Ordering::Relaxed), ..EntropySources::NONE };
        let mut copies = [0; 2].map(|_| Randomness::new([1; SEED], sources));
        let mut at = |copy: usize, ticks| {
            NOW.store(ticks, Ordering::Relaxed);
            copies[copy].next_u64()
        };
        assert_eq!(at(0, TICKS), at(1, TICKS - 5));
        assert_ne!(at(0, TICKS + 1), at(1, TICKS + 9), "the counter alone makes them differ");
    }
}
