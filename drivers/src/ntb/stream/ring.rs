//! Ring buffer of fixed size for bytes to send.

use crate::hal::Window;
use alloc::boxed::Box;

/// The ring buffer. The caller checks for room before it adds bytes.
#[derive(Debug)]
pub struct Ring {
    bytes: Box<[u8]>,
    first: usize,
    count: usize,
}

impl Ring {
    /// A ring buffer for up to `size` bytes.
    pub fn new(size: usize) -> Self {
        Ring { bytes: alloc::vec![0; size].into(), first: 0, count: 0 }
    }

    /// Bytes that can be added.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.count
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        (self.first, self.count) = (0, 0);
    }

    /// The first contiguous bytes.
    pub fn front(&self) -> &[u8] {
        let end = (self.first + self.count).min(self.bytes.len());
        &self.bytes[self.first..end]
    }

    /// Removes the first `count` bytes.
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
        // Together both parts have the window's length.
        let _ = from.read(0, head);
        let _ = from.read(head.len(), tail);
    }

    /// Extends the ring by `count` bytes, and returns their two parts.
    fn add(&mut self, count: usize) -> (&mut [u8], &mut [u8]) {
        let at = (self.first + self.count) % self.bytes.len();
        self.count += count;
        let (wrapped, straight) = self.bytes.split_at_mut(at);
        let head = count.min(straight.len());
        (&mut straight[..head], &mut wrapped[..count - head])
    }
}
