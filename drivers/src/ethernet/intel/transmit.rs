//! The transmit queue: a descriptor for each piece of a packet, the last of which asks for a report.
//!
//! Descriptors are those that the 82574 calls extended data descriptors and the 82576 advanced ones (82574, 7.2.4;
//! 82576, 7.2.2.3): 16 bytes. Bus address of the piece; its length, type and commands (32 bits); 32 bits of which bit 0
//! is set by the device when it is done.

use super::Error;
use super::chip::Chip;
use super::receive::DESCRIPTOR;
use crate::ethernet::copies::{Copies, HALF, MOST_PIECES, Piece, SMALL};
use crate::ethernet::{ETHERNET, SHORTEST};
use crate::hal::{Arena, Cells, Packet, Registers, TransmitError, TransmitProgress, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

const MOST_ENTRIES: usize = 1024;
const MODEST_ENTRIES: usize = 256;
const SMALL_ARENA: usize = 16 << 20;
/// Bytes of copies for each descriptor.
const COPIES: usize = 256;

// Commands (DCMD), in the second half of the descriptor.
const END_OF_PACKET: u64 = 1 << 24;
const INSERT_CRC: u64 = 1 << 25;
const REPORT: u64 = 1 << 27;
const EXTENDED: u64 = 1 << 29;
/// In the upper 32 bits.
const DONE: u64 = 1 << 32;
const CHECK_CONTEXT: u64 = 1 << (32 + 7);
/// A byte of the packet's length.
const LENGTH: u64 = 1 << (32 + 14);
/// A context: 14 bytes of layer 2, and no offloads.
const CONTEXT: [u64; 2] = [(ETHERNET as u64) << 9, 1 << 29 | 2 << 20];

/// How a chip writes its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Extended data descriptors.
    Extended,
    /// Advanced ones: with the length of the packet.
    Advanced,
    /// Likewise, for a switch that looks at packets: the first descriptor tells it of the headers of all of them.
    Switched,
}

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
    words: Cells<AtomicU64>,
    copies: Copies,
    /// The register of the tail.
    tail: usize,
    entries: u32,
    /// Type and commands of every descriptor, and what the length of the packet is multiplied by.
    command: u64,
    scale: u64,
    format: Format,
    /// Descriptors that the device may have at once: 0 while it is stopped.
    limit: u32,
    longest: usize,
    /// Descriptors that were written, told of, and came back, in all.
    written: u32,
    told: u32,
    back: u32,
    /// Packets that were written, and that came back, in all.
    sent: Box<[Sent]>,
    packets: u32,
    packets_back: u32,
    /// Without a link nothing is queued: the frames would lie there, and the memory that they are sent from.
    has_link: bool,
    /// A frame found no room, and the device has given nothing back since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
}

impl Transmitter {
    /// For the queue of that number. Windows that it takes are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        chip: &dyn Chip,
        queue: usize,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let small = arena.available() < SMALL_ARENA;
        let entries = if small { MODEST_ENTRIES } else { MOST_ENTRIES };
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let ring = alloc(entries * DESCRIPTOR)?;
        let copies = Copies::new(alloc(entries * COPIES)?);
        let bytes = ring.len();
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let words = Cells::new(&ring, 0, 2 * entries).ok_or(Error::NoMemory { bytes })?;
        let format = chip.format();
        let (kind, scale) = match format {
            Format::Extended => (1 << 20, 0),
            Format::Advanced => (3 << 20, LENGTH),
            Format::Switched => (3 << 20 | CHECK_CONTEXT, LENGTH),
        };
        Ok(Transmitter {
            ring,
            descriptors,
            words,
            copies,
            tail: chip.tails(queue)[1],
            entries: entries as u32,
            command: EXTENDED | INSERT_CRC | kind,
            scale,
            format,
            limit: 0,
            longest: 0,
            written: 0,
            told: 0,
            back: 0,
            sent: alloc::vec![Sent::default(); entries].into(),
            packets: 0,
            packets_back: 0,
            has_link: true,
            starved: false,
            frames: 0,
            bytes: 0,
            full: 0,
        })
    }

    /// Bus address and bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.ring.bus_address(), self.ring.len() as u32)
    }

    /// The device has forgotten all, and reads no memory. What was not sent is lost; nothing is taken before
    /// [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.told, self.back) = (0, 0, 0);
        (self.packets, self.packets_back) = (0, 0);
        self.copies.clear();
    }

    /// Takes frames of up to `longest` bytes. The device knows the ring.
    pub fn start(&mut self, longest: usize) {
        self.stop();
        self.longest = longest;
        self.has_link = true;
        self.limit = self.entries - 1;
        if self.format == Format::Switched {
            self.descriptors.store(0, CONTEXT);
            self.written = 1;
        }
    }

    /// The link as it was noted.
    #[inline]
    pub fn has_link(&self) -> bool {
        self.has_link
    }

    /// Takes note of the link of a device that is started.
    pub fn note_link(&mut self, up: bool) {
        self.has_link = up;
        self.starved &= up;
        self.limit = if up { self.entries - 1 } else { 0 };
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// Whether there is room for the most pieces.
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
            self.write(&[piece], piece.1);
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
                return self.starve();
            }
        }
        if len > SMALL {
            return self.transmit_in_pieces(packet, len);
        }
        let Some(piece) = self.copies.whole(packet, len) else { return self.again(packet) };
        self.write(&[piece], piece.1);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// A packet that is not copied whole.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.again(packet) };
        self.write(pieces.list(), len);
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
            true => self.starve(),
            false => self.transmit(packet),
        }
    }

    /// There is no room for a frame.
    #[cold]
    fn starve(&mut self) -> Result<(), TransmitError> {
        if !self.has_link {
            // It is lost.
            return Ok(());
        }
        self.full += 1;
        self.starved = true;
        Err(TransmitError::Full)
    }

    /// Describes a packet of `len` bytes.
    #[inline(always)]
    fn write(&mut self, pieces: &[Piece], len: usize) {
        let upper = len as u64 * self.scale;
        let last = pieces.len() - 1;
        for (n, &(address, len)) in pieces.iter().enumerate() {
            let end = if n == last { END_OF_PACKET | REPORT } else { 0 };
            let lower = self.command | end | len as u64;
            self.descriptors.store(self.index(self.written), [address, lower | upper]);
            self.written = self.written.wrapping_add(1);
        }
        let place = self.index(self.packets);
        let last = self.written.wrapping_sub(1);
        self.sent[place] = Sent { last, copies: self.copies.taken() };
        self.packets = self.packets.wrapping_add(1);
    }

    /// Whether the device is done with the oldest packet.
    #[inline(always)]
    fn oldest_is_done(&self) -> Option<Sent> {
        if self.packets == self.packets_back {
            return None;
        }
        let sent = self.sent[self.index(self.packets_back)];
        let word = self.words.load(2 * self.index(sent.last) + 1);
        (word & DONE != 0).then_some(sent)
    }

    /// Takes back what the device has sent if there is little room left; until then there is no
    /// need to look.
    #[inline(always)]
    pub fn reclaim_some(&mut self) {
        if self.written.wrapping_sub(self.back) > self.entries / 2 {
            self.reclaim();
        }
    }

    /// Takes back what the device has sent.
    pub fn reclaim(&mut self) {
        let before = self.packets_back;
        while let Some(sent) = self.oldest_is_done() {
            self.packets_back = self.packets_back.wrapping_add(1);
            self.back = sent.last.wrapping_add(1);
            self.copies.give_back(sent.copies);
        }
        self.starved &= self.packets_back == before;
    }

    /// Tells the device of new packets.
    #[inline(always)]
    pub fn tell(&mut self, registers: &dyn Registers) {
        if self.written != self.told {
            self.told = self.written;
            fence(Ordering::Release);
            registers.write32(self.tail, self.index(self.written) as u32);
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
        self.starved
            && self.limit > 0
            && (self.packets == self.packets_back || self.oldest_is_done().is_some())
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
        (self.packets != self.packets_back && self.oldest_is_done().is_none())
            .then_some(self.packets_back)
    }
}
