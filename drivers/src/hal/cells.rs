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
}
