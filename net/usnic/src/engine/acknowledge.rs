//! What the peer acknowledges, and what is done when it does not.
//!
//! An ACK tells only up to where everything has arrived. One that tells the same again shows that something is
//! missing: the first packet behind it is sent again at once, and then not before an ACK of that can be back. The
//! ACK of what was sent again, if it does not reach what had been sent by then, shows the next that is missing
//! (as NewReno, RFC 6582). Not to spend a round trip on each, packets behind it go with it, as many as the link
//! carries in a round trip: all of that if nothing else can be sent, else an eighth. Where no ACK comes, the first
//! packet is sent once more after about two round trips, and then by a timer that is doubled each time.
//!
//! Round trips are measured of packets that were sent once, and of the first that was sent again if that was
//! enough: with many losses there is hardly another, and a timer that knows only the time of long queues is slow.

use super::endpoint::{Endpoint, LEAST_LIMIT, LOSSY_LIMIT, extend};
use super::shared::Shared;
use super::{Engine, Failure, NO_MESSAGE, NONE, WINDOW};
use crate::wheel::Wheel;
use drivers::hal::Instant;

/// ACKs of what was never sent, until the peer is taken for one that knows another life of ours.
const OTHER_LIFE: u64 = 16;
/// Most doublings of the timer that outlast an ACK: loss alone must not make it slow.
const LASTING: u32 = 3;
/// Most packets that are sent again at a time because the one before was missing, too.
const MOST_AGAIN: u64 = 256;
/// Nanoseconds: a packet is not sent again so soon after it was, as long as no round trip is known.
const LEAST_PAUSE: u64 = 100_000;

impl Endpoint {
    /// How long an ACK may take, before something is wrong: smoothed round trip and four times its variation.
    fn patience(&self) -> Option<u64> {
        let smoothed = self.round_trip.smoothed?;
        Some(smoothed.saturating_add(self.round_trip.variation.saturating_mul(4)))
    }

    /// Waits for an ACK from now on. `sent` is when the first packet that has none was sent, if an ACK of those
    /// before it has just come: its own follows that closely, if it was sent with them.
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
        wheel.put(self.id.place, at);
    }

    /// Nanoseconds of the timer: twice of what ACKs may take, and doubled for each time that it has expired.
    fn wait(&self) -> u64 {
        let base = match self.patience() {
            Some(patience) => patience.saturating_mul(2).max(self.config.probe),
            None => self.config.retransmit,
        };
        let times = self.recovery.doubled.max(self.recovery.backed_off).min(32);
        base.saturating_mul(1 << times).min(self.config.retransmit_most)
    }

    /// Sends `count` packets again, from the first that is not acknowledged.
    fn resend(&mut self, count: u64) {
        let first = self.send.acknowledged + 1;
        self.recovery.next = first;
        self.recovery.end = (first + count).min(self.send.next);
        self.recovery.fragment = None;
    }

    /// How many packets may be sent again that are not known to be lost, in place of waiting for so many
    /// nanoseconds: what the link carries in that time, if it has nothing else to do, else an eighth of it.
    fn guess(&self, nanos: u64) -> u64 {
        let limit = u64::from(self.send.limit);
        let is_idle = self.send.unsent == NONE || self.on_the_way() >= limit;
        // Without a speed, as at 10 Gb/s.
        let byte_time = if self.byte_time > 0 { self.byte_time } else { 819 };
        let packet = u64::from(self.max_chunk) * byte_time / 1024;
        let share = if is_idle { nanos } else { nanos / 8 };
        share.checked_div(packet).unwrap_or(1).clamp(1, WINDOW)
    }

    /// A round trip was seen.
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

    /// The ACK says what the last one said: something behind it has arrived, and it has not.
    fn hear_again(&mut self, now: Instant) -> bool {
        if self.on_the_way() == 0 || self.recovery.next < self.recovery.end {
            return false;
        }
        // One that has left before that arrived which was sent again says nothing of it.
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
        self.recovery.count = 1;
        self.resend(1);
        true
    }

    /// The ACK tells of `count` packets more; whether packets are to be sent again.
    fn hear_more(&mut self, number: u64, count: u64, now: Instant) -> bool {
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
            // Some of what was sent again is still on the way.
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
        // What is answered before that can be was late, and not lost.
        if once && waited >= self.round_trip.least / 2 {
            self.measure(waited);
        }
        // What was sent again has arrived, and the next, which was sent before it, has not: it is lost. If nothing
        // behind the first had arrived, much may be.
        self.recovery.count = if exactly { (2 * self.recovery.count).min(MOST_AGAIN) } else { 1 };
        self.counters.num_fast_retrans += 1;
        let count = self.recovery.count.max(self.guess(waited));
        self.resend(count.min(until - first));
        true
    }

    /// No ACK has come in time; whether that is enough.
    fn expire(&mut self, wheel: &mut Wheel, now: Instant) -> bool {
        self.counters.num_timeout_retrans += 1;
        // What is sent again soon is a question, not a sign that nobody answers.
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

    /// The peer acknowledges everything up to `number`; why the endpoint fails, if it does.
    #[inline]
    pub(super) fn hear(
        &mut self,
        shared: &mut Shared,
        number: u16,
        now: Instant,
    ) -> Result<(), Failure> {
        let number = extend(self.send.acknowledged, number);
        if number <= self.send.acknowledged || number >= self.send.next {
            return self.hear_nothing_new(shared, number, now);
        }
        let most = &mut self.counters.max_sent_window_size;
        *most = (self.send.next - 1 - self.send.acknowledged).max(*most);
        let count = number - self.send.acknowledged;
        let again = self.hear_more(number, count, now);
        self.retire(shared);
        if again || self.send.unsent != NONE {
            shared.make_ready(self);
        }
        if self.on_the_way() == 0 {
            self.recovery.timer = None;
        } else {
            let first = shared.fragments.get(self.send.first);
            let sent = first.map(|fragment| fragment.sent).max(self.recovery.at);
            self.start_timer(&mut shared.wheel, sent.filter(|_| !again), now);
        }
        Ok(())
    }

    /// An ACK that is old, says what the last one said, or cannot be.
    fn hear_nothing_new(
        &mut self,
        shared: &mut Shared,
        number: u64,
        now: Instant,
    ) -> Result<(), Failure> {
        if number == self.send.acknowledged {
            self.counters.num_dup_acks += 1;
            if self.hear_again(now) {
                shared.make_ready(self);
            }
            return Ok(());
        }
        if number < self.send.acknowledged {
            self.counters.num_old_dup_acks += 1;
            // Far behind may as well be far ahead.
            if self.send.acknowledged - number <= WINDOW {
                return Ok(());
            }
        }
        // An ACK of what was never sent is not believed. As long as it has acknowledged nothing that we have sent,
        // the peer may know another life of ours.
        self.counters.acks_of_unsent += 1;
        let none = self.counters.fragments_sent == 0 && self.on_the_way() > 0;
        match none && self.counters.acks_of_unsent >= OTHER_LIFE {
            true => Err(Failure::OtherLife),
            false => Ok(()),
        }
    }

    /// A moment has come: whatever is due is done. Why the endpoint fails, if it does.
    fn is_due(&mut self, shared: &mut Shared, now: Instant) -> Result<(), Failure> {
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
            if self.on_the_way() > 0 {
                if self.expire(&mut shared.wheel, now) {
                    return Err(Failure::Unacknowledged { times: self.recovery.expired });
                }
                ready = true;
            }
        }
        if ready {
            shared.make_ready(self);
        }
        // It stands in the wheel by its first deadline, and goes back there by the next.
        if let Some(at) = self.deadline() {
            shared.wheel.put(self.id.place, at);
        }
        Ok(())
    }
}

impl Engine {
    /// A moment of an endpoint has come.
    pub(super) fn endpoint_is_due(&mut self, place: u32, now: Instant) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if let Err(why) = endpoint.is_due(&mut self.shared, now) {
            self.fail(place, why);
        }
    }
}
