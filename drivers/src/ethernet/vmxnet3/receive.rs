//! The receive queue: a ring of buffers, each for a whole frame, and a ring of completions that name them.
//!
//! A descriptor: bus address; length (14 bits), type 0 (head), in bit 31 the generation, which changes with each lap. A
//! completion: descriptor (12 bits), bit 14 end and bit 15 begin of a frame; in the second half length (14 bits), bit
//! 14 error, and in bit 63 the generation.

use super::Error;
use super::shared::Rings;
use crate::ethernet::OVERHEAD;
use crate::ethernet::receive_ring::{self, Next, ReceiveQueue, ReceiveRing, ReceiveState};
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::hal::{Arena, Cells, Window};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 32;
const DESCRIPTOR: usize = 16;

/// Completion: begin and end of a frame.
const WHOLE: u64 = 3 << 14;
const ERROR: u64 = 1 << 14;

/// A receive queue with its buffers.
pub type Receiver = ReceiveRing<Queue>;

/// Descriptors and completions.
pub struct Queue {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    completions: Cells<AtomicU64>,
    /// Bytes of a buffer.
    stride: usize,
}

impl Queue {
    /// The second half of the next completion, if the device has written it.
    #[inline]
    fn upper(&self, state: &ReceiveState) -> Option<u64> {
        let upper = self.completions.load(2 * state.index() + 1);
        let there = upper >> 63 == state.entries.lap(state.taken);
        (there && state.has_posted() && !state.out_of_sync).then_some(upper)
    }
}

// SAFETY: the device writes a completion with the generation of this lap when it returns a buffer, and only posted
// buffers are looked at.
unsafe impl ReceiveQueue for Queue {
    const WRITES_EACH: bool = true;

    #[inline]
    fn stride(&self) -> usize {
        self.stride
    }

    #[inline]
    fn next(&mut self, state: &ReceiveState) -> Next {
        let index = state.index();
        let Some(upper) = self.upper(state) else { return Next::Nothing };
        let lower = self.completions.load(2 * index);
        if (lower & 0xfff) as usize != index {
            return Next::OutOfSync;
        }
        let good = lower & WHOLE == WHOLE && upper & ERROR == 0;
        Next::of_one(good, (upper & 0x3fff) as usize, state.longest)
    }

    #[inline]
    fn pending(&self, state: &ReceiveState) -> bool {
        self.upper(state).is_some()
    }

    #[inline]
    fn post(&mut self, entries: Entries, number: u32, address: u64) {
        let word = self.stride as u64 | entries.lap(number) << 31;
        self.descriptors.store(entries.index(number), [address, word]);
    }

    fn stop(&mut self) {
        self.ring.fill(0);
    }
}

impl Receiver {
    /// A queue for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory, up to the maximum size of
    /// the ring. Windows that are allocated are added to `taken`.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let entries = receive_ring::entries(arena, stride, LEAST_ENTRIES, MOST_ENTRIES);
        let mut memory = RingMemory { arena, taken };
        let count = entries.count() as usize;
        let ring = memory.alloc(2 * count * DESCRIPTOR)?;
        let descriptors = cells(&ring, 0, count)?;
        let completions = cells(&ring, count * DESCRIPTOR, 2 * count)?;
        let queue = Queue { ring, descriptors, completions, stride };
        Ok(ReceiveRing::with(&mut memory, entries, longest, queue)?)
    }

    pub fn rings(&self) -> Rings {
        Rings::of(&self.queue.ring, self.state().entries.count(), DESCRIPTOR)
    }

    /// Posts all buffers but one, before the device is activated.
    pub fn start(&mut self) {
        self.stop();
        self.post_all(self.state().entries.count() - 1);
    }

    /// The producer index to report to the device, once there is a batch of returned buffers.
    #[inline]
    pub fn producer_update(&mut self) -> Option<u32> {
        let posted = self.batch()?;
        Some(self.state().entries.index(posted) as u32)
    }
}
