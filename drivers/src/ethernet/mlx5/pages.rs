//! Memory that the firmware works in: pages of 4 KiB that it asks for, and has until it gives them back or is reset.

use super::error::Error;
use super::fields::word;
use crate::hal::{Arena, Window};
use alloc::vec::Vec;

const PAGE: usize = 4096;
/// Pages that are given by one command: as many as its mailboxes hold.
pub const AT_A_TIME: usize = 512;
/// Most that the firmware may have: 64 MiB. Cards ask for tens of them.
const MOST: usize = 16384;
/// Pages that are taken of the arena at a time, if it has a stretch as long.
const STRETCH: usize = 64;

/// Pages.
#[derive(Default)]
pub struct Pages {
    /// What was taken of the arena.
    taken: Vec<Window>,
    /// Bus addresses of those that the firmware does not have, and of those that it has.
    free: Vec<u64>,
    given: Vec<u64>,
}

impl Pages {
    /// A reset has taken all pages from the firmware.
    pub fn forget(&mut self) {
        self.free.append(&mut self.given);
    }

    /// Everything that was taken of the arena.
    pub fn memory(&self) -> &[Window] {
        &self.taken
    }

    /// Sees to it that there are so many that can be given.
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

    /// The input of a command that gives up to `count` pages, from byte 8 on, and how many it gives. They count as
    /// given from now on: who knows what becomes of a command that fails.
    pub fn give(&mut self, count: usize) -> (Vec<u8>, usize) {
        let count = count.min(AT_A_TIME).min(self.free.len());
        let mut input = alloc::vec![0; 4];
        input.extend((count as u32).to_be_bytes());
        let pages = self.free.split_off(self.free.len() - count);
        pages.iter().for_each(|page| input.extend(page.to_be_bytes()));
        self.given.extend(pages);
        (input, count)
    }

    /// Takes back the pages that an answer lists, which come from the firmware; how many. None if one of them is not
    /// the firmware's.
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
