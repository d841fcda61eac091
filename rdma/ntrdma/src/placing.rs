//! WRITEs that go straight to where they belong in the peer's memory: how much of them in a batch, and their order.

/// Bytes that a queue pair may place in a batch, so that the others have their turn. When the peer has done the first of
/// them there is a next turn.
const BUDGET: usize = 512 << 10;

/// What a queue pair has placed in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placing {
    /// The batch.
    batch: u64,
    bytes: usize,
    /// From where to where in the peer's memory it lies; empty at first.
    from: usize,
    end: usize,
}

impl Placing {
    /// Takes note of `length` bytes that are placed at `offset` in a batch: whether a fence has to be before them, because
    /// what is written in a batch is seen in any order. None if that is too much for this batch.
    pub fn add(&mut self, batch: u64, offset: usize, length: usize) -> Option<bool> {
        if self.batch != batch {
            *self = Placing { batch, ..Placing::default() };
        }
        if self.bytes >= BUDGET {
            return None;
        }
        self.bytes += length;
        let end = offset + length;
        let overlaps = offset < self.end && self.from < end;
        if overlaps || self.end == 0 {
            (self.from, self.end) = (offset, end);
        } else {
            (self.from, self.end) = (self.from.min(offset), self.end.max(end));
        }
        Some(overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_has_a_fence_and_a_batch_has_an_end() {
        let mut placing = Placing::default();
        assert_eq!(placing.add(7, 1000, 100), Some(false));
        assert_eq!([placing.add(7, 1100, 100), placing.add(7, 900, 100)], [Some(false); 2]);
        assert_eq!(placing.add(7, 1199, 1), Some(true));
        assert_eq!(placing.add(7, 900, 100), Some(false), "the fence was between");
        assert_eq!(placing.add(7, 899, 2), Some(true));
        assert_eq!(placing.add(8, 900, 100), Some(false), "another batch");
        for piece in 0..4 {
            assert_eq!(placing.add(9, piece << 17, 1 << 17), Some(false));
        }
        assert_eq!([placing.add(9, 1 << 20, 1), placing.add(10, 1 << 20, 1)], [None, Some(false)]);
    }
}
