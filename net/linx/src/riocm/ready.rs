//! Connections with something to send, in the order of their turns.

/// The connections, each of which stands here once at most.
#[derive(Debug)]
pub(super) struct Ready {
    ring: [u8; 256],
    first: u8,
    count: u8,
}

impl Ready {
    /// Nobody.
    pub fn new() -> Ready {
        Ready { ring: [0; 256], first: 0, count: 0 }
    }

    /// Whose turn it is.
    #[inline]
    pub fn front(&self) -> Option<u8> {
        (self.count > 0).then(|| self.ring[usize::from(self.first)])
    }

    /// Puts one behind the others, who does not stand here.
    #[inline]
    pub fn push(&mut self, cid: u8) {
        let place = self.first.wrapping_add(self.count);
        self.ring[usize::from(place)] = cid;
        self.count += 1;
    }

    /// Takes out whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<u8> {
        let cid = self.front()?;
        self.advance();
        Some(cid)
    }

    /// The same of one that is known.
    #[inline]
    pub fn advance(&mut self) {
        self.first = self.first.wrapping_add(1);
        self.count -= 1;
    }

    /// Whose turn it was is behind the others.
    #[inline]
    pub fn rotate(&mut self) {
        if let Some(cid) = self.pop() {
            self.push(cid);
        }
    }

    /// Takes one out, wherever it stands.
    pub fn remove(&mut self, cid: u8) {
        for _ in 0..self.count {
            match self.pop() {
                Some(other) if other != cid => self.push(other),
                _ => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsim::Rng;
    use std::collections::VecDeque;

    #[test]
    fn turns_are_as_in_a_queue() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut ready, mut model) = (Ready::new(), VecDeque::new());
            for _ in 0..2000 {
                let cid = rng.within(1..256) as u8;
                match rng.within(0..6) {
                    0 => assert_eq!(ready.pop(), model.pop_front()),
                    1 => {
                        ready.rotate();
                        let by = model.len().min(1);
                        model.rotate_left(by);
                    }
                    2 => {
                        ready.remove(cid);
                        model.retain(|other| *other != cid);
                    }
                    _ if !model.contains(&cid) => {
                        ready.push(cid);
                        model.push_back(cid);
                    }
                    _ => (),
                }
                assert_eq!(ready.front(), model.front().copied(), "seed {seed}");
            }
        }
    }
}
