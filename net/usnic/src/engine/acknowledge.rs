//! Acknowledgements of the peer, and loss recovery.
//!
//! ACKs are cumulative. A duplicate ACK shows that a packet is missing: the first packet after the acknowledged one is
//! retransmitted at once, and not again before an ACK of it can have arrived. If the ACK of a retransmission is
//! partial, so that it does not reach the last packet sent by then, it shows the next missing packet (as in NewReno,
//! RFC 6582). Because one round trip for each loss is too slow, later packets are retransmitted with it: as many as the
//! link carries in a round trip if no new packet can be sent, otherwise an eighth of that. Without any ACK, the first
//! packet is retransmitted after about two round trips, and then by a timer that doubles each time.
//!
//! Round trips are measured on packets that were sent once, and on the first retransmission if one was
//! sufficient: with heavy loss there are hardly other samples, and a timer that knows only the delay of long queues is
//! slow.

use super::endpoint::{Endpoint, LEAST_LIMIT, LOSSY_LIMIT, extend};
use super::shared::Shared;
use super::{Engine, Failure, NO_MESSAGE, NONE, WINDOW};
use crate::wheel::Wheel;
use drivers::hal::Instant;

/// ACKs of packets that were never sent, until the peer's state counts as stale.
const STALE_ACKS: u64 = 16;
/// Most doublings of the timer that an ACK does not reset. Loss alone must not slow the timer down.
const LASTING: u32 = 3;
/// Most packets retransmitted at a time because the packet before was missing too.
const MOST_AGAIN: u64 = 256;
/// Minimum nanoseconds between retransmissions of a packet while no round trip is known.
const LEAST_PAUSE: u64 = 100_000;

impl Endpoint {
    /// Timeout of an ACK in nanoseconds: the smoothed round trip and four times its variation.
    fn ack_timeout(&self) -> Option<u64> {
        let smoothed = self.round_trip.smoothed?;
        Some(smoothed.saturating_add(self.round_trip.variation.saturating_mul(4)))
    }

    /// Starts the retransmission timer. After an ACK, `sent` is when the first packet without one was sent: if it was
    /// sent with the acknowledged packets, its ACK follows soon.
    #[inline(never)]
    pub(super) fn start_timer(&mut self, wheel: &mut Wheel, sent: Option<Instant>, now: Instant) {
        let probe = self.config.probe;
        let wait = match (sent, self.round_trip.smoothed) {
            (Some(sent), Some(trip)) => {
                let due = trip.saturating_add(probe.max(trip / 4));
                due.saturating_sub(now.nanos_since(sent)).max(probe)
            }
            _ => self.wait(),
        };
        let at = now.after_nanos(wait);
        self.recovery.timer = Some(at);
        wheel.schedule(self.id.place, at);
    }

    /// Nanoseconds of the timer: twice the timeout of an ACK, doubled for each expiry.
    fn wait(&self) -> u64 {
        let base = match self.ack_timeout() {
            Some(timeout) => timeout.saturating_mul(2).max(self.config.probe),
            None => self.config.retransmit,
        };
        let times = self.recovery.doubled.max(self.recovery.backed_off).min(32);
        base.saturating_mul(1 << times).min(self.config.retransmit_most)
    }

    /// Schedules the retransmission of `count` packets, from the first unacknowledged one.
    fn resend(&mut self, count: u64) {
        let first = self.send.acknowledged + 1;
        self.recovery.next = first;
        self.recovery.end = (first + count).min(self.send.next);
        self.recovery.fragment = None;
    }

    /// Packets to retransmit speculatively instead of waiting for so many nanoseconds: the number that the link
    /// carries in that time if no new packet can be sent, otherwise an eighth of it.
    fn speculative_count(&self, nanos: u64) -> u64 {
        let limit = u64::from(self.send.limit);
        let is_idle = self.send.unsent == NONE || self.in_flight() >= limit;
        // An unknown speed counts as 10 Gb/s.
        let byte_time = if self.byte_time > 0 { self.byte_time } else { 819 };
        let packet = u64::from(self.max_chunk) * byte_time / 1024;
        let share = if is_idle { nanos } else { nanos / 8 };
        share.checked_div(packet).unwrap_or(1).clamp(1, WINDOW)
    }

    /// Adds a sample of the round trip time.
    fn measure(&mut self, nanos: u64) {
        self.recovery.doubled = 0;
        let trip = &mut self.round_trip;
        match trip.smoothed {
            None => {
                trip.smoothed = Some(nanos);
                trip.variation = nanos / 2;
            }
            Some(smoothed) => {
                trip.variation = (3 * trip.variation + smoothed.abs_diff(nanos)) / 4;
                trip.smoothed = Some((7 * smoothed + nanos) / 8);
            }
        }
    }

    /// Handles a duplicate ACK: a later packet has arrived, and the next one has not. True if a packet is to be
    /// retransmitted.
    fn handle_duplicate_ack(&mut self, now: Instant) -> bool {
        if self.in_flight() == 0 || self.recovery.next < self.recovery.end {
            return false;
        }
        // An ACK that was sent before the retransmission arrived does not show whether it was lost.
        let pause = self.round_trip.smoothed.unwrap_or(LEAST_PAUSE).max(LEAST_PAUSE);
        if self.recovery.at.is_some_and(|at| now.nanos_since(at) < pause) {
            return false;
        }
        if self.recovery.until.is_none() {
            self.recovery.until = Some(self.send.next);
            // Occasional losses say little about the capacity of the path, so the limit stays above a minimum.
            let less = self.send.limit - self.send.limit / 8;
            self.send.limit = less.max(LOSSY_LIMIT).min(self.send.limit);
        }
        self.counters.num_fast_retrans += 1;
        self.recovery.count = 1;
        self.resend(1);
        true
    }

    /// Handles an ACK of `count` further packets. True if packets are to be retransmitted.
    fn handle_new_ack(&mut self, number: u64, count: u64, now: Instant) -> bool {
        if let Some((timed, at)) = self.round_trip.timed
            && timed <= number
        {
            self.round_trip.timed = None;
            let nanos = now.nanos_since(at);
            self.round_trip.least = nanos.min(self.round_trip.least);
            self.measure(nanos);
        }
        let send = &mut self.send;
        send.acknowledged = number;
        let most = self.config.in_flight;
        send.limit = send.limit.saturating_add(count.min(u64::from(most)) as u32).min(most);
        let once = self.recovery.backed_off <= 1;
        self.recovery.backed_off = 0;
        self.recovery.expired = 0;
        let first = number + 1;
        if first < self.recovery.next {
            // Some retransmissions are still in flight.
            return false;
        }
        self.recovery.end = self.recovery.next;
        let Some(until) = self.recovery.until else { return false };
        let waited = self.recovery.at.map_or(0, |at| now.nanos_since(at));
        let exactly = first == self.recovery.next;
        self.recovery.at = None;
        if first >= until {
            self.recovery.until = None;
            return false;
        }
        // An ACK that arrives sooner than a round trip is for the first transmission, which was late and not lost.
        if once && waited >= self.round_trip.least / 2 {
            self.measure(waited);
        }
        // The retransmission has arrived, and the next packet, which was sent before it, has not: it is lost. If no
        // later packet had arrived either, many may be lost.
        self.recovery.count = if exactly { (2 * self.recovery.count).min(MOST_AGAIN) } else { 1 };
        self.counters.num_fast_retrans += 1;
        let count = self.recovery.count.max(self.speculative_count(waited));
        self.resend(count.min(until - first));
        true
    }

    /// Handles the expiry of the retransmission timer. True if the retries are used up.
    fn handle_timeout(&mut self, wheel: &mut Wheel, now: Instant) -> bool {
        self.counters.num_timeout_retrans += 1;
        // An early retransmission is a probe, and does not count as a retry.
        if self.wait() >= self.config.retransmit {
            if self.recovery.expired >= self.config.retries {
                return true;
            }
            self.recovery.expired += 1;
            self.recovery.doubled = (self.recovery.doubled + 1).min(LASTING);
            if self.recovery.expired > 1 {
                self.send.limit = (self.send.limit / 2).max(LEAST_LIMIT);
            }
        }
        self.recovery.backed_off += 1;
        self.recovery.until = Some(self.send.next);
        self.recovery.count = 1;
        self.resend(1);
        self.start_timer(wheel, None, now);
        false
    }

    /// Handles an ACK of all packets up to `number`. An error means that the endpoint fails.
    #[inline]
    pub(super) fn handle_ack(
        &mut self,
        shared: &mut Shared,
        number: u16,
        now: Instant,
    ) -> Result<(), Failure> {
        let number = extend(self.send.acknowledged, number);
        if number <= self.send.acknowledged || number >= self.send.next {
            return self.handle_other_ack(shared, number, now);
        }
        let most = &mut self.counters.max_sent_window_size;
        *most = (self.send.next - 1 - self.send.acknowledged).max(*most);
        let count = number - self.send.acknowledged;
        let again = self.handle_new_ack(number, count, now);
        self.retire(shared);
        if again || self.send.unsent != NONE {
            shared.make_ready(self);
        }
        if self.in_flight() == 0 {
            self.recovery.timer = None;
        } else {
            let first = shared.fragments.get(self.send.first);
            let sent = first.map(|fragment| fragment.sent).max(self.recovery.at);
            self.start_timer(&mut shared.wheel, sent.filter(|_| !again), now);
        }
        Ok(())
    }

    /// Handles an ACK that is a duplicate, old, or for packets that were never sent.
    fn handle_other_ack(
        &mut self,
        shared: &mut Shared,
        number: u64,
        now: Instant,
    ) -> Result<(), Failure> {
        if number == self.send.acknowledged {
            self.counters.num_dup_acks += 1;
            if self.handle_duplicate_ack(now) {
                shared.make_ready(self);
            }
            return Ok(());
        }
        if number < self.send.acknowledged {
            self.counters.num_old_dup_acks += 1;
            // With 16 bits, a number far behind may also be far ahead.
            if self.send.acknowledged - number <= WINDOW {
                return Ok(());
            }
        }
        // An ACK of packets that were never sent is ignored. If the peer has acknowledged no packet of ours so far, its
        // state may be from before a restart.
        self.counters.acks_of_unsent += 1;
        let none = self.counters.fragments_sent == 0 && self.in_flight() > 0;
        match none && self.counters.acks_of_unsent >= STALE_ACKS {
            true => Err(Failure::StaleState),
            false => Ok(()),
        }
    }

    /// Runs the endpoint's timers that are due. An error means that the endpoint fails.
    fn run_timers(&mut self, shared: &mut Shared, now: Instant) -> Result<(), Failure> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut ready = false;
        if is_due(self.send.pace_at) {
            self.send.pace_at = None;
            ready = true;
        }
        if is_due(self.ack.at) || is_due(self.ack.gap_at) {
            self.ack.at = None;
            self.ack.gap_at = None;
            self.ack.now = true;
            self.ack.owed = self.ack.owed.max(1);
            ready = true;
        }
        if is_due(self.silence_at) {
            let at = self.part_at.after_nanos(self.config.silence);
            self.silence_at = (self.arriving != NO_MESSAGE).then_some(at);
            if is_due(self.silence_at) {
                return Err(Failure::Silent);
            }
        }
        if is_due(self.recovery.timer) {
            self.recovery.timer = None;
            if self.in_flight() > 0 {
                if self.handle_timeout(&mut shared.wheel, now) {
                    return Err(Failure::Unacknowledged { times: self.recovery.expired });
                }
                ready = true;
            }
        }
        if ready {
            shared.make_ready(self);
        }
        // Schedule the next deadline.
        if let Some(at) = self.deadline() {
            shared.wheel.schedule(self.id.place, at);
        }
        Ok(())
    }
}

impl Engine {
    /// Runs the timers of an endpoint.
    pub(super) fn run_endpoint_timers(&mut self, place: u32, now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if let Err(why) = endpoint.run_timers(&mut self.shared, now) {
            self.fail(place, why);
        }
    }
}
