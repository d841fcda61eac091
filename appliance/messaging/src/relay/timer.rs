//! Timers of a rule: connect and idle timeouts, and health probes.

use super::{Place, Relay, Relayed, World, messages};
use crate::transport::Reason;
use core::time::Duration;
use drivers::hal::Instant;
use smcr::SmcDevice;
use smcr::acceptor::Acceptor;

/// Time to read data that arrived while the machine was paused.
const GRACE: Duration = Duration::from_secs(1);
/// Timers that are handled in one call.
const DUE: usize = 64;

impl Relay {
    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let fronts = self.fronts.iter().filter_map(Acceptor::poll_timeout);
        let balance = self.balance.poll_timeout();
        let own = [self.timers.first(), self.probes_due, balance, self.ended_due];
        fronts.chain(own.into_iter().flatten()).min()
    }

    /// Handles expired timers. Call [`Relay::work`] afterwards.
    pub fn handle_timeout<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let now = world.ctx.now;
        if self.balance.is_due(now) {
            self.probe_all(world);
        }
        if self.probes_due.is_some_and(|at| at <= now) {
            self.probes_due = None;
            self.end_probes(world);
        }
        self.push_ended(now);
        for at in 0..self.fronts.len() {
            if self.fronts[at].poll_timeout().is_some_and(|due| due <= now) {
                let owner = self.fronts[at].owner();
                self.poll(owner, world);
            }
        }
        for _ in 0..DUE {
            let Some(key) = self.timers.take_due(now) else { break };
            let Some(relayed) = self.relayed.get(key) else { continue };
            let Some(deadline) = self.deadline(relayed) else { continue };
            let stood = deadline.standstill(now);
            if now < deadline {
                self.timers.put(key, deadline);
            } else if !stood.is_zero() {
                // The machine was paused, and data that arrived meanwhile is unread.
                self.forgive_standstill(key, stood, now);
            } else if self.is_half_closed(key) {
                self.end(key, false, world);
            } else if relayed.open {
                self.counters.timed_out += 1;
                self.end_for(key, true, Reason::Idle, world);
            } else {
                self.dial_another(key, world);
            }
        }
    }

    /// Extends a deadline by the time in which the machine was paused.
    #[cold]
    fn forgive_standstill(&mut self, key: usize, stood: Duration, now: Instant) {
        let Some(relayed) = self.relayed.get_mut(key) else { return };
        relayed.since = relayed.since + stood + GRACE;
        self.timers.put(key, now + GRACE);
    }

    /// When a connection times out. The engine times SMC-R handshakes: Linux declines only after seconds, and a shorter
    /// timeout here would miss its Decline.
    fn deadline(&self, relayed: &Relayed) -> Option<Instant> {
        if relayed.open {
            let idle = relayed.patience.map(|time| relayed.since + time);
            return Instant::first([idle, messages::half_closed_until(relayed)]);
        }
        let connects = relayed.back.is_some_and(|back| match back {
            Place::Stream((at, id)) => self.backs[at].is_connecting(id),
            Place::Message(_) => true,
        });
        connects.then(|| relayed.since + self.rule.connect_timeout)
    }

    /// Sets the probe timer to `at`, unless it expires earlier.
    pub(super) fn arm_probes(&mut self, at: Instant) {
        self.probes_due = Instant::first([self.probes_due, Some(at)]);
    }
}
