//! The send queue: blocks of 64 bytes. A work request is a control segment (opcode and counter, queue and length in 16
//! bytes, whether it is to be completed), an Ethernet segment with the first bytes of the frame, as much of them as every
//! card wants there, and a segment for each further piece: length, key, address. A completion is asked for at the last
//! request that the device is told of at a time, and says that it is done with all up to there.

use super::completions::{Completions, Done};
use super::error::Error;
use super::firmware::Doorbells;
use super::objects::Named;
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
/// Blocks of the largest work request: one with a piece, and four pieces in each further one.
const MOST_BLOCKS: u32 = 1 + (MOST_PIECES as u32 - 1).div_ceil(4);
/// Records lie on lines of their own.
const LINE: usize = 64;

const SEND: u64 = 0x0a;
/// A completion is wanted.
const REPORT: u64 = 2 << 2;
/// Bytes of a frame in the work request: Ethernet header and VLAN tag, with which every card is content.
const INLINED: usize = 18;
/// Segments of control, Ethernet and what is inlined.
const SEGMENTS: usize = 3;
/// In a doorbell page.
const DOORBELL: usize = 0x800;

/// Up to where the device is asked to report.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// The first block of the request.
    block: u32,
    /// Blocks that come back with it, and how far copies were taken.
    end: u32,
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
    /// What it and the key of bus addresses are called.
    number: u32,
    key: u32,
    /// Blocks that were written, told of, up to a mark, and came back, in all.
    written: u32,
    told: u32,
    marked: u32,
    back: u32,
    /// The last request: its first block, and the first word of that.
    last: u32,
    first_word: u64,
    /// Reports that were asked for, and that came, in all.
    marks: Box<[Mark]>,
    asked: u32,
    reported: u32,
    /// A completion was not the one that was waited for, or said that the queue has failed: nothing comes back until a
    /// reset.
    pub is_lost: bool,
    /// A frame found no room, and the device has given nothing back since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// For packets of `mtu` bytes.
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
            told: 0,
            marked: 0,
            back: 0,
            last: 0,
            first_word: 0,
            marks: alloc::vec![Mark::default(); entries].into(),
            asked: 0,
            reported: 0,
            is_lost: false,
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

    /// What was not sent is lost; nothing is taken before [`Transmitter::begin`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.told, self.marked, self.back) = (0, 0, 0, 0);
        (self.asked, self.reported) = (0, 0);
        self.is_lost = false;
        self.copies.clear();
    }

    /// Makes the rings ready, before the device is told of them.
    pub fn lay_out(&mut self) {
        self.stop();
        self.ring.fill(0);
        self.record.fill(0);
        self.completions.clear();
    }

    /// The device has the rings, and calls them so; `key` is that of bus addresses.
    pub fn begin(&mut self, named: &Named, key: u32) {
        self.completions.named(named.send_completions);
        (self.number, self.key) = (named.send_queue, key);
        self.limit = self.entries;
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    #[inline(always)]
    fn has_blocks(&self) -> bool {
        self.written.wrapping_sub(self.back) + MOST_BLOCKS <= self.limit
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let Packet { header, payload, trailer } = packet;
        // Acknowledgements, and whatever else is short.
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
        let Some(piece) = self.copies.whole(packet, len) else { return self.again(packet) };
        self.write(packet.header, &[piece]);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// A packet that is not copied whole.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.again(packet) };
        self.write(packet.header, pieces.list());
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// There was no memory for copies: perhaps there is when the device has given back what it sent.
    #[cold]
    fn again(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let before = self.reported;
        self.reclaim();
        match self.reported == before {
            true => Err(self.starve()),
            false => self.transmit_any(packet),
        }
    }

    /// There is no room for a frame.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Writes a work request: the first bytes of `header`, which is the beginning of the first piece, go into it.
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
        // Nothing may be left of the first piece; of those behind it none is empty.
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
        // In a long burst the device reports now and then, so that room comes back meanwhile.
        if self.written.wrapping_sub(self.marked) >= self.entries / 4 {
            self.mark();
        }
    }

    #[inline(always)]
    fn store(&self, place: u32, block: &[u64; WORDS]) {
        self.blocks.store(self.index(place), &block.map(u64::swap_bytes));
    }

    /// Asks for a report of the last request, unless that was asked for.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked == self.written {
            return;
        }
        self.marked = self.written;
        // Its flags are the last byte of the first half of the second word.
        self.words.store(self.index(self.last) * WORDS + 1, (REPORT << 32).swap_bytes());
        let place = self.index(self.asked);
        let copies = self.copies.taken();
        self.marks[place] = Mark { block: self.last, end: self.written, copies };
        self.asked = self.asked.wrapping_add(1);
    }

    /// Tells the device of new requests.
    #[inline(always)]
    pub fn tell(&mut self, doorbells: Doorbells<'_>) {
        if self.written != self.told {
            self.mark();
            self.told = self.written;
            self.record.store32(4, (self.written & 0xffff).swap_bytes());
            fence(Ordering::SeqCst);
            doorbells.write64(DOORBELL, self.first_word.swap_bytes());
        }
    }

    /// Takes back what the device has sent if there is little room left; until then there is no need to look.
    #[inline(always)]
    pub fn reclaim_some(&mut self) {
        if self.written.wrapping_sub(self.back) > self.entries / 2 {
            self.reclaim();
        }
    }

    /// Takes back what the device has sent.
    pub fn reclaim(&mut self) {
        while self.limit > 0
            && !self.is_lost
            && let Some(done) = self.completions.take()
        {
            let mark = self.marks[self.index(self.reported)];
            let is_next = done == Done::Sent(mark.block as u16) && self.asked != self.reported;
            if !is_next {
                self.errors += 1;
                self.is_lost = true;
                return;
            }
            self.reported = self.reported.wrapping_add(1);
            self.back = mark.end;
            self.copies.give_back(mark.copies);
            self.starved = false;
        }
        self.completions.tell();
    }

    /// A frame found no room: the device is to say when there is some.
    pub fn is_starved(&self) -> bool {
        self.starved && self.limit > 0
    }

    /// Whether a frame that found no room would find some now.
    pub fn has_room(&self) -> bool {
        !self.starved || self.pending()
    }

    /// Whether there is room again for a frame that found none.
    pub fn pending(&self) -> bool {
        let some = self.written == self.back || !self.is_lost && self.completions.pending();
        self.starved && self.limit > 0 && some
    }

    /// How far the device has come, which reports in order. A packet has one block at least.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(self.frames, self.written.wrapping_sub(self.back).into())
    }

    /// The oldest report that has not come, by its number; None if none is waited for.
    pub fn waits_at(&self) -> Option<u32> {
        let waits = self.asked != self.reported && !self.completions.pending();
        waits.then_some(self.reported)
    }
}
