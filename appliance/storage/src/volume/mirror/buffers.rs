//! Memory of the mirror's own for data under way.
//!
//! A disk does not take back what it was given: it may read or write the memory of a request for as long as it is
//! silent. The user's memory has another use as soon as the request is answered, so a part that the mirror may have
//! to let go of gets a piece of this memory. The piece is used again when the disk is done with it.

use alloc::vec::Vec;
use drivers::hal::Window;

/// Pieces are whole pages.
const PAGE: usize = 4096;

/// A piece, by its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    first: u32,
    pages: u32,
}

/// The memory, and which pages of it are taken.
pub(super) struct Buffers {
    memory: Window,
    taken: Vec<bool>,
    /// Where the search for a piece begins: behind the last one.
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

    /// A piece of at least so many bytes; None if no stretch as long is free.
    pub fn take(&mut self, bytes: usize) -> Option<Piece> {
        let pages = bytes.div_ceil(PAGE).max(1);
        let first = self.find(self.next, pages).or_else(|| self.find(0, pages))?;
        self.taken.get_mut(first..first + pages)?.fill(true);
        self.next = first + pages;
        Some(Piece { first: first as u32, pages: pages as u32 })
    }

    /// The first stretch of free pages that begins at a place or behind it.
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

    /// Gives a piece back.
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
        /// Pieces that are taken never overlap, and all memory can be taken as one piece when all are given back.
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
