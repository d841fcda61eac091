//! The transmit queue: a descriptor for each piece of a packet. The last one requests status reporting.
//!
//! Descriptors are those that the 82574 calls extended data descriptors and the 82576 advanced ones (82574, 7.2.4;
//! 82576, 7.2.2.3): 16 bytes. Bus address of the piece; its length, type and commands (32 bits); 32 bits of which the
//! device sets bit 0 when it is done. Legacy ones have the same bits, without a type.

use super::Error;
use super::chip::Chip;
use super::receive::DESCRIPTOR;
use crate::ethernet::ETHERNET;
use crate::ethernet::copies::Piece;
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::ethernet::transmit_ring::{self, Completed, TransmitQueue, TransmitRing, TransmitState};
use crate::hal::{Arena, Cells, Registers, Window};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

// Commands (DCMD), in the second half of the descriptor.
const END_OF_PACKET: u64 = 1 << 24;
const INSERT_CRC: u64 = 1 << 25;
const REPORT: u64 = 1 << 27;
const EXTENDED: u64 = 1 << 29;
/// Upper 32 bits: the descriptor is done.
const DONE: u64 = 1 << 32;
const CHECK_CONTEXT: u64 = 1 << (32 + 7);
/// Unit of the packet's length.
const LENGTH: u64 = 1 << (32 + 14);
/// A context: 14 bytes of layer 2, and no offloads.
const CONTEXT: [u64; 2] = [(ETHERNET as u64) << 9, 1 << 29 | 2 << 20];

/// Format of a chip's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Legacy descriptors (82540, 3.3.3), in both directions.
    Legacy,
    /// Extended data descriptors.
    Extended,
    /// Advanced descriptors: with the length of the packet.
    Advanced,
    /// As `Advanced`, for an internal switch that parses packets: a context descriptor at the beginning describes the
    /// headers of all packets.
    Switched,
}

/// A transmit queue.
pub type Transmitter = TransmitRing<Queue>;

/// Descriptors, which the device marks when they are done.
pub struct Queue {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    words: Cells<AtomicU64>,
    /// The register of the tail.
    tail: usize,
    /// Type and commands of every descriptor.
    command: u64,
    /// Factor of the packet's length.
    scale: u64,
    format: Format,
}

impl TransmitQueue for Queue {
    const COMPLETES_EACH: bool = true;

    #[inline]
    fn write(&mut self, state: &TransmitState, _: &[u8], pieces: &[Piece], len: usize) -> u32 {
        let upper = len as u64 * self.scale;
        let last = pieces.len() - 1;
        let mut number = state.written;
        for (n, &(address, len)) in pieces.iter().enumerate() {
            let end = if n == last { END_OF_PACKET | REPORT } else { 0 };
            let lower = self.command | end | len as u64;
            self.descriptors.store(state.entries.index(number), [address, lower | upper]);
            number = number.wrapping_add(1);
        }
        pieces.len() as u32
    }

    #[inline]
    fn complete(&mut self, state: &TransmitState) -> Completed {
        if self.is_complete(state) { Completed::Oldest } else { Completed::Nothing }
    }

    #[inline]
    fn is_complete(&self, state: &TransmitState) -> bool {
        state.is_requested() && {
            let last = state.entries.index(state.last_of_oldest());
            self.words.load(2 * last + 1) & DONE != 0
        }
    }
}

impl Transmitter {
    /// Queue number `queue`. Windows that are allocated are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        chip: &dyn Chip,
        queue: usize,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let count = transmit_ring::entries(arena);
        let mut memory = RingMemory { arena, taken };
        let ring = memory.alloc(count * DESCRIPTOR)?;
        let format = chip.format();
        let (kind, scale) = match format {
            Format::Legacy => (0, 0),
            Format::Extended => (EXTENDED | 1 << 20, 0),
            Format::Advanced => (EXTENDED | 3 << 20, LENGTH),
            Format::Switched => (EXTENDED | 3 << 20 | CHECK_CONTEXT, LENGTH),
        };
        let queue = Queue {
            ring,
            descriptors: cells(&ring, 0, count)?,
            words: cells(&ring, 0, 2 * count)?,
            tail: chip.tails(queue)[1],
            command: INSERT_CRC | kind,
            scale,
            format,
        };
        Ok(TransmitRing::with(&mut memory, Entries::new(count), 0, queue)?)
    }

    /// Bus address and length in bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.queue.ring.bus_address(), self.queue.ring.len() as u32)
    }

    /// Accepts frames of up to `longest` bytes. The device is set up with the ring.
    pub fn start(&mut self, longest: usize) {
        self.stop();
        self.set_longest(longest);
        let has_context = self.queue.format == Format::Switched;
        if has_context {
            self.queue.descriptors.store(0, CONTEXT);
        }
        self.accept(self.state().entries.count() - 1, has_context.into());
    }

    /// Notes the link of a started device.
    pub fn note_link(&mut self, up: bool) {
        self.set_link(up, self.state().entries.count() - 1);
    }

    /// Notifies the device of new packets.
    #[inline]
    pub fn notify(&mut self, registers: &dyn Registers) {
        if let Some(written) = self.take_new() {
            fence(Ordering::Release);
            registers.write32(self.queue.tail, self.state().entries.index(written) as u32);
        }
    }
}
