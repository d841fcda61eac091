//! The transmit queue: a descriptor for each piece of a packet. The last one requests status reporting.
//!
//! Descriptors are those that the 82574 calls extended data descriptors and the 82576 advanced ones (82574, 7.2.4;
//! 82576, 7.2.2.3): 16 bytes. Bus address of the piece; its length, type and commands (32 bits); 32 bits of which the
//! device sets bit 0 when it is done.

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
    /// Extended data descriptors.
    Extended,
    /// Advanced descriptors: with the length of the packet.
    Advanced,
    /// As `Advanced`, for an internal switch that parses packets: a context descriptor at the beginning describes the
    /// headers of all packets.
    Switched,
}

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
    words: Cells<AtomicU64>,
    copies: Copies,
    /// The register of the tail.
    tail: usize,
    entries: u32,
    /// Type and commands of every descriptor.
    command: u64,
    /// Factor of the packet's length.
    scale: u64,
    format: Format,
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
    /// Total of packets reclaimed.
    packets_reclaimed: u32,
    /// Without a link no frames are queued: they would keep their memory.
    has_link: bool,
    /// A frame was refused, and no packet was reclaimed since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
}

impl Transmitter {
    /// Queue number `queue`. Windows that are allocated are added to `taken`.
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
            notified: 0,
            reclaimed: 0,
            sent: alloc::vec![Sent::default(); entries].into(),
            packets: 0,
            packets_reclaimed: 0,
            has_link: true,
            starved: false,
            frames: 0,
            bytes: 0,
            full: 0,
        })
    }

    /// Bus address and length in bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.ring.bus_address(), self.ring.len() as u32)
    }

    /// Resets the queue's state; frames in flight are lost. The device was reset, and reads no memory. No frame is
    /// accepted before [`Transmitter::start`].
    pub fn stop(&mut self) {
        self.limit = 0;
        (self.written, self.notified, self.reclaimed) = (0, 0, 0);
        (self.packets, self.packets_reclaimed) = (0, 0);
        self.copies.clear();
    }

    /// Accepts frames of up to `longest` bytes. The device is set up with the ring.
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

    /// The link, as last noted.
    #[inline]
    pub fn has_link(&self) -> bool {
        self.has_link
    }

    /// Notes the link of a started device.
    pub fn note_link(&mut self, up: bool) {
        self.has_link = up;
        self.starved &= up;
        self.limit = if up { self.entries - 1 } else { 0 };
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// Whether there is room for a packet of the maximum number of pieces.
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
        let Some(piece) = self.copies.whole(packet, len) else { return self.retry(packet) };
        self.write(&[piece], piece.1);
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Sends a packet whose payload is not copied.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.retry(packet) };
        self.write(pieces.list(), len);
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
            true => self.starve(),
            false => self.transmit(packet),
        }
    }

    /// Notes that a frame was refused.
    #[cold]
    fn starve(&mut self) -> Result<(), TransmitError> {
        if !self.has_link {
            // The frame is lost.
            return Ok(());
        }
        self.full += 1;
        self.starved = true;
        Err(TransmitError::Full)
    }

    /// Writes the descriptors of a packet of `len` bytes.
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

    /// The oldest packet in flight, if the device has sent it.
    #[inline(always)]
    fn oldest_is_done(&self) -> Option<Sent> {
        if self.packets == self.packets_reclaimed {
            return None;
        }
        let sent = self.sent[self.index(self.packets_reclaimed)];
        let word = self.words.load(2 * self.index(sent.last) + 1);
        (word & DONE != 0).then_some(sent)
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
        let before = self.packets_reclaimed;
        while let Some(sent) = self.oldest_is_done() {
            self.packets_reclaimed = self.packets_reclaimed.wrapping_add(1);
            self.reclaimed = sent.last.wrapping_add(1);
            self.copies.release(sent.copies);
        }
        self.starved &= self.packets_reclaimed == before;
    }

    /// Notifies the device of new packets.
    #[inline(always)]
    pub fn notify(&mut self, registers: &dyn Registers) {
        if self.written != self.notified {
            self.notified = self.written;
            fence(Ordering::Release);
            registers.write32(self.tail, self.index(self.written) as u32);
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
        self.starved
            && self.limit > 0
            && (self.packets == self.packets_reclaimed || self.oldest_is_done().is_some())
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
        (self.packets != self.packets_reclaimed && self.oldest_is_done().is_none())
            .then_some(self.packets_reclaimed)
    }
}
