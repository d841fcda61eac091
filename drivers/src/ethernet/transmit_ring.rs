//! A transmit ring: descriptors of packets, which the device reads and completes in order. Headers, trailers and small
//! packets are copied; the device reads larger payloads in place.

use super::copies::{Copies, HALF, MOST_PIECES, Piece, SMALL};
use super::rings::{Entries, NoMemory, RingMemory};
use super::{ETHERNET, SHORTEST};
use crate::hal::{Arena, Packet, TransmitError, TransmitProgress};
use alloc::boxed::Box;

const MOST_ENTRIES: usize = 1024;
const MODEST_ENTRIES: usize = 256;
const SMALL_ARENA: usize = 16 << 20;
/// Bytes of copies for each descriptor.
const COPIES: usize = 256;

/// Number of entries that the arena has room for.
pub fn entries(arena: &Arena) -> usize {
    if arena.available() < SMALL_ARENA { MODEST_ENTRIES } else { MOST_ENTRIES }
}

/// The next completion of a ring.
pub enum Completed {
    Nothing,
    /// The oldest requested completion.
    Oldest,
    /// Another completion, or an error: nothing is reclaimed until a reset.
    OutOfSync,
}

/// A device's descriptors and completions.
pub trait TransmitQueue {
    /// Maximum number of descriptors of a packet.
    const MOST_DESCRIPTORS: u32 = MOST_PIECES as u32;
    /// Length of the shortest header of a packet.
    const LEAST_HEADER: usize = 0;
    /// The device completes each packet, without a request.
    const COMPLETES_EACH: bool;

    /// Writes the descriptors of a packet of `len` bytes, from number `state.written` on; their number. The first piece
    /// begins with `header`.
    fn write(&mut self, state: &TransmitState, header: &[u8], pieces: &[Piece], len: usize) -> u32;

    /// Requests a completion of the last packet, which ends before number `state.written`: completion
    /// `state.requested`.
    fn request(&mut self, _state: &TransmitState) {}

    /// Takes the next completion.
    fn complete(&mut self, state: &TransmitState) -> Completed;

    /// Whether a completion waits.
    fn is_complete(&self, state: &TransmitState) -> bool;

    /// Notifies the device of the completions taken.
    #[inline]
    fn acknowledge(&mut self) {}

    /// Resets the queue's state, while the device is stopped.
    fn stop(&mut self) {}
}

/// A requested completion.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// [`TransmitState::written`] at that point.
    end: u32,
    /// [`Copies::taken`] at that point.
    copies: u32,
}

/// Positions in a ring, as running numbers of descriptors and of completions.
pub struct TransmitState {
    pub entries: Entries,
    /// Descriptors that the device may have at once: 0 while it is stopped.
    limit: u32,
    /// Total of descriptors written.
    pub written: u32,
    /// `written` as last reported to the device.
    notified: u32,
    /// `written` at the last requested completion, unless each packet is completed.
    marked: u32,
    /// Total of descriptors reclaimed.
    reclaimed: u32,
    /// Requested completions.
    marks: Box<[Mark]>,
    /// Total of completions requested.
    pub requested: u32,
    /// Total of completions taken.
    pub reported: u32,
    /// A completion was not the oldest requested one: nothing is reclaimed until a reset.
    out_of_sync: bool,
}

impl TransmitState {
    /// Whether the device works, and completions are valid.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.limit > 0 && !self.out_of_sync
    }

    /// Whether a completion is outstanding.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.requested != self.reported
    }

    /// Number of the last descriptor that the oldest requested completion reports.
    #[inline]
    pub fn last_of_oldest(&self) -> u32 {
        self.oldest().end.wrapping_sub(1)
    }

    #[inline]
    fn oldest(&self) -> Mark {
        self.marks[self.entries.index(self.reported)]
    }
}

/// A ring, with memory for copies.
pub struct TransmitRing<Q> {
    pub queue: Q,
    state: TransmitState,
    copies: Copies,
    longest: usize,
    /// Without a link no frames are queued: they would keep their memory.
    has_link: bool,
    /// A frame was refused, and no descriptor was reclaimed since.
    starved: bool,
    pub frames: u64,
    pub bytes: u64,
    pub full: u64,
    pub errors: u64,
}

impl<Q: TransmitQueue> TransmitRing<Q> {
    /// A stopped ring for frames of up to `longest` bytes.
    pub fn with(
        memory: &mut RingMemory<'_>,
        entries: Entries,
        longest: usize,
        queue: Q,
    ) -> Result<Self, NoMemory> {
        let count = entries.count() as usize;
        let copies = Copies::new(memory.alloc(count * COPIES)?);
        let state = TransmitState {
            entries,
            limit: 0,
            written: 0,
            notified: 0,
            marked: 0,
            reclaimed: 0,
            marks: alloc::vec![Mark::default(); count].into(),
            requested: 0,
            reported: 0,
            out_of_sync: false,
        };
        Ok(TransmitRing {
            queue,
            state,
            copies,
            longest,
            has_link: true,
            starved: false,
            frames: 0,
            bytes: 0,
            full: 0,
            errors: 0,
        })
    }

    pub fn state(&self) -> &TransmitState {
        &self.state
    }

    /// A completion was not the oldest requested one, or reported an error: nothing is reclaimed until a reset.
    pub fn out_of_sync(&self) -> bool {
        self.state.out_of_sync
    }

    /// Resets the ring's state; frames in flight are lost. The device is stopped, and reads no memory. No frame is
    /// accepted before [`TransmitRing::accept`].
    pub fn stop(&mut self) {
        let state = &mut self.state;
        (state.limit, state.written, state.notified, state.marked, state.reclaimed) =
            (0, 0, 0, 0, 0);
        (state.requested, state.reported) = (0, 0);
        state.out_of_sync = false;
        self.copies.clear();
        self.queue.stop();
    }

    /// Accepts frames into a stopped ring, whose first `written` descriptors are written. The device may have `limit`
    /// descriptors at once.
    pub fn accept(&mut self, limit: u32, written: u32) {
        self.has_link = true;
        (self.state.limit, self.state.written) = (limit, written);
    }

    /// Sets the length of the longest frame.
    pub fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// The link, as last noted.
    #[inline]
    pub fn has_link(&self) -> bool {
        self.has_link
    }

    /// Notes the link of a started device, which may have `limit` descriptors at once while it has a link.
    pub fn set_link(&mut self, up: bool, limit: u32) {
        self.has_link = up;
        self.starved &= up;
        self.state.limit = if up { limit } else { 0 };
    }

    /// Whether there is room for the largest packet.
    #[inline]
    fn has_descriptors(&self) -> bool {
        let state = &self.state;
        state.written.wrapping_sub(state.reclaimed) + Q::MOST_DESCRIPTORS <= state.limit
    }

    /// See `Port::transmit`.
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
            self.write(header, &[piece], piece.1);
            self.bytes += piece.1 as u64;
            return Ok(());
        }
        self.transmit_any(packet)
    }

    #[inline(never)]
    fn transmit_any(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let len = packet.len();
        if !(ETHERNET..=self.longest).contains(&len)
            || packet.header.len() < Q::LEAST_HEADER
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
        self.write(packet.header, &[piece], piece.1);
        self.bytes += len as u64;
        Ok(())
    }

    /// Sends a packet whose payload is not copied.
    #[inline(never)]
    fn transmit_in_pieces(&mut self, packet: &Packet<'_>, len: usize) -> Result<(), TransmitError> {
        let Some(pieces) = self.copies.pieces(packet) else { return self.retry(packet) };
        self.write(packet.header, pieces.list(), len);
        self.bytes += len as u64;
        Ok(())
    }

    /// Tries again after copies of sent frames were released, because there was no memory for copies.
    #[cold]
    fn retry(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let before = self.state.reported;
        self.reclaim();
        match self.state.reported == before {
            true => self.starve(),
            false => self.transmit_any(packet),
        }
    }

    /// Refuses a frame. Without a link it is lost instead.
    #[cold]
    fn starve(&mut self) -> Result<(), TransmitError> {
        if !self.has_link {
            return Ok(());
        }
        self.full += 1;
        self.starved = true;
        Err(TransmitError::Full)
    }

    /// Writes the descriptors of a packet of `len` bytes.
    #[inline]
    fn write(&mut self, header: &[u8], pieces: &[Piece], len: usize) {
        let count = self.queue.write(&self.state, header, pieces, len);
        let state = &mut self.state;
        state.written = state.written.wrapping_add(count);
        self.frames += 1;
        // In a long burst, completions are requested from time to time, so that descriptors can be reclaimed.
        let unmarked = state.written.wrapping_sub(state.marked);
        if Q::COMPLETES_EACH || unmarked >= state.entries.count() / 4 {
            self.mark();
        }
    }

    /// Requests a completion of the last packet, unless it was requested before.
    #[inline]
    fn mark(&mut self) {
        if !Q::COMPLETES_EACH {
            if self.state.marked == self.state.written {
                return;
            }
            self.state.marked = self.state.written;
            self.queue.request(&self.state);
        }
        let state = &mut self.state;
        let mark = Mark { end: state.written, copies: self.copies.taken() };
        state.marks[state.entries.index(state.requested)] = mark;
        state.requested = state.requested.wrapping_add(1);
    }

    /// Total of descriptors written, if there are new ones to notify the device of.
    #[inline]
    pub fn take_new(&mut self) -> Option<u32> {
        if self.state.written == self.state.notified {
            return None;
        }
        if !Q::COMPLETES_EACH {
            self.mark();
        }
        self.state.notified = self.state.written;
        Some(self.state.written)
    }

    /// Reclaims sent frames if less than half of the ring is free.
    #[inline]
    pub fn reclaim_some(&mut self) {
        let state = &self.state;
        if state.written.wrapping_sub(state.reclaimed) > state.entries.count() / 2 {
            self.reclaim();
        }
    }

    /// Reclaims sent frames.
    pub fn reclaim(&mut self) {
        loop {
            match self.queue.complete(&self.state) {
                Completed::Nothing => break,
                Completed::Oldest => {}
                Completed::OutOfSync => {
                    self.errors += 1;
                    self.state.out_of_sync = true;
                    return;
                }
            }
            let mark = self.state.oldest();
            self.state.reported = self.state.reported.wrapping_add(1);
            self.state.reclaimed = mark.end;
            self.copies.release(mark.copies);
            self.starved = false;
        }
        self.queue.acknowledge();
    }

    /// Whether a refused frame waits for room, so that the device must interrupt at the next completion.
    pub fn is_starved(&self) -> bool {
        self.starved && self.state.limit > 0
    }

    /// Whether a refused frame may find room now.
    pub fn has_room(&self) -> bool {
        !self.starved || self.pending()
    }

    /// Whether there is room again after a frame was refused.
    pub fn pending(&self) -> bool {
        let state = &self.state;
        let unmarked = !Q::COMPLETES_EACH && state.marked != state.written;
        let is_idle = !state.is_requested() && !unmarked;
        self.is_starved() && (is_idle || self.queue.is_complete(state))
    }

    /// Transmit progress. The device completes packets in order. A packet has at least one descriptor.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        let state = &self.state;
        let waiting = match Q::COMPLETES_EACH {
            true => state.requested.wrapping_sub(state.reported),
            false => state.written.wrapping_sub(state.reclaimed),
        };
        TransmitProgress::with_waiting(self.frames, waiting.into())
    }

    /// Number of the oldest outstanding completion; None if there is none, or if it waits to be taken.
    pub fn stuck_at(&self) -> Option<u32> {
        let state = &self.state;
        (state.is_requested() && !self.queue.is_complete(state)).then_some(state.reported)
    }
}
