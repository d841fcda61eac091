//! Applies the configured rules to relays, at start and after changes. A changed rule with the same listen end keeps
//! its connections. A rule that was removed, or listens on another end, ends with its connections.

use super::{code_of, offers};
use crate::config::{self, Rule, RuleFraming};
use core::time::Duration;
use log::Level;
use messaging::Users;
use messaging::names::{Listen, Target};
use messaging::relay::frames::Framing;
use messaging::relay::{self, Interfaces, Relay, World};
use messaging::transport::Obstacle;
use net::hosts::Hosts;
use net::tcp::Limits;
use smcr::SmcDevice;
use smcr::admission::{Gate, share_of};
use smcr::engine::BufferSizes;

/// Divisor of the memory for TCP buffers: half of the heap, which is an eighth of the memory.
const SHARE: u64 = 16;
/// Minimum for TCP buffers, on a small machine.
const LEAST: u64 = 4 << 20;

/// Limit of the TCP buffers of all connections together, on a machine with `memory` bytes.
pub(super) fn pool(memory: u64) -> u64 {
    (memory / SHARE).max(LEAST)
}

/// The configured rules: those in force, and those left out.
pub(in super::super) struct Rules {
    /// SMC-R settings in force since the engine was created.
    smc: config::Smc,
    /// Bytes for the buffers of all connections.
    pool: u64,
    /// Running rules, as configured when they were applied.
    in_force: Vec<Rule>,
    /// Rules that are not in force, and why.
    pub left_out: Vec<(String, String)>,
    /// A rule waits for its port or transport: [`Rules::apply`] is to be called again.
    pub waits: bool,
    /// Rules left out that were logged, with the reason.
    logged: Vec<(String, String)>,
}

impl Rules {
    /// Creates it without rules.
    pub fn new(smc: config::Smc, pool: u64) -> Self {
        Rules {
            smc,
            pool,
            in_force: Vec::new(),
            left_out: Vec::new(),
            waits: false,
            logged: Vec::new(),
        }
    }

    /// Applies the rules in `wanted` to the relays. Rules that cannot be in force are logged, and kept with the reason.
    /// A rule allocates its buffers when a client connects.
    pub fn apply<P: SmcDevice + ?Sized>(
        &mut self,
        wanted: &[Rule],
        users: &mut Users,
        world: &mut World<'_, '_, P>,
    ) {
        let left_before = core::mem::take(&mut self.left_out);
        self.waits = false;
        // End rules before others start, which may need their names and ports.
        let mut adjusted = Vec::new();
        for (before, after) in self.take_changed(wanted) {
            match after.filter(|after| self.can_adjust(&before, after, world)) {
                Some(after) => adjusted.push((before, after)),
                None => remove(&before, users, world),
            }
        }
        // Adjust rules after removals, so that no name is used twice.
        for (before, after) in adjusted {
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
                // For example a RapidIO network may be enumerated later.
                self.waits = true;
                let level = if passes { Level::Info } else { Level::Error };
                self.leave_out(rule, why, Some(level));
                continue;
            }
            let held = rule.listen.port().and_then(|port| held(port, world.interfaces));
            if let Some(why) = held {
                // Log it only the second time: HTTP leaves a port a moment after a change.
                let again = left_before.iter().any(|(name, _)| name == rule.name.as_str());
                self.waits = true;
                self.leave_out(rule, why, again.then_some(Level::Error));
                continue;
            }
            let (seed, now) = (world.ctx.rng.next_u32() as u16, world.ctx.now);
            let settings = self.relay_rule(rule);
            users.add_rule(rule.name.to_string(), world.interfaces, |owner, interfaces| {
                Relay::new(settings, interfaces, owner, seed, now)
            });
            if let Err(why) = users.listen(rule.name.as_str(), world) {
                users.remove_rule(rule.name.as_str(), world);
                self.leave_out(rule, why, Some(Level::Error));
                continue;
            }
            self.in_force.push(rule.clone());
        }
        let left_out = &self.left_out;
        self.logged.retain(|one| left_out.contains(one));
    }

    /// Removes changed rules from `in_force`. Returns each, and the wanted rule with the same listen end.
    fn take_changed<'a>(&mut self, wanted: &'a [Rule]) -> Vec<(Rule, Option<&'a Rule>)> {
        let (stay, change) =
            core::mem::take(&mut self.in_force).into_iter().partition(|rule| wanted.contains(rule));
        self.in_force = stay;
        let change: Vec<Rule> = change;
        let after = |rule: &Rule| wanted.iter().find(|other| other.listen == rule.listen);
        change.into_iter().map(|rule| (rule.clone(), after(&rule))).collect()
    }

    /// Whether a rule can change in place, and the changed rule can be in force.
    fn can_adjust<P: SmcDevice + ?Sized>(
        &self,
        before: &Rule,
        after: &Rule,
        world: &World<'_, '_, P>,
    ) -> bool {
        self.obstacle(after).is_none()
            && unavailable_servers(after, world).is_none()
            && self.relay_rule(before).can_become(&self.relay_rule(after))
    }

    /// Changes a rule in place. Its connections continue.
    fn adjust<P: SmcDevice + ?Sized>(
        &mut self,
        before: &Rule,
        after: &Rule,
        users: &mut Users,
        world: &mut World<'_, '_, P>,
    ) {
        let Some(ended) = users.adjust_rule(self.relay_rule(after), world) else { return };
        let name = &after.name;
        if before.name != *name {
            log::info!("rule {}: renamed to {name}", before.name);
        }
        match ended {
            0 => log::info!("rule {name}: changed; its connections continue"),
            _ => log::warn!(
                "rule {name}: changed; connections ended of hosts no longer in rule.N.hosts: {ended}"
            ),
        }
        self.in_force.push(after.clone());
    }

    /// Leaves a rule out, and logs that once, at this level.
    fn leave_out(&mut self, rule: &Rule, why: String, level: Option<Level>) {
        let one = (rule.name.to_string(), why);
        if let Some(level) = level.filter(|_| !self.logged.contains(&one)) {
            log::log!(level, "rule {} is not in force: {}", one.0, one.1);
            self.logged.push(one.clone());
        }
        self.left_out.push(one);
    }

    /// Why a rule can never be in force on this machine.
    fn obstacle(&self, rule: &Rule) -> Option<String> {
        // Both sides, both ways.
        let carries_messages = matches!(rule.listen, Listen::Message(_))
            || rule.backend.iter().any(|one| matches!(one, Target::Message(_)));
        let messages = if carries_messages { 2 * rule.max_message.0 } else { 0 };
        let (one, pool) = (4 * rule.buffer_size.0 + messages, self.pool);
        if one > pool {
            return Some(format!(
                "one connection needs {one} bytes, and the limit of all is {pool}: lower buffer_size or max_message, or \
                 give the machine more memory"
            ));
        }
        None
    }

    /// Converts a configured rule for the relay.
    fn relay_rule(&self, rule: &Rule) -> relay::Rule {
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
            buffers: (rule.send_buffer.is_some() || rule.receive_buffer.is_some()).then(|| {
                BufferSizes {
                    send: rule.send_buffer.unwrap_or(self.smc.send_buffer).0 as u32,
                    receive: code_of(rule.receive_buffer.unwrap_or(self.smc.receive_buffer)),
                }
            }),
        }
    }
}

/// Why an end of a rule over a message transport is not available.
fn unavailable<P: SmcDevice + ?Sized>(rule: &Rule, world: &World<'_, '_, P>) -> Option<Obstacle> {
    let listened = match &rule.listen {
        Listen::Message(name) => world.messages.obstacle(name, true),
        Listen::Port(_) => None,
    };
    listened.or_else(|| unavailable_servers(rule, world))
}

/// Why a server of a rule over a message transport is not available.
fn unavailable_servers<P: SmcDevice + ?Sized>(
    rule: &Rule,
    world: &World<'_, '_, P>,
) -> Option<Obstacle> {
    rule.backend.iter().find_map(|target| match target {
        Target::Message(name) => world.messages.obstacle(name, false),
        Target::Socket(_) | Target::Name(..) => None,
    })
}

/// Ends a rule, and logs that.
fn remove<P: SmcDevice + ?Sized>(rule: &Rule, users: &mut Users, world: &mut World<'_, '_, P>) {
    match users.remove_rule(rule.name.as_str(), world) {
        0 => log::info!("rule {}: ended", rule.name),
        lost => log::warn!("rule {}: ended; messages lost: {lost}", rule.name),
    }
}

/// Reason if another user listens on a port. The configuration assigns a port to one user, but the former user may keep
/// it until a reboot.
fn held(port: u16, interfaces: &mut dyn Interfaces) -> Option<String> {
    (0..interfaces.count()).any(|at| interfaces.get(at).is_listened_on(port)).then(|| {
        format!(
            "port {port} is still in use by its user at boot: `save` and `reboot`, or use another port"
        )
    })
}
