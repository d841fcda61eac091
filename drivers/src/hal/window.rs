//! A window into DMA memory: memory that a device or a peer may write at any time.
//!
//! Such memory is never a `&[u8]`, except buffers of received frames that a device has returned
//! ([`super::FrameMemory`]). A window copies in and out, so that no reference to its memory exists; a copy is private
//! and does not change. Threads that use the same memory at once, through copies of a window, may see old and new bytes
//! mixed, and nothing worse.
//!
//! Windows are `Copy` and live for ever, because the memory behind them (an arena that is allocated once at bring-up)
//! is never unmapped: a stale window can at worst see other data.

use super::copy;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// `len` bytes of DMA memory, and its bus address.
#[derive(Clone, Copy)]
pub struct Window {
    start: NonNull<u8>,
    bus: u64,
    len: usize,
}

/// An access that does not fit into its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfWindow;

// SAFETY: a window gives no references, only copies of memory that is mapped for ever (the promise made
// to `from_raw`), and every access is atomic, at least byte by byte (see `super::copy`): two threads that
// use the same memory at once see a mixture of bytes, which is no data race.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A window over `len` bytes at `start`, whose bus address is `bus`.
    ///
    /// # Safety
    /// The memory is mapped, initialised, readable and writable for the rest of the program, no Rust reference
    /// to it exists or will exist (those of [`super::FrameMemory`] apart), and it is contiguous for devices.
    pub const unsafe fn from_raw(start: NonNull<u8>, bus: u64, len: usize) -> Self {
        Window { start, bus, len }
    }

    /// A window of no bytes.
    pub const fn empty() -> Self {
        Window { start: NonNull::dangling(), bus: 0, len: 0 }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bus address of the first byte.
    pub const fn bus_address(&self) -> u64 {
        self.bus
    }

    /// Pointer to the first byte, for drivers that hand the memory to a virtqueue.
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// The part of `len` bytes from `offset`, if it lies inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Window> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: offset is at most the window's length, so the sum stays in (or one past) it.
        let start = unsafe { self.start.add(offset) };
        Some(Window { start, bus: self.bus + offset as u64, len })
    }

    /// Whether `part` is not empty and lies completely inside this window.
    pub const fn contains(&self, part: &Window) -> bool {
        !part.is_empty()
            && part.bus >= self.bus
            && part.len <= self.len
            && part.bus - self.bus <= (self.len - part.len) as u64
    }

    /// Copies `into.len()` bytes out, from `offset`.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfWindow> {
        let from = self.slice(offset, into.len()).ok_or(OutOfWindow)?;
        // SAFETY: `from` is mapped for its length (promise of `from_raw`); `into` is of the same length and borrowed
        // exclusively: no `&mut` slice of a window's memory is ever made.
        unsafe { copy::from_shared(into.as_mut_ptr(), from.start.as_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `N` bytes out, from `offset`, without a call: for small `N`.
    // `N` is a constant: a few loads and stores instead of a call of memmove.
    #[inline(always)]
    pub fn read_array<const N: usize>(&self, offset: usize) -> Result<[u8; N], OutOfWindow> {
        let from = self.slice(offset, N).ok_or(OutOfWindow)?;
        let mut into = [0; N];
        // SAFETY: `from` is mapped for its length (promise of `from_raw`), and `into` is a local array of that length.
        unsafe { copy::array_from_shared::<N>(into.as_mut_ptr(), from.start.as_ptr()) };
        Ok(into)
    }

    /// Copies `from` in, at `offset`.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfWindow> {
        let into = self.slice(offset, from.len()).ok_or(OutOfWindow)?;
        // SAFETY: `into` is mapped for its length (promise of `from_raw`); `from` is of the same length. No slice is
        // made of memory that a window reaches: no other window reaches the memory of a `FrameMemory` (the promise of
        // its `new`).
        unsafe { copy::to_shared(into.start.as_ptr(), from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies `N` bytes in, at `offset`, without a call: for small `N`.
    // `N` is a constant: a few loads and stores instead of a call of memmove.
    #[inline(always)]
    pub fn write_array<const N: usize>(
        &self,
        offset: usize,
        from: &[u8; N],
    ) -> Result<(), OutOfWindow> {
        let into = self.slice(offset, N).ok_or(OutOfWindow)?;
        // SAFETY: as in `write`.
        unsafe { copy::array_to_shared::<N>(into.start.as_ptr(), from.as_ptr()) };
        Ok(())
    }

    /// Copies `from` in, at `offset`. From `N` to `2 * N` bytes are copied without a call: as the first `N` and the
    /// last `N` of them, which may overlap.
    #[inline(always)]
    pub fn write_halves<const N: usize>(
        &self,
        offset: usize,
        from: &[u8],
    ) -> Result<(), OutOfWindow> {
        let into = self.slice(offset, from.len()).ok_or(OutOfWindow)?;
        let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
            return self.write(offset, from);
        };
        if from.len() > 2 * N {
            return self.write(offset, from);
        }
        // SAFETY: as in `write`, for the first and for the last `N` bytes of both: `from` has at least `N`, and `into`
        // is as long.
        unsafe {
            let behind = into.start.add(from.len() - N);
            copy::array_to_shared::<N>(into.start.as_ptr(), first.as_ptr());
            copy::array_to_shared::<N>(behind.as_ptr(), last.as_ptr());
        }
        Ok(())
    }

    /// Pointer to a cell of `size` bytes at `offset`. Panics unless it is inside the window and aligned: drivers lay
    /// their rings out themselves, so a wrong offset is a bug.
    #[inline]
    fn cell(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset <= self.len && size <= self.len - offset, "cell outside of its window");
        let at = self.start.as_ptr().wrapping_add(offset);
        assert!(at.addr().is_multiple_of(size), "cell not aligned");
        at
    }

    /// Loads a little-endian 16-bit cell of a ring. Later reads are not moved before it (acquire). Panics outside the
    /// window or misaligned.
    #[inline]
    pub fn load16(&self, offset: usize) -> u16 {
        // SAFETY: `cell` checked bounds and alignment; mapped for ever (promise of `from_raw`). All references to cells
        // are references to atomics.
        let cell = unsafe { AtomicU16::from_ptr(self.cell(offset, 2).cast()) };
        u16::from_le(cell.load(Ordering::Acquire))
    }

    /// Loads a little-endian 32-bit cell, as [`Window::load16`].
    #[inline]
    pub fn load32(&self, offset: usize) -> u32 {
        // SAFETY: as in `load16`.
        let cell = unsafe { AtomicU32::from_ptr(self.cell(offset, 4).cast()) };
        u32::from_le(cell.load(Ordering::Acquire))
    }

    /// Loads a little-endian 64-bit cell, as [`Window::load16`].
    #[inline]
    pub fn load64(&self, offset: usize) -> u64 {
        // SAFETY: as in `load16`.
        let cell = unsafe { AtomicU64::from_ptr(self.cell(offset, 8).cast()) };
        u64::from_le(cell.load(Ordering::Acquire))
    }

    /// Stores a little-endian 16-bit cell. Earlier writes are visible before it (release). Panics outside the window or
    /// misaligned.
    #[inline]
    pub fn store16(&self, offset: usize, value: u16) {
        // SAFETY: as in `load16`.
        let cell = unsafe { AtomicU16::from_ptr(self.cell(offset, 2).cast()) };
        cell.store(value.to_le(), Ordering::Release);
    }

    /// Stores a little-endian 32-bit cell, as [`Window::store16`].
    #[inline]
    pub fn store32(&self, offset: usize, value: u32) {
        // SAFETY: as in `load16`.
        let cell = unsafe { AtomicU32::from_ptr(self.cell(offset, 4).cast()) };
        cell.store(value.to_le(), Ordering::Release);
    }

    /// Stores a little-endian 64-bit cell, as [`Window::store16`].
    #[inline]
    pub fn store64(&self, offset: usize, value: u64) {
        // SAFETY: as in `load16`.
        let cell = unsafe { AtomicU64::from_ptr(self.cell(offset, 8).cast()) };
        cell.store(value.to_le(), Ordering::Release);
    }

    /// Loads little-endian 64-bit words of a ring that a peer may write at any time: each exactly once, whole, in any
    /// order. Load the index that publishes them first (`load32`). Panics outside the window or misaligned.
    #[inline]
    pub fn load_words(&self, offset: usize, into: &mut [u64]) {
        let first = self.words(offset, into.len());
        for (n, word) in into.iter_mut().enumerate() {
            // SAFETY: as in `load16`; `words` checked all of them.
            let cell = unsafe { AtomicU64::from_ptr(first.add(n)) };
            *word = u64::from_le(cell.load(Ordering::Relaxed));
        }
    }

    /// Stores little-endian 64-bit words, each whole, in any order. Store the index that publishes them afterwards
    /// (`store32`). Panics outside the window or misaligned.
    #[inline]
    pub fn store_words(&self, offset: usize, words: &[u64]) {
        let first = self.words(offset, words.len());
        for (n, word) in words.iter().enumerate() {
            // SAFETY: as in `load16`; `words` checked all of them.
            let cell = unsafe { AtomicU64::from_ptr(first.add(n)) };
            cell.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Copies little-endian 64-bit words in, at `offset`, as [`Window::write`].
    #[inline]
    pub fn write_words(&self, offset: usize, words: &[u64]) -> Result<(), OutOfWindow> {
        let into = self.slice(offset, size_of_val(words)).ok_or(OutOfWindow)?;
        if cfg!(target_endian = "big") {
            for (n, word) in words.iter().enumerate() {
                into.write(8 * n, &word.to_le_bytes())?;
            }
            return Ok(());
        }
        // SAFETY: as in `write`; the bytes of a `u64` are those of the word.
        unsafe {
            match into.len {
                // One or two cache lines, as most are, without a call.
                64 => copy::array_to_shared::<64>(into.start.as_ptr(), words.as_ptr().cast()),
                128 => copy::array_to_shared::<128>(into.start.as_ptr(), words.as_ptr().cast()),
                len => copy::to_shared(into.start.as_ptr(), words.as_ptr().cast(), len),
            }
        }
        Ok(())
    }

    /// Pointer to `count` words from `offset`. Panics as [`Window::cell`].
    #[inline]
    fn words(&self, offset: usize, count: usize) -> *mut u64 {
        let inside = offset <= self.len && count <= (self.len - offset) / 8;
        assert!(inside, "words outside of their window");
        let at = self.start.as_ptr().wrapping_add(offset);
        assert!(at.addr().is_multiple_of(8), "words not aligned");
        at.cast()
    }

    /// Copies the whole of `from` to `offset`; the two may overlap.
    #[inline]
    pub fn write_window(&self, offset: usize, from: &Window) -> Result<(), OutOfWindow> {
        let into = self.slice(offset, from.len).ok_or(OutOfWindow)?;
        // SAFETY: both are mapped for `from.len` bytes, and may overlap.
        unsafe { copy::within_shared(into.start.as_ptr(), from.start.as_ptr(), from.len) };
        Ok(())
    }

    /// Sets every byte to `value`.
    #[inline]
    pub fn fill(&self, value: u8) {
        // SAFETY: mapped and writable for its length (promise of `from_raw`).
        unsafe { copy::fill_shared(self.start.as_ptr(), value, self.len) };
    }

    /// Passes the bytes to `f` in order, in private copies of 64 bytes (the block size of checksums); only the last may
    /// be shorter.
    #[inline]
    pub fn for_each_block(&self, mut f: impl FnMut(&[u8])) {
        let mut block = [0u8; 64];
        let mut at = 0;
        while self.len - at >= 64 {
            // SAFETY: 64 bytes from `at` lie inside the window; `block` is private.
            unsafe {
                let from = self.start.as_ptr().add(at);
                copy::array_from_shared::<64>(block.as_mut_ptr(), from);
            }
            f(&block);
            at += 64;
        }
        let rest = &mut block[..self.len - at];
        if !rest.is_empty() {
            // SAFETY: as above, for the rest.
            unsafe {
                let from = self.start.as_ptr().add(at);
                copy::from_shared(rest.as_mut_ptr(), from, rest.len());
            }
            f(rest);
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x}+{:#x})", self.bus, self.len)
    }
}

#[cfg(test)]
mod tests {
    use crate::hal::{Arena, OutOfWindow};
    use std::thread;

    /// Two threads that use the same memory see mixtures of bytes that were written, without a data race.
    /// ThreadSanitizer and Miri check it (`docs/test.md`).
    #[test]
    fn two_threads_may_use_the_same_memory() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2_000 };
        let mut arena = Arena::on_heap(1 << 16);
        let (window, other) = (arena.alloc(1024, 64).unwrap(), arena.alloc(1024, 64).unwrap());
        window.fill(0x11);
        let write = move || {
            for round in 0..ROUNDS {
                let byte = if round % 2 == 0 { 0x11 } else { 0x22 };
                window.write(1, &[byte; 700]).unwrap();
                window.write_array(701, &[byte; 48]).unwrap();
                window.slice(0, 900).unwrap().fill(byte);
                window.write_window(3, &window.slice(0, 512).unwrap()).unwrap();
                window.write_words(8, &[u64::from_ne_bytes([byte; 8]); 9]).unwrap();
            }
        };
        let writer = thread::spawn(write);
        for _ in 0..ROUNDS {
            let mut bytes = [0; 900];
            window.read(0, &mut bytes).unwrap();
            let array: [u8; 77] = window.read_array(5).unwrap();
            let mut all = bytes.iter().chain(&array);
            assert!(all.all(|&byte| byte == 0x11 || byte == 0x22));
            other.write_window(0, &window).unwrap();
            window.slice(0, 900).unwrap().for_each_block(|block| {
                assert!(block.iter().all(|&byte| byte == 0x11 || byte == 0x22));
            });
        }
        writer.join().unwrap();
    }

    #[test]
    fn arrays_are_copied_whole_and_stay_inside() {
        fn both_ways<const N: usize>() {
            let window = Arena::on_heap(4096).alloc(200, 64).unwrap();
            let array: [u8; N] = core::array::from_fn(|i| i as u8 + 1);
            window.fill(0xee);
            window.write_array(3, &array).unwrap();
            assert_eq!(window.read_array(3), Ok(array));
            let around = [window.read_array(2).unwrap(), window.read_array(3 + N).unwrap()];
            assert_eq!(around, [[0xee], [0xee]], "{N}");
            assert_eq!(window.write_array(201 - N, &array), Err(OutOfWindow));
            assert_eq!(window.read_array::<N>(201 - N), Err(OutOfWindow));
        }
        both_ways::<1>();
        both_ways::<3>();
        both_ways::<7>();
        both_ways::<8>();
        both_ways::<31>();
        both_ways::<48>();
        both_ways::<77>();
    }

    #[test]
    fn halves_are_copied_whole_and_stay_inside() {
        let window = Arena::on_heap(4096).alloc(200, 64).unwrap();
        let bytes: [u8; 120] = core::array::from_fn(|i| i as u8 + 1);
        for len in 0..=bytes.len() {
            window.fill(0xee);
            assert_eq!(window.write_halves::<48>(3, &bytes[..len]), Ok(()));
            let all: [u8; 200] = window.read_array(0).unwrap();
            assert_eq!(all[3..3 + len], bytes[..len]);
            assert!(all[..3].iter().chain(&all[3 + len..]).all(|&byte| byte == 0xee), "{len}");
            assert_eq!(window.write_halves::<48>(201 - len, &bytes[..len]), Err(OutOfWindow));
            let same: [u8; 200] = window.read_array(0).unwrap();
            assert_eq!(same, all, "{len}");
        }
    }
}
