//! The send queue: blocks of 64 bytes. A work request has a control segment (opcode and counter, queue and length in
//! units of 16 bytes, completion flag), an Ethernet segment with the first bytes of the frame, as many as any card
//! needs inline, and a segment for each further piece: length, key, address. The last request before each doorbell
//! requests a completion, which reports all requests up to it.

use super::completions::{Completions, Done};
use super::error::Error;
use super::firmware::Doorbells;
use super::objects::PairObjects;
use crate::ethernet::copies::{Copies, HALF, MOST_PIECES, Piece, SMALL};
use crate::ethernet::{ETHERNET, OVERHEAD, SHORTEST};
use crate::hal::{Arena, Cells, Packet, TransmitError, TransmitProgress, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

const MOST_ENTRIES: usize = 1024;
const MODEST_ENTRIES: usize = 256;
const SMALL_ARENA: usize = 16 << 20;
/// Bytes of copies for each block.
const COPIES: usize = 256;
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

/// A requested completion.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Running number of the request's first block.
    block: u32,
    /// `written` at that point.
    end: u32,
    /// [`Copies::taken`] at that point.
    copies: u32,
}

pub struct Transmitter {
    ring: Window,
    blocks: Cells<[AtomicU64; 8]>,
    words: Cells<AtomicU64>,
    record: Window,
    pub completions: Completions,
    copies: Copies,
    entries: u32,
    /// Blocks that the device may have at once: 0 while it is stopped.
    limit: u32,
    longest: usize,
    /// The queue's number.
    number: u32,
    /// The key for bus addresses.
    key: u32,
    /// Total of blocks written.
    written: u32,
    /// `written` as last reported to the device.
    notified: u32,
    /// `written` at the last requested completion.
    marked: u32,
    /// Total of blocks reclaimed.
    reclaimed: u32,
    /// First block of the last request.
    last: u32,
    /// First word of the last request.
    first_word: u64,
    /// Requested completions.
    marks: Box<[Mark]>,
    /// Total of completions requested.
    requested: u32,
    /// Total of completions taken.
    reported: u32,
    /// A completion was not the oldest requested one, or reported an error: nothing is reclaimed until a reset.
    pub out_of_sync: bool,
    /// A frame was refused, and no block was reclaimed since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// A queue for packets of `mtu` bytes.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let small = arena.available() < SMALL_ARENA;
        let entries = if small { MODEST_ENTRIES } else { MOST_ENTRIES };
        let log = entries.ilog2();
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let bytes = entries * BLOCK;
        let ring = alloc(bytes)?;
        let completions = alloc(Completions::bytes(log))?;
        let records = alloc(4096)?;
        let copies = Copies::new(alloc(entries * COPIES)?);
        let part = |at| records.slice(at, 8).ok_or(Error::NoMemory { bytes: 8 });
        Ok(Transmitter {
            ring,
            blocks: Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?,
            words: Cells::new(&ring, 0, entries * WORDS).ok_or(Error::NoMemory { bytes })?,
            record: part(0)?,
            completions: Completions::new(completions, part(LINE)?, log)?,
            copies,
            entries: entries as u32,
            limit: 0,
            longest: OVERHEAD + usize::from(mtu),
            number: 0,
            key: 0,
            written: 0,
            notified: 0,
            marked: 0,
            reclaimed: 0,
            last: 0,
            first_word: 0,
            marks: alloc::vec![Mark::default(); entries].into(),
            requested: 0,
            reported: 0,
            out_of_sync: false,
            starved: false,
            frames: 0,
            bytes: 0,
            full: 0,
            errors: 0,
        })
    }

    pub fn ring(&self) -> Window {
        self.ring
    }

    pub fn record(&self) -> Window {
        self.record
    }

    pub fn log(&self) -> u32 {
        self.entries.ilog2()
    }

    /// Resets the queue's state; frames in flight are lost. No frame is accepted before [`Transmitter::begin`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.notified, self.marked, self.reclaimed) = (0, 0, 0, 0);
        (self.requested, self.reported) = (0, 0);
        self.out_of_sync = false;
        self.copies.clear();
    }

    /// Initializes the rings, before they are created in the device.
    pub fn lay_out(&mut self) {
        self.stop();
        self.ring.fill(0);
        self.record.fill(0);
        self.completions.clear();
    }

    /// Starts the queue, which the device has created with these numbers. `key` is the key for bus addresses.
    pub fn begin(&mut self, objects: &PairObjects, key: u32) {
        self.completions.named(objects.send_completions);
        (self.number, self.key) = (objects.send_queue, key);
        self.limit = self.entries;
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    #[inline(always)]
    fn has_blocks(&self) -> bool {
        self.written.wrapping_sub(self.reclaimed) + MOST_BLOCKS <= self.limit
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let Packet { header, payload, trailer } = packet;
        // Acknowledgements and other short packets.
        if payload.is_empty()
            && (SHORTEST..=2 * HALF).contains(&header.len())
            && matches!(trailer.len(), 0 | 4)
            && self.has_blocks()
            && let Some(piece) = self.copies.short(header, trailer)
        {
            self.write(header, &[piece]);
            self.frames += 1;
            self.bytes += piece.1 as u64;
            return Ok(());
        }
        self.transmit_any(packet)
    }

    #[inline(never)]
    fn transmit_any(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let len = packet.len();
        if !(ETHERNET..=self.longest).contains(&len)
            || packet.header.len() < ETHERNET
            || packet.payload.len() > Packet::MAX_PAYLOAD_WINDOWS
            || packet.trailer.len() > Packet::MAX_TRAILER
        {
            return Err(TransmitError::TooLarge);
        }
        if !self.has_blocks() {
            self.reclaim();
            if !self.has_blocks() {
                return Err(self.starve());
            }
        }
        if len > SMALL {
            return self.transmit_in_pieces(packet, len);
        }
        let Some(piece) = self.copies.whole(packet, len) else { return self.retry(packet) };
        self.write(packet.header, &[piece]);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Sends a packet whose payload is not copied.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.retry(packet) };
        self.write(packet.header, pieces.list());
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Tries again after copies of sent frames were released, because there was no memory for copies.
    #[cold]
    fn retry(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let before = self.reported;
        self.reclaim();
        match self.reported == before {
            true => Err(self.starve()),
            false => self.transmit_any(packet),
        }
    }

    /// Notes that a frame was refused.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Writes a work request. It contains the first bytes of `header`, which is the beginning of the first piece.
    #[inline(always)]
    fn write(&mut self, header: &[u8], pieces: &[Piece]) {
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
        let mut place = self.written;
        let request = place;
        let mut head = [0; WORDS];
        let further = pieces[1..].iter().copied();
        let all = core::iter::once((start, len)).filter(|(_, len)| *len > 0).chain(further);
        for (address, len) in all {
            if at == WORDS {
                match place == request {
                    true => head = block,
                    false => self.store(place, &block),
                }
                (place, at, block) = (place.wrapping_add(1), 0, [0; WORDS]);
            }
            block[at] = (len as u64) << 32 | key;
            block[at + 1] = address;
            (at, segments) = (at + 2, segments + 1);
        }
        match place == request {
            true => head = block,
            false => self.store(place, &block),
        }
        let counter = u64::from(request as u16);
        head[0] = (counter << 8 | SEND) << 32 | u64::from(self.number) << 8 | segments as u64;
        self.store(request, &head);
        (self.last, self.first_word) = (request, head[0]);
        self.written = place.wrapping_add(1);
        // In a long burst, completions are requested from time to time, so that blocks can be reclaimed.
        if self.written.wrapping_sub(self.marked) >= self.entries / 4 {
            self.mark();
        }
    }

    #[inline(always)]
    fn store(&self, place: u32, block: &[u64; WORDS]) {
        self.blocks.store(self.index(place), &block.map(u64::swap_bytes));
    }

    /// Requests a completion for the last request, unless it was requested before.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked == self.written {
            return;
        }
        self.marked = self.written;
        // The request's flags are the last byte of the first half of its second word.
        self.words.store(self.index(self.last) * WORDS + 1, (REPORT << 32).swap_bytes());
        let place = self.index(self.requested);
        let copies = self.copies.taken();
        self.marks[place] = Mark { block: self.last, end: self.written, copies };
        self.requested = self.requested.wrapping_add(1);
    }

    /// Notifies the device of new requests.
    #[inline(always)]
    pub fn notify(&mut self, doorbells: Doorbells<'_>) {
        if self.written != self.notified {
            self.mark();
            self.notified = self.written;
            self.record.store32(4, (self.written & 0xffff).swap_bytes());
            fence(Ordering::SeqCst);
            doorbells.write64(DOORBELL, self.first_word.swap_bytes());
        }
    }

    /// Reclaims sent frames if less than half of the ring is free.
    #[inline(always)]
    pub fn reclaim_some(&mut self) {
        if self.written.wrapping_sub(self.reclaimed) > self.entries / 2 {
            self.reclaim();
        }
    }

    /// Reclaims sent frames.
    pub fn reclaim(&mut self) {
        while self.limit > 0
            && !self.out_of_sync
            && let Some(done) = self.completions.take()
        {
            let mark = self.marks[self.index(self.reported)];
            let is_next = done == Done::Sent(mark.block as u16) && self.requested != self.reported;
            if !is_next {
                self.errors += 1;
                self.out_of_sync = true;
                return;
            }
            self.reported = self.reported.wrapping_add(1);
            self.reclaimed = mark.end;
            self.copies.release(mark.copies);
            self.starved = false;
        }
        self.completions.tell();
    }

    /// Whether a refused frame waits for room, so that the device must interrupt at the next completion.
    pub fn is_starved(&self) -> bool {
        self.starved && self.limit > 0
    }

    /// Whether a refused frame may find room now.
    pub fn has_room(&self) -> bool {
        !self.starved || self.pending()
    }

    /// Whether there is room again after a frame was refused.
    pub fn pending(&self) -> bool {
        let some =
            self.written == self.reclaimed || !self.out_of_sync && self.completions.pending();
        self.starved && self.limit > 0 && some
    }

    /// Transmit progress. The device reports in order. A packet has at least one block.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(
            self.frames,
            self.written.wrapping_sub(self.reclaimed).into(),
        )
    }

    /// Number of the oldest outstanding completion; None if there is none.
    pub fn stuck_at(&self) -> Option<u32> {
        let waits = self.requested != self.reported && !self.completions.pending();
        waits.then_some(self.reported)
    }
}
