//! A receive queue: a ring of buffers, each for a whole frame, and a ring of completions in the same order. The device
//! does not change descriptors: they are written once.
//!
//! A descriptor: bus address; length (14 bits), type 0 (first of a frame). A completion: descriptor (12 bits), bit 14
//! end and bit 15 begin of a frame, bits 16 to 25 the queue; in the second half length (14 bits), bit 14 damaged or cut
//! off, bits 56 to 59 type 3, bit 63 the colour, which changes with each lap (Linux: `cq_enet_desc.h`).

use super::error::Error;
use super::registers::{self, RECEIVE_ERROR, Ring};
use crate::ethernet::OVERHEAD;
use crate::ethernet::receive_ring::{self, Next, ReceiveQueue, ReceiveRing, ReceiveState};
use crate::ethernet::rings::{RingMemory, cells};
use crate::hal::{Arena, Cells, Registers, Window};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const LEAST_ENTRIES: usize = 64;
const DESCRIPTOR: usize = 16;

/// Completion: begin and end of a frame.
const WHOLE: u64 = 3 << 14;
/// Completion: descriptor and queue.
const NAME: u64 = 0x3ff_0fff;
const DAMAGED: u64 = 1 << 14;
const TYPE: u64 = 0xf << 56;
const RECEIVED: u64 = 3 << 56;
const COLOUR: u64 = 1 << 63;

/// A receive queue with its buffers.
pub type Receiver = ReceiveRing<Queue>;

/// Descriptors and completions.
pub struct Queue {
    /// Number of the queue.
    number: usize,
    ring: Window,
    /// Bytes of a buffer.
    stride: usize,
    descriptors: Cells<[AtomicU64; 2]>,
    completions: Cells<AtomicU64>,
}

impl Queue {
    /// The second half of completion `number`, if the device has written it.
    #[inline]
    fn upper(&self, state: &ReceiveState, number: u32) -> Option<u64> {
        let upper = self.completions.load(2 * state.entries.index(number) + 1);
        (upper >> 63 == state.entries.lap(number)).then_some(upper & !COLOUR)
    }

    /// As [`Queue::upper`], of the next completion.
    #[inline]
    fn next_upper(&self, state: &ReceiveState) -> Option<u64> {
        let upper = self.upper(state, state.taken);
        upper.filter(|_| state.has_posted() && !state.out_of_sync)
    }
}

// SAFETY: the device writes a completion with the colour of this lap when it returns a buffer, and only posted buffers
// are looked at.
unsafe impl ReceiveQueue for Queue {
    const WRITES_EACH: bool = false;

    #[inline]
    fn stride(&self) -> usize {
        self.stride
    }

    #[inline]
    fn next(&mut self, state: &ReceiveState) -> Next {
        let index = state.index();
        let Some(upper) = self.next_upper(state) else { return Next::Nothing };
        let lower = self.completions.load(2 * index);
        if lower & NAME != (index | self.number << 16) as u64 || upper & TYPE != RECEIVED {
            return Next::OutOfSync;
        }
        let good = lower & WHOLE == WHOLE && upper & DAMAGED == 0;
        Next::of_one(good, (upper & 0x3fff) as usize, state.longest)
    }

    #[inline]
    fn pending(&self, state: &ReceiveState) -> bool {
        self.next_upper(state).is_some()
    }
}

impl Receiver {
    /// Queue number `number`, for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory, but the
    /// device takes at most `most`. Windows that are allocated are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        number: usize,
        mtu: u16,
        most: u32,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let entries = receive_ring::entries(arena, stride, LEAST_ENTRIES, most as usize);
        let mut memory = RingMemory { arena, taken };
        let count = entries.count() as usize;
        let ring = memory.alloc(2 * count * DESCRIPTOR)?;
        let descriptors = cells(&ring, 0, count)?;
        let completions = cells(&ring, count * DESCRIPTOR, 2 * count)?;
        let queue = Queue { number, ring, stride, descriptors, completions };
        Ok(ReceiveRing::with(&mut memory, entries, longest, queue)?)
    }

    /// Sets up the device's queue, which is stopped, and its completion queue, and posts all buffers but one.
    pub fn start(&mut self, queues: &dyn Registers, completions: &dyn Registers, completion: u32) {
        self.stop();
        let Queue { number, ring, .. } = self.queue;
        ring.fill(0);
        let entries = self.state().entries.count();
        for index in 0..entries as usize {
            let words = [self.address(index), self.queue.stride as u64];
            self.queue.descriptors.store(index, words);
        }
        let address = ring.bus_address();
        let behind = address + (entries as usize * DESCRIPTOR) as u64;
        let ring = Ring { address: behind, entries };
        registers::start_completions(completions, completion as usize, ring, 0);
        let ring = Ring { address, entries };
        registers::start(queues, number, RECEIVE_ERROR, ring, completion, 0);
        self.post_all(entries - 1);
        let posted = self.report_posted();
        self.notify(queues, posted);
    }

    /// Notifies the device of returned buffers, once there is a batch of them.
    #[inline]
    pub fn notify_batch(&mut self, queues: &dyn Registers) {
        if let Some(posted) = self.batch() {
            self.notify(queues, posted);
        }
    }

    fn notify(&self, queues: &dyn Registers, posted: u32) {
        let index = self.state().entries.index(posted);
        registers::post(queues, self.queue.number, index as u32);
    }

    /// The position of the ring, if the next completion is missing but a later one is there. The same position twice
    /// means that the device is out of sync.
    pub fn stuck_at(&self) -> Option<u32> {
        let (queue, state) = (&self.queue, self.state());
        if !state.has_posted() || queue.next_upper(state).is_some() {
            return None;
        }
        let later = queue.upper(state, state.taken.wrapping_add(1));
        later.is_some_and(|upper| upper & TYPE == RECEIVED).then_some(state.taken)
    }
}
