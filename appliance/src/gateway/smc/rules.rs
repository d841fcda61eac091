//! From the configuration's rules to relays.

use super::Ways;
use crate::config::{Config, Rule};
use core::time::Duration;
use drivers::hal::Instant;
use net::tcp::Limits;
use rand_core::RngCore;
use rdma::relay::{self, Interfaces, Relay};

/// Share of the memory that TCP buffers of rules may take: half of the heap, which has an eighth.
const SHARE: u64 = 16;
/// What they may take of a small machine.
const LEAST: u64 = 4 << 20;

/// The relays that the configuration wants; what cannot be is logged and left out.
pub(super) fn relays(
    config: &Config,
    memory: u64,
    interfaces: &mut Ways<'_>,
    rng: &mut dyn RngCore,
    now: Instant,
) -> Vec<(String, Relay)> {
    let mut left = (memory / SHARE).max(LEAST);
    let mut relays = Vec::new();
    for rule in &config.rule {
        // Both sides, both ways; clients may come over any interface.
        let sides = 2 * (interfaces.count() as u64 + 1);
        let wanted = sides * u64::from(rule.connections) * rule.buffer_size.0;
        if wanted > left {
            log::error!(
                "rule {}: its connections may take {wanted} bytes, more than the {left} that are \
                 left: fewer connections, a smaller buffer_size, or more memory",
                rule.name
            );
            continue;
        }
        left -= wanted;
        let seed = rng.next_u32() as u16;
        let relay = Relay::new(meant(rule, config), interfaces, seed, now);
        relays.push((rule.name.to_string(), relay));
    }
    relays
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
        limits: Limits { connections: rule.connections.into(), receive: buffer, transmit: buffer },
    }
}
