//! Copies of headers, trailers and small packets for the device. They lie in a ring of bytes, because devices send in
//! order: the memory that was allocated first is released first.

use super::SHORTEST;
use crate::hal::{Packet, Window};

/// Maximum length of packets that are copied whole.
pub const SMALL: usize = 256;
/// Maximum number of pieces of a packet: header, payload, trailer.
pub const MOST_PIECES: usize = Packet::MAX_PAYLOAD_WINDOWS + 2;
/// Alignment of copies. The size of the memory is a multiple of it, so a copy of a small packet never wraps.
const GRAIN: u32 = SMALL as u32;

/// A piece of a packet: bus address, and length in bytes.
pub type Piece = (u64, usize);

/// The pieces of a packet, in order.
pub struct Pieces {
    list: [Piece; MOST_PIECES],
    count: usize,
}

impl Pieces {
    fn push(&mut self, address: u64, len: usize) {
        if len > 0 {
            self.list[self.count] = (address, len);
            self.count += 1;
        }
    }

    /// The pieces: at least one.
    pub fn list(&self) -> &[Piece] {
        &self.list[..self.count]
    }
}

/// Memory for copies.
pub struct Copies {
    memory: Window,
    /// Length of the memory, a power of two, minus one.
    mask: u32,
    /// Total of bytes allocated.
    taken: u32,
    /// Total of bytes released.
    released: u32,
}

impl Copies {
    /// In memory whose length is a power of two.
    pub fn new(memory: Window) -> Self {
        let len = memory.len();
        assert!(len.is_power_of_two() && (SMALL..1 << 31).contains(&len), "a power of two");
        Copies { memory, mask: memory.len() as u32 - 1, taken: 0, released: 0 }
    }

    /// Releases all copies.
    pub fn clear(&mut self) {
        (self.taken, self.released) = (0, 0);
    }

    /// Total of bytes allocated so far, for [`Copies::release`].
    #[inline]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Releases all copies that were allocated when [`Copies::taken`] returned `taken`.
    #[inline]
    pub fn release(&mut self, taken: u32) {
        self.released = taken;
    }

    /// Allocates `len` contiguous bytes; their offset. None if there is no room now.
    #[inline]
    fn take(&mut self, len: usize) -> Option<usize> {
        let len = (len as u32).next_multiple_of(GRAIN);
        let at = self.taken & self.mask;
        // An allocation that does not fit before the end begins at the start.
        let skipped = if at + len > self.mask + 1 { self.mask + 1 - at } else { 0 };
        let taken = self.taken.wrapping_add(skipped + len);
        if taken.wrapping_sub(self.released) > self.mask + 1 {
            return None;
        }
        self.taken = taken;
        Some(((at + skipped) & self.mask) as usize)
    }

    /// Allocates [`SMALL`] bytes, as [`Copies::take`].
    #[inline]
    fn take_small(&mut self) -> Option<usize> {
        let at = self.taken;
        let taken = at.wrapping_add(GRAIN);
        if taken.wrapping_sub(self.released) > self.mask + 1 {
            return None;
        }
        self.taken = taken;
        Some((at & self.mask) as usize)
    }

    /// Copies a whole packet of `len` bytes, at most [`SMALL`]. Pads it with zeroes to the minimum length of frames.
    #[inline]
    pub fn whole(&mut self, packet: &Packet<'_>, len: usize) -> Option<Piece> {
        let start = self.take_small()?;
        let mut at = start;
        put_header(&self.memory, at, packet.header);
        at += packet.header.len();
        for window in packet.payload {
            self.memory.write_window(at, window).expect("there is room for the packet");
            at += window.len();
        }
        put_trailer(&self.memory, at, packet.trailer);
        if len < SHORTEST {
            put(&self.memory, start + len, &[0; SHORTEST][len..]);
        }
        Some((self.memory.bus_address() + start as u64, len.max(SHORTEST)))
    }

    /// Copies a packet without payload, as most of them are: a header of 48 to 96 bytes, and a trailer of 0 or 4. At
    /// least 60 bytes in all. Measured: a call takes 15 instructions of a packet of some 260.
    #[inline(always)]
    pub fn short(&mut self, header: &[u8], trailer: &[u8]) -> Option<Piece> {
        let start = self.take_small()?;
        put_header(&self.memory, start, header);
        if let &[a, b, c, d] = trailer {
            put_array(&self.memory, start + header.len(), &[a, b, c, d]);
        }
        Some((self.memory.bus_address() + start as u64, header.len() + trailer.len()))
    }

    /// Copies header and trailer; the device reads the payload in place.
    #[inline]
    pub fn pieces(&mut self, packet: &Packet<'_>) -> Option<Pieces> {
        let (header, trailer) = (packet.header.len(), packet.trailer.len());
        let after = header.next_multiple_of(16);
        let start = self.take(after + trailer)?;
        put_header(&self.memory, start, packet.header);
        put_trailer(&self.memory, start + after, packet.trailer);
        let bus = self.memory.bus_address() + start as u64;
        let mut pieces = Pieces { list: [(0, 0); MOST_PIECES], count: 0 };
        pieces.push(bus, header);
        packet.payload.iter().for_each(|window| pieces.push(window.bus_address(), window.len()));
        pieces.push(bus + after as u64, trailer);
        Some(pieces)
    }
}

/// Copies into memory whose length the caller has checked.
#[inline]
pub fn put(buffer: &Window, at: usize, bytes: &[u8]) {
    buffer.write(at, bytes).expect("checked against the buffer's length");
}

/// As [`put`], without a call.
#[inline]
fn put_array<const N: usize>(buffer: &Window, at: usize, bytes: &[u8; N]) {
    buffer.write_array(at, bytes).expect("checked against the buffer's length");
}

/// A header of this to twice as many bytes is copied as two halves.
pub const HALF: usize = 48;

/// Copies a header. One of 48 to 96 bytes, as nearly all are, is copied without a call.
#[inline]
pub fn put_header(buffer: &Window, at: usize, header: &[u8]) {
    buffer.write_halves::<HALF>(at, header).expect("checked against the buffer's length");
}

/// Copies a trailer: nearly always a checksum without padding.
#[inline]
pub fn put_trailer(buffer: &Window, at: usize, trailer: &[u8]) {
    match (trailer.first_chunk::<4>(), trailer.len()) {
        (_, 0) => {}
        (Some(checksum), 4) => put_array(buffer, at, checksum),
        _ => put(buffer, at, trailer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use std::collections::VecDeque;

    #[test]
    fn copies_in_use_do_not_overlap_and_are_all_released() {
        let mut copies = Copies::new(Arena::on_heap(1 << 14).alloc(4096, 64).unwrap());
        let mut used: VecDeque<(usize, usize, u32)> = VecDeque::new();
        let (mut random, mut taken) = (7u32, 0);
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = (random >> 16) as usize % 1500 + 1;
            while let Some(start) = copies.take(len) {
                assert!(start + len <= 4096 && start.is_multiple_of(SMALL));
                let clear =
                    |&(at, l, _): &(usize, usize, u32)| start + len <= at || at + l <= start;
                assert!(used.iter().all(clear));
                used.push_back((start, len, copies.taken()));
                taken += 1;
            }
            let (.., end) = used.pop_front().expect("an empty ring takes 1500 bytes");
            copies.release(end);
        }
        assert!(taken > 9_000);
        copies.clear();
        assert_eq!(copies.take(4096), Some(0));
        assert_eq!(copies.take(1), None);
    }

    #[test]
    fn short_packets_are_padded_with_zeroes() {
        let memory = Arena::on_heap(1 << 14).alloc(4096, 64).unwrap();
        memory.fill(0xee);
        let packet = Packet { header: &[7; 14], payload: &[], trailer: &[1, 2, 3, 4] };
        let piece = Copies::new(memory).whole(&packet, 18);
        assert_eq!(piece, Some((memory.bus_address(), 60)));
        let bytes: [u8; 61] = memory.read_array(0).unwrap();
        assert_eq!(bytes[12..20], [7, 7, 1, 2, 3, 4, 0, 0]);
        assert_eq!((bytes[59], bytes[60]), (0, 0xee));
    }
}
