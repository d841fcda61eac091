//! The memory of a queue, as the command that makes the queue lists its pages.

use super::fields::be64;

/// Pages of a queue.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pages: Vec<u64>,
    /// Bytes of a page, as log2.
    shift: u32,
    /// Where in the first page it begins.
    offset: u64,
}

impl Buffer {
    /// From a list of addresses of 2^(12 + `log_page`) bytes each; `offset` counts 64ths of a page. None if an address
    /// is not that of such a page.
    pub fn new(list: &[u8], log_page: u64, offset: u64) -> Option<Buffer> {
        let shift = 12 + log_page as u32;
        let pages: Vec<u64> = list.chunks_exact(8).map(|page| be64(page, 0)).collect();
        // A page of more than 4 KiB need not be aligned to its size: Linux's are, a single one of ours is not always.
        let aligned = pages.iter().all(|page| page & 0xfff == 0);
        (shift < 40 && aligned).then_some(Buffer { pages, shift, offset: offset << (shift - 6) })
    }

    /// Whether it has so many bytes.
    pub fn holds(&self, bytes: u64) -> bool {
        (self.pages.len() as u64) << self.shift >= self.offset + bytes
    }

    /// The address of a byte of it.
    pub fn at(&self, offset: u64) -> Option<u64> {
        let offset = offset + self.offset;
        let page = self.pages.get((offset >> self.shift) as usize)?;
        Some(page + (offset & ((1 << self.shift) - 1)))
    }
}
