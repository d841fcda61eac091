//! Packets that arrive: what is taken, the receiving side of the window, and when it is acknowledged.
//!
//! As the BTL: packets of the window are taken in any order, each once. What lies before or beyond the window, or
//! has arrived before, is dropped and acknowledged at once; the last part of a fragment is acknowledged at once;
//! everything else after a short while, with data if there is some. A gap is told twice, because the second ACK of
//! the same number is what the stock sender sends again upon.

use super::endpoint::{Endpoint, extend};
use super::shared::Shared;
use super::{Channel, Failure, PRIORITY_DATAGRAM, WINDOW};
use crate::wire::header::{Header, Kind, Layout};
use drivers::hal::Instant;

/// Nanoseconds after an ACK that leaves a gap until it is said again, and until it is said once more.
pub(super) const GAP_FIRST: u64 = 100_000;
pub(super) const GAP_PAUSE: u64 = 2_000_000;
pub(super) const GAP_PAUSE_MOST: u64 = 100_000_000;

/// What a slot of the window says.
const MISSING: u16 = 0;
const ARRIVED: u16 = 1;
/// The packet is the last of a message, of this number and two more, which waits for its turn.
const WAITS: u16 = 2;

/// What became of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was not taken: it has to come again, or never should have come.
    No,
    /// It was.
    Yes,
    /// It was, and its fragment is complete.
    Complete {
        /// The message that is complete with it, if it is one, and the number of its last packet.
        message: Option<(u16, u64)>,
    },
}

impl Endpoint {
    /// A datagram at the data channel as most of a long message are: the packet that is expected, with no other
    /// missing and nothing acknowledged, whose part comes in its turn (see `Message::next_part`). Else nothing is done;
    /// whether it was that.
    #[inline(always)]
    pub(super) fn receive_next_part(
        &mut self,
        shared: &mut Shared,
        datagram: &[u8],
        now: Instant,
    ) -> bool {
        // Each by itself, so that offsets are known when it is compiled.
        match self.layout {
            Layout::V4 => self.receive_next_part_in(Layout::V4, shared, datagram, now),
            Layout::V5 => self.receive_next_part_in(Layout::V5, shared, datagram, now),
        }
    }

    #[inline(always)]
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
        // One that has failed has none.
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
        // It is as long.
        let _ = window.write(0, payload);
        true
    }

    /// A datagram from the peer's address and port; why the endpoint fails, if it does.
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
            self.hear(shared, number, now)?;
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
            // Nothing is missing, and this is the next.
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

    /// Whether a packet that is not the next lies in the window and has not arrived, and there is a window to
    /// remember it in.
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
            // Nothing can be remembered of it: it has to come again, behind the one that is missing.
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

    /// Takes down that a packet has arrived while one is missing, moves the window over what has arrived, and hands
    /// over messages: those that wait for their turn, when it has come.
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

    /// Gives the window back if nothing is missing.
    fn return_window(&mut self, shared: &mut Shared) {
        if self.receive.end <= self.receive.expected {
            shared.free_windows.extend(self.receive.window.take());
        }
    }

    /// Gives the window back, whatever stands in it.
    pub(super) fn drop_window(&mut self, shared: &mut Shared) {
        let Some(window) = self.receive.window.take() else { return };
        if let Some(slots) = shared.windows.get_mut(usize::from(window)) {
            slots.fill(MISSING);
        }
        shared.free_windows.push(window);
    }

    /// What the peer sent tells that it does not know what has arrived.
    #[inline(never)]
    fn acknowledge_now(&mut self, shared: &mut Shared) {
        self.ack.now = true;
        self.ack.owed = self.ack.owed.max(1);
        shared.make_ready(self);
    }

    /// An ACK is owed for one packet more, in this turn if `at_once`.
    #[inline]
    fn owe(&mut self, shared: &mut Shared, at_once: bool, now: Instant) {
        let ack = &mut self.ack;
        if self.receive.expected - 1 == ack.sent {
            // Only a gap could be told of. That it is there is told after a while, in which it may close.
            if ack.gap_at.is_none() {
                let soon = now.after_nanos(self.config.ack_delay);
                ack.gap_pause = GAP_PAUSE;
                ack.gap_at = Some(soon);
                shared.wheel.put(self.id.place, soon);
            }
            return;
        }
        self.owe_more(shared, at_once, now);
    }

    /// As `owe`, if what has arrived can be acknowledged.
    #[inline(always)]
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

    /// An ACK that is owed waits for company.
    #[inline(never)]
    fn acknowledge_soon(&mut self, shared: &mut Shared, now: Instant) {
        let soon = now.after_nanos(self.config.ack_delay);
        self.ack.at = Some(soon);
        self.queue_ack(shared, soon);
    }

    /// Has the ACK that is owed looked at when `at` has come, or before.
    fn queue_ack(&mut self, shared: &mut Shared, at: Instant) {
        if self.ack.is_queued {
            return;
        }
        self.ack.is_queued = shared.acks.push(self.id.place, at);
        if !self.ack.is_queued {
            shared.wheel.put(self.id.place, at);
        }
    }

    /// Its moment in the queue of ACKs has come, at which it may have sent one long since: puts it there anew if it is
    /// owed one later than that, and says whether it is owed one now.
    pub(super) fn leave_acks(&mut self, shared: &mut Shared, moment: Instant) -> bool {
        self.ack.is_queued = false;
        match self.ack.at {
            Some(at) if at > moment => self.queue_ack(shared, at),
            Some(_) => return true,
            None => (),
        }
        false
    }

    /// The ACK that is owed has waited long enough.
    pub(super) fn ack_is_due(&mut self, shared: &mut Shared) {
        self.ack.at = None;
        self.acknowledge_now(shared);
    }
}

#[inline]
fn slot_of(number: u64) -> usize {
    number as usize % WINDOW as usize
}
