//! The transmit queue: a descriptor for each piece of a packet, and a ring of completions that name the last of each.
//!
//! A descriptor: bus address; length (14 bits), in bit 14 the generation, which changes with each lap; in the upper 32
//! bits bit 12 end of packet, bit 13 completion wanted. A completion: descriptor (12 bits); in bit 127 the generation.

use super::Error;
use super::shared::Rings;
use crate::ethernet::ETHERNET;
use crate::ethernet::copies::{Copies, MOST_PIECES, Piece, SMALL};
use crate::hal::{Arena, Cells, Packet, TransmitError, TransmitProgress, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const MODEST_ENTRIES: usize = 256;
const SMALL_ARENA: usize = 16 << 20;
/// Bytes of copies for each descriptor.
const COPIES: usize = 256;
const DESCRIPTOR: usize = 16;

const GENERATION_SHIFT: u32 = 14;
const END: u64 = 3 << (32 + 12);
const COMPLETED: u64 = 1 << 63;

/// A packet in flight.
#[derive(Clone, Copy, Default)]
struct Sent {
    /// Running number of its last descriptor.
    last: u32,
    /// [`Copies::taken`] at that point.
    copies: u32,
}

pub struct Transmitter {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
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
    /// Total of descriptors reclaimed.
    reclaimed: u32,
    sent: Box<[Sent]>,
    /// Total of packets written.
    packets: u32,
    /// Total of packets reclaimed, and of completions taken.
    packets_reclaimed: u32,
    /// A completion was not of the oldest packet: nothing is reclaimed until a reset.
    pub out_of_sync: bool,
    /// A frame was refused, and no packet was reclaimed since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// A queue for frames of up to `longest` bytes. Windows that are allocated are added to `taken`.
    pub fn new(arena: &mut Arena, longest: usize, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let small = arena.available() < SMALL_ARENA;
        let entries = if small { MODEST_ENTRIES } else { MOST_ENTRIES };
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let bytes = 2 * entries * DESCRIPTOR;
        let ring = alloc(bytes)?;
        let copies = Copies::new(alloc(entries * COPIES)?);
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let completions = Cells::new(&ring, entries * DESCRIPTOR, 2 * entries);
        Ok(Transmitter {
            ring,
            descriptors,
            completions: completions.ok_or(Error::NoMemory { bytes })?,
            copies,
            entries: entries as u32,
            log2: entries.ilog2(),
            limit: 0,
            longest,
            written: 0,
            notified: 0,
            reclaimed: 0,
            sent: alloc::vec![Sent::default(); entries].into(),
            packets: 0,
            packets_reclaimed: 0,
            out_of_sync: false,
            starved: false,
            frames: 0,
            bytes: 0,
            full: 0,
            errors: 0,
        })
    }

    pub fn rings(&self) -> Rings {
        let ring = self.ring.bus_address();
        let completions = ring + (self.entries as usize * DESCRIPTOR) as u64;
        Rings { ring, completions, entries: self.entries }
    }

    /// Resets the queue's state; frames in flight are lost. The device was reset, and reads no memory. No frame is
    /// accepted before [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.ring.fill(0);
        self.limit = 0;
        (self.written, self.notified, self.reclaimed) = (0, 0, 0);
        (self.packets, self.packets_reclaimed) = (0, 0);
        self.out_of_sync = false;
        self.copies.clear();
    }

    /// Accepts frames.
    pub fn start(&mut self) {
        self.stop();
        self.limit = self.entries - 1;
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// The generation of an entry: bit 0 of its lap, which begins with 1.
    #[inline(always)]
    fn generation(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    #[inline(always)]
    fn has_descriptors(&self) -> bool {
        self.written.wrapping_sub(self.reclaimed) + MOST_PIECES as u32 <= self.limit
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
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
        let before = self.packets_reclaimed;
        self.reclaim();
        match self.packets_reclaimed == before {
            true => Err(self.starve()),
            false => self.transmit(packet),
        }
    }

    /// Notes that a frame was refused.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Writes the descriptors of a packet. The first one is written last, because the device may read the ring at any
    /// time.
    #[inline(always)]
    fn write(&mut self, pieces: &[Piece]) {
        let mut end = END;
        for (n, &(address, len)) in pieces.iter().enumerate().rev() {
            let number = self.written.wrapping_add(n as u32);
            let word = len as u64 | self.generation(number) << GENERATION_SHIFT | end;
            self.descriptors.store(self.index(number), [address, word]);
            end = 0;
        }
        self.written = self.written.wrapping_add(pieces.len() as u32);
        let place = self.index(self.packets);
        let last = self.written.wrapping_sub(1);
        self.sent[place] = Sent { last, copies: self.copies.taken() };
        self.packets = self.packets.wrapping_add(1);
    }

    /// Whether a completion waits.
    #[inline(always)]
    fn is_completed(&self) -> bool {
        let upper = self.completions.load(2 * self.index(self.packets_reclaimed) + 1);
        let there = (upper & COMPLETED != 0) == (self.generation(self.packets_reclaimed) == 1);
        there && self.limit > 0 && !self.out_of_sync
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
        while self.is_completed() {
            let place = self.index(self.packets_reclaimed);
            let named = (self.completions.load(2 * place) & 0xfff) as usize;
            let sent = self.sent[place];
            if self.packets == self.packets_reclaimed || named != self.index(sent.last) {
                self.errors += 1;
                self.out_of_sync = true;
                return;
            }
            self.packets_reclaimed = self.packets_reclaimed.wrapping_add(1);
            self.reclaimed = sent.last.wrapping_add(1);
            self.copies.release(sent.copies);
            self.starved = false;
        }
    }

    /// The producer index to report to the device, if there are new packets.
    #[inline(always)]
    pub fn producer_update(&mut self) -> Option<u32> {
        (self.written != self.notified).then(|| {
            self.notified = self.written;
            self.index(self.written) as u32
        })
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
        self.starved
            && self.limit > 0
            && (self.packets == self.packets_reclaimed || self.is_completed())
    }

    /// Transmit progress. The device completes packets in order.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(
            self.frames,
            self.packets.wrapping_sub(self.packets_reclaimed).into(),
        )
    }

    /// Number of the oldest packet in flight; None if there is none.
    pub fn stuck_at(&self) -> Option<u32> {
        (self.packets != self.packets_reclaimed && !self.is_completed())
            .then_some(self.packets_reclaimed)
    }
}
