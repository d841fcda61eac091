//! What the peer acknowledges, and what is done when it does not.
//!
//! An ACK tells only up to where everything has arrived. One that tells the same again shows that something is
//! missing: the first packet behind it is sent again at once. Its ACK, if it does not reach what had been sent by
//! then, shows the next one that is missing. Not to spend a round trip on each, as many are sent again from there
//! as the link carries in a quarter of a round trip. Where no ACK comes, the
//! first packet is sent once more after about two round trips, and then by a timer that is doubled each time.

use super::endpoint::{Endpoint, LEAST_LIMIT, LOSSY_LIMIT, extend};
use super::transmit::RESENDS_PER_TURN;
use super::{Engine, Failure};
use core::time::Duration;
use drivers::hal::Instant;

/// ACKs of what was never sent, until the peer is taken for one that knows another life of ours.
const OTHER_LIFE: u64 = 16;
/// Most doublings of the timer that outlast an ACK: loss alone must not make it slow.
const LASTING: u32 = 3;
/// Most packets that are sent again at a time.
const MOST_AGAIN: u64 = 256;
/// A packet is not sent again so soon after it was.
const LEAST_PAUSE: u64 = 100_000;

impl Endpoint {
    /// How long an ACK may take, before something is wrong: smoothed round trip and four times its variation.
    fn patience(&self) -> Option<u64> {
        let smoothed = self.round_trip.smoothed?;
        Some(smoothed.saturating_add(self.round_trip.variation.saturating_mul(4)))
    }

    /// Waits for an ACK from now on. `sent` is when the first packet that has none was sent, if an ACK of those
    /// before it has just come: its own follows that closely, if it was sent with them.
    #[inline]
    pub(super) fn start_timer(&mut self, sent: Option<Instant>, now: Instant) {
        let timing = &self.config.timing;
        if let (Some(sent), Some(trip)) = (sent, self.round_trip.smoothed) {
            let probe = timing.probe.as_nanos() as u64;
            let due = sent.as_nanos().saturating_add(trip).saturating_add(probe.max(trip / 4));
            let at = Instant::from_nanos(due.max(now.as_nanos().saturating_add(probe)));
            self.recovery.timer = Some(at);
            return;
        }
        let retransmit = timing.retransmit.as_nanos() as u64;
        let wait = match self.patience() {
            Some(patience) if !self.recovery.probed && self.recovery.expired == 0 => {
                let probe = timing.probe.as_nanos() as u64;
                let twice = patience.saturating_mul(2).max(probe);
                let doubled = retransmit.max(patience) << self.recovery.doubled;
                twice.min(doubled)
            }
            patience => {
                let base = retransmit.max(patience.unwrap_or(0));
                let times = self.recovery.doubled.max(self.recovery.expired);
                let doubled = base.saturating_mul(1 << times.min(16));
                doubled.min(timing.retransmit_most.as_nanos() as u64).max(retransmit)
            }
        };
        self.recovery.timer = Some(now + Duration::from_nanos(wait));
    }

    /// Sends `count` packets again, from the first that is not acknowledged.
    fn resend(&mut self, count: u64) {
        let first = self.send.acknowledged + 1;
        self.recovery.next = first;
        self.recovery.end = (first + count).min(self.send.next);
        self.recovery.fragment = None;
    }

    /// How many packets the link carries in a quarter of a round trip.
    fn quarter(&self, trip: u64) -> u64 {
        // Without a speed, as at 10 Gb/s.
        let byte_time = if self.byte_time > 0 { self.byte_time } else { 819 };
        let packet = u64::from(self.max_chunk) * byte_time / 1024;
        (trip / 4).checked_div(packet).unwrap_or(1).clamp(1, MOST_AGAIN)
    }

    /// A round trip was seen.
    fn measure(&mut self, nanos: u64) {
        self.recovery.doubled = 0;
        let trip = &mut self.round_trip;
        match trip.smoothed {
            None => {
                trip.smoothed = Some(nanos);
                trip.variation = nanos / 2;
                trip.least = nanos;
            }
            Some(smoothed) => {
                trip.variation = (3 * trip.variation + smoothed.abs_diff(nanos)) / 4;
                trip.smoothed = Some((7 * smoothed + nanos) / 8);
                trip.least = trip.least.min(nanos);
            }
        }
    }

    /// The ACK says what the last one said: something behind it has arrived, and it has not.
    fn hear_again(&mut self, now: Instant) -> bool {
        if self.on_the_way() == 0 || self.recovery.next < self.recovery.end {
            return false;
        }
        let pause = self.round_trip.smoothed.unwrap_or(LEAST_PAUSE).max(LEAST_PAUSE);
        if self.recovery.at.is_some_and(|at| now.nanos_since(at) < pause) {
            return false;
        }
        if self.recovery.until.is_none() {
            self.recovery.until = Some(self.send.next);
            // A packet now and then says little of how much gets through.
            let less = self.send.limit - self.send.limit / 8;
            self.send.limit = less.max(LOSSY_LIMIT).min(self.send.limit);
        }
        self.counters.num_fast_retrans += 1;
        self.resend(1);
        true
    }

    /// The ACK tells of `count` packets more; whether packets are to be sent again.
    fn hear_more(&mut self, number: u64, count: u64, now: Instant) -> bool {
        if let Some((timed, at)) = self.round_trip.timed
            && timed <= number
        {
            self.round_trip.timed = None;
            self.measure(now.nanos_since(at));
        }
        let send = &mut self.send;
        send.acknowledged = number;
        let most = self.config.timing.in_flight;
        send.limit = send.limit.saturating_add(count.min(u64::from(most)) as u32).min(most);
        self.recovery.probed = false;
        self.recovery.expired = 0;
        let mut again = false;
        let first = number + 1;
        if let Some(until) = self.recovery.until {
            // It was answered before that can be: nothing was lost, something came late.
            let trip = self.round_trip.smoothed.unwrap_or(0);
            let early = (3 * self.round_trip.least / 4).max(trip / 2);
            let mistaken = self.recovery.at.is_some_and(|at| now.nanos_since(at) < early);
            if first >= until || mistaken {
                self.recovery.until = None;
                self.recovery.end = self.recovery.next;
            } else if first >= self.recovery.next {
                let waited = self.recovery.at.map_or(0, |at| now.nanos_since(at));
                // Nothing behind what was sent again had arrived: much is missing.
                let exactly = first == self.recovery.next;
                let least = if exactly { 4 * u64::from(RESENDS_PER_TURN) } else { 1 };
                let count = self.quarter(waited).max(least);
                self.counters.num_fast_retrans += 1;
                self.resend(count.min(until - first));
                again = true;
            }
        } else if self.recovery.next < first {
            self.recovery.end = self.recovery.next;
        }
        again
    }
}

impl Engine {
    /// The peer acknowledges everything up to `number`; `alone` if that is all that the packet says.
    pub(super) fn acknowledged(&mut self, place: u32, number: u16, now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        let number = extend(endpoint.send.acknowledged, number);
        if number < endpoint.send.acknowledged {
            // Far behind may as well be far ahead.
            let behind = endpoint.send.acknowledged - number;
            endpoint.counters.num_old_dup_acks += 1;
            if behind > super::WINDOW {
                self.acknowledged_unsent(place);
            }
            return;
        }
        if number >= endpoint.send.next {
            return self.acknowledged_unsent(place);
        }
        if number == endpoint.send.acknowledged {
            endpoint.counters.num_dup_acks += 1;
            if endpoint.hear_again(now) {
                self.make_ready(place);
            }
            return;
        }
        let count = number - endpoint.send.acknowledged;
        let again = endpoint.hear_more(number, count, now);
        let more = endpoint.send.unsent != super::NONE;
        self.retire(place);
        if again || more {
            self.make_ready(place);
        }
        let Engine { endpoints, fragments, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(place as usize) else { return };
        if endpoint.on_the_way() == 0 {
            endpoint.recovery.timer = None;
        } else {
            let first = fragments.get(endpoint.send.first as usize);
            let sent = first.map(|fragment| fragment.sent).max(endpoint.recovery.at);
            endpoint.start_timer(sent.filter(|_| !again), now);
        }
        self.schedule(place);
    }

    /// An ACK of what was never sent is not believed.
    fn acknowledged_unsent(&mut self, place: u32) {
        let Some(endpoint) = self.at(place) else { return };
        endpoint.counters.acks_of_unsent += 1;
        // As long as it has acknowledged nothing that we have sent, it may know another life of ours.
        let none = endpoint.counters.fragments_sent == 0 && endpoint.on_the_way() > 0;
        if none && endpoint.counters.acks_of_unsent >= OTHER_LIFE {
            self.fail(place, Failure::OtherLife);
        }
    }

    /// A moment of an endpoint has come: whatever is due is done.
    pub(super) fn endpoint_is_due(&mut self, place: u32, now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut ready = false;
        if is_due(endpoint.send.pace_at) {
            endpoint.send.pace_at = None;
            ready = true;
        }
        if is_due(endpoint.ack.at) || is_due(endpoint.ack.gap_at) {
            endpoint.ack.at = None;
            endpoint.ack.gap_at = None;
            endpoint.ack.now = true;
            ready = true;
        }
        if is_due(endpoint.silence_at) {
            return self.fail(place, Failure::Silent);
        }
        if is_due(endpoint.recovery.timer) {
            endpoint.recovery.timer = None;
            if endpoint.on_the_way() > 0 {
                if endpoint.expire(now) {
                    let times = endpoint.recovery.expired;
                    return self.fail(place, Failure::Unacknowledged { times });
                }
                ready = true;
            }
        }
        if ready {
            self.make_ready(place);
        }
        self.schedule(place);
    }
}

impl Endpoint {
    /// No ACK has come in time; whether that is enough.
    fn expire(&mut self, now: Instant) -> bool {
        self.counters.num_timeout_retrans += 1;
        if !self.recovery.probed && self.recovery.expired == 0 && self.patience().is_some() {
            self.recovery.probed = true;
        } else {
            if self.recovery.expired >= self.config.timing.retries {
                return true;
            }
            self.recovery.expired += 1;
            self.recovery.doubled = (self.recovery.doubled + 1).min(LASTING);
            if self.recovery.expired > 1 {
                self.send.limit = (self.send.limit / 2).max(LEAST_LIMIT);
            }
        }
        self.recovery.until = Some(self.send.next);
        self.resend(1);
        self.start_timer(None, now);
        false
    }
}
