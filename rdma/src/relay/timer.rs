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
        let own = self.timers.first().map(|&(at, _)| at);
        let own = [own, self.probes_due, self.balance.poll_timeout()];
        fronts.chain(backs).chain(own.into_iter().flatten()).min()
    }

    /// Does what is due.
    pub fn handle_timeout<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let now = world.ctx.now;
        if self.balance.is_due(now) {
            self.probe_all(world);
        }
        if self.probes_due.is_some_and(|at| at <= now) {
            self.probes_due = None;
            self.end_probes(world);
        }
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(relayed) = self.relayed.get_mut(key) else { continue };
            relayed.timer = None;
            let relayed = &self.relayed[key];
            let Some(deadline) = self.deadline(relayed) else { continue };
            if now < deadline {
                self.arm(key, deadline);
            } else if relayed.open {
                self.counters.timed_out += 1;
                self.end(key, true, world);
            } else {
                self.dial_another(key, world);
            }
        }
        self.work(world);
    }

    /// When patience with a connection ends. That with a handshake is the engine's: Linux declines after
    /// seconds, and who is less patient never hears of it.
    fn deadline(&self, relayed: &Relayed) -> Option<Instant> {
        if relayed.open {
            return self.rule.idle_timeout.map(|time| relayed.since + time);
        }
        let connects = relayed.back.is_some_and(|(at, id)| self.backs[at].is_connecting(id));
        connects.then(|| relayed.since + self.rule.connect_timeout)
    }

    /// Has the timer of a connection run at `at`, if not earlier.
    pub(super) fn arm(&mut self, key: usize, at: Instant) {
        let timer = &mut self.relayed[key].timer;
        if timer.is_none_or(|earlier| at < earlier) {
            if let Some(later) = timer.replace(at) {
                self.timers.remove(&(later, key));
            }
            self.timers.insert((at, key));
        }
    }

    /// Has questions that are not answered looked at.
    pub(super) fn arm_probes(&mut self, at: Instant) {
        self.probes_due = Instant::first([self.probes_due, Some(at)]);
    }
}
