//! Bytes that wait to be sent, in a buffer of fixed size.

use crate::hal::Window;
use alloc::boxed::Box;

/// The bytes. Whoever adds some has asked whether there is room.
#[derive(Debug)]
pub struct Ring {
    bytes: Box<[u8]>,
    first: usize,
    count: usize,
}

impl Ring {
    /// For up to `size` bytes.
    pub fn new(size: usize) -> Self {
        Ring { bytes: alloc::vec![0; size].into(), first: 0, count: 0 }
    }

    /// Bytes that can be added.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.count
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.first, self.count) = (0, 0);
    }

    /// The first bytes, as far as they lie in one stretch.
    pub fn front(&self) -> &[u8] {
        let end = (self.first + self.count).min(self.bytes.len());
        &self.bytes[self.first..end]
    }

    /// Takes the first `count` bytes away.
    pub fn pop(&mut self, count: usize) {
        let count = count.min(self.count);
        self.count -= count;
        self.first = (self.first + count) % self.bytes.len();
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let (head, tail) = self.add(bytes.len());
        let (first, rest) = bytes.split_at(head.len());
        head.copy_from_slice(first);
        tail.copy_from_slice(rest);
    }

    /// Adds the bytes of a window.
    pub fn push_window(&mut self, from: &Window) {
        let (head, tail) = self.add(from.len());
        // Both are as long as it.
        let _ = from.read(0, head);
        let _ = from.read(head.len(), tail);
    }

    /// Makes `count` bytes part of the ring: where they lie.
    fn add(&mut self, count: usize) -> (&mut [u8], &mut [u8]) {
        let at = (self.first + self.count) % self.bytes.len();
        self.count += count;
        let (wrapped, straight) = self.bytes.split_at_mut(at);
        let head = count.min(straight.len());
        (&mut straight[..head], &mut wrapped[..count - head])
    }
}
