//! From the configuration's rules to relays, at start and whenever the rules change. A rule that listens on the same
//! goes on with its connections; one that is gone, or listens elsewhere, ends with them.

use super::offers;
use crate::config::{self, Rule, RuleFraming};
use core::time::Duration;
use log::Level;
use messaging::Users;
use messaging::messages::Obstacle;
use messaging::names::{Listen, Target};
use messaging::relay::frames::Framing;
use messaging::relay::{self, Interfaces, Relay, World};
use net::hosts::Hosts;
use net::tcp::Limits;
use smcr::admission::{Gate, share_of};
use verbs::Provider;

/// Share of the memory that TCP buffers may take: half of the heap, which has an eighth.
const SHARE: u64 = 16;
/// What they may take of a small machine.
const LEAST: u64 = 4 << 20;

/// Bytes that the TCP buffers of all connections may take together on a machine with so much memory.
pub(super) fn pool(memory: u64) -> u64 {
    (memory / SHARE).max(LEAST)
}

/// The rules that the configuration wants, as far as they can be.
pub(in super::super) struct Rules {
    /// What is in force of SMC-R itself, since the engine was made.
    smc: config::Smc,
    /// Bytes for the buffers of all connections.
    pool: u64,
    /// At work, each as it was meant when it began.
    in_force: Vec<Rule>,
    /// Those that cannot be, and why.
    pub left_out: Vec<(String, String)>,
    /// One of them waits for its port: [`Rules::apply`] is to be called again in a while.
    pub waits: bool,
    /// What was complained about.
    told: Vec<(String, String)>,
}

impl Rules {
    /// None yet.
    pub fn new(smc: config::Smc, pool: u64) -> Self {
        Rules {
            smc,
            pool,
            in_force: Vec::new(),
            left_out: Vec::new(),
            waits: false,
            told: Vec::new(),
        }
    }

    /// Brings the relays to what is wanted. What cannot be is logged and kept with the reason. A rule takes
    /// memory for its buffers when somebody connects.
    pub fn apply<P: Provider + ?Sized>(
        &mut self,
        wanted: &[Rule],
        users: &mut Users,
        world: &mut World<'_, '_, P>,
    ) {
        let left_before = core::mem::take(&mut self.left_out);
        self.waits = false;
        // Before others begin, who may want their names and ports.
        let mut goes_on = Vec::new();
        for (before, after) in self.take_changed(wanted) {
            match after.filter(|after| self.can_adjust(&before, after, world)) {
                Some(after) => goes_on.push((before, after)),
                None => remove(&before, users, world),
            }
        }
        // No name is given to one while another may still have it.
        for (before, after) in goes_on {
            self.adjust(&before, after, users, world);
        }
        for rule in wanted {
            if self.in_force.contains(rule) {
                continue;
            }
            if let Some(why) = self.obstacle(rule) {
                self.leave_out(rule, why, Some(Level::Error));
                continue;
            }
            if let Some(Obstacle { why, passes }) = unavailable(rule, world) {
                // A network of RapidIO may become known.
                self.waits = true;
                let level = if passes { Level::Info } else { Level::Error };
                self.leave_out(rule, why, Some(level));
                continue;
            }
            let held = rule.listen.port().and_then(|port| held(port, world.interfaces));
            if let Some(why) = held {
                // Who has it may be about to leave it: HTTP moves a moment after a rule.
                let again = left_before.iter().any(|(name, _)| name == rule.name.as_str());
                self.waits = true;
                self.leave_out(rule, why, again.then_some(Level::Error));
                continue;
            }
            let (seed, now) = (world.ctx.rng.next_u32() as u16, world.ctx.now);
            let meant = self.meant(rule);
            users.add_rule(rule.name.to_string(), world.interfaces, |owner, interfaces| {
                Relay::new(meant, interfaces, owner, seed, now)
            });
            if let Err(why) = users.listen(rule.name.as_str(), world) {
                users.remove_rule(rule.name.as_str(), world);
                self.leave_out(rule, why, Some(Level::Error));
                continue;
            }
            self.in_force.push(rule.clone());
        }
        let left_out = &self.left_out;
        self.told.retain(|one| left_out.contains(one));
    }

    /// Takes those out of force that are not wanted as they are: each, and what is wanted of it.
    fn take_changed<'a>(&mut self, wanted: &'a [Rule]) -> Vec<(Rule, Option<&'a Rule>)> {
        let (stay, change) =
            core::mem::take(&mut self.in_force).into_iter().partition(|rule| wanted.contains(rule));
        self.in_force = stay;
        let change: Vec<Rule> = change;
        let after = |rule: &Rule| wanted.iter().find(|other| other.listen == rule.listen);
        change.into_iter().map(|rule| (rule.clone(), after(&rule))).collect()
    }

    /// Whether a rule can become another with its connections, and that one be in force.
    fn can_adjust<P: Provider + ?Sized>(
        &self,
        before: &Rule,
        after: &Rule,
        world: &World<'_, '_, P>,
    ) -> bool {
        self.obstacle(after).is_none()
            && unavailable_servers(after, world).is_none()
            && self.meant(before).can_become(&self.meant(after))
    }

    /// Has a rule become another. Its connections go on.
    fn adjust<P: Provider + ?Sized>(
        &mut self,
        before: &Rule,
        after: &Rule,
        users: &mut Users,
        world: &mut World<'_, '_, P>,
    ) {
        let Some(ended) = users.adjust_rule(self.meant(after), world) else { return };
        let name = &after.name;
        if before.name != *name {
            log::info!("rule {}: is called {name} now", before.name);
        }
        match ended {
            0 => log::info!("rule {name}: changed; its connections go on"),
            _ => log::warn!(
                "rule {name}: changed; connections of hosts that rule.N.hosts does not list any more ended: {ended}"
            ),
        }
        self.in_force.push(after.clone());
    }

    /// Leaves a rule out, and says so once, at this level.
    fn leave_out(&mut self, rule: &Rule, why: String, level: Option<Level>) {
        let one = (rule.name.to_string(), why);
        if let Some(level) = level.filter(|_| !self.told.contains(&one)) {
            log::log!(level, "rule {} is not in force: {}", one.0, one.1);
            self.told.push(one.clone());
        }
        self.left_out.push(one);
    }

    /// What keeps a rule from ever being in force on this machine.
    fn obstacle(&self, rule: &Rule) -> Option<String> {
        // Both sides, both ways.
        let carries_messages = matches!(rule.listen, Listen::Message(_))
            || rule.backend.iter().any(|one| matches!(one, Target::Message(_)));
        let messages = if carries_messages { 2 * rule.max_message.0 } else { 0 };
        let (one, pool) = (4 * rule.buffer_size.0 + messages, self.pool);
        if one > pool {
            return Some(format!(
                "one connection takes {one} bytes, and all may take {pool}: a smaller buffer_size or max_message, or \
                 more memory"
            ));
        }
        None
    }

    /// A rule in the relay's terms.
    fn meant(&self, rule: &Rule) -> relay::Rule {
        let buffer = rule.buffer_size.0 as usize;
        let seconds = Duration::from_secs;
        let offers = offers(&self.smc);
        let share = || share_of(rule.connections.into());
        let per_host = rule.connections_per_host.map_or_else(share, u32::from);
        relay::Rule {
            name: rule.name.to_string(),
            listen: rule.listen.clone(),
            offers,
            backends: rule.backend.clone(),
            smc: rule.backend_smc && offers,
            proxy: rule.proxy_protocol,
            connect_timeout: Duration::from_millis(rule.connect_timeout_ms.into()),
            idle_timeout: rule.idle_timeout_s.map(|time| seconds(time.into())),
            health_interval: rule.health_interval_s.map(|time| seconds(time.into())),
            gate: Gate {
                name: format!("rule {}", rule.name),
                key: "rule.N.hosts",
                hosts: Hosts::new(rule.hosts.clone()),
                smc: Hosts::new(self.smc.hosts.clone()),
                per_host: Some(per_host),
            },
            limits: Limits {
                connections: rule.connections.into(),
                receive: buffer,
                transmit: buffer,
            },
            framing: Framing {
                lengths: rule.framing == RuleFraming::Length,
                longest: rule.max_message.0 as usize,
            },
            signal: rule.signal,
        }
    }
}

/// Says that an end which carries messages is not in force.
fn unavailable<P: Provider + ?Sized>(rule: &Rule, world: &World<'_, '_, P>) -> Option<Obstacle> {
    let listened = match &rule.listen {
        Listen::Message(name) => world.messages.obstacle(name, true),
        Listen::Port(_) => None,
    };
    listened.or_else(|| unavailable_servers(rule, world))
}

/// Likewise of its servers.
fn unavailable_servers<P: Provider + ?Sized>(
    rule: &Rule,
    world: &World<'_, '_, P>,
) -> Option<Obstacle> {
    rule.backend.iter().find_map(|target| match target {
        Target::Message(name) => world.messages.obstacle(name, false),
        Target::Socket(_) => None,
    })
}

/// Ends a rule, and says so.
fn remove<P: Provider + ?Sized>(rule: &Rule, users: &mut Users, world: &mut World<'_, '_, P>) {
    match users.remove_rule(rule.name.as_str(), world) {
        0 => log::info!("rule {}: ended", rule.name),
        lost => log::warn!("rule {}: ended; messages lost: {lost}", rule.name),
    }
}

/// Says that somebody else listens on a port. The configuration gives it to one only, but who had it before may
/// have it until a reboot.
fn held(port: u16, interfaces: &mut dyn Interfaces) -> Option<String> {
    (0..interfaces.count()).any(|at| interfaces.get(at).is_listened_on(port)).then(|| {
        format!(
            "port {port} is still held by who had it when the appliance was booted: `save` and `reboot`, or \
             another port"
        )
    })
}
