//! Packets that arrive: what is taken, the receiving side of the window, and when it is acknowledged.
//!
//! As the BTL: packets of the window are taken in any order, each once. What lies before or beyond the window, or
//! has arrived before, is dropped and acknowledged at once; the last part of a fragment is acknowledged at once;
//! everything else after a short while, with data if there is some. A gap is told twice, because the second ACK of
//! the same number is what the stock sender sends again upon.

use super::endpoint::{Endpoint, extend};
use super::{Channel, Engine, PRIORITY_DATAGRAM, State, WINDOW};
use crate::wire::header::{Header, Kind};
use core::time::Duration;
use drivers::hal::Instant;

/// How long after an ACK that leaves a gap it is said again, and nanoseconds until it is said once more.
pub(super) const GAP_FIRST: Duration = Duration::from_micros(100);
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

impl Engine {
    /// A packet of a known address and port.
    pub(super) fn receive_packet(
        &mut self,
        place: u32,
        channel: Channel,
        datagram: &[u8],
        now: Instant,
    ) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        endpoint.counters.num_total_recvs += 1;
        let Ok((header, payload)) = Header::parse(endpoint.layout, datagram) else {
            endpoint.counters.malformed += 1;
            return;
        };
        if header.sender != endpoint.peer_sender {
            endpoint.counters.other_senders += 1;
            return;
        }
        if !endpoint.is_alive() {
            endpoint.counters.after_failure += 1;
            return;
        }
        if channel == Channel::Priority && datagram.len() > PRIORITY_DATAGRAM {
            endpoint.counters.large_on_priority += 1;
            return;
        }
        match header.kind {
            Kind::Ack => endpoint.counters.num_ack_recvs += 1,
            Kind::Fragment => endpoint.counters.num_frag_recvs += 1,
            Kind::Chunk { .. } => endpoint.counters.num_chunk_recvs += 1,
        }
        if let Some(number) = header.acknowledged {
            self.acknowledged(place, number, now);
        }
        if header.kind != Kind::Ack {
            self.receive_data(place, &header, payload, now);
        }
    }

    fn receive_data(&mut self, place: u32, header: &Header, payload: &[u8], now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if matches!(endpoint.state, State::Failed(_)) {
            return;
        }
        let number = extend(endpoint.receive.expected, header.sequence);
        let Some(ahead) = number.checked_sub(endpoint.receive.expected) else {
            endpoint.counters.num_oow_low_recvs += 1;
            return self.acknowledge_now(place);
        };
        if ahead >= WINDOW {
            endpoint.counters.num_oow_high_recvs += 1;
            return self.acknowledge_now(place);
        }
        if ahead > 0 {
            if endpoint.receive.window.is_none() {
                endpoint.receive.window = self.free_windows.pop();
            }
            let Some(window) = endpoint.receive.window else {
                // Nothing can be remembered of it: it has to come again, behind the one that is missing.
                endpoint.counters.no_room += 1;
                return self.acknowledge_now(place);
            };
            let slot = self.windows.get(usize::from(window)).map(|slots| slots[slot_of(number)]);
            if slot != Some(MISSING) {
                endpoint.counters.num_dup_recvs += 1;
                return self.acknowledge_now(place);
            }
        }
        let taken = self.take(place, number, header, payload, now);
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if taken == Taken::No {
            self.return_window(place);
            return;
        }
        let counters = &mut endpoint.counters;
        counters.max_rcvd_window_size = counters.max_rcvd_window_size.max(ahead);
        let in_order = endpoint.config.in_order;
        let complete = match taken {
            Taken::Complete { message } => message,
            _ => None,
        };
        let window = endpoint.receive.window.and_then(|at| self.windows.get_mut(usize::from(at)));
        match window {
            // Nothing is missing, and this is the next.
            None => {
                endpoint.receive.expected += 1;
                endpoint.receive.end = endpoint.receive.expected;
                if let Some((message, _)) = complete {
                    self.hand_over(place, message);
                }
            }
            Some(slots) => {
                slots[slot_of(number)] = ARRIVED;
                if let Some((message, last)) = complete
                    && in_order
                    && last >= endpoint.receive.expected
                {
                    slots[slot_of(last)] = WAITS + message;
                } else if let Some((message, _)) = complete {
                    self.hand_over(place, message);
                }
                self.advance(place, number);
            }
        }
        let at_once =
            matches!(taken, Taken::Complete { .. }) && matches!(header.kind, Kind::Chunk { .. });
        self.acknowledge_soon(place, at_once, now);
    }

    /// Moves the window over what has arrived, and hands over messages that have waited for that.
    fn advance(&mut self, place: u32, number: u64) {
        loop {
            let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
            endpoint.receive.end = endpoint.receive.end.max(number + 1);
            let Some(window) = endpoint.receive.window else { return };
            let Some(slots) = self.windows.get_mut(usize::from(window)) else { return };
            let slot = &mut slots[slot_of(endpoint.receive.expected)];
            match core::mem::replace(slot, MISSING) {
                MISSING => break,
                found => {
                    endpoint.receive.expected += 1;
                    if let Some(message) = found.checked_sub(WAITS) {
                        self.hand_over(place, message);
                    }
                }
            }
        }
        self.return_window(place);
    }

    /// Gives the window back if nothing is missing.
    fn return_window(&mut self, place: u32) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if endpoint.receive.end <= endpoint.receive.expected {
            endpoint.receive.end = endpoint.receive.expected;
            self.free_windows.extend(endpoint.receive.window.take());
        }
    }

    /// Gives the window back, whatever stands in it.
    pub(super) fn drop_window(&mut self, place: u32) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        endpoint.receive.end = endpoint.receive.expected;
        let Some(window) = endpoint.receive.window.take() else { return };
        if let Some(slots) = self.windows.get_mut(usize::from(window)) {
            slots.fill(MISSING);
        }
        self.free_windows.push(window);
    }

    /// What the peer sent tells that it does not know what has arrived.
    fn acknowledge_now(&mut self, place: u32) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        endpoint.ack.now = true;
        self.make_ready(place);
    }

    fn acknowledge_soon(&mut self, place: u32, at_once: bool, now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if endpoint.owe(at_once, now) {
            self.make_ready(place);
        } else {
            self.schedule(place);
        }
    }
}

impl Endpoint {
    /// An ACK is owed for one packet more; whether it is to be sent in this turn.
    #[inline]
    fn owe(&mut self, at_once: bool, now: Instant) -> bool {
        let news = self.receive.expected - 1 != self.ack.sent;
        let timing = &self.config.timing;
        if !news {
            // Only a gap could be told of. That it is there is told after a while, in which it may close.
            if self.ack.gap_at.is_none() {
                self.ack.gap_pause = GAP_PAUSE;
                self.ack.gap_at = Some(now + timing.ack_delay);
            }
            return false;
        }
        self.ack.owed += 1;
        if at_once || self.ack.owed >= timing.ack_every {
            self.ack.now = true;
            return true;
        }
        if self.ack.at.is_none() {
            self.ack.at = Some(now + timing.ack_delay);
        }
        false
    }
}

#[inline]
fn slot_of(number: u64) -> usize {
    number as usize % WINDOW as usize
}
