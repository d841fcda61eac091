//! Ethernet frames across the bridge: for the control plane, which wants no verbs.
//!
//! Whoever receives exposes a ring of bytes behind its queue pairs. The sender writes a frame there,
//! after a word with its length, and then how far it has got; the receiver copies it out, and says
//! how far it has got. Both indices count bytes modulo 2^32 and are bells. A full ring takes no
//! more, and nothing is lost while the link is up; what was under way when it went down is.

use super::layout;
use super::{Ntrdma, State, Wrong};
use alloc::vec::Vec;
use drivers::hal::{TransmitError, Window};
use drivers::ntb::Bridge;

/// Longest frame in bytes, without FCS.
pub const LONGEST: usize = 65_535;
/// Bytes of a length.
const HEAD: usize = 8;
/// Words that are written at a time.
const PIECE: usize = 32;

/// Whether a ring can be that large; 0 is none.
pub const fn is_valid(ring: u32) -> bool {
    ring == 0 || (ring.is_power_of_two() && ring >= 4096 && ring <= 16 << 20)
}

/// The device's books.
#[derive(Debug)]
pub(super) struct Ethernet {
    /// Our ring; empty if there is none.
    ring: Window,
    /// How far we have written into the peer's ring, and read in ours.
    produced: u32,
    consumed: u32,
    /// The peer has not been told of one of them.
    pub(super) dirty: bool,
}

impl Ethernet {
    pub fn new(ring: Window) -> Self {
        Ethernet { ring, produced: 0, consumed: 0, dirty: false }
    }

    /// The link went down.
    pub fn reset(&mut self) {
        (self.produced, self.consumed, self.dirty) = (0, 0, false);
    }

    /// What is to be told.
    pub fn bells(&self) -> [(usize, u32); 2] {
        [(layout::FRAMES_PRODUCED, self.produced), (layout::FRAMES_CONSUMED, self.consumed)]
    }
}

/// Bytes that a frame takes in a ring.
fn record(len: usize) -> u32 {
    (HEAD + len.next_multiple_of(8)) as u32
}

impl Ntrdma {
    /// Writes a frame to the peer; the next `poll` tells it. A link that is down, or a peer that
    /// takes no frames, is a cable that leads nowhere.
    pub fn transmit_frame(
        &mut self,
        bridge: &mut dyn Bridge,
        frame: &[u8],
    ) -> Result<(), TransmitError> {
        let Some(peer) = self.link.peer().filter(|peer| peer.frames > 0) else {
            self.counters.frames_lost += 1;
            return Ok(());
        };
        let (size, offset) = (peer.frames, peer.layout.size());
        let needed = record(frame.len());
        if frame.len() > LONGEST || needed > size / 2 {
            return Err(TransmitError::TooLarge);
        }
        let consumed = self.exposed.load32(layout::FRAMES_CONSUMED);
        let used = self.ethernet.produced.wrapping_sub(consumed);
        if used > size {
            self.violation(Wrong::Frame);
            return Ok(());
        }
        if needed > size - used || !bridge.has_room() {
            return Err(TransmitError::Full);
        }
        let Some(ring) = bridge.window().slice(offset, size as usize) else { return Ok(()) };
        let mut at = self.ethernet.produced;
        let mut put = |mut words: &[u64]| {
            while !words.is_empty() {
                let place = (at & (size - 1)) as usize;
                let count = words.len().min((size as usize - place) / 8);
                let (now, later) = words.split_at(count);
                if let Some(to) = ring.slice(place, 8 * count) {
                    bridge.put(&to, now);
                }
                at = at.wrapping_add(8 * count as u32);
                words = later;
            }
        };
        put(&[frame.len() as u64]);
        for piece in frame.chunks(8 * PIECE) {
            let mut words = [0; PIECE];
            for (word, bytes) in words.iter_mut().zip(piece.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(whole);
            }
            put(&words[..piece.len().div_ceil(8)]);
        }
        self.ethernet.produced = at;
        self.ethernet.dirty = true;
        self.counters.frames_sent += 1;
        Ok(())
    }

    /// Takes the next frame of the peer's; false if there is none.
    pub fn receive_frame(&mut self, into: &mut Vec<u8>) -> bool {
        let ring = self.ethernet.ring;
        let size = ring.len() as u32;
        if self.link.state() != State::Up || size == 0 {
            return false;
        }
        let produced = self.exposed.load32(layout::FRAMES_PRODUCED);
        let there = produced.wrapping_sub(self.ethernet.consumed);
        if there == 0 {
            return false;
        }
        let place = |at: u32| (at & (size - 1)) as usize;
        let mut length = [0];
        // Both are multiples of 8 unless the peer lies, which is found out before anything is read.
        let honest = there <= size && there.is_multiple_of(8) && {
            ring.load_words(place(self.ethernet.consumed), &mut length);
            length[0] <= LONGEST as u64 && record(length[0] as usize) <= there
        };
        if !honest {
            self.violation(Wrong::Frame);
            return false;
        }
        let length = length[0] as usize;
        into.clear();
        into.resize(length, 0);
        let first = place(self.ethernet.consumed.wrapping_add(HEAD as u32));
        let (head, tail) = into.split_at_mut(length.min(size as usize - first));
        // Both lie in the ring.
        let _ = ring.read(first, head);
        let _ = ring.read(0, tail);
        self.ethernet.consumed = self.ethernet.consumed.wrapping_add(record(length));
        self.ethernet.dirty = true;
        self.counters.frames_received += 1;
        true
    }
}
