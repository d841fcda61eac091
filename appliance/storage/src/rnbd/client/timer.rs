//! Timers of a client: timeouts of queued requests, and retries.

use super::Client;
use super::session::Session;
use super::state::DeviceState;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{Ctx, RdmaDevice};

/// Delay before the session retries a request of its own for which no permit was free.
const SOON: Duration = Duration::from_millis(10);

impl Client {
    /// Makes sure that the timers run at `deadline`.
    pub(super) fn wake_at(&mut self, deadline: Instant) {
        self.next_timer = Some(self.next_timer.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Schedules a retry of a request of the session's own.
    pub(super) fn retry_soon<P: RdmaDevice + ?Sized>(&mut self, ctx: &Ctx<'_, P>) {
        self.wake_at(ctx.now + SOON);
    }

    /// Runs the timers that have expired.
    pub(super) fn run_timers<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        if self.next_timer.is_none_or(|next_timer| ctx.now < next_timer) {
            return;
        }
        self.next_timer = None;
        for key in 0..self.devices.capacity() {
            if self.devices.contains(key) {
                self.expire_requests(key, ctx.now);
                self.expire_down_paths(key, ctx.now);
            }
        }
        if self.session == Session::Greeting && !self.is_greeting() {
            self.send_session_info(ctx);
        }
        for key in 0..self.devices.capacity() {
            let retry_at = self.devices.get(key).map(|device| device.retry_at);
            match retry_at {
                Some(at) if self.wants_open(key) && at <= ctx.now => self.open(key, ctx),
                Some(at) if self.wants_open(key) => self.wake_at(at),
                _ => {}
            }
        }
    }

    /// Whether SESS_INFO is in flight.
    fn is_greeting(&self) -> bool {
        self.owners.contains(&super::Owner::SessionInfo)
    }

    /// Fails requests of a device that has not been open for the wait time.
    fn expire_requests(&mut self, key: usize, now: Instant) {
        let mut next = None;
        for at in (0..self.devices[key].waiting.len()).rev() {
            let device = &self.devices[key];
            if device.state == DeviceState::Open {
                return;
            }
            let Some(&slot) = device.waiting.get(at) else { continue };
            let Some(Some(active)) = device.active.get(slot as usize) else { continue };
            let deadline = active.waiting_since.unwrap_or(now) + self.config.wait;
            if deadline <= now && (active.given_up || active.permit.is_none()) {
                self.devices[key].waiting.remove(at);
                self.give_up(key, slot);
            } else if deadline <= now {
                // The server may still execute it: the wait for the server is as long again.
                self.complete_given_up(key, slot, now);
                next = Some(now + self.config.wait);
            } else {
                next = Some(next.map_or(deadline, |earlier: Instant| earlier.min(deadline)));
            }
        }
        if let Some(next) = next {
            self.wake_at(next);
        }
    }
}
