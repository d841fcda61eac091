//! Round-robin list of connections with packets to send.

/// The list. Each connection is in it at most once.
#[derive(Debug)]
pub(super) struct Ready {
    ring: [u8; 256],
    first: u8,
    count: u8,
}

impl Ready {
    /// An empty list.
    pub fn new() -> Ready {
        Ready { ring: [0; 256], first: 0, count: 0 }
    }

    /// The connection whose turn it is.
    #[inline]
    pub fn front(&self) -> Option<u8> {
        (self.count > 0).then(|| self.ring[usize::from(self.first)])
    }

    /// Appends a connection that is not in the list.
    #[inline]
    pub fn push(&mut self, cid: u8) {
        let place = self.first.wrapping_add(self.count);
        self.ring[usize::from(place)] = cid;
        self.count += 1;
    }

    /// Removes and returns the connection whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<u8> {
        let cid = self.front()?;
        self.advance();
        Some(cid)
    }

    /// Removes the connection whose turn it is. The list must not be empty.
    #[inline]
    pub fn advance(&mut self) {
        self.first = self.first.wrapping_add(1);
        self.count -= 1;
    }

    /// Moves the connection whose turn it is to the end.
    #[inline]
    pub fn rotate(&mut self) {
        if let Some(cid) = self.pop() {
            self.push(cid);
        }
    }

    /// Removes a connection.
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
    fn ready_list_behaves_like_a_queue() {
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
