//! DMA engines: what carries bytes to memory behind a bridge. The CPU is the one that always exists
//! ([`CpuCopy`]); engines of their own (I/OAT, PTDMA) stand on the same trait.

use crate::hal::Window;
use core::sync::atomic::{Ordering, fence};

/// Writes to memory that is not ours, in any order but for [`Dma::fence`]: PCIe lets posted writes
/// of different requesters, and relaxed ones of the same, pass each other, and an engine and a CPU
/// that write combines are both. Only a naturally aligned `put32` is seen whole or not at all.
pub trait Dma {
    /// Copies `from` to the beginning of `to`, as far as both go. `from` has been read when this
    /// returns.
    fn copy(&mut self, to: &Window, from: &Window);

    /// Writes little-endian words to the beginning of `to`, as far as it goes; `to` is aligned to 8.
    fn put(&mut self, to: &Window, words: &[u64]);

    /// Writes a little-endian 32-bit cell at the beginning of `to`, which is aligned to 4.
    fn put32(&mut self, to: &Window, value: u32);

    /// Nothing that is written later is seen before all that was written earlier.
    fn fence(&mut self);

    /// [`Dma::fence`] and [`Dma::put32`]: a cell that announces what was written before.
    #[inline]
    fn announce(&mut self, to: &Window, value: u32) {
        self.fence();
        self.put32(to, value);
    }

    /// Whether all that was written has arrived, so that nothing of it can be seen later than what
    /// is written from now on.
    fn settled(&mut self) -> bool;

    /// Whether there is room for a turn of writes ([`TURN`]). An engine that has to keep what it is
    /// given says no while it is full.
    fn has_room(&self) -> bool {
        true
    }
}

/// Bytes that may be written between two questions for room, each write counted with 16 more.
pub const TURN: usize = 1 << 20;

/// The CPU as DMA engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuCopy;

impl Dma for CpuCopy {
    #[inline]
    fn copy(&mut self, to: &Window, from: &Window) {
        if let Some(from) = from.slice(0, from.len().min(to.len())) {
            // It was made to fit.
            let _ = to.write_window(0, &from);
        }
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        // It was made to fit.
        let _ = to.write_words(0, &words[..words.len().min(to.len() / 8)]);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        if to.len() >= 4 {
            to.store32(0, value);
        }
    }

    #[inline]
    fn fence(&mut self) {
        // For memory that is mapped write-back, stores of a CPU are seen in order once the compiler
        // keeps it; what is mapped write-combining also needs its buffers emptied.
        fence(Ordering::Release);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE, which every x86-64 has.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }

    fn settled(&mut self) -> bool {
        self.fence();
        true
    }
}
