//! Placed WRITEs, which go directly to their destination in the peer's memory: their limit in a batch, and their order.

/// Bytes that a queue pair may place in a batch, so that other queue pairs get their turn. It continues when the peer
/// has done the first of them.
const BUDGET: usize = 512 << 10;

/// WRITEs that a queue pair has placed in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placing {
    /// Number of the batch.
    batch: u64,
    bytes: usize,
    /// Start of the range in the peer's memory.
    from: usize,
    /// End of the range; 0 at first.
    end: usize,
}

impl Placing {
    /// Adds a WRITE of `length` bytes at `offset` to a batch. True if it needs a fence before it, because
    /// writes of a batch become visible in any order. None if the batch is full.
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
    fn overlapping_writes_need_a_fence_and_a_batch_is_limited() {
        let mut placing = Placing::default();
        assert_eq!(placing.add(7, 1000, 100), Some(false));
        assert_eq!([placing.add(7, 1100, 100), placing.add(7, 900, 100)], [Some(false); 2]);
        assert_eq!(placing.add(7, 1199, 1), Some(true));
        assert_eq!(placing.add(7, 900, 100), Some(false), "a fence came between");
        assert_eq!(placing.add(7, 899, 2), Some(true));
        assert_eq!(placing.add(8, 900, 100), Some(false), "another batch");
        for piece in 0..4 {
            assert_eq!(placing.add(9, piece << 17, 1 << 17), Some(false));
        }
        assert_eq!([placing.add(9, 1 << 20, 1), placing.add(10, 1 << 20, 1)], [None, Some(false)]);
    }
}
