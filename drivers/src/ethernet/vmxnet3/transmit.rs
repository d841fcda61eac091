//! The transmit queue: a descriptor for each piece of a packet, and a ring of completions that name the last of each.
//!
//! A descriptor: bus address; length (14 bits), in bit 14 the generation, which changes with each lap; in the upper 32
//! bits bit 12 end of packet, bit 13 completion wanted. A completion: descriptor (12 bits); in bit 127 the generation.

use super::Error;
use super::shared::Rings;
use crate::ethernet::copies::Piece;
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::ethernet::transmit_ring::{self, Completed, TransmitQueue, TransmitRing, TransmitState};
use crate::hal::{Arena, Cells, Window};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const DESCRIPTOR: usize = 16;

const GENERATION_SHIFT: u32 = 14;
const END: u64 = 3 << (32 + 12);

/// A transmit queue.
pub type Transmitter = TransmitRing<Queue>;

/// Descriptors and completions.
pub struct Queue {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    completions: Cells<AtomicU64>,
}

impl TransmitQueue for Queue {
    const COMPLETES_EACH: bool = true;

    /// The first descriptor is written last, because the device may read the ring at any time.
    #[inline]
    fn write(&mut self, state: &TransmitState, _: &[u8], pieces: &[Piece], _: usize) -> u32 {
        let mut end = END;
        for (n, &(address, len)) in pieces.iter().enumerate().rev() {
            let number = state.written.wrapping_add(n as u32);
            let word = len as u64 | state.entries.lap(number) << GENERATION_SHIFT | end;
            self.descriptors.store(state.entries.index(number), [address, word]);
            end = 0;
        }
        pieces.len() as u32
    }

    #[inline]
    fn complete(&mut self, state: &TransmitState) -> Completed {
        if !self.is_complete(state) {
            return Completed::Nothing;
        }
        let named = self.completions.load(2 * state.entries.index(state.reported)) & 0xfff;
        let oldest = state.entries.index(state.last_of_oldest());
        match state.is_requested() && named as usize == oldest {
            true => Completed::Oldest,
            false => Completed::OutOfSync,
        }
    }

    #[inline]
    fn is_complete(&self, state: &TransmitState) -> bool {
        let upper = self.completions.load(2 * state.entries.index(state.reported) + 1);
        upper >> 63 == state.entries.lap(state.reported) && state.is_live()
    }

    fn stop(&mut self) {
        self.ring.fill(0);
    }
}

impl Transmitter {
    /// A queue for frames of up to `longest` bytes. Windows that are allocated are added to `taken`.
    pub fn new(arena: &mut Arena, longest: usize, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let count = transmit_ring::entries(arena);
        let mut memory = RingMemory { arena, taken };
        let ring = memory.alloc(2 * count * DESCRIPTOR)?;
        let descriptors = cells(&ring, 0, count)?;
        let completions = cells(&ring, count * DESCRIPTOR, 2 * count)?;
        let queue = Queue { ring, descriptors, completions };
        Ok(TransmitRing::with(&mut memory, Entries::new(count), longest, queue)?)
    }

    pub fn rings(&self) -> Rings {
        Rings::of(&self.queue.ring, self.state().entries.count(), DESCRIPTOR)
    }

    /// Accepts frames.
    pub fn start(&mut self) {
        self.stop();
        self.accept(self.state().entries.count() - 1, 0);
    }

    /// The producer index to report to the device, if there are new packets.
    #[inline]
    pub fn producer_update(&mut self) -> Option<u32> {
        let written = self.take_new()?;
        Some(self.state().entries.index(written) as u32)
    }
}
