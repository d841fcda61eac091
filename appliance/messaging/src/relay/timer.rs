//! Timers of a rule: patience with servers, with silence, and the next questions to servers.

use super::{Place, Relay, Relayed, World, messages};
use crate::transport::Reason;
use core::time::Duration;
use drivers::hal::Instant;
use smcr::acceptor::Acceptor;
use verbs::Provider;

/// How long what came while the machine stood still may take to be read.
const GRACE: Duration = Duration::from_secs(1);
/// Connections whose timers run before others have their turn.
const DUE: usize = 64;

impl Relay {
    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let fronts = self.fronts.iter().filter_map(Acceptor::poll_timeout);
        let balance = self.balance.poll_timeout();
        let own = [self.timers.first(), self.probes_due, balance, self.ended_due];
        fronts.chain(own.into_iter().flatten()).min()
    }

    /// Does what is due. Then [`Relay::work`].
    pub fn handle_timeout<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let now = world.ctx.now;
        if self.balance.is_due(now) {
            self.probe_all(world);
        }
        if self.probes_due.is_some_and(|at| at <= now) {
            self.probes_due = None;
            self.end_probes(world);
        }
        self.tell_ended(now);
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
                // The machine stood still: what came meanwhile was not read.
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

    /// Leaves the time out of account in which the machine stood still.
    #[cold]
    fn forgive_standstill(&mut self, key: usize, stood: Duration, now: Instant) {
        let Some(relayed) = self.relayed.get_mut(key) else { return };
        relayed.since = relayed.since + stood + GRACE;
        self.timers.put(key, now + GRACE);
    }

    /// When patience with a connection ends. That with a handshake is the engine's: Linux declines after
    /// seconds, and who is less patient never hears of it.
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

    /// Has questions that are not answered looked at.
    pub(super) fn arm_probes(&mut self, at: Instant) {
        self.probes_due = Instant::first([self.probes_due, Some(at)]);
    }
}
