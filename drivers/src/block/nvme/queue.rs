//! A submission queue and its completion queue (NVMe 1.4, 4.1 and 4.6), side by side in DMA memory. The phase bit marks
//! new completions; no value that the controller writes is used as an index.

use super::Error;
use super::registers::ControllerRegisters;
use crate::hal::{Arena, Cells, Window};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of an entry of the submission queue, and of the completion queue.
const SUBMISSION: usize = 64;
const COMPLETION: usize = 16;

/// A submission queue entry (4.2), in little-endian words of 64 bits.
pub type Command = [u64; 8];

/// A completion (4.6), without its result ([`Queue::result`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Identifier of the command.
    pub cid: u16,
    /// Status field without the phase bit: type, code, and "do not retry".
    pub status: u16,
    /// The submission queue that the command came from.
    pub queue: u16,
}

/// A pair of queues.
pub struct Queue {
    submissions: Cells<[AtomicU64; 8]>,
    /// Two words for each entry.
    completions: Cells<AtomicU64>,
    memory: Window,
    at_completions: usize,
    entries: u16,
    log2: u32,
    /// Index for the next command.
    tail: u16,
    /// Tail that was written to the doorbell last.
    rung_tail: u16,
    /// Completions taken since the last restart.
    taken: u32,
    /// Completions released by the doorbell since the last restart.
    released: u32,
    /// Completions released since the queue was allocated.
    completed: u64,
    tail_doorbell: usize,
    head_doorbell: usize,
}

impl Queue {
    /// Bytes of a pair with `entries` entries, a power of two, on pages of `page` bytes.
    pub fn bytes(entries: u16, page: usize) -> usize {
        (usize::from(entries) * SUBMISSION).next_multiple_of(page)
            + (usize::from(entries) * COMPLETION).next_multiple_of(page)
    }

    /// Pair number `id`, in page-aligned memory of [`Queue::bytes`].
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
            rung_tail: 0,
            taken: 0,
            released: 0,
            completed: 0,
            tail_doorbell: registers.doorbell(id, false),
            head_doorbell: registers.doorbell(id, true),
        };
        queue.restart();
        Some(queue)
    }

    /// Allocates pair number `id` from `arena`, and adds its memory to `memory`.
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

    /// Entries of each of the two queues.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Bus addresses of the submission queue and of the completion queue.
    pub fn addresses(&self) -> [u64; 2] {
        let start = self.memory.bus_address();
        [start, start + self.at_completions as u64]
    }

    /// Clears the queues. The controller must not have them any more.
    pub fn restart(&mut self) {
        self.memory.fill(0);
        (self.tail, self.rung_tail, self.taken, self.released) = (0, 0, 0, 0);
    }

    /// Adds a command. The caller ensures that the queue is not full: at most `entries - 1` commands in flight. The
    /// controller sees the command after [`Queue::ring_doorbell`].
    #[inline]
    pub fn push(&mut self, command: &Command) {
        self.submissions.store(self.tail.into(), command);
        self.tail = (self.tail + 1) & (self.entries - 1);
    }

    /// Rings the doorbell if there are new commands.
    #[inline]
    pub fn ring_doorbell(&mut self, registers: &ControllerRegisters) {
        if self.tail != self.rung_tail {
            self.rung_tail = self.tail;
            fence(Ordering::Release);
            registers.ring(self.tail_doorbell, self.tail);
        }
    }

    /// The upper half of the next completion, if it has arrived.
    #[inline]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.taken as usize + 1);
        // The phase bit is 1 in the first lap.
        let phase = !(self.taken >> self.log2) & 1;
        ((upper >> 48) as u32 & 1 == phase).then_some(upper)
    }

    /// Whether a completion has arrived.
    #[inline]
    pub fn pending(&self) -> bool {
        self.upper().is_some()
    }

    /// Takes the next completion.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        let upper = self.upper()?;
        self.taken = self.taken.wrapping_add(1);
        Some(Entry {
            cid: (upper >> 32) as u16,
            status: (upper >> 49) as u16,
            queue: (upper >> 16) as u16,
        })
    }

    /// Dword 0 of the last completion taken: the result of an admin command.
    pub fn result(&self) -> u32 {
        self.completions.load(2 * self.taken.wrapping_sub(1) as usize) as u32
    }

    /// Completions released since the queue was allocated, across restarts.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Releases the taken completion entries to the controller, if there are `least` or more.
    #[inline]
    pub fn give_back(&mut self, least: u32, registers: &ControllerRegisters) {
        let fresh = self.taken.wrapping_sub(self.released);
        if fresh >= least {
            self.completed += u64::from(fresh);
            self.released = self.taken;
            registers.ring(self.head_doorbell, self.taken as u16 & (self.entries - 1));
        }
    }
}
