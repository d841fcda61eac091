//! Which bytes of a read the server has sent. Chunks may arrive in any order, but must not overlap.

/// Most separate pieces of a read at a time.
const PIECES: usize = 8;

/// The pieces of a read that have arrived, in order, neither touching nor overlapping.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pieces: [(u32, u32); PIECES],
    count: usize,
}

impl Coverage {
    /// Adds the bytes from `start` to before `end`, at least one.
    pub fn add(&mut self, start: u32, end: u32) -> Result<(), &'static str> {
        let known = self.pieces.get(..self.count).unwrap_or_default();
        let place = known.iter().position(|&(from, _)| from >= start).unwrap_or(self.count);
        let before = place.checked_sub(1).and_then(|place| known.get(place)).copied();
        let after = known.get(place).copied();
        if before.is_some_and(|(_, to)| to > start) || after.is_some_and(|(from, _)| from < end) {
            return Err("two chunks of a read overlap");
        }
        let joins_before = before.is_some_and(|(_, to)| to == start);
        let joins_after = after.is_some_and(|(from, _)| from == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[place - 1].1 = self.pieces[place].1;
                self.pieces.copy_within(place + 1..self.count, place);
                self.count -= 1;
            }
            (true, false) => self.pieces[place - 1].1 = end,
            (false, true) => self.pieces[place].0 = start,
            (false, false) if self.count == PIECES => {
                return Err("the chunks of a read are in too many separate pieces");
            }
            (false, false) => {
                self.pieces.copy_within(place..self.count, place + 1);
                self.pieces[place] = (start, end);
                self.count += 1;
            }
        }
        Ok(())
    }

    /// Whether all of `length` bytes have arrived.
    pub fn is_whole(&self, length: u32) -> bool {
        self.count == 1 && self.pieces[0] == (0, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_in_any_order_join_to_the_whole() {
        let mut coverage = Coverage::default();
        for (start, end) in [(8, 12), (0, 4), (12, 16), (4, 8)] {
            assert!(!coverage.is_whole(16));
            coverage.add(start, end).unwrap();
        }
        assert!(coverage.is_whole(16));
        assert!(coverage.add(3, 4).is_err());
    }

    proptest! {
        #[test]
        fn overlaps_are_found_as_by_a_bitmap(adds in prop::collection::vec((0u32..40, 1u32..9), 1..24)) {
            let (mut coverage, mut bitmap) = (Coverage::default(), [false; 64]);
            for (start, length) in adds {
                let range = start as usize..(start + length) as usize;
                let overlaps = bitmap[range.clone()].contains(&true);
                match coverage.add(start, start + length) {
                    Ok(()) => {
                        prop_assert!(!overlaps);
                        bitmap[range].fill(true);
                    }
                    Err(why) => prop_assert!(overlaps || why.contains("separate")),
                }
            }
            let whole = bitmap.iter().position(|is_there| !is_there).unwrap_or(64);
            let is_prefix = bitmap[whole..].iter().all(|is_there| !is_there);
            prop_assert_eq!(coverage.is_whole(whole as u32), is_prefix && whole > 0);
        }
    }
}
