//! What a bad network does to datagrams, in either direction, at our end.

use netsim::Rng;

/// How often what happens, in thousandths of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// It is lost.
    pub loss: u32,
    /// It comes twice.
    pub twice: u32,
    /// It comes after some of those that follow.
    pub late: u32,
    /// A bit of it is another; whoever has the frames does that.
    pub damaged: u32,
}

/// Most datagrams that overtake one that is late.
const OVERTAKE: u64 = 40;

/// One direction.
#[derive(Debug)]
pub struct Faults<T> {
    rates: Rates,
    rng: Rng,
    /// What is late, and after how many more it comes.
    late: Vec<(u64, T)>,
}

impl<T: Clone> Faults<T> {
    /// From a seed.
    pub fn new(rates: Rates, seed: u64) -> Self {
        Faults { rates, rng: Rng::new(seed), late: Vec::new() }
    }

    /// Passes a datagram on, or does not; and others that were late.
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

    /// Whether it does anything.
    pub fn any(&self) -> bool {
        let Rates { loss, twice, late, damaged } = self.rates;
        loss + twice + late + damaged > 0
    }

    /// Whether the next datagram is damaged: another value for a bit of its frame, behind the first `spared` bytes.
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
