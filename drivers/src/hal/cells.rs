//! Cells of rings in DMA memory, which a device may write at any time. One instruction loads or stores each word of a
//! cell. Bounds are checked once, in [`Cells::new`]; an index counts modulo the number of cells, so that every index is
//! valid.

use super::Window;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Type of a cell.
///
/// # Safety
/// Every bit pattern is a valid value of the type, and the memory may change at any time.
pub unsafe trait Cell {}

// SAFETY: every bit pattern is a valid atomic integer, and an atomic integer may change at any time.
unsafe impl Cell for AtomicU16 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU64 {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU64; 8] {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU32; 2] {}
// SAFETY: as above.
unsafe impl Cell for [AtomicU64; 2] {}

/// An array of little-endian cells, whose number is a power of two.
#[derive(Debug)]
pub struct Cells<T> {
    first: NonNull<T>,
    /// Number of cells minus one.
    mask: usize,
}

// SAFETY: `Cells` only makes references to atomic integers, in memory that is mapped for ever.
unsafe impl<T: Cell> Send for Cells<T> {}
// SAFETY: as above.
unsafe impl<T: Cell> Sync for Cells<T> {}

impl<T: Cell> Cells<T> {
    /// `count` cells from `offset` on. None unless they lie inside the window and are aligned, and `count` is a power
    /// of two.
    pub fn new(window: &Window, offset: usize, count: usize) -> Option<Self> {
        let len = count.checked_mul(size_of::<T>())?;
        let first = window.slice(offset, len)?.as_ptr().cast::<T>();
        let mask = count.checked_sub(1)?;
        (count & mask == 0 && first.is_aligned()).then_some(Cells { first, mask })
    }

    /// The cell at `index` modulo the number of cells.
    #[inline]
    fn at(&self, index: usize) -> &T {
        // SAFETY: `new` checked that `mask + 1` aligned cells lie inside a window, which is mapped for ever (promise of
        // `Window::from_raw`). All references to cells are references to atomics.
        unsafe { self.first.add(index & self.mask).as_ref() }
    }
}

impl Cells<AtomicU16> {
    /// Loads a cell. Later reads are not moved before it (acquire).
    #[inline]
    pub fn load(&self, index: usize) -> u16 {
        u16::from_le(self.at(index).load(Ordering::Acquire))
    }

    /// Stores a cell. Earlier writes are visible before it (release).
    #[inline]
    pub fn store(&self, index: usize, value: u16) {
        self.at(index).store(value.to_le(), Ordering::Release);
    }
}

impl Cells<AtomicU64> {
    /// Loads a cell. Later reads are not moved before it (acquire).
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        u64::from_le(self.at(index).load(Ordering::Acquire))
    }

    /// Stores a cell. Earlier writes are visible before it (release).
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        self.at(index).store(value.to_le(), Ordering::Release);
    }
}

impl Cells<[AtomicU64; 8]> {
    /// Stores a cell. Earlier writes are visible before it (release).
    #[inline]
    pub fn store(&self, index: usize, values: &[u64; 8]) {
        let cell = self.at(index);
        let store = |word: usize| cell[word].store(values[word].to_le(), Ordering::Release);
        // Unrolled by hand: the image is optimised for size last, and that pass does not unroll loops.
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
    /// Loads a cell. Later reads are not moved before it (acquire).
    #[inline]
    pub fn load(&self, index: usize) -> [u32; 2] {
        let [first, second] = self.at(index);
        [first, second].map(|word| u32::from_le(word.load(Ordering::Acquire)))
    }
}

impl Cells<[AtomicU64; 2]> {
    /// Stores a cell. Earlier writes are visible before it (release).
    #[inline]
    pub fn store(&self, index: usize, values: [u64; 2]) {
        // Without a loop, as above.
        let ([first, second], values) = (self.at(index), values.map(u64::to_le));
        first.store(values[0], Ordering::Release);
        second.store(values[1], Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use std::thread;

    #[test]
    fn cells_must_be_an_aligned_power_of_two_inside_the_window() {
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

    /// A ring as drivers and peers use it: entries, then the index that publishes them. A reader that has loaded the
    /// index sees complete entries. ThreadSanitizer (`docs/test.md`) reports accesses that are not atomic.
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
                // Wait until the reader has read the previous entry.
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
