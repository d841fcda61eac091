//! The receive queue: a ring of buffers of 2 KiB. A jumbo frame is in several buffers.
//!
//! Descriptors are those that the 82574 calls extended and the 82576 advanced (82574, 7.1.5; 82576, 7.1.5): 16 bytes.
//! As read by the device: bus address of the buffer, 0. As written back: 8 unused bytes; status and errors (32 bits),
//! length (16 bits), VLAN tag. The 82540 writes legacy ones back (82540, 3.2.3): the address; length and checksum (16
//! bits each), status and errors (8 bits each), VLAN tag.

use super::Error;
use super::chip::Chip;
use super::transmit::Format;
use crate::ethernet::receive_ring::{self, Next, ReceiveQueue, ReceiveRing, ReceiveState};
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::ethernet::{ETHERNET, MOST_MTU, OVERHEAD};
use crate::hal::{Arena, Cells, Registers, Window};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a buffer.
pub const BUFFER: usize = 2048;
/// Maximum number of buffers of a frame.
const MOST_SPAN: u32 = (MOST_MTU as usize + OVERHEAD).div_ceil(BUFFER) as u32;
const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

const DONE: u32 = 1;
const END_OF_PACKET: u32 = 1 << 1;

/// A receive queue with its buffers.
pub type Receiver = ReceiveRing<Queue>;

/// Descriptors, which the device writes back.
pub struct Queue {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    words: Cells<AtomicU64>,
    /// The register of the tail.
    tail: usize,
    /// Status bits that decide about a frame: errors, and end of packet.
    judged: u32,
    /// Bits by which the written half of a descriptor is rotated right, so that status and errors come first.
    rotation: u32,
    /// Length of the longest frame in one buffer.
    longest_in_one: usize,
    /// Inside a frame whose beginning was dropped.
    dropping: bool,
}

// SAFETY: the device marks the descriptor of a buffer when it returns the buffer, and only posted buffers are looked
// at.
unsafe impl ReceiveQueue for Queue {
    const MOST_SPAN: u32 = MOST_SPAN;
    const WRITES_EACH: bool = true;

    #[inline]
    fn stride(&self) -> usize {
        BUFFER
    }

    #[inline]
    fn next(&mut self, state: &ReceiveState) -> Next {
        if !state.has_posted() {
            return Next::Nothing;
        }
        let (status, len) = self.written(state, state.taken);
        if status & DONE == 0 {
            return Next::Nothing;
        }
        let whole = status & self.judged == END_OF_PACKET && !self.dropping;
        match whole && (ETHERNET..=self.longest_in_one).contains(&len) {
            true => Next::Frame { span: 1, len },
            false => self.next_of_several(state),
        }
    }

    #[inline]
    fn pending(&self, state: &ReceiveState) -> bool {
        state.has_posted() && self.written(state, state.taken).0 & DONE != 0
    }

    #[inline]
    fn post(&mut self, entries: Entries, number: u32, address: u64) {
        self.descriptors.store(entries.index(number), [address, 0]);
    }

    fn stop(&mut self) {
        self.dropping = false;
    }
}

impl Queue {
    /// Status with errors, and length of a descriptor.
    #[inline]
    fn written(&self, state: &ReceiveState, number: u32) -> (u32, usize) {
        let word = self.words.load(2 * state.entries.index(number) + 1);
        let word = word.rotate_right(self.rotation);
        (word as u32, (word >> 32) as u16 as usize)
    }

    /// As [`ReceiveQueue::next`], if it is not a good frame in one buffer.
    #[inline(never)]
    fn next_of_several(&mut self, state: &ReceiveState) -> Next {
        let counted = self.dropping;
        let (mut span, mut total, mut good) = (0, 0, !counted);
        while span < MOST_SPAN {
            let number = state.taken.wrapping_add(span);
            if number == state.posted() {
                return Next::Nothing;
            }
            let (status, len) = self.written(state, number);
            if status & DONE == 0 {
                return Next::Nothing;
            }
            span += 1;
            total += len;
            let last = status & END_OF_PACKET != 0;
            good &= status & self.judged & !END_OF_PACKET == 0
                && if last { len <= BUFFER } else { len == BUFFER };
            if last {
                self.dropping = false;
                good &= (ETHERNET..=state.longest).contains(&total);
                return if good {
                    Next::Frame { span, len: total }
                } else {
                    Next::Bad { span, counted }
                };
            }
        }
        // The buffers that follow, up to the end of the packet, belong to this frame.
        self.dropping = true;
        Next::Bad { span, counted }
    }
}

impl Receiver {
    /// Queue number `queue`, for frames of up to [`MOST_MTU`]. Buffers get an eighth of the arena's free memory, up to
    /// the maximum size of the ring. Windows that are allocated are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        chip: &dyn Chip,
        queue: usize,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let entries = receive_ring::entries(arena, BUFFER, LEAST_ENTRIES, MOST_ENTRIES);
        let mut memory = RingMemory { arena, taken };
        let count = entries.count() as usize;
        let ring = memory.alloc(count * DESCRIPTOR)?;
        // The errors of a legacy descriptor follow its eight bits of status, and have the order of the upper eight bits
        // of an extended status.
        let (rotation, judged) = match chip.format() {
            Format::Legacy => (32, chip.damage() >> 16),
            _ => (0, chip.damage()),
        };
        let queue = Queue {
            ring,
            descriptors: cells(&ring, 0, count)?,
            words: cells(&ring, 0, 2 * count)?,
            tail: chip.tails(queue)[0],
            judged: judged | END_OF_PACKET,
            rotation,
            longest_in_one: 0,
            dropping: false,
        };
        Ok(ReceiveRing::with(&mut memory, entries, 0, queue)?)
    }

    /// Bus address and length in bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.queue.ring.bus_address(), self.queue.ring.len() as u32)
    }

    /// Posts all buffers but one, for frames of up to `longest` bytes. The device is set up with the ring.
    pub fn start(&mut self, longest: usize, registers: &dyn Registers) {
        self.stop();
        self.set_longest(longest);
        self.queue.longest_in_one = longest.min(BUFFER);
        self.post_all(self.state().entries.count() - 1);
        let posted = self.report_posted();
        self.notify(registers, posted);
    }

    /// Notifies the device of returned buffers, once there is a batch of them.
    #[inline]
    pub fn notify_batch(&mut self, registers: &dyn Registers) {
        if let Some(posted) = self.batch() {
            self.notify(registers, posted);
        }
    }

    fn notify(&self, registers: &dyn Registers, posted: u32) {
        fence(Ordering::Release);
        registers.write32(self.queue.tail, self.state().entries.index(posted) as u32);
    }

    /// The position of the ring, if the next frame is incomplete but a later descriptor is done. The same position
    /// twice means that the device is out of sync.
    pub fn stuck_at(&self) -> Option<u32> {
        let state = self.state();
        let left = state.posted().wrapping_sub(state.taken);
        let done = |n| self.queue.written(state, state.taken.wrapping_add(n)).0 & DONE != 0;
        (0..left).any(done).then_some(state.taken)
    }
}
