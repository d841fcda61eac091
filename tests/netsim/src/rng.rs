//! The random generator of a simulation.

use rand_core::{Infallible, Rng as _, TryRng};
use std::ops::Range;

/// A seeded generator (SplitMix64), which gives the same numbers on all platforms.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Creates an independent generator: its draws do not affect this one.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }

    /// Draws true with this probability in thousandths.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.next_u64() % 1000 < per_mille as u64
    }

    /// Draws a number from a range, which must not be empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_u64() % (range.end - range.start)
    }

    /// Draws an element of a slice, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize]
    }
}

impl TryRng for Rng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_u64() as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Ok(z ^ z >> 31)
    }

    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
