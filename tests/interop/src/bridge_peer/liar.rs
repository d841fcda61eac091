//! An NTB whose host is malicious: writes through it are altered, torn, dropped or misplaced, and doorbells are rung in
//! bursts.

use drivers::dma::{Dma, Progress, Ticket};
use drivers::hal::{Instant, Window};
use drivers::ntb::{Ntb, NtbDevice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Wraps a bridge, and corrupts writes at random.
pub struct Liar {
    /// The wrapped bridge.
    pub inner: Box<dyn NtbDevice>,
    /// One of this many writes is corrupted; 0: none.
    pub one_in: u32,
    /// Corrupted writes so far.
    pub corrupted: u64,
    rng: StdRng,
}

impl Liar {
    /// Corrupts nothing until `one_in` is set.
    pub fn new(inner: Box<dyn NtbDevice>, seed: u64) -> Liar {
        Liar { inner, one_in: 0, corrupted: 0, rng: StdRng::seed_from_u64(seed) }
    }

    fn decides_to_corrupt(&mut self) -> bool {
        let corrupts = self.one_in > 0 && self.rng.random_range(0..self.one_in) == 0;
        self.corrupted += u64::from(corrupts);
        corrupts
    }
}

/// Returns a random number, a small one, a large one, or one close to `truth`, so that many are nearly plausible.
pub fn corrupt(rng: &mut StdRng, truth: u32) -> u32 {
    match rng.random_range(0..5) {
        0 => rng.random(),
        1 => rng.random_range(0..20),
        2 => u32::MAX - rng.random_range(0..20),
        3 => truth ^ 1u32 << rng.random_range(0..32u32),
        _ => truth.wrapping_add(rng.random_range(0..4)),
    }
}

impl Ntb for Liar {
    fn link(&self) -> bool {
        self.inner.link()
    }

    fn window(&self) -> Window {
        self.inner.window()
    }

    fn exposed(&self) -> Window {
        self.inner.exposed()
    }

    fn loads(&self) -> bool {
        self.inner.loads()
    }

    fn scratchpads(&self) -> usize {
        self.inner.scratchpads()
    }

    fn clear_scratchpads(&mut self) {
        self.inner.clear_scratchpads();
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.inner.scratchpad(n)
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        let value = if self.decides_to_corrupt() { corrupt(&mut self.rng, value) } else { value };
        self.inner.set_peer_scratchpad(n, value);
    }

    fn renew(&mut self) {
        self.inner.renew();
    }

    /// Rings once, or in a burst.
    fn ring(&mut self) {
        let times = if self.decides_to_corrupt() { 32 } else { 1 };
        (0..times).for_each(|_| self.inner.ring());
    }

    fn rung(&mut self) -> bool {
        self.inner.rung()
    }
}

impl Dma for Liar {
    /// Drops a copy, truncates it, or writes it to another place.
    fn submit(&mut self, to: &Window, from: &Window) {
        if !self.decides_to_corrupt() {
            return self.inner.submit(to, from);
        }
        let length = to.len().min(from.len());
        match self.rng.random_range(0..3) {
            0 => {}
            1 => {
                let torn = from.slice(0, (length / 2) & !7).unwrap_or(Window::empty());
                if !torn.is_empty() {
                    self.inner.submit(to, &torn);
                }
            }
            _ => {
                let window = self.inner.window();
                let at = self.rng.random_range(0..window.len() / 8) * 8;
                if let Some(elsewhere) = window.slice(at, length.min(window.len() - at)) {
                    self.inner.submit(&elsewhere, from);
                }
            }
        }
    }

    fn is_asynchronous(&self) -> bool {
        self.inner.is_asynchronous()
    }

    fn submitted(&self) -> Ticket {
        self.inner.submitted()
    }

    /// Alters one 32-bit field of an entry, command, introduction or answer, or drops half of the words.
    fn put(&mut self, to: &Window, words: &[u64]) {
        if !self.decides_to_corrupt() || words.is_empty() {
            return self.inner.put(to, words);
        }
        if self.rng.random_range(0..8) == 0 {
            return self.inner.put(to, &words[..words.len() / 2]);
        }
        let mut words = words.to_vec();
        let word = self.rng.random_range(0..words.len());
        let shift = 32 * self.rng.random_range(0..2u32);
        let truth = (words[word] >> shift) as u32;
        let other = u64::from(corrupt(&mut self.rng, truth));
        words[word] = words[word] & !(u64::from(u32::MAX) << shift) | other << shift;
        self.inner.put(to, &words);
    }

    /// Alters a doorbell value.
    fn put32(&mut self, to: &Window, value: u32) {
        let value = if self.decides_to_corrupt() { corrupt(&mut self.rng, value) } else { value };
        self.inner.put32(to, value);
    }

    /// Omits a barrier, so that an announcement may overtake its data.
    fn order(&mut self) {
        if !self.decides_to_corrupt() {
            self.inner.order();
        }
    }

    fn start(&mut self) -> bool {
        self.inner.start()
    }

    fn complete(&mut self, now: Instant) -> Progress {
        self.inner.complete(now)
    }

    fn settled(&mut self) -> bool {
        self.inner.settled()
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }
}
