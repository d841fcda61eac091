//! What a side of a connection has done to the window that the other side granted to it.

use super::memory::contents;
use drivers::hal::Window;
use std::collections::VecDeque;

/// A change that was asked for, and is perhaps done, in part or not at all.
#[derive(Debug)]
struct Change {
    offset: usize,
    bytes: Vec<u8>,
}

/// A model of the window. Changes are done in the order of asking, packet by packet, so that at any
/// time some first part of them is done, and nothing of the rest.
#[derive(Debug, Default)]
pub struct Target {
    /// With all changes that are known to be done.
    done: Vec<u8>,
    /// With all changes that were asked for.
    asked: Vec<u8>,
    pending: VecDeque<Change>,
}

impl Target {
    /// A window that holds `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Target { done: bytes.to_vec(), asked: bytes.to_vec(), pending: VecDeque::new() }
    }

    /// What lies there when all that was asked for is done.
    pub fn asked(&self, offset: usize, len: usize) -> &[u8] {
        &self.asked[offset..offset + len]
    }

    /// A change is asked for.
    pub fn ask(&mut self, offset: usize, bytes: &[u8]) {
        self.asked[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.pending.push_back(Change { offset, bytes: bytes.to_vec() });
    }

    /// The oldest change is known to be done.
    pub fn is_done(&mut self) {
        let change = self.pending.pop_front().expect("it was asked for");
        self.done[change.offset..change.offset + change.bytes.len()].copy_from_slice(&change.bytes);
    }

    /// Panics unless the window holds what is done, and some first part of the rest. `mtu` is how
    /// many bytes are written at a time.
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
            "a window holds what its peer did not write in that order: from byte {wrong:?}, \
             {} changes pending",
            self.pending.len()
        );
    }

    /// Whether the change that was asked for last but `later` is to be seen in the window.
    pub fn shows(&self, window: &Window, offset: usize, bytes: &[u8]) -> bool {
        let found = contents(window);
        let covered = |n: usize| {
            self.pending.iter().skip(1).any(|c| (c.offset..c.offset + c.bytes.len()).contains(&n))
        };
        (0..bytes.len()).all(|n| found[offset + n] == bytes[n] || covered(offset + n))
    }
}
