//! The end of patience, and the next attempt.

use super::Client;
use super::session::Session;
use super::state::DeviceState;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::EngineContext;
use verbs::RdmaDevice;

/// When something of the session's own is tried again for which no permit was free.
const SOON: Duration = Duration::from_millis(10);

impl Client {
    /// Makes sure that the timers run at `deadline`.
    pub(super) fn wake_at(&mut self, deadline: Instant) {
        self.wake = Some(self.wake.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Tries again soon what could not be asked for.
    pub(super) fn retry_soon<P: RdmaDevice + ?Sized>(&mut self, ctx: &EngineContext<'_, P>) {
        self.wake_at(ctx.now + SOON);
    }

    /// Runs the timers that have expired.
    pub(super) fn run_timers<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        if self.wake.is_none_or(|wake| ctx.now < wake) {
            return;
        }
        self.wake = None;
        for key in 0..self.devices.capacity() {
            if self.devices.contains(key) {
                self.expire_requests(key, ctx.now);
                self.forget_paths(key, ctx.now);
            }
        }
        if self.session == Session::Greeting && !self.is_greeting() {
            self.greet(ctx);
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

    /// Whether SESS_INFO is on its way.
    fn is_greeting(&self) -> bool {
        self.owners.contains(&super::Owner::SessionInfo)
    }

    /// Ends requests of a device that have waited for too long.
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
                // The server may still be at it: that is waited for as long again.
                self.tell_given_up(key, slot, now);
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
