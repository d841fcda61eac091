//! Bounce buffers for data in flight.
//!
//! A disk cannot cancel requests: it may read or write the memory of a request for as long as it does not respond.
//! The user reuses its memory as soon as the request completes, so a request to a member that the mirror may have to
//! abandon gets a piece of this memory. The piece is reused once the disk no longer accesses it.

use alloc::vec::Vec;
use drivers::hal::Window;

/// Pieces are whole pages.
const PAGE: usize = 4096;

/// A piece: a range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    first: u32,
    pages: u32,
}

/// The memory, and which of its pages are in use.
pub(super) struct Buffers {
    memory: Window,
    taken: Vec<bool>,
    /// Page where the search for a piece begins: after the last piece.
    next: usize,
}

impl Buffers {
    pub fn new(memory: Window) -> Self {
        Buffers { memory, taken: alloc::vec![false; memory.len() / PAGE], next: 0 }
    }

    /// Bytes of the largest piece.
    pub fn capacity(&self) -> usize {
        self.taken.len() * PAGE
    }

    /// Allocates a piece of at least so many bytes; None if no contiguous range is free.
    pub fn take(&mut self, bytes: usize) -> Option<Piece> {
        let pages = bytes.div_ceil(PAGE).max(1);
        let first = self.find(self.next, pages).or_else(|| self.find(0, pages))?;
        self.taken.get_mut(first..first + pages)?.fill(true);
        self.next = first + pages;
        Some(Piece { first: first as u32, pages: pages as u32 })
    }

    /// The first range of free pages from page `from` on.
    fn find(&self, from: usize, pages: usize) -> Option<usize> {
        let mut start = from;
        loop {
            let stretch = self.taken.get(start..start.checked_add(pages)?)?;
            match stretch.iter().rposition(|taken| *taken) {
                Some(last) => start += last + 1,
                None => return Some(start),
            }
        }
    }

    /// Releases a piece.
    pub fn give(&mut self, piece: Piece) {
        let first = piece.first as usize;
        if let Some(pages) = self.taken.get_mut(first..first + piece.pages as usize) {
            pages.fill(false);
        }
    }

    /// The first bytes of a piece.
    pub fn window(&self, piece: Piece, bytes: usize) -> Window {
        let most = piece.pages as usize * PAGE;
        let window = self.memory.slice(piece.first as usize * PAGE, bytes.min(most));
        window.unwrap_or(Window::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use proptest::prelude::*;

    proptest! {
        /// Allocated pieces never overlap, and all memory can be allocated as one piece once all pieces are released.
        #[test]
        fn pieces_taken_at_once_share_no_page(steps in proptest::collection::vec((any::<bool>(), 1..5usize), 1..60)) {
            let memory = Arena::on_heap(1 << 18).alloc(16 * PAGE, PAGE).unwrap();
            let mut buffers = Buffers::new(memory);
            let mut taken: Vec<Piece> = Vec::new();
            for (takes, size) in steps {
                if takes && let Some(piece) = buffers.take(size * PAGE - 1) {
                    let window = buffers.window(piece, size * PAGE);
                    prop_assert_eq!(window.len(), size * PAGE);
                    for other in &taken {
                        let apart = piece.first + piece.pages <= other.first
                            || other.first + other.pages <= piece.first;
                        prop_assert!(apart, "{:?} {:?}", piece, other);
                    }
                    taken.push(piece);
                } else if !taken.is_empty() {
                    buffers.give(taken.swap_remove(size % taken.len()));
                }
            }
            taken.into_iter().for_each(|piece| buffers.give(piece));
            prop_assert!(buffers.take(buffers.capacity()).is_some());
            prop_assert!(buffers.take(1).is_none());
        }
    }
}
