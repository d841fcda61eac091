//! A bridge whose machine lies: what passes through it is changed, torn, left out, or rung too often.

use drivers::dma::{Dma, Progress, Ticket};
use drivers::hal::{Instant, Window};
use drivers::ntb::{Ntb, NtbDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The bridge.
pub struct Liar {
    /// The bridge beneath.
    pub inner: Box<dyn NtbDevice>,
    /// Of so many things that are written one is a lie; 0: none is.
    pub one_in: u32,
    /// Lies so far.
    pub told: u64,
    rng: StdRng,
}

impl Liar {
    /// One that is honest so far.
    pub fn new(inner: Box<dyn NtbDevice>, seed: u64) -> Liar {
        Liar { inner, one_in: 0, told: 0, rng: StdRng::seed_from_u64(seed) }
    }

    fn lies(&mut self) -> bool {
        let lies = self.one_in > 0 && self.rng.random_range(0..self.one_in) == 0;
        self.told += u64::from(lies);
        lies
    }
}

/// Noise, a small number, a large one, or a little more than the truth, so that much of it almost makes sense.
pub fn lie(rng: &mut StdRng, truth: u32) -> u32 {
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
        let value = if self.lies() { lie(&mut self.rng, value) } else { value };
        self.inner.set_peer_scratchpad(n, value);
    }

    fn renew(&mut self) {
        self.inner.renew();
    }

    /// Rung far too often.
    fn ring(&mut self) {
        let times = if self.lies() { 32 } else { 1 };
        (0..times).for_each(|_| self.inner.ring());
    }

    fn rung(&mut self) -> bool {
        self.inner.rung()
    }
}

impl Dma for Liar {
    /// Of a copy the end, or everything, does not come; or it comes to another place.
    fn submit(&mut self, to: &Window, from: &Window) {
        if !self.lies() {
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

    /// A field of an entry, a command, the introduction or an answer says something else; or half of it is missing.
    fn put(&mut self, to: &Window, words: &[u64]) {
        if !self.lies() || words.is_empty() {
            return self.inner.put(to, words);
        }
        if self.rng.random_range(0..8) == 0 {
            return self.inner.put(to, &words[..words.len() / 2]);
        }
        let mut words = words.to_vec();
        let word = self.rng.random_range(0..words.len());
        let shift = 32 * self.rng.random_range(0..2u32);
        let truth = (words[word] >> shift) as u32;
        let other = u64::from(lie(&mut self.rng, truth));
        words[word] = words[word] & !(u64::from(u32::MAX) << shift) | other << shift;
        self.inner.put(to, &words);
    }

    /// A bell.
    fn put32(&mut self, to: &Window, value: u32) {
        let value = if self.lies() { lie(&mut self.rng, value) } else { value };
        self.inner.put32(to, value);
    }

    /// What it announces may come behind it.
    fn order(&mut self) {
        if !self.lies() {
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
