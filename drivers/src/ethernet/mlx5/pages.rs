//! Memory for the firmware: pages of 4 KiB that it requests, and owns until it returns them or is reset.

use super::error::Error;
use super::fields::word;
use crate::hal::{Arena, Window};
use alloc::vec::Vec;

const PAGE: usize = 4096;
/// Maximum number of pages per command: as many as its mailboxes hold.
pub const AT_A_TIME: usize = 512;
/// Maximum number of pages of the firmware: 4 GiB. Cards request tens of MiB; the arena is the real limit.
const MOST: usize = 1 << 20;
/// Number of pages that are allocated from the arena at a time, if it has a free stretch of that length.
const STRETCH: usize = 64;

/// The firmware's pages.
#[derive(Default)]
pub struct Pages {
    /// Windows allocated from the arena.
    taken: Vec<Window>,
    /// Bus addresses of pages that the firmware does not own.
    free: Vec<u64>,
    /// Bus addresses of pages that the firmware owns.
    given: Vec<u64>,
}

impl Pages {
    /// Takes all pages back, after a reset of the firmware.
    pub fn reclaim_all(&mut self) {
        self.free.append(&mut self.given);
    }

    /// All windows allocated from the arena.
    pub fn memory(&self) -> &[Window] {
        &self.taken
    }

    /// Allocates pages until `count` are free.
    pub fn provide(&mut self, count: usize, arena: &mut Arena) -> Result<(), Error> {
        if self.given.len() + count > MOST {
            return Err(Error::TooManyPages((self.given.len() + count) as u32));
        }
        while self.free.len() < count {
            let missing = count - self.free.len();
            let wanted = missing.min(STRETCH);
            let stretch = arena.alloc(wanted * PAGE, PAGE);
            let stretch = stretch.or_else(|| arena.alloc(PAGE, PAGE));
            let bytes = missing * PAGE;
            let stretch = stretch.ok_or(Error::NoMemory { bytes })?;
            self.taken.push(stretch);
            let (first, pages) = (stretch.bus_address(), stretch.len() / PAGE);
            self.free.extend((0..pages).map(|n| first + (n * PAGE) as u64));
        }
        Ok(())
    }

    /// The input of a command that gives up to `count` pages, from byte 8 on, and the number of pages. They count as
    /// given from now on, because the firmware may own them even if the command fails.
    pub fn give(&mut self, count: usize) -> (Vec<u8>, usize) {
        let count = count.min(AT_A_TIME).min(self.free.len());
        let mut input = alloc::vec![0; 4];
        input.extend((count as u32).to_be_bytes());
        let pages = self.free.split_off(self.free.len() - count);
        pages.iter().for_each(|page| input.extend(page.to_be_bytes()));
        self.given.extend(pages);
        (input, count)
    }

    /// Takes back the pages that the firmware's answer lists; their number. None if the firmware does not own one of
    /// them.
    pub fn take_back(&mut self, answer: &[u8]) -> Option<usize> {
        let count = word(answer, 8) as usize;
        let list = answer.get(16..)?.chunks_exact(8);
        if count > AT_A_TIME || list.len() < count {
            return None;
        }
        for page in list.take(count) {
            let page = u64::from(word(page, 0)) << 32 | u64::from(word(page, 4));
            let index = self.given.iter().position(|given| *given == page)?;
            self.free.push(self.given.swap_remove(index));
        }
        Some(count)
    }
}
