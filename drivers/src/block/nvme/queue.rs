//! A submission queue and its completion queue (NVMe 1.4, 4.1 and 4.6), side by side in DMA memory. What is
//! done is told by the phase bit of completions; nothing that the device writes is used as an index.

use super::Error;
use super::registers::ControllerRegisters;
use crate::hal::{Arena, Cells, Window};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of an entry of the submission queue, and of the completion queue.
const SUBMISSION: usize = 64;
const COMPLETION: usize = 16;

/// A command as it lies in the submission queue (4.2), in little-endian words of 64 bits.
pub type Command = [u64; 8];

/// A completion (4.6), without its result ([`Queue::result`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Identifier of the command.
    pub cid: u16,
    /// Status field: type, code, and whether to retry; without the phase bit.
    pub status: u16,
    /// The submission queue that the command came from.
    pub queue: u16,
}

/// A pair of queues.
pub struct Queue {
    submissions: Cells<[AtomicU64; 8]>,
    /// Each entry is two of these.
    completions: Cells<AtomicU64>,
    memory: Window,
    at_completions: usize,
    entries: u16,
    log2: u32,
    /// Where the next command goes, and what of this the device was told.
    tail: u16,
    told_tail: u16,
    /// Completions that were taken, in all; and what of this the device was told.
    taken: u32,
    told_taken: u32,
    /// The same since it was made first.
    completed: u64,
    tail_doorbell: usize,
    head_doorbell: usize,
}

impl Queue {
    /// Bytes that a pair with so many entries takes, a power of two, on pages of so many bytes.
    pub fn bytes(entries: u16, page: usize) -> usize {
        (usize::from(entries) * SUBMISSION).next_multiple_of(page)
            + (usize::from(entries) * COMPLETION).next_multiple_of(page)
    }

    /// The pair number `id`, in memory of [`Queue::bytes`] that begins on a page.
    pub fn new(
        id: u16,
        entries: u16,
        page: usize,
        memory: Window,
        registers: &ControllerRegisters,
    ) -> Option<Self> {
        let at_completions = (usize::from(entries) * SUBMISSION).next_multiple_of(page);
        let mut queue = Queue {
            submissions: Cells::new(&memory, 0, entries.into())?,
            completions: Cells::new(&memory, at_completions, 2 * usize::from(entries))?,
            memory,
            at_completions,
            entries,
            log2: entries.ilog2(),
            tail: 0,
            told_tail: 0,
            taken: 0,
            told_taken: 0,
            completed: 0,
            tail_doorbell: registers.doorbell(id, false),
            head_doorbell: registers.doorbell(id, true),
        };
        queue.restart();
        Some(queue)
    }

    /// Pair number `id`, in memory of `arena` that is noted in `memory`.
    pub fn alloc(
        id: u16,
        entries: u16,
        registers: &ControllerRegisters,
        arena: &mut Arena,
        memory: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let page = 1 << registers.capabilities().page_shift;
        let bytes = Queue::bytes(entries, page);
        let window = arena.alloc(bytes, page).ok_or(Error::NoMemory { bytes })?;
        memory.push(window);
        Queue::new(id, entries, page, window, registers).ok_or(Error::NoMemory { bytes })
    }

    /// Entries of each of the two.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Bus addresses of both, submissions first.
    pub fn addresses(&self) -> [u64; 2] {
        let start = self.memory.bus_address();
        [start, start + self.at_completions as u64]
    }

    /// As new: the device has forgotten it.
    pub fn restart(&mut self) {
        self.memory.fill(0);
        (self.tail, self.told_tail, self.taken, self.told_taken) = (0, 0, 0, 0);
    }

    /// Adds a command; there must be fewer than entries less one that did not complete. The device sees it
    /// after the next [`Queue::tell`].
    #[inline(always)]
    pub fn push(&mut self, command: &Command) {
        self.submissions.store(self.tail.into(), command);
        self.tail = (self.tail + 1) & (self.entries - 1);
    }

    /// Tells the device of new commands.
    #[inline(always)]
    pub fn tell(&mut self, registers: &ControllerRegisters) {
        if self.tail != self.told_tail {
            self.told_tail = self.tail;
            fence(Ordering::Release);
            registers.ring(self.tail_doorbell, self.tail);
        }
    }

    /// The upper half of the next completion, if it is there.
    #[inline(always)]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.taken as usize + 1);
        // The first lap writes ones.
        let phase = !(self.taken >> self.log2) & 1;
        ((upper >> 48) as u32 & 1 == phase).then_some(upper)
    }

    /// Whether there is a completion.
    #[inline]
    pub fn pending(&self) -> bool {
        self.upper().is_some()
    }

    /// The next completion.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Entry> {
        let upper = self.upper()?;
        self.taken = self.taken.wrapping_add(1);
        Some(Entry {
            cid: (upper >> 32) as u16,
            status: (upper >> 49) as u16,
            queue: (upper >> 16) as u16,
        })
    }

    /// The first word of the completion that was taken last: the result of an admin command.
    pub fn result(&self) -> u32 {
        self.completions.load(2 * self.taken.wrapping_sub(1) as usize) as u32
    }

    /// Completions so far of which the device was told, whatever became of it meanwhile.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Gives the device the entries back that were taken, if they are `least` or more.
    #[inline(always)]
    pub fn give_back(&mut self, least: u32, registers: &ControllerRegisters) {
        let fresh = self.taken.wrapping_sub(self.told_taken);
        if fresh >= least {
            self.completed += u64::from(fresh);
            self.told_taken = self.taken;
            registers.ring(self.head_doorbell, self.taken as u16 & (self.entries - 1));
        }
    }
}
