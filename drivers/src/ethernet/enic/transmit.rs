//! The transmit queue: a descriptor for each piece of a packet, and a ring of completions. A completion is asked for at
//! the last descriptor that the device is told of at a time, and says that it is done with all up to there.
//!
//! A descriptor: bus address; length (14 bits), in the upper 32 bits bit 12 end of packet, bit 13 completion wanted. A
//! completion: descriptor (12 bits), bits 16 to 25 the queue; bits 120 to 123 type 0, bit 127 the colour, which changes
//! with each lap (Linux: `wq_enet_desc.h`, `cq_enet_desc.h`).

use super::error::Error;
use super::registers::{self, Ring, WORK_ERROR};
use crate::ethernet::copies::{Copies, HALF, MOST_PIECES, Piece, SMALL};
use crate::ethernet::{ETHERNET, OVERHEAD, SHORTEST};
use crate::hal::{Arena, Cells, Packet, Registers, TransmitError, TransmitProgress, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
const MODEST_ENTRIES: usize = 256;
const SMALL_ARENA: usize = 16 << 20;
/// Bytes of copies for each descriptor.
const COPIES: usize = 256;
const DESCRIPTOR: usize = 16;

const END: u64 = 1 << (32 + 12);
const REPORT: u64 = 1 << (32 + 13);
/// Descriptor and queue, which is 0.
const NAME: u64 = 0x3ff_0fff;
const TYPE: u64 = 0xf << 56;

/// Up to where the device is asked to report.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// The last descriptor, of all.
    last: u32,
    /// How far copies were taken.
    copies: u32,
}

pub struct Transmitter {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    words: Cells<AtomicU64>,
    completions: Cells<AtomicU64>,
    copies: Copies,
    entries: u32,
    log2: u32,
    /// Descriptors that the device may have at once: 0 while it is stopped.
    limit: u32,
    longest: usize,
    /// Descriptors that were written, told of, up to a mark, and came back, in all.
    written: u32,
    told: u32,
    marked: u32,
    back: u32,
    /// The second half of the last.
    last: u64,
    /// Reports that were asked for, and that came, in all; the latter are the completions as well.
    marks: Box<[Mark]>,
    asked: u32,
    reported: u32,
    /// A completion named another descriptor than the oldest report is of: nothing comes back until a reset.
    pub is_lost: bool,
    /// A frame found no room, and the device has given nothing back since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// For packets of `mtu` bytes; the device takes `most` descriptors.
    pub fn new(
        arena: &mut Arena,
        mtu: u16,
        most: u32,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let small = arena.available() < SMALL_ARENA;
        let affordable = if small { MODEST_ENTRIES } else { MOST_ENTRIES };
        let entries = (most as usize).clamp(LEAST_ENTRIES, affordable);
        let entries = 1usize << entries.ilog2();
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let bytes = 2 * entries * DESCRIPTOR;
        let ring = alloc(bytes)?;
        let copies = Copies::new(alloc(entries * COPIES)?);
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let words = Cells::new(&ring, 0, 2 * entries).ok_or(Error::NoMemory { bytes })?;
        let completions = Cells::new(&ring, entries * DESCRIPTOR, 2 * entries);
        Ok(Transmitter {
            ring,
            descriptors,
            words,
            completions: completions.ok_or(Error::NoMemory { bytes })?,
            copies,
            entries: entries as u32,
            log2: entries.ilog2(),
            limit: 0,
            longest: OVERHEAD + usize::from(mtu),
            written: 0,
            told: 0,
            marked: 0,
            back: 0,
            last: 0,
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

    /// What was not sent is lost; nothing is taken before [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.told, self.marked, self.back) = (0, 0, 0, 0);
        (self.asked, self.reported) = (0, 0);
        self.is_lost = false;
        self.copies.clear();
    }

    /// Sets the device's queue up, which is stopped, with its completion queue, and takes frames.
    pub fn start(
        &mut self,
        queues: &dyn Registers,
        completions: &dyn Registers,
        completion: u32,
        interrupt: u32,
    ) {
        self.stop();
        self.ring.fill(0);
        let (address, entries) = (self.ring.bus_address(), self.entries);
        let behind = address + (entries as usize * DESCRIPTOR) as u64;
        let ring = Ring { address: behind, entries };
        registers::start_completions(completions, completion as usize, ring, interrupt);
        let ring = Ring { address, entries };
        registers::start(queues, 0, WORK_ERROR, ring, completion, 0);
        self.limit = self.entries - 1;
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// Bit 0 of the lap of an entry, which begins with 1.
    #[inline(always)]
    fn colour(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    #[inline(always)]
    fn has_descriptors(&self) -> bool {
        self.written.wrapping_sub(self.back) + MOST_PIECES as u32 <= self.limit
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let Packet { header, payload, trailer } = packet;
        // Acknowledgements, and whatever else is short.
        if payload.is_empty()
            && (SHORTEST..=2 * HALF).contains(&header.len())
            && matches!(trailer.len(), 0 | 4)
            && self.has_descriptors()
            && let Some(piece) = self.copies.short(header, trailer)
        {
            self.write(&[piece]);
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
            || packet.payload.len() > Packet::MAX_PAYLOAD_WINDOWS
            || packet.trailer.len() > Packet::MAX_TRAILER
        {
            return Err(TransmitError::TooLarge);
        }
        if !self.has_descriptors() {
            self.reclaim();
            if !self.has_descriptors() {
                return Err(self.starve());
            }
        }
        if len > SMALL {
            return self.transmit_in_pieces(packet, len);
        }
        let Some(piece) = self.copies.whole(packet, len) else { return self.again(packet) };
        self.write(&[piece]);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// A packet that is not copied whole.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.again(packet) };
        self.write(pieces.list());
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

    /// Describes a packet.
    #[inline(always)]
    fn write(&mut self, pieces: &[Piece]) {
        let last = pieces.len() - 1;
        for (n, &(address, len)) in pieces.iter().enumerate() {
            let word = len as u64 | if n == last { END } else { 0 };
            self.descriptors.store(self.index(self.written), [address, word]);
            self.written = self.written.wrapping_add(1);
            self.last = word;
        }
        // In a long burst the device reports now and then, so that room comes back meanwhile.
        if self.written.wrapping_sub(self.marked) >= self.entries / 4 {
            self.mark();
        }
    }

    /// Asks for a report of the last descriptor, unless that was asked for.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked == self.written {
            return;
        }
        self.marked = self.written;
        let last = self.written.wrapping_sub(1);
        self.words.store(2 * self.index(last) + 1, self.last | REPORT);
        let place = self.index(self.asked);
        self.marks[place] = Mark { last, copies: self.copies.taken() };
        self.asked = self.asked.wrapping_add(1);
    }

    /// Tells the device of new packets.
    #[inline(always)]
    pub fn tell(&mut self, queues: &dyn Registers) {
        if self.written != self.told {
            self.mark();
            self.told = self.written;
            registers::post(queues, 0, self.index(self.written) as u32);
        }
    }

    /// The second half of the next completion, without its colour, if it is there.
    #[inline(always)]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.index(self.reported) + 1);
        let there = upper >> 63 == self.colour(self.reported);
        (there && self.limit > 0 && !self.is_lost).then_some(upper)
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
        while let Some(upper) = self.upper() {
            let place = self.index(self.reported);
            let named = self.completions.load(2 * place) & NAME;
            let mark = self.marks[place];
            let is_asked = self.asked != self.reported && upper & TYPE == 0;
            if !is_asked || named != self.index(mark.last) as u64 {
                self.errors += 1;
                self.is_lost = true;
                return;
            }
            self.reported = self.reported.wrapping_add(1);
            self.back = mark.last.wrapping_add(1);
            self.copies.give_back(mark.copies);
            self.starved = false;
        }
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
        self.starved && self.limit > 0 && (self.written == self.back || self.upper().is_some())
    }

    /// How far the device has come, which reports in order. A packet has one descriptor at least.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(self.frames, self.written.wrapping_sub(self.back).into())
    }

    /// The oldest report that has not come, by its number; None if none is waited for.
    pub fn waits_at(&self) -> Option<u32> {
        (self.asked != self.reported && self.upper().is_none()).then_some(self.reported)
    }
}
