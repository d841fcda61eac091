//! Selects the next datagram to send: responses to PINGs, PINGs, retransmissions, new packets, ACKs.

use super::arrival::{GAP_FIRST, GAP_PAUSE, GAP_PAUSE_MOST};
use super::datagram::Transmit;
use super::endpoint::{DONE, Endpoint};
use super::send::Fragment;
use super::shared::Shared;
use super::{ANSWERS, Channel, Engine, NONE};
use crate::table::Table;
use crate::wire::header::{Header, Kind};
use drivers::hal::Instant;

/// Packets that an endpoint may send before the next endpoint's turn; a retransmission counts twice.
const TURN: u32 = 32;
/// Nanoseconds that an endpoint may be ahead of the speed of its link.
const AHEAD: u64 = 100_000;

impl Engine {
    /// Runs the timers that are due, and returns the next datagram to send. Call it only if the datagram can be sent,
    /// because it counts as sent.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<&Transmit> {
        if self.shared.wheel.is_due(now) || self.shared.acks.is_due(now) {
            self.run_timers(now);
        }
        while let Some(place) = self.shared.ready.front() {
            let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else {
                self.shared.ready.pop();
                if place == ANSWERS {
                    if self.poll_answer() {
                        self.shared.ready.push(ANSWERS);
                        return Some(&self.out);
                    }
                    continue;
                }
                let agent = place.wrapping_sub(self.endpoints.len() as u32);
                if self.poll_ping(agent, now) {
                    return Some(&self.out);
                }
                continue;
            };
            let sent = endpoint.poll(&mut self.shared, &mut self.out, now);
            if !sent || endpoint.turn >= TURN {
                let more = sent && endpoint.turn < DONE;
                endpoint.turn = 0;
                self.shared.ready.pop();
                if more {
                    self.shared.ready.push(place);
                } else {
                    endpoint.is_ready = false;
                }
            }
            if sent {
                return Some(&self.out);
            }
        }
        None
    }

    #[inline(never)]
    fn run_timers(&mut self, now: Instant) {
        let Engine { endpoints, shared, .. } = self;
        while shared.acks.is_due(now)
            && let Some((_, place)) = shared.acks.front()
        {
            shared.acks.pop();
            if let Some(Some(endpoint)) = endpoints.get_mut(place as usize)
                && endpoint.leave_ack_queue(shared, now)
            {
                endpoint.send_owed_ack(shared);
            }
        }
        while let Some(timer) = self.shared.wheel.take_due(now) {
            match timer.checked_sub(self.endpoints.len() as u32) {
                Some(agent) => self.run_agent_timer(agent, now),
                None => self.run_endpoint_timers(timer, now),
            }
        }
    }
}

impl Endpoint {
    /// Builds the next packet; false if there is none now.
    #[inline]
    fn poll(&mut self, shared: &mut Shared, out: &mut Transmit, now: Instant) -> bool {
        let again = self.recovery.next < self.recovery.end;
        if !again && self.has_more() && !self.is_ahead(now) {
            self.send_next(shared, out, now);
            return true;
        }
        self.poll_other(shared, out, now)
    }

    /// Builds the next packet, which may be a retransmission or an ACK.
    #[inline(never)]
    fn poll_other(&mut self, shared: &mut Shared, out: &mut Transmit, now: Instant) -> bool {
        let again = self.recovery.next < self.recovery.end;
        let more = self.has_more();
        if again || more {
            if self.is_ahead(now) {
                let until = Instant::from_nanos(self.send.pace - AHEAD / 2);
                self.send.pace_at = Some(until);
                shared.wheel.schedule(self.id.place, until);
            } else if again && self.retransmit(shared, out, now) {
                return true;
            } else if more {
                self.send_next(shared, out, now);
                return true;
            }
        }
        if self.ack.now {
            self.send_ack(shared, out, now);
            return true;
        }
        false
    }

    /// Whether a new packet may be sent.
    #[inline]
    fn has_more(&self) -> bool {
        self.send.unsent != NONE && self.in_flight() < u64::from(self.send.limit)
    }

    /// Whether the packets sent keep the link busy for longer than [`AHEAD`].
    #[inline]
    fn is_ahead(&self, now: Instant) -> bool {
        self.send.pace.wrapping_sub(now.as_nanos()) as i64 > AHEAD as i64
    }

    /// Builds the next retransmission.
    #[inline(never)]
    fn retransmit(&mut self, shared: &mut Shared, out: &mut Transmit, now: Instant) -> bool {
        let number = self.recovery.next;
        self.recovery.next += 1;
        let Some((place, segment)) = self.find(&shared.fragments, number) else { return false };
        let Some(fragment) = shared.fragments.get(place) else { return false };
        self.turn += 2;
        self.counters.num_total_sends += 1;
        self.counters.num_resends += 1;
        if number == self.send.acknowledged + 1 {
            self.recovery.at = Some(now);
        }
        // An ACK from now on may be for either transmission, or was delayed by the loss, so the timed packet is dropped
        // (Karn's algorithm).
        if self.round_trip.timed.is_some_and(|(timed, _)| timed >= number) {
            self.round_trip.timed = None;
        }
        let offset = segment.saturating_mul(fragment.segment).min(fragment.size);
        let length = fragment.part(offset);
        self.keep_pace(length, now);
        self.write(fragment, number, offset, length, None, out);
        true
    }

    /// The fragment, and the index of its packet, for a sequence number.
    fn find(&mut self, fragments: &Table<Fragment>, number: u64) -> Option<(u32, u32)> {
        let mut place = self.recovery.fragment.unwrap_or(self.send.first);
        loop {
            let fragment = fragments.get(place)?;
            let segment = number.checked_sub(fragment.start)?;
            if segment < u64::from(fragment.segments) {
                self.recovery.fragment = Some(place);
                return Some((place, segment as u32));
            }
            place = fragment.next;
        }
    }

    /// Builds the next new packet.
    #[inline]
    fn send_next(&mut self, shared: &mut Shared, out: &mut Transmit, now: Instant) {
        let Some(fragment) = shared.fragments.get_mut(self.send.unsent) else { return };
        let (number, offset) = (self.send.next, self.send.unsent_offset);
        let length = fragment.part(offset);
        fragment.sent = now;
        self.send.next += 1;
        self.send.unsent_offset += length;
        self.turn += 1;
        if self.send.unsent_offset >= fragment.size {
            self.send.unsent = fragment.next;
            self.send.unsent_offset = 0;
            // An owed ACK is piggybacked on this packet.
            if fragment.next == NONE && self.recovery.next >= self.recovery.end {
                self.turn = DONE;
            }
        }
        self.send.backlog -= u64::from(length);
        self.counters.num_total_sends += 1;
        self.keep_pace(length, now);
        if offset > 0 && out.chunk_of == self.id.place && self.ack.owed == 0 {
            // Only a few fields of the header differ from the last one.
            self.counters.num_chunk_sends += 1;
            Header::advance(self.layout, &mut out.header, number as u16, length as u16, offset);
            out.set_part(fragment, offset, length);
        } else {
            self.write_next(fragment, &mut shared.wheel, [offset, length], number, out, now);
        }
        if self.round_trip.timed.is_none() {
            self.round_trip.timed = Some((number, now));
            // If the timer runs, a packet is timed already, except after a retransmission.
            if self.recovery.timer.is_none() {
                self.start_timer(&mut shared.wheel, None, now);
            }
        }
    }

    /// Writes the whole next packet, with an ACK if one is owed.
    #[inline(never)]
    fn write_next(
        &mut self,
        fragment: &mut Fragment,
        wheel: &mut crate::wheel::Wheel,
        [offset, length]: [u32; 2],
        number: u64,
        out: &mut Transmit,
        now: Instant,
    ) {
        let owed = self.ack.owed > 0;
        let acknowledged = owed.then(|| self.acknowledge(wheel, now));
        if offset == 0 {
            fragment.start = number;
        }
        match fragment.id {
            0 => self.counters.num_frag_sends += 1,
            _ => self.counters.num_chunk_sends += 1,
        }
        self.write(fragment, number, offset, length, acknowledged, out);
        if fragment.id != 0 && !owed {
            out.chunk_of = self.id.place;
        }
    }

    #[inline(never)]
    fn send_ack(&mut self, shared: &mut Shared, out: &mut Transmit, now: Instant) {
        let acknowledged = self.acknowledge(&mut shared.wheel, now);
        let again = self.recovery.next < self.recovery.end;
        self.turn = if again || self.send.unsent != NONE { self.turn + 1 } else { DONE };
        self.counters.num_total_sends += 1;
        self.counters.num_ack_sends += 1;
        let header = Header {
            sender: self.sender,
            sequence: 0,
            acknowledged: Some(acknowledged),
            put_address: 0,
            tag: 0,
            kind: Kind::Ack,
        };
        out.length = header.emit(self.layout, 0, out.header_mut());
        out.windows = 0;
        out.interface = self.interface;
        out.channel = Channel::Priority;
        out.to = self.priority;
        out.dont_fragment = false;
    }

    /// Accounts the time that the link needs for a packet of so many bytes of payload.
    #[inline]
    fn keep_pace(&mut self, length: u32, now: Instant) {
        // The headers of Ethernet, IPv4, UDP and usNIC, and the gap between frames, are about 110 bytes. Without a
        // known speed, bytes take no time.
        let cost = (u64::from(length) + 110) * self.byte_time / 1024;
        self.send.pace = self.send.pace.max(now.as_nanos()) + cost;
    }

    /// Writes a data packet.
    #[inline]
    fn write(
        &self,
        fragment: &Fragment,
        number: u64,
        offset: u32,
        length: u32,
        acknowledged: Option<u16>,
        out: &mut Transmit,
    ) {
        let kind = match fragment.id {
            0 => Kind::Fragment,
            fragment_id => Kind::Chunk { fragment: fragment_id, size: fragment.size, offset },
        };
        let header = Header {
            sender: self.sender,
            sequence: number as u16,
            acknowledged,
            put_address: fragment.put_address,
            tag: fragment.tag,
            kind,
        };
        out.length = header.emit(self.layout, length as u16, out.header_mut());
        out.set_part(fragment, offset, length);
        if length == 0 {
            out.windows = 0;
        }
        out.interface = self.interface;
        out.channel = Channel::Data;
        out.to = self.data;
        out.dont_fragment = false;
    }

    /// The number to acknowledge now. No ACK is owed afterwards.
    #[inline]
    fn acknowledge(&mut self, wheel: &mut crate::wheel::Wheel, now: Instant) -> u16 {
        let number = self.receive.expected - 1;
        let has_gap = self.has_gap();
        let ack = &mut self.ack;
        if !has_gap {
            ack.gap_at = None;
        } else {
            let pause = if number != ack.sent {
                // The peer detects the gap by the second ACK of the same number.
                ack.gap_pause = GAP_PAUSE;
                GAP_FIRST
            } else {
                let pause = ack.gap_pause;
                ack.gap_pause = (2 * pause).min(GAP_PAUSE_MOST);
                pause
            };
            let at = now.after_nanos(pause);
            ack.gap_at = Some(at);
            wheel.schedule(self.id.place, at);
        }
        ack.sent = number;
        ack.owed = 0;
        ack.now = false;
        ack.at = None;
        number as u16
    }
}
