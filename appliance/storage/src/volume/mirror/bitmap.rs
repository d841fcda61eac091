//! Bitmap with a bit for each region of a mirror.

use alloc::boxed::Box;

/// Most regions.
pub(super) const BITS: usize = 1 << 15;
/// Bytes of a bitmap.
pub(super) const BYTES: usize = BITS / 8;

/// A set of regions of a mirror.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bitmap(Box<[u64]>);

impl Bitmap {
    /// The empty set.
    pub fn new() -> Self {
        Bitmap(alloc::vec![0; BITS / 64].into_boxed_slice())
    }

    pub fn set(&mut self, region: usize) {
        if let Some(word) = self.0.get_mut(region / 64) {
            *word |= 1 << (region % 64);
        }
    }

    pub fn set_all(&mut self, mut regions: core::ops::Range<usize>) {
        regions.by_ref().for_each(|region| self.set(region));
    }

    pub fn clear(&mut self, region: usize) {
        if let Some(word) = self.0.get_mut(region / 64) {
            *word &= !(1 << (region % 64));
        }
    }

    pub fn clear_all(&mut self) {
        self.0.fill(0);
    }

    pub fn contains(&self, mut regions: core::ops::Range<usize>) -> bool {
        regions.all(|region| {
            self.0.get(region / 64).is_some_and(|word| word & 1 << (region % 64) != 0)
        })
    }

    pub fn add(&mut self, other: &Bitmap) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    pub fn keep(&mut self, other: &Bitmap) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= b);
    }

    pub fn copy(&mut self, other: &Bitmap) {
        self.0.copy_from_slice(&other.0);
    }

    /// The set in terms of larger regions, each of which is `regions` of these.
    pub fn folded(&self, regions: usize) -> Bitmap {
        if regions == 1 {
            return self.clone();
        }
        let mut folded = Bitmap::new();
        for (n, mut word) in self.0.iter().copied().enumerate() {
            while word != 0 {
                folded.set((n * 64 + word.trailing_zeros() as usize) / regions);
                word &= word - 1;
            }
        }
        folded
    }

    /// The first region, if there is any.
    pub fn first(&self) -> Option<usize> {
        let at = self.0.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.0[at].trailing_zeros() as usize)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub fn parse(bytes: &[u8; BYTES]) -> Self {
        let mut bitmap = Bitmap::new();
        for (bytes, word) in bytes.as_chunks().0.iter().zip(&mut bitmap.0) {
            *word = u64::from_le_bytes(*bytes);
        }
        bitmap
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Regions around the borders of words, and the last ones.
    fn region() -> impl Strategy<Value = usize> {
        prop_oneof![0..4usize, 62..67usize, BITS - 3..BITS]
    }

    fn all(bitmap: &Bitmap) -> BTreeSet<usize> {
        (0..BITS).filter(|&region| bitmap.contains(region..region + 1)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Two bitmaps against two sets.
        #[test]
        fn bitmap_behaves_as_a_set_of_regions(steps in proptest::collection::vec((0..6u8, region(), region()), 1..30)) {
            let (mut bitmaps, mut sets) = ([Bitmap::new(), Bitmap::new()], [BTreeSet::new(), BTreeSet::new()]);
            for (what, first, second) in steps {
                let ([one, other], [set, others]) = (&mut bitmaps, &mut sets);
                match what {
                    0 => { one.set(first); set.insert(first); }
                    1 => { one.clear(first); set.remove(&first); }
                    2 => {
                        other.set_all(first..first + 2);
                        others.extend([first, first + 1].into_iter().filter(|&region| region < BITS));
                    }
                    3 => { one.add(other); set.extend(others.iter()); }
                    4 => { one.keep(other); set.retain(|region| others.contains(region)); }
                    _ => { other.clear(second); others.remove(&second); }
                }
                prop_assert_eq!(&all(one), &*set);
                prop_assert_eq!(one.first(), set.first().copied());
                prop_assert_eq!(one.count(), set.len());
                prop_assert_eq!(one.contains(first..second), (first..second).all(|region| set.contains(&region)));
                let mut bytes = [0; BYTES];
                one.emit(&mut bytes);
                prop_assert!(Bitmap::parse(&bytes) == *one);
                let marked: Vec<usize> = (0..BITS).filter(|n| bytes[n / 8] >> (n % 8) & 1 == 1).collect();
                prop_assert!(marked.iter().eq(set.iter()), "the format of the records");
            }
            let [mut one, other] = bitmaps;
            one.copy(&other);
            prop_assert!(one == other);
            one.clear_all();
            prop_assert!(one == Bitmap::new());
        }
    }
}
