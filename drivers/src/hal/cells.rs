//! Cells of rings in DMA memory, which a device may write at any time: loaded and stored whole, each
//! by one instruction. Which memory is theirs is checked once, when they are made; an index counts modulo
//! their number, so that none is wrong.

use super::Window;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What a cell is made of.
///
/// # Safety
/// All bytes are a value of it, and it may change at any time.
pub unsafe trait Cell {}

// SAFETY: atomic integers are both.
unsafe impl Cell for AtomicU16 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU64 {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU64; 8] {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU32; 2] {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU64; 2] {}

/// A power of two of little-endian cells that lie side by side.
#[derive(Debug)]
pub struct Cells<T> {
    first: NonNull<T>,
    /// One less than their number.
    mask: usize,
}

// SAFETY: it gives references to atomic integers alone, in memory that is mapped for ever.
unsafe impl<T: Cell> Send for Cells<T> {}
// SAFETY: as above.
unsafe impl<T: Cell> Sync for Cells<T> {}

impl<T: Cell> Cells<T> {
    /// `count` cells from `offset` on. None when they are not inside the window, not aligned, or
    /// no power of two.
    pub fn new(window: &Window, offset: usize, count: usize) -> Option<Self> {
        let len = count.checked_mul(size_of::<T>())?;
        let first = window.slice(offset, len)?.as_ptr().cast::<T>();
        let mask = count.checked_sub(1)?;
        (count & mask == 0 && first.is_aligned()).then_some(Cells { first, mask })
    }

    /// The cell of this index, modulo their number.
    #[inline(always)]
    fn at(&self, index: usize) -> &T {
        // SAFETY: `new` found so many cells inside a window, which is mapped for ever (promise of
        // `Window::from_raw`), and aligned; no reference but atomic ones is made to cells.
        unsafe { self.first.add(index & self.mask).as_ref() }
    }
}

impl Cells<AtomicU16> {
    /// Nothing after it is read before it (acquire).
    #[inline(always)]
    pub fn load(&self, index: usize) -> u16 {
        u16::from_le(self.at(index).load(Ordering::Acquire))
    }

    /// Everything before it is written before it (release).
    #[inline(always)]
    pub fn store(&self, index: usize, value: u16) {
        self.at(index).store(value.to_le(), Ordering::Release);
    }
}

impl Cells<AtomicU64> {
    /// Nothing after it is read before it (acquire).
    #[inline(always)]
    pub fn load(&self, index: usize) -> u64 {
        u64::from_le(self.at(index).load(Ordering::Acquire))
    }

    /// Everything before it is written before it (release).
    #[inline(always)]
    pub fn store(&self, index: usize, value: u64) {
        self.at(index).store(value.to_le(), Ordering::Release);
    }
}

impl Cells<[AtomicU64; 8]> {
    /// Everything before it is written before it (release).
    #[inline(always)]
    pub fn store(&self, index: usize, values: &[u64; 8]) {
        let cell = self.at(index);
        let store = |word: usize| cell[word].store(values[word].to_le(), Ordering::Release);
        // No loop: the last pass over the image, which is for size, leaves loops as they are.
        store(0);
        store(1);
        store(2);
        store(3);
        store(4);
        store(5);
        store(6);
        store(7);
    }
}

impl Cells<[AtomicU32; 2]> {
    /// Nothing after it is read before it (acquire).
    #[inline(always)]
    pub fn load(&self, index: usize) -> [u32; 2] {
        let [first, second] = self.at(index);
        [first, second].map(|word| u32::from_le(word.load(Ordering::Acquire)))
    }
}

impl Cells<[AtomicU64; 2]> {
    /// Everything before it is written before it (release).
    #[inline(always)]
    pub fn store(&self, index: usize, values: [u64; 2]) {
        for (word, value) in self.at(index).iter().zip(values) {
            word.store(value.to_le(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use std::thread;

    #[test]
    fn only_aligned_powers_of_two_inside_the_window() {
        let window = Arena::on_heap(4096).alloc(64, 64).unwrap().slice(0, 64).unwrap();
        let new = |offset, count| Cells::<AtomicU16>::new(&window, offset, count).is_some();
        assert!(new(0, 32) && new(62, 1) && new(2, 16));
        assert!(!new(2, 32) && !new(64, 1) && !new(1, 1) && !new(0, 0) && !new(0, 3));
        assert!(!new(0, 1 << 63) && !new(usize::MAX, 1));
    }

    #[test]
    fn indices_count_modulo_the_number_of_cells() {
        let window = Arena::on_heap(4096).alloc(64, 64).unwrap();
        let cells = Cells::<AtomicU16>::new(&window, 16, 4).unwrap();
        cells.store(3, 7);
        cells.store(0xffff_fffc, 5);
        assert_eq!((cells.load(7), cells.load(0)), (7, 5));
        assert_eq!((window.load16(16), window.load16(22)), (5, 7));
        let entries = Cells::<[AtomicU64; 2]>::new(&window, 0, 4).unwrap();
        entries.store(6, [1, 2 << 32 | 3]);
        let words = Cells::<[AtomicU32; 2]>::new(&window, 0, 8).unwrap();
        assert_eq!((words.load(4), words.load(5)), ([1, 0], [3, 2]));
    }

    /// A ring as drivers and peers have it: entries, then the index that announces them. What is read behind the
    /// index is all there; ThreadSanitizer (`docs/test.md`) sees that nothing is accessed in another way.
    #[test]
    fn two_threads_share_a_ring() {
        const ROUNDS: u16 = if cfg!(miri) { 20 } else { 2_000 };
        let mut arena = Arena::on_heap(1 << 16);
        let ring = arena.alloc(4096, 64).unwrap();
        let (entries, index) = (64, 2048);
        let cells = Cells::<[AtomicU64; 2]>::new(&ring, entries, 8).unwrap();
        let indices = Cells::<AtomicU16>::new(&ring, index, 1).unwrap();
        let other = thread::spawn(move || {
            for round in 0..ROUNDS {
                // The other side has read what was there.
                while ring.load16(index + 64) != round {
                    thread::yield_now();
                }
                cells.store(round.into(), [round.into(), 7]);
                ring.store_words(512, &[round.into(); 8]);
                ring.write(1024, &[round as u8; 100]).unwrap();
                indices.store(0, round + 1);
            }
        });
        for round in 0..ROUNDS {
            while ring.load16(index) != round + 1 {
                thread::yield_now();
            }
            let at = entries + usize::from(round % 8) * 16;
            assert_eq!((ring.load64(at), ring.load32(at + 8)), (round.into(), 7));
            let mut words = [0; 8];
            ring.load_words(512, &mut words);
            assert_eq!(words, [u64::from(round); 8]);
            assert_eq!(ring.read_array::<100>(1024), Ok([round as u8; 100]));
            ring.store16(index + 64, round + 1);
        }
        other.join().unwrap();
    }
}
