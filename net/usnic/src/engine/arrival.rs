//! Incoming packets: the receiving side of the window, and the timing of ACKs.
//!
//! As in the BTL, packets of the window are accepted in any order, each once. Packets before or beyond the window, and
//! duplicates, are dropped and acknowledged at once. The last part of a fragment is acknowledged at once,
//! other packets after a short delay, with data if there is some. An ACK of a gap is sent twice, because the stock
//! sender retransmits only after a duplicate ACK.

use super::endpoint::{Endpoint, extend};
use super::shared::Shared;
use super::{Channel, Failure, PRIORITY_DATAGRAM, WINDOW};
use crate::wire::header::{Header, Kind, Layout};
use drivers::hal::Instant;

/// Nanoseconds from the first ACK of a gap to its repetition.
pub(super) const GAP_FIRST: u64 = 100_000;
/// Nanoseconds to the next repetition; doubled each time.
pub(super) const GAP_PAUSE: u64 = 2_000_000;
/// Upper limit of that time.
pub(super) const GAP_PAUSE_MOST: u64 = 100_000_000;

// Values of a slot of the window.
const MISSING: u16 = 0;
const ARRIVED: u16 = 1;
/// The packet is the last of a message that waits for earlier packets. The value is this plus the message's index.
const WAITS: u16 = 2;

/// Result of storing a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was not stored: it has to be retransmitted, or is invalid.
    No,
    /// It was stored.
    Yes,
    /// It was stored, and its fragment is complete.
    Complete {
        /// The completed message and the number of its last packet; None for a PUT.
        message: Option<(u16, u64)>,
    },
}

impl Endpoint {
    /// Fast path for most datagrams of a long message: the expected packet, with no packet missing, without an ACK,
    /// whose part arrives in order (see `Message::next_part`). Returns false, without any effect, for other datagrams.
    #[inline]
    pub(super) fn receive_next_part(
        &mut self,
        shared: &mut Shared,
        datagram: &[u8],
        now: Instant,
    ) -> bool {
        // One call for each layout, so that offsets are constants.
        match self.layout {
            Layout::V4 => self.receive_next_part_in(Layout::V4, shared, datagram, now),
            Layout::V5 => self.receive_next_part_in(Layout::V5, shared, datagram, now),
        }
    }

    #[inline]
    fn receive_next_part_in(
        &mut self,
        layout: Layout,
        shared: &mut Shared,
        datagram: &[u8],
        now: Instant,
    ) -> bool {
        let Some((header, payload)) = Header::parse_chunk(layout, datagram) else {
            return false;
        };
        let number = self.receive.expected;
        if header.acknowledged.is_some()
            || header.sender != self.peer_sender
            || header.sequence != number as u16
            || self.receive.window.is_some()
        {
            return false;
        }
        // A failed endpoint has no current message.
        let (current, place) = self.current;
        let Some(message) = shared.messages.get_mut(place.into()) else { return false };
        let Some(window) = message.next_part(current, number, &header, payload) else {
            return false;
        };
        self.counters.num_total_recvs += 1;
        self.counters.num_chunk_recvs += 1;
        self.part_at = now;
        self.receive.expected = number + 1;
        self.owe_more(shared, false, now);
        // The window has the length of the payload.
        let _ = window.write(0, payload);
        true
    }

    /// Handles a datagram from the peer's address and port. An error means that the endpoint fails.
    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        shared: &mut Shared,
        channel: Channel,
        datagram: &[u8],
        now: Instant,
    ) -> Result<(), Failure> {
        self.counters.num_total_recvs += 1;
        let Ok((header, payload)) = Header::parse(self.layout, datagram) else {
            self.counters.malformed += 1;
            return Ok(());
        };
        if header.sender != self.peer_sender {
            self.counters.other_senders += 1;
            return Ok(());
        }
        if !self.is_alive() {
            self.counters.after_failure += 1;
            return Ok(());
        }
        if channel == Channel::Priority && datagram.len() > PRIORITY_DATAGRAM {
            self.counters.large_on_priority += 1;
            return Ok(());
        }
        match header.kind {
            Kind::Ack => self.counters.num_ack_recvs += 1,
            Kind::Fragment => self.counters.num_frag_recvs += 1,
            Kind::Chunk { .. } => self.counters.num_chunk_recvs += 1,
        }
        if let Some(number) = header.acknowledged {
            self.handle_ack(shared, number, now)?;
        }
        if header.kind != Kind::Ack {
            self.receive_data(shared, &header, payload, now);
        }
        Ok(())
    }

    #[inline]
    fn receive_data(&mut self, shared: &mut Shared, header: &Header, payload: &[u8], now: Instant) {
        let number = extend(self.receive.expected, header.sequence);
        let ahead = number.wrapping_sub(self.receive.expected);
        if ahead != 0 && !self.is_new(shared, number, ahead) {
            return self.acknowledge_now(shared);
        }
        let taken = self.take(shared, number, header, payload, now);
        if taken == Taken::No {
            return self.return_window(shared);
        }
        let complete = match taken {
            Taken::Complete { message } => message,
            _ => None,
        };
        if self.receive.window.is_none() {
            // No packet is missing, and this is the next one.
            self.receive.expected += 1;
            if let Some((message, _)) = complete {
                self.hand_over(shared, message);
            }
        } else {
            self.mark(shared, number, ahead, complete);
        }
        let is_end =
            matches!(taken, Taken::Complete { .. }) && matches!(header.kind, Kind::Chunk { .. });
        self.owe(shared, is_end, now);
    }

    /// Whether an out-of-order packet is in the window and new, and there is a window to mark its
    /// arrival.
    fn is_new(&mut self, shared: &mut Shared, number: u64, ahead: u64) -> bool {
        if number < self.receive.expected {
            self.counters.num_oow_low_recvs += 1;
            return false;
        }
        if ahead >= WINDOW {
            self.counters.num_oow_high_recvs += 1;
            return false;
        }
        if self.receive.window.is_none() {
            self.receive.window = shared.free_windows.pop();
            self.receive.end = self.receive.expected;
        }
        let Some(window) = self.receive.window else {
            // Its arrival cannot be marked: it has to be retransmitted after the missing one.
            self.counters.no_room += 1;
            return false;
        };
        let slot = shared.windows.get(usize::from(window)).map(|slots| slots[slot_of(number)]);
        if slot != Some(MISSING) {
            self.counters.num_dup_recvs += 1;
            return false;
        }
        true
    }

    /// Marks the arrival of a packet while one is missing, advances the window over packets that have arrived, and
    /// delivers messages; those that wait for earlier packets once these have arrived.
    fn mark(&mut self, shared: &mut Shared, number: u64, ahead: u64, complete: Option<(u16, u64)>) {
        let counters = &mut self.counters;
        counters.max_rcvd_window_size = counters.max_rcvd_window_size.max(ahead);
        let Some(window) = self.receive.window.map(usize::from) else { return };
        let Some(slots) = shared.windows.get_mut(window) else { return };
        slots[slot_of(number)] = ARRIVED;
        if let Some((message, last)) = complete {
            if self.config.in_order && last >= self.receive.expected {
                slots[slot_of(last)] = WAITS + message;
            } else {
                self.hand_over(shared, message);
            }
        }
        self.receive.end = self.receive.end.max(number + 1);
        while let Some(slots) = shared.windows.get_mut(window) {
            let slot = &mut slots[slot_of(self.receive.expected)];
            match core::mem::replace(slot, MISSING) {
                MISSING => break,
                found => {
                    self.receive.expected += 1;
                    if let Some(message) = found.checked_sub(WAITS) {
                        self.hand_over(shared, message);
                    }
                }
            }
        }
        self.return_window(shared);
    }

    /// Releases the window if no packet is missing.
    fn return_window(&mut self, shared: &mut Shared) {
        if self.receive.end <= self.receive.expected {
            shared.free_windows.extend(self.receive.window.take());
        }
    }

    /// Clears and releases the window.
    pub(super) fn drop_window(&mut self, shared: &mut Shared) {
        let Some(window) = self.receive.window.take() else { return };
        if let Some(slots) = shared.windows.get_mut(usize::from(window)) {
            slots.fill(MISSING);
        }
        shared.free_windows.push(window);
    }

    /// Sends an ACK in this turn.
    #[inline(never)]
    fn acknowledge_now(&mut self, shared: &mut Shared) {
        self.ack.now = true;
        self.ack.owed = self.ack.owed.max(1);
        shared.make_ready(self);
    }

    /// Counts a packet to acknowledge, in this turn if `at_once`.
    #[inline]
    fn owe(&mut self, shared: &mut Shared, at_once: bool, now: Instant) {
        let ack = &mut self.ack;
        if self.receive.expected - 1 == ack.sent {
            // The ACK would only report a gap. It is delayed, because the gap may close meanwhile.
            if ack.gap_at.is_none() {
                let soon = now.after_nanos(self.config.ack_delay);
                ack.gap_pause = GAP_PAUSE;
                ack.gap_at = Some(soon);
                shared.wheel.schedule(self.id.place, soon);
            }
            return;
        }
        self.owe_more(shared, at_once, now);
    }

    /// `owe` for a packet that advances the acknowledged number.
    #[inline]
    fn owe_more(&mut self, shared: &mut Shared, at_once: bool, now: Instant) {
        let ack = &mut self.ack;
        ack.owed += 1;
        if ack.now {
            return;
        }
        if at_once || ack.owed >= self.config.ack_every {
            self.acknowledge_now(shared);
        } else if ack.at.is_none() {
            self.acknowledge_soon(shared, now);
        }
    }

    /// Delays an owed ACK.
    #[inline(never)]
    fn acknowledge_soon(&mut self, shared: &mut Shared, now: Instant) {
        let soon = now.after_nanos(self.config.ack_delay);
        self.ack.at = Some(soon);
        self.queue_ack(shared, soon);
    }

    /// Schedules the check of the owed ACK for `at` at the latest.
    fn queue_ack(&mut self, shared: &mut Shared, at: Instant) {
        if self.ack.is_queued {
            return;
        }
        self.ack.is_queued = shared.acks.push(self.id.place, at);
        if !self.ack.is_queued {
            shared.wheel.schedule(self.id.place, at);
        }
    }

    /// Handles the endpoint's removal from the queue of ACKs at `moment`. The ACK may have been sent before: returns
    /// whether one is owed now, and queues the endpoint again if one is owed later.
    pub(super) fn leave_ack_queue(&mut self, shared: &mut Shared, moment: Instant) -> bool {
        self.ack.is_queued = false;
        match self.ack.at {
            Some(at) if at > moment => self.queue_ack(shared, at),
            Some(_) => return true,
            None => (),
        }
        false
    }

    /// Sends the owed ACK at its deadline.
    pub(super) fn send_owed_ack(&mut self, shared: &mut Shared) {
        self.ack.at = None;
        self.acknowledge_now(shared);
    }
}

#[inline]
fn slot_of(number: u64) -> usize {
    number as usize % WINDOW as usize
}
