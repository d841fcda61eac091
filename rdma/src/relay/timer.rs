//! Timers of a rule: patience with servers, with silence, and the next questions to servers.

use super::{Relay, Relayed, World};
use crate::smcr::back::Back;
use crate::smcr::front::Front;
use crate::verbs::Provider;
use drivers::hal::Instant;

impl Relay {
    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let fronts = self.fronts.iter().filter_map(Front::poll_timeout);
        let backs = self.backs.iter().filter_map(Back::poll_timeout);
        fronts.chain(backs).chain(self.wake).chain(self.balance.poll_timeout()).min()
    }

    /// Does what is due.
    pub fn handle_timeout<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let now = world.ctx.now;
        if self.balance.is_due(now) {
            self.probe_all(world);
        }
        if self.wake.is_none_or(|at| now < at) {
            return;
        }
        self.wake = None;
        self.end_probes(world);
        for key in 0..self.relayed.capacity() {
            let Some(relayed) = self.relayed.get(key) else { continue };
            let Some(deadline) = self.deadline(relayed) else { continue };
            if now < deadline {
                self.wake_at(deadline);
            } else if relayed.open {
                self.counters.timed_out += 1;
                self.end(key, true, world);
            } else {
                self.dial_another(key, world);
            }
        }
        self.work(world);
    }

    fn deadline(&self, relayed: &Relayed) -> Option<Instant> {
        match relayed.open {
            true => self.rule.idle_timeout.map(|time| relayed.since + time),
            false => Some(relayed.since + self.rule.connect_timeout),
        }
    }

    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }
}
