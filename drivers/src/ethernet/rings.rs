//! Shared parts of receive and transmit rings: memory, and running numbers of entries.

use crate::hal::{Arena, Cell, Cells, Window};
use alloc::vec::Vec;

/// Alignment of rings and buffers.
const PAGE: usize = 4096;

/// The arena has no room for this many bytes.
pub struct NoMemory {
    pub bytes: usize,
}

/// Memory for rings and buffers. The owner of `taken` frees it, after the rings were dropped.
pub struct RingMemory<'a> {
    pub arena: &'a mut Arena,
    /// The allocated windows.
    pub taken: &'a mut Vec<Window>,
}

impl RingMemory<'_> {
    /// Allocates `bytes`, at the beginning of a page.
    pub fn alloc(&mut self, bytes: usize) -> Result<Window, NoMemory> {
        let window = self.arena.alloc(bytes, PAGE).ok_or(NoMemory { bytes })?;
        self.taken.push(window);
        Ok(window)
    }
}

/// `count` cells of a ring, from `offset` on.
pub fn cells<T: Cell>(ring: &Window, offset: usize, count: usize) -> Result<Cells<T>, NoMemory> {
    Cells::new(ring, offset, count).ok_or(NoMemory { bytes: ring.len() })
}

/// Number of entries of a ring, a power of two. Running numbers of entries wrap at 2^32.
#[derive(Clone, Copy)]
pub struct Entries {
    /// Number of entries minus one.
    mask: u32,
    log2: u32,
}

impl Entries {
    pub fn new(count: usize) -> Self {
        Entries { mask: count as u32 - 1, log2: count.ilog2() }
    }

    #[inline]
    pub fn count(self) -> u32 {
        self.mask.wrapping_add(1)
    }

    pub fn log2(self) -> u32 {
        self.log2
    }

    /// Index of the entry with this running number.
    #[inline]
    pub fn index(self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    /// Bit 0 of the entry's lap, which begins with 1. Devices mark entries with it (colour, generation).
    #[inline]
    pub fn lap(self, number: u32) -> u64 {
        u64::from(!number.wrapping_shr(self.log2) & 1)
    }
}
