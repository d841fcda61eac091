//! A bridge through memory that both machines have mapped: two threads, or two virtual machines with QEMU's
//! `ivshmem-plain`. Each side exposes a half of the memory. The first page of a half has its scratchpads and its
//! doorbell, which has to be polled.

use super::{Ntb, SCRATCHPADS};
use crate::dma::{CpuCopy, Dma};
use crate::hal::Window;
use core::sync::atomic::{Ordering, fence};

/// Bytes at the beginning of a half that are not exposed memory.
pub(super) const HEADER: usize = 4096;
/// Offset of the doorbell in the header: a count of rings, written by the peer alone.
const DOORBELL: usize = 128;

/// Half of the memory that a side exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first half.
    A,
    /// The second half.
    B,
}

/// One side of the bridge.
#[derive(Debug)]
pub struct SharedMemory {
    own: Window,
    peer: Window,
    seen: u32,
    /// Value of the peer's doorbell, which only this side writes.
    rings: u32,
    copy: CpuCopy,
}

impl SharedMemory {
    /// The bridge through `memory`, which the peer uses as the other side. None if the memory is too small to be halved
    /// or not aligned to 8 bytes.
    pub fn new(memory: Window, side: Side) -> Option<Self> {
        let half = memory.len() / 2 / HEADER * HEADER;
        if half <= HEADER || !memory.as_ptr().addr().get().is_multiple_of(8) {
            return None;
        }
        let (first, second) = (memory.slice(0, half)?, memory.slice(half, half)?);
        let (own, peer) = match side {
            Side::A => (first, second),
            Side::B => (second, first),
        };
        let (seen, rings) = (own.load32(DOORBELL), peer.load32(DOORBELL));
        Some(SharedMemory { own, peer, seen, rings, copy: CpuCopy })
    }

    /// This side's half, with its header.
    pub(super) fn own(&self) -> &Window {
        &self.own
    }

    /// The peer's half, with its header.
    pub(super) fn peer(&self) -> &Window {
        &self.peer
    }

    /// Whether the doorbell was rung since `rung` was called.
    pub(super) fn pending(&self) -> bool {
        self.own.load32(DOORBELL) != self.seen
    }

    fn memory_of(half: &Window) -> Window {
        half.slice(HEADER, half.len() - HEADER).unwrap_or(Window::empty())
    }
}

impl Ntb for SharedMemory {
    fn link(&self) -> bool {
        true
    }

    #[inline]
    fn window(&self) -> Window {
        Self::memory_of(&self.peer)
    }

    #[inline]
    fn exposed(&self) -> Window {
        Self::memory_of(&self.own)
    }

    #[inline]
    fn loads(&self) -> bool {
        true
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.own.load32(4 * n.min(SCRATCHPADS - 1))
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.peer.store32(4 * n.min(SCRATCHPADS - 1), value);
    }

    fn ring(&mut self) {
        self.rings = self.rings.wrapping_add(1);
        self.peer.store32(DOORBELL, self.rings);
    }

    fn rung(&mut self) -> bool {
        let count = self.own.load32(DOORBELL);
        core::mem::replace(&mut self.seen, count) != count
    }
}

impl Dma for SharedMemory {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        self.copy.submit(to, from);
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        self.copy.put(to, words);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        self.copy.put32(to, value);
    }

    #[inline]
    fn order(&mut self) {
        // Both sides map the memory write-back: no writes are combined.
        fence(Ordering::Release);
    }

    fn settled(&mut self) -> bool {
        self.copy.settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;

    #[test]
    fn writes_of_one_side_reach_the_other() {
        let memory = Arena::on_heap(1 << 16).alloc(1 << 15, 4096).unwrap();
        memory.fill(0);
        let mut a = SharedMemory::new(memory, Side::A).unwrap();
        let mut b = SharedMemory::new(memory, Side::B).unwrap();
        assert_eq!(a.window().bus_address(), b.exposed().bus_address());
        assert_eq!(a.window().len(), (1 << 14) - HEADER);
        a.put(&a.window().slice(8, 16).unwrap(), &[1, 2, 3]);
        a.put32(&a.window().slice(32, 4).unwrap(), 7);
        let from = a.exposed().slice(0, 8).unwrap();
        from.fill(0x55);
        a.submit(&a.window().slice(40, 4).unwrap(), &from);
        a.order();
        let mut words = [0; 4];
        b.exposed().load_words(8, &mut words);
        assert_eq!(words, [1, 2, 0, 7], "nothing beyond the slice");
        assert_eq!(b.exposed().load32(40), 0x5555_5555);
        assert_eq!(b.exposed().load32(44), 0);
        a.set_peer_scratchpad(3, 9);
        assert_eq!((b.scratchpad(3), a.scratchpad(3)), (9, 0));
        assert!(!b.rung());
        a.ring();
        assert_eq!([b.rung(), b.rung(), a.rung()], [true, false, false]);
    }

    #[test]
    fn memory_that_cannot_be_halved_is_refused() {
        let memory = Arena::on_heap(1 << 16).alloc(1 << 14, 4096).unwrap();
        assert!(SharedMemory::new(memory.slice(0, 8192).unwrap(), Side::A).is_none());
        assert!(SharedMemory::new(memory.slice(4, 16380).unwrap(), Side::A).is_none());
    }
}
