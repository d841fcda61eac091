//! From the configuration's rules to relays.

use super::Ways;
use crate::config::{Config, Rule};
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::Hosts;
use net::tcp::Limits;
use rand_core::RngCore;
use rdma::messaging::Users;
use rdma::relay::{self, Relay};
use rdma::smcr::admission::Gate;

/// Share of the memory that TCP buffers may take: half of the heap, which has an eighth.
const SHARE: u64 = 16;
/// What they may take of a small machine.
const LEAST: u64 = 4 << 20;

/// Bytes that the TCP buffers of all connections may take together on a machine with so much memory.
pub(super) fn pool(memory: u64) -> u64 {
    (memory / SHARE).max(LEAST)
}

/// Takes in the rules that the configuration wants. What cannot be is logged, and returned with the reason. A rule
/// takes memory for its buffers when somebody connects.
pub(super) fn add(
    users: &mut Users,
    config: &Config,
    pool: u64,
    interfaces: &mut Ways<'_>,
    rng: &mut dyn RngCore,
    now: Instant,
) -> Vec<(String, String)> {
    let mut left_out = Vec::new();
    for rule in &config.rule {
        // Both sides, both ways.
        let one = 4 * rule.buffer_size.0;
        if one > pool {
            let why = format!(
                "one connection takes {one} bytes, and all may take {pool}: a smaller buffer_size, or more memory"
            );
            log::error!("rule {}: {why}", rule.name);
            left_out.push((rule.name.to_string(), why));
            continue;
        }
        let seed = rng.next_u32() as u16;
        users.add_rule(rule.name.to_string(), interfaces, |owner, interfaces| {
            Relay::new(meant(rule, config), interfaces, owner, seed, now)
        });
    }
    left_out
}

/// A rule in the relay's terms.
fn meant(rule: &Rule, config: &Config) -> relay::Rule {
    let buffer = rule.buffer_size.0 as usize;
    let seconds = Duration::from_secs;
    let offers = super::offers(config);
    relay::Rule {
        listen: rule.listen,
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
            smc: Hosts::new(config.smc.hosts.clone()),
        },
        limits: Limits { connections: rule.connections.into(), receive: buffer, transmit: buffer },
    }
}
