//! The send queue: blocks of 64 bytes. A work request has a control segment (opcode and counter, queue and length in
//! units of 16 bytes, completion flag), an Ethernet segment with the first bytes of the frame, as many as any card
//! needs inline, and a segment for each further piece: length, key, address. The last request before each doorbell
//! requests a completion, which reports all requests up to it.

use super::completions::{Completions, Done};
use super::error::Error;
use super::firmware::Doorbells;
use super::objects::PairObjects;
use crate::ethernet::copies::{MOST_PIECES, Piece};
use crate::ethernet::rings::{Entries, RingMemory, cells};
use crate::ethernet::transmit_ring::{self, Completed, TransmitQueue, TransmitRing, TransmitState};
use crate::ethernet::{ETHERNET, OVERHEAD};
use crate::hal::{Arena, Cells, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

const BLOCK: usize = 64;
const WORDS: usize = BLOCK / 8;
/// Blocks of the largest work request: the first one has one piece, each further one has four.
const MOST_BLOCKS: u32 = 1 + (MOST_PIECES as u32 - 1).div_ceil(4);
/// Distance of doorbell records, which lie in separate cache lines.
const LINE: usize = 64;

const SEND: u64 = 0x0a;
/// Completion flag.
const REPORT: u64 = 2 << 2;
/// Bytes of a frame in the work request: Ethernet header and VLAN tag, which suffice for every card.
const INLINED: usize = 18;
/// Segments (of 16 bytes) for control, Ethernet and inlined bytes.
const SEGMENTS: usize = 3;
/// Doorbell page: send doorbell.
const DOORBELL: usize = 0x800;

/// A transmit queue.
pub type Transmitter = TransmitRing<Queue>;

/// Blocks, completions, and the doorbell record.
pub struct Queue {
    ring: Window,
    blocks: Cells<[AtomicU64; 8]>,
    words: Cells<AtomicU64>,
    record: Window,
    pub completions: Completions,
    /// The queue's number.
    number: u32,
    /// The key for bus addresses.
    key: u32,
    /// First block of the last request.
    last: u32,
    /// First word of the last request.
    first_word: u64,
    /// First blocks of the requests whose completion was requested.
    reporting: Box<[u32]>,
}

impl TransmitQueue for Queue {
    const MOST_DESCRIPTORS: u32 = MOST_BLOCKS;
    const LEAST_HEADER: usize = ETHERNET;
    const COMPLETES_EACH: bool = false;

    /// Writes a work request. It contains the first bytes of `header`.
    #[inline]
    fn write(&mut self, state: &TransmitState, header: &[u8], pieces: &[Piece], _: usize) -> u32 {
        let inlined = header.len().min(INLINED);
        let mut bytes = [0; INLINED];
        bytes[..inlined].copy_from_slice(&header[..inlined]);
        let [first, second, rest @ ..] = bytes;
        let mut block = [0u64; WORDS];
        // Length and the first two bytes; the other 16 (all words are big-endian).
        block[3] = (inlined as u64) << 16 | u64::from(first) << 8 | u64::from(second);
        let (one, other) = rest.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        (block[4], block[5]) = (word(one), word(other));
        let key = u64::from(self.key);
        let (start, len) = pieces[0];
        let (start, len) = (start + inlined as u64, len - inlined);
        // The rest of the first piece may be empty. No further piece is.
        let mut segments = SEGMENTS;
        let mut at = 2 * SEGMENTS;
        let mut place = state.written;
        let request = place;
        let mut head = [0; WORDS];
        let further = pieces[1..].iter().copied();
        let all = core::iter::once((start, len)).filter(|(_, len)| *len > 0).chain(further);
        for (address, len) in all {
            if at == WORDS {
                match place == request {
                    true => head = block,
                    false => self.store(state, place, &block),
                }
                (place, at, block) = (place.wrapping_add(1), 0, [0; WORDS]);
            }
            block[at] = (len as u64) << 32 | key;
            block[at + 1] = address;
            (at, segments) = (at + 2, segments + 1);
        }
        match place == request {
            true => head = block,
            false => self.store(state, place, &block),
        }
        let counter = u64::from(request as u16);
        head[0] = (counter << 8 | SEND) << 32 | u64::from(self.number) << 8 | segments as u64;
        self.store(state, request, &head);
        (self.last, self.first_word) = (request, head[0]);
        place.wrapping_sub(request).wrapping_add(1)
    }

    #[inline]
    fn request(&mut self, state: &TransmitState) {
        // The request's flags are the last byte of the first half of its second word.
        let word = state.entries.index(self.last) * WORDS + 1;
        self.words.store(word, (REPORT << 32).swap_bytes());
        self.reporting[state.entries.index(state.requested)] = self.last;
    }

    #[inline]
    fn complete(&mut self, state: &TransmitState) -> Completed {
        if !state.is_live() {
            return Completed::Nothing;
        }
        let Some(done) = self.completions.take() else { return Completed::Nothing };
        let oldest = self.reporting[state.entries.index(state.reported)];
        match done == Done::Sent(oldest as u16) && state.is_requested() {
            true => Completed::Oldest,
            false => Completed::OutOfSync,
        }
    }

    #[inline]
    fn is_complete(&self, state: &TransmitState) -> bool {
        state.is_live() && self.completions.pending()
    }

    #[inline]
    fn acknowledge(&mut self) {
        self.completions.tell();
    }
}

impl Queue {
    #[inline]
    fn store(&self, state: &TransmitState, place: u32, block: &[u64; WORDS]) {
        self.blocks.store(state.entries.index(place), &block.map(u64::swap_bytes));
    }
}

impl Transmitter {
    /// A queue for packets of `mtu` bytes. Windows that are allocated are added to `taken`.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let count = transmit_ring::entries(arena);
        let entries = Entries::new(count);
        let mut memory = RingMemory { arena, taken };
        let ring = memory.alloc(count * BLOCK)?;
        let completions = memory.alloc(Completions::bytes(entries.log2()))?;
        let records = memory.alloc(4096)?;
        let part = |at| records.slice(at, 8).ok_or(Error::NoMemory { bytes: 8 });
        let queue = Queue {
            ring,
            blocks: cells(&ring, 0, count)?,
            words: cells(&ring, 0, count * WORDS)?,
            record: part(0)?,
            completions: Completions::new(completions, part(LINE)?, entries.log2())?,
            number: 0,
            key: 0,
            last: 0,
            first_word: 0,
            reporting: alloc::vec![0; count].into(),
        };
        let longest = OVERHEAD + usize::from(mtu);
        Ok(TransmitRing::with(&mut memory, entries, longest, queue)?)
    }

    pub fn ring(&self) -> Window {
        self.queue.ring
    }

    pub fn record(&self) -> Window {
        self.queue.record
    }

    pub fn log(&self) -> u32 {
        self.state().entries.log2()
    }

    /// Initializes the rings, before they are created in the device.
    pub fn lay_out(&mut self) {
        self.stop();
        self.queue.ring.fill(0);
        self.queue.record.fill(0);
        self.queue.completions.clear();
    }

    /// Starts the queue, which the device has created with these numbers. `key` is the key for bus addresses.
    pub fn begin(&mut self, objects: &PairObjects, key: u32) {
        self.queue.completions.named(objects.send_completions);
        (self.queue.number, self.queue.key) = (objects.send_queue, key);
        self.accept(self.state().entries.count(), 0);
    }

    /// Notifies the device of new requests.
    #[inline]
    pub fn notify(&mut self, doorbells: Doorbells<'_>) {
        if let Some(written) = self.take_new() {
            self.queue.record.store32(4, (written & 0xffff).swap_bytes());
            fence(Ordering::SeqCst);
            doorbells.write64(DOORBELL, self.queue.first_word.swap_bytes());
        }
    }
}
