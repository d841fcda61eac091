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

/// A packet that the device has.
#[derive(Clone, Copy, Default)]
struct Sent {
    /// Its last descriptor, of all.
    last: u32,
    /// How far copies were taken.
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
    /// Descriptors that were written, told of, and came back, in all.
    written: u32,
    told: u32,
    back: u32,
    /// Packets that were written, and that came back, in all; the latter are the completions as well.
    sent: Box<[Sent]>,
    packets: u32,
    packets_back: u32,
    /// A completion named another packet than the oldest: nothing comes back until a reset.
    pub is_lost: bool,
    /// A frame found no room, and the device has given nothing back since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl Transmitter {
    /// For frames of up to `longest` bytes.
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
            told: 0,
            back: 0,
            sent: alloc::vec![Sent::default(); entries].into(),
            packets: 0,
            packets_back: 0,
            is_lost: false,
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

    /// The device has forgotten all, and reads no memory. What was not sent is lost; nothing is taken before
    /// [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.ring.fill(0);
        self.limit = 0;
        (self.written, self.told, self.back) = (0, 0, 0);
        (self.packets, self.packets_back) = (0, 0);
        self.is_lost = false;
        self.copies.clear();
    }

    /// Takes frames.
    pub fn start(&mut self) {
        self.stop();
        self.limit = self.entries - 1;
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// Bit 0 of the lap of an entry, which begins with 1.
    #[inline(always)]
    fn generation(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    #[inline(always)]
    fn has_descriptors(&self) -> bool {
        self.written.wrapping_sub(self.back) + MOST_PIECES as u32 <= self.limit
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
        let before = self.packets_back;
        self.reclaim();
        match self.packets_back == before {
            true => Err(self.starve()),
            false => self.transmit(packet),
        }
    }

    /// There is no room for a frame.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Describes a packet. The device may look at any time: its first piece is written last.
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

    /// Whether there is a completion.
    #[inline(always)]
    fn is_completed(&self) -> bool {
        let upper = self.completions.load(2 * self.index(self.packets_back) + 1);
        let there = (upper & COMPLETED != 0) == (self.generation(self.packets_back) == 1);
        there && self.limit > 0 && !self.is_lost
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
        while self.is_completed() {
            let place = self.index(self.packets_back);
            let named = (self.completions.load(2 * place) & 0xfff) as usize;
            let sent = self.sent[place];
            if self.packets == self.packets_back || named != self.index(sent.last) {
                self.errors += 1;
                self.is_lost = true;
                return;
            }
            self.packets_back = self.packets_back.wrapping_add(1);
            self.back = sent.last.wrapping_add(1);
            self.copies.give_back(sent.copies);
            self.starved = false;
        }
    }

    /// The number to tell the device of, if there are new packets.
    #[inline(always)]
    pub fn take_untold(&mut self) -> Option<u32> {
        (self.written != self.told).then(|| {
            self.told = self.written;
            self.index(self.written) as u32
        })
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
        self.starved && self.limit > 0 && (self.packets == self.packets_back || self.is_completed())
    }

    /// How far the device has come, which gives packets back in their order.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        TransmitProgress::with_waiting(
            self.frames,
            self.packets.wrapping_sub(self.packets_back).into(),
        )
    }

    /// The oldest packet that the device has not sent, by its number; None if there is none.
    pub fn waits_at(&self) -> Option<u32> {
        (self.packets != self.packets_back && !self.is_completed()).then_some(self.packets_back)
    }
}
