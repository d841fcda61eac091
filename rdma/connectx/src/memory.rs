//! Memory of queues, which the card addresses by pages of one size; they are contiguous here.

use alloc::vec::Vec;
use drivers::hal::{Arena, Window};
use verbs::VerbsError;

const PAGE: usize = 4096;
/// Most pages in a list: more do not fit into the mailboxes of a command.
const MOST_PAGES: usize = 256;

/// Memory of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub window: Window,
    /// Log2 of the bytes of a page, less 12.
    pub log_page: u32,
}

impl Buffer {
    /// Allocates `bytes` bytes, zeroed. `NoRoom` if the arena has no room.
    pub fn new(bytes: usize, arena: &mut Arena) -> Result<Buffer, VerbsError> {
        let pages = bytes.max(1).div_ceil(PAGE);
        let log_page = pages.div_ceil(MOST_PAGES).next_power_of_two().ilog2();
        let page = PAGE << log_page;
        let whole = bytes.max(1).next_multiple_of(page);
        let window = arena.alloc(whole, page).ok_or(VerbsError::NoRoom)?;
        window.fill(0);
        Ok(Buffer { window, log_page })
    }

    /// Appends the addresses of its pages to a command.
    pub fn list(&self, input: &mut Vec<u8>) {
        let page = PAGE << self.log_page;
        let first = self.window.bus_address();
        let pages = 0..self.window.len().div_ceil(page);
        input.extend(pages.flat_map(|n| (first + (page * n) as u64).to_be_bytes()));
    }
}
