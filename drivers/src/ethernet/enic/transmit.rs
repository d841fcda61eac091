//! The transmit queue: a descriptor for each piece of a packet, and a ring of completions. The last descriptor before
//! each doorbell requests a completion, which reports all descriptors up to it.
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

/// A requested completion.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Running number of its descriptor.
    last: u32,
    /// [`Copies::taken`] at that point.
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
    /// Total of descriptors written.
    written: u32,
    /// `written` as last reported to the device.
    notified: u32,
    /// `written` at the last requested completion.
    marked: u32,
    /// Total of descriptors reclaimed.
    reclaimed: u32,
    /// The second half of the last descriptor.
    last: u64,
    /// Requested completions.
    marks: Box<[Mark]>,
    /// Total of completions requested.
    requested: u32,
    /// Total of completions taken.
    reported: u32,
    /// A completion was not the oldest requested one: nothing is reclaimed until a reset.
    pub out_of_sync: bool,
    /// A frame was refused, and no descriptor was reclaimed since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// A queue for packets of `mtu` bytes; the device takes at most `most` descriptors.
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
            notified: 0,
            marked: 0,
            reclaimed: 0,
            last: 0,
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

    /// Resets the queue's state; frames in flight are lost. No frame is accepted before [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.notified, self.marked, self.reclaimed) = (0, 0, 0, 0);
        (self.requested, self.reported) = (0, 0);
        self.out_of_sync = false;
        self.copies.clear();
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

    /// The colour of an entry: bit 0 of its lap, which begins with 1.
    #[inline(always)]
    fn colour(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    #[inline(always)]
    fn has_descriptors(&self) -> bool {
        self.written.wrapping_sub(self.reclaimed) + MOST_PIECES as u32 <= self.limit
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let Packet { header, payload, trailer } = packet;
        // Acknowledgements and other short packets.
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
        let Some(piece) = self.copies.whole(packet, len) else { return self.retry(packet) };
        self.write(&[piece]);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Sends a packet whose payload is not copied.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.retry(packet) };
        self.write(pieces.list());
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

    /// Writes the descriptors of a packet.
    #[inline(always)]
    fn write(&mut self, pieces: &[Piece]) {
        let last = pieces.len() - 1;
        for (n, &(address, len)) in pieces.iter().enumerate() {
            let word = len as u64 | if n == last { END } else { 0 };
            self.descriptors.store(self.index(self.written), [address, word]);
            self.written = self.written.wrapping_add(1);
            self.last = word;
        }
        // In a long burst, completions are requested from time to time, so that descriptors can be reclaimed.
        if self.written.wrapping_sub(self.marked) >= self.entries / 4 {
            self.mark();
        }
    }

    /// Requests a completion for the last descriptor, unless it was requested before.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked == self.written {
            return;
        }
        self.marked = self.written;
        let last = self.written.wrapping_sub(1);
        self.words.store(2 * self.index(last) + 1, self.last | REPORT);
        let place = self.index(self.requested);
        self.marks[place] = Mark { last, copies: self.copies.taken() };
        self.requested = self.requested.wrapping_add(1);
    }

    /// Notifies the device of new packets.
    #[inline(always)]
    pub fn notify(&mut self, queues: &dyn Registers) {
        if self.written != self.notified {
            self.mark();
            self.notified = self.written;
            registers::post(queues, 0, self.index(self.written) as u32);
        }
    }

    /// The second half of the next completion, if the device has written it.
    #[inline(always)]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.index(self.reported) + 1);
        let there = upper >> 63 == self.colour(self.reported);
        (there && self.limit > 0 && !self.out_of_sync).then_some(upper)
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
        while let Some(upper) = self.upper() {
            let place = self.index(self.reported);
            let named = self.completions.load(2 * place) & NAME;
            let mark = self.marks[place];
            let is_requested = self.requested != self.reported && upper & TYPE == 0;
            if !is_requested || named != self.index(mark.last) as u64 {
                self.errors += 1;
                self.out_of_sync = true;
                return;
            }
            self.reported = self.reported.wrapping_add(1);
            self.reclaimed = mark.last.wrapping_add(1);
            self.copies.release(mark.copies);
            self.starved = false;
        }
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
        self.starved && self.limit > 0 && (self.written == self.reclaimed || self.upper().is_some())
    }

    /// Transmit progress. The device reports in order. A packet has at least one descriptor.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(
            self.frames,
            self.written.wrapping_sub(self.reclaimed).into(),
        )
    }

    /// Number of the oldest outstanding completion; None if there is none.
    pub fn stuck_at(&self) -> Option<u32> {
        (self.requested != self.reported && self.upper().is_none()).then_some(self.reported)
    }
}
