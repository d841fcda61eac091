//! The memory of a queue, from the page list of its create command.

use super::fields::be64;

/// Pages of a queue.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pages: Vec<u64>,
    /// Bytes of a page, as log2.
    shift: u32,
    /// Offset of the queue in its first page.
    offset: u64,
}

impl Buffer {
    /// Creates a buffer from a list of page addresses. Pages have 2^(12 + `log_page`) bytes, `offset` counts 64ths of a
    /// page. None if an address is invalid.
    pub fn new(list: &[u8], log_page: u64, offset: u64) -> Option<Buffer> {
        let shift = 12 + log_page as u32;
        let pages: Vec<u64> = list.chunks_exact(8).map(|page| be64(page, 0)).collect();
        // A page of more than 4 KiB need not be aligned to its size: Linux's are, a single one of Isthmus is not
        // always.
        let aligned = pages.iter().all(|page| page & 0xfff == 0);
        (shift < 40 && aligned).then_some(Buffer { pages, shift, offset: offset << (shift - 6) })
    }

    /// Whether the buffer has at least this many bytes.
    pub fn holds(&self, bytes: u64) -> bool {
        (self.pages.len() as u64) << self.shift >= self.offset + bytes
    }

    /// The bus address of a byte.
    pub fn at(&self, offset: u64) -> Option<u64> {
        let offset = offset + self.offset;
        let page = self.pages.get((offset >> self.shift) as usize)?;
        Some(page + (offset & ((1 << self.shift) - 1)))
    }
}
