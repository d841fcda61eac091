//! Incomplete copies of a queue, which the queue keeps in order so that it can submit them again. `ioat` has
//! a ring of its own instead: its engine splits copies, and fences are part of a descriptor.

use super::LONGEST;
use crate::hal::Window;
use alloc::collections::VecDeque;

/// Most incomplete copies, those that the device has included.
const KEPT: usize = 1024;

/// A copy.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub to: Window,
    pub from: Window,
    /// Later copies must not begin before this one is complete.
    pub fence: bool,
    /// The copy was executed, but an earlier one was not.
    pub is_done: bool,
}

/// The copies.
#[derive(Debug)]
pub struct Backlog {
    pub entries: VecDeque<Entry>,
    /// Number of the last copy added.
    pub pushed: u64,
}

impl Backlog {
    pub fn new() -> Self {
        Backlog { entries: VecDeque::with_capacity(KEPT), pushed: 0 }
    }

    /// See [`super::Channel::room`].
    #[inline]
    pub fn room(&self) -> usize {
        KEPT - self.entries.len()
    }

    /// See [`super::Channel::push`].
    #[inline]
    pub fn push(&mut self, to: &Window, from: &Window) -> Option<u64> {
        if from.is_empty() || from.len() != to.len() || from.len() > LONGEST {
            return Some(self.pushed);
        }
        if self.room() == 0 {
            return None;
        }
        self.entries.push_back(Entry { to: *to, from: *from, fence: false, is_done: false });
        self.pushed += 1;
        Some(self.pushed)
    }

    /// See [`super::Channel::order`].
    #[inline]
    pub fn order(&mut self) {
        if let Some(last) = self.entries.back_mut() {
            last.fence = true;
        }
    }
}
