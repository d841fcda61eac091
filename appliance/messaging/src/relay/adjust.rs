//! Changes a running rule. Its connections continue, and new values apply to later connections, with two exceptions:
//! connections of hosts that are no longer admitted end, and the new idle timeout applies at once.

use super::balance::GONE;
use super::frames::Frames;
use super::pipe::Side;
use super::probe::Probe;
use super::{Place, Relay, Relayed, Rule, World, messages};
use crate::names::{Listen, Target};
use crate::transport::Transport;
use alloc::vec::Vec;
use core::time::Duration;
use net::connector;
use smcr::SmcDevice;

/// Default idle timeout of a connection whose transports both detect a dead peer. Long, because a pool of database
/// connections is idle over weekends and holidays.
const IDLE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Rule {
    /// Whether it can change to `other` without ending its connections: both listen on the same end, and frame messages
    /// the same way.
    pub fn can_become(&self, other: &Rule) -> bool {
        let is_message = |target: &Target| matches!(target, Target::Message(_));
        let carries_messages =
            matches!(self.listen, Listen::Message(_)) || self.backends.iter().any(is_message);
        let format = |rule: &Rule| (rule.framing.lengths, rule.signal);
        self.listen == other.listen
            && self.offers == other.offers
            && (!carries_messages || format(self) == format(other))
    }

    /// Bytes of a connection beyond the buffers of its client side: the buffers of its server side, and of messages to
    /// the server. The client side is charged for all of them.
    pub(super) fn beyond_clients(&self) -> u64 {
        let messages = self.backends.iter().any(|target| matches!(target, Target::Message(_)));
        let messages = if messages { Frames::memory(self.framing.longest) as u64 } else { 0 };
        self.buffers() + messages
    }

    /// Bytes charged to a connection to a server: 0 if the client side was charged for them.
    pub(super) fn cost_of_server(&self) -> u64 {
        match self.listen {
            Listen::Port(_) => 0,
            Listen::Message(_) => self.buffers(),
        }
    }

    fn buffers(&self) -> u64 {
        (self.limits.receive + self.limits.transmit) as u64
    }

    /// Limits of its connectors. Health probes count as connections.
    pub(super) fn to_servers(&self) -> connector::Limits {
        let limits = self.limits;
        connector::Limits {
            connections: limits.connections + self.backends.len(),
            receive: limits.receive,
            transmit: limits.transmit,
        }
    }
}

impl Relay {
    /// Changes the rule; [`Rule::can_become`] must hold. Returns the number of connections ended because the new rule
    /// does not admit their hosts.
    pub fn adjust<P: SmcDevice + ?Sized>(
        &mut self,
        rule: Rule,
        world: &mut World<'_, '_, P>,
    ) -> usize {
        let now = world.ctx.now;
        self.rule = rule;
        let Relay { rule, fronts, backs, .. } = self;
        let World { interfaces, engine, ctx, .. } = &mut *world;
        for (at, front) in fronts.iter_mut().enumerate() {
            let limits = (rule.limits, rule.beyond_clients());
            front.adjust(limits, rule.gate.clone(), interfaces.get(at), engine, ctx);
            front.sizes = rule.buffers;
        }
        for (at, back) in backs.iter_mut().enumerate() {
            back.adjust(rule.to_servers(), rule.cost_of_server(), interfaces.get(at));
            back.sizes = rule.buffers;
        }
        let places = self.balance.adjust(&self.rule.backends, self.rule.health_interval, now);
        self.follow_servers(&places, world);
        self.relimit(world);
        let excluded: Vec<usize> =
            self.relayed.iter().filter(|(_, it)| !self.admits(it)).map(|it| it.0).collect();
        for &key in &excluded {
            self.end(key, true, world);
        }
        let keys: Vec<usize> = self.relayed.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.adjust_one(key, world);
        }
        excluded.len()
    }

    /// Whether the rule admits the host of a connection.
    fn admits(&self, relayed: &Relayed) -> bool {
        let Place::Stream((at, id)) = relayed.front else { return true };
        let ends = self.fronts.get(at).and_then(|front| front.ends(id));
        ends.is_none_or(|(_, remote)| self.rule.gate.hosts.admits(remote.ip()))
    }

    /// Updates server indices. `places` has the new index of each server, None if it was removed. Connections to a
    /// removed server continue.
    fn follow_servers<P: SmcDevice + ?Sized>(
        &mut self,
        places: &[Option<usize>],
        world: &mut World<'_, '_, P>,
    ) {
        let place_of = |server: usize| places.get(server).copied().flatten();
        for (_, relayed) in &mut self.relayed {
            relayed.backend = place_of(relayed.backend).unwrap_or(GONE);
            let tried = (0..places.len()).filter(|server| relayed.tried >> server & 1 == 1);
            relayed.tried = tried.filter_map(place_of).fold(0, |tried, server| tried | 1 << server);
        }
        for probe in core::mem::take(&mut self.probes) {
            match place_of(probe.backend) {
                Some(backend) => self.probes.push(Probe { backend, ..probe }),
                None => {
                    self.hang_up(Side::Backend, Place::Stream(probe.place), true, world);
                }
            }
        }
    }

    /// Applies the new rule to a connection.
    fn adjust_one<P: SmcDevice + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        let Some(relayed) = self.relayed.get(key) else { return };
        if !relayed.open {
            // Its server was removed: try another.
            if relayed.backend == GONE {
                self.dial_another(key, world);
            }
            return;
        }
        let patience = self.patience(relayed, world);
        let since = relayed.since;
        self.relayed[key].patience = patience;
        if let Some(patience) = patience {
            self.timers.put(key, since + patience);
        }
    }

    /// Idle timeout of an open connection.
    pub(super) fn patience<P: SmcDevice + ?Sized>(
        &self,
        relayed: &Relayed,
        world: &World<'_, '_, P>,
    ) -> Option<Duration> {
        let places = [Some(relayed.front), relayed.back];
        let unwatched = places.into_iter().flatten().any(|place| match place {
            Place::Message(connection) => !world.messages.is_watched(connection),
            Place::Stream(_) => false,
        });
        patience(self.rule.idle_timeout, unwatched)
    }
}

/// Idle timeout for a rule's `idle`. `unwatched`: a transport does not detect a dead peer.
fn patience(idle: Option<Duration>, unwatched: bool) -> Option<Duration> {
    match idle {
        Some(Duration::ZERO) => None,
        Some(time) => Some(time),
        None if unwatched => Some(messages::UNWATCHED),
        None => Some(IDLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_timeout_is_a_week_unless_the_rule_sets_it() {
        let day = Duration::from_secs(24 * 3600);
        for unwatched in [false, true] {
            assert_eq!(patience(Some(day), unwatched), Some(day));
            assert_eq!(patience(Some(Duration::ZERO), unwatched), None, "for ever");
        }
        assert_eq!(patience(None, false), Some(7 * day));
        assert_eq!(patience(None, true), Some(Duration::from_secs(300)));
    }
}
