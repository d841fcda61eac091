//! Ethernet frames across the bridge, for the control plane.
//!
//! The receiver exposes a ring of bytes after its queue pairs. The sender writes a word with the length of
//! a frame, the frame, and then its produced index. The receiver copies the frame and writes
//! its consumed index. Both indices count bytes modulo 2^32 and are bells. The sender waits if the ring is full, so no
//! frame is lost while the link is up. Frames in flight when it goes down are lost.

use super::layout;
use super::{Ntrdma, State, Wrong};
use alloc::vec::Vec;
use drivers::hal::{TransmitError, Window};
use drivers::ntb::Bridge;

/// Longest frame in bytes, without FCS.
pub const LONGEST: usize = 65_535;
/// Bytes of the length word.
const HEAD: usize = 8;
/// Words written at a time.
const PIECE: usize = 32;

/// Whether a ring may have that size; 0 means no ring.
pub const fn is_valid(ring: u32) -> bool {
    ring == 0 || (ring.is_power_of_two() && ring >= 4096 && ring <= 16 << 20)
}

/// State of the device.
#[derive(Debug)]
pub(super) struct Ethernet {
    /// The local ring; empty if there is none.
    ring: Window,
    /// Bytes written to the peer's ring.
    produced: u32,
    /// Bytes read from the local ring.
    consumed: u32,
    /// An index has changed, and its bell at the peer was not written yet.
    pub(super) dirty: bool,
}

impl Ethernet {
    pub fn new(ring: Window) -> Self {
        Ethernet { ring, produced: 0, consumed: 0, dirty: false }
    }

    /// Resets the indices after the link went down.
    pub fn reset(&mut self) {
        (self.produced, self.consumed, self.dirty) = (0, 0, false);
    }

    /// The bells and their values.
    pub fn bells(&self) -> [(usize, u32); 2] {
        [(layout::FRAMES_PRODUCED, self.produced), (layout::FRAMES_CONSUMED, self.consumed)]
    }
}

/// Bytes of a frame in a ring, with its length.
fn record(len: usize) -> u32 {
    (HEAD + len.next_multiple_of(8)) as u32
}

impl Ntrdma {
    /// Writes a frame to the peer; the next `poll` announces it. If the link is down, or the peer
    /// accepts no frames, the frame is dropped.
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

    /// Receives the next frame of the peer; false if there is none.
    pub fn receive_frame(&mut self, into: &mut Vec<u8>) -> bool {
        let ring = self.ethernet.ring;
        let size = ring.len() as u32;
        if self.link.state() != State::Up || size == 0 {
            return false;
        }
        let produced = self.exposed.load32(layout::FRAMES_PRODUCED);
        let available = produced.wrapping_sub(self.ethernet.consumed);
        if available == 0 {
            return false;
        }
        let place = |at: u32| (at & (size - 1)) as usize;
        let mut length = [0];
        // A correct peer keeps both indices multiples of 8. That is checked before the ring is read.
        let valid = available <= size && available.is_multiple_of(8) && {
            ring.load_words(place(self.ethernet.consumed), &mut length);
            length[0] <= LONGEST as u64 && record(length[0] as usize) <= available
        };
        if !valid {
            self.violation(Wrong::Frame);
            return false;
        }
        let length = length[0] as usize;
        into.clear();
        into.resize(length, 0);
        let first = place(self.ethernet.consumed.wrapping_add(HEAD as u32));
        let (head, tail) = into.split_at_mut(length.min(size as usize - first));
        // Both parts are inside of the ring.
        let _ = ring.read(first, head);
        let _ = ring.read(0, tail);
        self.ethernet.consumed = self.ethernet.consumed.wrapping_add(record(length));
        self.ethernet.dirty = true;
        self.counters.frames_received += 1;
        true
    }
}
