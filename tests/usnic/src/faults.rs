//! Faults of a bad network for datagrams, in either direction, at the engine's end.

use netsim::Rng;

/// Rates of faults, in thousandths of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Lost.
    pub loss: u32,
    /// Duplicated.
    pub twice: u32,
    /// Delivered after later datagrams.
    pub late: u32,
    /// Delivered with a flipped bit. The owner of the frames applies this with [`Faults::damage`].
    pub damaged: u32,
}

/// Most datagrams that overtake a late one.
const OVERTAKE: u64 = 40;

/// Faults of one direction.
#[derive(Debug)]
pub struct Faults<T> {
    rates: Rates,
    rng: Rng,
    /// Late datagrams, with the number of datagrams that still overtake each.
    late: Vec<(u64, T)>,
}

impl<T: Clone> Faults<T> {
    /// Faults with these rates, from a seed.
    pub fn new(rates: Rates, seed: u64) -> Self {
        Faults { rates, rng: Rng::new(seed), late: Vec::new() }
    }

    /// Delivers, drops or delays a datagram, and delivers late ones that are due.
    pub fn pass(&mut self, datagram: T, mut to: impl FnMut(T)) {
        if self.rng.chance(self.rates.late) {
            self.late.push((self.rng.within(1..OVERTAKE), datagram));
        } else if !self.rng.chance(self.rates.loss) {
            if self.rng.chance(self.rates.twice) {
                to(datagram.clone());
            }
            to(datagram);
        }
        self.late.iter_mut().for_each(|(after, _)| *after -= 1);
        while let Some(at) = self.late.iter().position(|(after, _)| *after == 0) {
            to(self.late.swap_remove(at).1);
        }
    }

    /// Whether any rate is not zero.
    pub fn any(&self) -> bool {
        let Rates { loss, twice, late, damaged } = self.rates;
        loss + twice + late + damaged > 0
    }

    /// Flips a bit of the frame, behind the first `spared` bytes, at the rate of damage. Returns whether it did.
    pub fn damage(&mut self, frame: &mut [u8], spared: usize) -> bool {
        let bits = 8 * frame.len().saturating_sub(spared) as u64;
        if bits == 0 || !self.rng.chance(self.rates.damaged) {
            return false;
        }
        let bit = self.rng.within(0..bits) as usize;
        frame[spared + bit / 8] ^= 1 << (bit % 8);
        true
    }
}
