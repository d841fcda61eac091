//! The transmit queue: a descriptor for each piece of a packet, and a ring of completions. The last descriptor before
//! each doorbell requests a completion, which reports all descriptors up to it.
//!
//! A descriptor: bus address; length (14 bits), in the upper 32 bits bit 12 end of packet, bit 13 completion wanted. A
//! completion: descriptor (12 bits), bits 16 to 25 the queue; bits 120 to 123 type 0, bit 127 the colour, which changes
//! with each lap (Linux: `wq_enet_desc.h`, `cq_enet_desc.h`).

use super::error::Error;
use super::registers::{self, Ring, WORK_ERROR};
use crate::ethernet::OVERHEAD;
use crate::ethernet::copies::Piece;
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::ethernet::transmit_ring::{self, Completed, TransmitQueue, TransmitRing, TransmitState};
use crate::hal::{Arena, Cells, Registers, Window};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const LEAST_ENTRIES: usize = 64;
const DESCRIPTOR: usize = 16;

const END: u64 = 1 << (32 + 12);
const REPORT: u64 = 1 << (32 + 13);
/// Descriptor and queue, which is 0.
const NAME: u64 = 0x3ff_0fff;
const TYPE: u64 = 0xf << 56;

/// A transmit queue.
pub type Transmitter = TransmitRing<Queue>;

/// Descriptors and completions.
pub struct Queue {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    words: Cells<AtomicU64>,
    completions: Cells<AtomicU64>,
    /// The second half of the last descriptor.
    last: u64,
}

impl Queue {
    /// The second half of the next completion, if the device has written it.
    #[inline]
    fn upper(&self, state: &TransmitState) -> Option<u64> {
        let upper = self.completions.load(2 * state.entries.index(state.reported) + 1);
        let there = upper >> 63 == state.entries.lap(state.reported);
        (there && state.is_live()).then_some(upper)
    }
}

impl TransmitQueue for Queue {
    const COMPLETES_EACH: bool = false;

    #[inline]
    fn write(&mut self, state: &TransmitState, _: &[u8], pieces: &[Piece], _: usize) -> u32 {
        let last = pieces.len() - 1;
        let mut number = state.written;
        for (n, &(address, len)) in pieces.iter().enumerate() {
            let word = len as u64 | if n == last { END } else { 0 };
            self.descriptors.store(state.entries.index(number), [address, word]);
            number = number.wrapping_add(1);
            self.last = word;
        }
        pieces.len() as u32
    }

    #[inline]
    fn request(&mut self, state: &TransmitState) {
        let last = state.entries.index(state.written.wrapping_sub(1));
        self.words.store(2 * last + 1, self.last | REPORT);
    }

    #[inline]
    fn complete(&mut self, state: &TransmitState) -> Completed {
        let Some(upper) = self.upper(state) else { return Completed::Nothing };
        let named = self.completions.load(2 * state.entries.index(state.reported)) & NAME;
        let oldest = state.entries.index(state.last_of_oldest()) as u64;
        match state.is_requested() && upper & TYPE == 0 && named == oldest {
            true => Completed::Oldest,
            false => Completed::OutOfSync,
        }
    }

    #[inline]
    fn is_complete(&self, state: &TransmitState) -> bool {
        self.upper(state).is_some()
    }
}

impl Transmitter {
    /// A queue for packets of `mtu` bytes; the device takes at most `most` descriptors. Windows that are allocated are
    /// added to `taken`.
    pub fn new(
        arena: &mut Arena,
        mtu: u16,
        most: u32,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let count = (most as usize).clamp(LEAST_ENTRIES, transmit_ring::entries(arena));
        let count = 1usize << count.ilog2();
        let mut memory = RingMemory { arena, taken };
        let ring = memory.alloc(2 * count * DESCRIPTOR)?;
        let queue = Queue {
            ring,
            descriptors: cells(&ring, 0, count)?,
            words: cells(&ring, 0, 2 * count)?,
            completions: cells(&ring, count * DESCRIPTOR, 2 * count)?,
            last: 0,
        };
        let longest = OVERHEAD + usize::from(mtu);
        Ok(TransmitRing::with(&mut memory, Entries::new(count), longest, queue)?)
    }

    /// Sets up the device's queue, which is stopped, and its completion queue, and accepts frames.
    pub fn start(
        &mut self,
        queues: &dyn Registers,
        completions: &dyn Registers,
        completion: u32,
        interrupt: u32,
    ) {
        self.stop();
        self.queue.ring.fill(0);
        let (address, entries) = (self.queue.ring.bus_address(), self.state().entries.count());
        let behind = address + (entries as usize * DESCRIPTOR) as u64;
        let ring = Ring { address: behind, entries };
        registers::start_completions(completions, completion as usize, ring, interrupt);
        let ring = Ring { address, entries };
        registers::start(queues, 0, WORK_ERROR, ring, completion, 0);
        self.accept(entries - 1, 0);
    }

    /// Notifies the device of new packets.
    #[inline]
    pub fn notify(&mut self, queues: &dyn Registers) {
        if let Some(written) = self.take_new() {
            registers::post(queues, 0, self.state().entries.index(written) as u32);
        }
    }
}
