//! Changes of a side to the window that the other side granted to it.

use super::memory::contents;
use drivers::hal::Window;
use std::collections::VecDeque;

/// A requested change, which may be executed completely, partially or not yet.
#[derive(Debug)]
struct Change {
    offset: usize,
    bytes: Vec<u8>,
}

/// A model of the window. Changes are executed in the order of the requests, packet by packet. At any time a prefix of
/// them is executed, and nothing of the rest.
#[derive(Debug, Default)]
pub struct Target {
    /// Contents after all completed changes.
    done: Vec<u8>,
    /// Contents after all requested changes.
    expected: Vec<u8>,
    pending: VecDeque<Change>,
}

impl Target {
    /// A window with these contents.
    pub fn new(bytes: &[u8]) -> Self {
        Target { done: bytes.to_vec(), expected: bytes.to_vec(), pending: VecDeque::new() }
    }

    /// Contents of a range after all requested changes.
    pub fn expected(&self, offset: usize, len: usize) -> &[u8] {
        &self.expected[offset..offset + len]
    }

    /// Adds a requested change.
    pub fn push(&mut self, offset: usize, bytes: &[u8]) {
        self.expected[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.pending.push_back(Change { offset, bytes: bytes.to_vec() });
    }

    /// Marks the oldest change as completed.
    pub fn is_done(&mut self) {
        let change = self.pending.pop_front().expect("a change was requested");
        self.done[change.offset..change.offset + change.bytes.len()].copy_from_slice(&change.bytes);
    }

    /// Panics unless the window has all completed changes, and a prefix of the others. `mtu` is the number of bytes
    /// that are written at a time.
    pub fn check(&self, window: &Window, mtu: usize) {
        let found = contents(window);
        let mut state = self.done.clone();
        if found == state {
            return;
        }
        for change in &self.pending {
            for (n, piece) in change.bytes.chunks(mtu).enumerate() {
                let at = change.offset + n * mtu;
                state[at..at + piece.len()].copy_from_slice(piece);
                if found == state {
                    return;
                }
            }
        }
        let wrong = (0..found.len()).find(|&n| found[n] != self.done[n]);
        panic!(
            "a window has contents that its peer did not write in this order: from byte {wrong:?}, \
             {} changes pending",
            self.pending.len()
        );
    }

    /// Whether the window has `bytes` at `offset`, or later changes of them.
    pub fn shows(&self, window: &Window, offset: usize, bytes: &[u8]) -> bool {
        let found = contents(window);
        let covered = |n: usize| {
            self.pending.iter().skip(1).any(|c| (c.offset..c.offset + c.bytes.len()).contains(&n))
        };
        (0..bytes.len()).all(|n| found[offset + n] == bytes[n] || covered(offset + n))
    }
}
