//! The DNS client on the interfaces: keeps its servers up to date, does what it asks for, and passes its findings on.
//! `sockets.rs` has its sockets.
//!
//! Names of the configuration are followed: their addresses are known before a connection needs them. A change applies
//! to new connections: rules are adjusted, and a remote's path gets its new address when it is down.

mod sockets;

use super::network::Network;
use super::state::State;
use crate::config::{Config, Rule};
use crate::console::Progress;
use crate::log_ring;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use messaging::names::Target;
use messaging::relay::balance::MAX_BACKENDS;
use net::dns::{self, Event, Lookup, Name, Resolver, Server};
use net::refusal::Refusal;
use sockets::Sockets;

/// The DNS client, and its sockets.
pub(super) struct Names {
    pub resolver: Resolver,
    sockets: Sockets,
    /// Generations of the interfaces for which the servers were set.
    generations: Vec<u64>,
    /// The configuration may have other names or servers than the resolver.
    pub is_changed: bool,
    /// The name that the console's `resolve` waits for.
    resolving: Option<Name>,
}

impl Names {
    pub fn new(now: Instant) -> Self {
        Names {
            resolver: Resolver::new(now),
            sockets: Sockets::default(),
            generations: Vec::new(),
            is_changed: true,
            resolving: None,
        }
    }

    /// Whether there is work without a frame or a timer.
    #[inline]
    pub fn wants_poll(&self) -> bool {
        self.is_changed || self.resolver.wants_poll()
    }

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.resolver.poll_timeout()
    }

    /// Starts to resolve a name for the console.
    pub fn resolve(&mut self, name: &Name, now: Instant) -> Result<(), String> {
        if self.resolving.is_some() {
            return Err("another `resolve` is running".into());
        }
        self.resolver.lookup(name, now);
        self.resolving = Some(name.clone());
        self.is_changed = true;
        Ok(())
    }

    /// Cancels the console's `resolve`. Returns whether one was running.
    pub fn cancel(&mut self) -> bool {
        self.resolving.take().is_some()
    }

    /// Applies the configuration and the addresses of the interfaces.
    /// Returns whether the configuration may have other names.
    fn update(&mut self, networks: &[Network], config: &Config, now: Instant) -> bool {
        let generations = networks.iter().map(|network| network.interface.generation());
        let is_moved = !generations.clone().eq(self.generations.iter().copied());
        if !is_moved && !self.is_changed {
            return false;
        }
        self.generations = generations.collect();
        self.resolver.follow(config.names(), now);
        self.resolver.set_servers(&servers(networks, config), now);
        core::mem::take(&mut self.is_changed)
    }

    /// The result of the console's `resolve`, if it is known. A name that the cache has dropped is asked for again.
    fn resolved(&mut self, now: Instant) -> Option<Result<String, String>> {
        let name = self.resolving.as_ref()?;
        let result = match self.resolver.lookup(name, now) {
            Lookup::Pending => return None,
            known @ Lookup::Known(_) => Ok(format!("{name}: {known}")),
            Lookup::Failed(problem) => Err(format!("{name}: {problem}")),
        };
        self.resolving = None;
        Some(result)
    }
}

/// The name servers: the configured ones, or else those that DHCP and routers announce.
fn servers(networks: &[Network], config: &Config) -> Vec<Server> {
    let towards = |ip: IpAddr| networks.iter().position(|n| n.interface.next_hop(ip).is_some());
    let configured = config.system.dns.iter().map(|server| Server {
        address: server.0,
        interface: towards(server.0.ip()),
        origin: "system.dns",
    });
    let announced = networks.iter().enumerate().flat_map(|(number, network)| {
        network.interface.name_servers().map(move |(ip, origin)| Server {
            address: SocketAddr::new(ip, dns::PORT),
            // A link-local address is one of the link that has announced it.
            interface: network.interface.next_hop(ip).map(|_| number),
            origin,
        })
    });
    let mut servers: Vec<Server> = configured.collect();
    if servers.is_empty() {
        servers.extend(announced);
    }
    let mut seen = Vec::new();
    servers.retain(|server| {
        let is_new = !seen.contains(&server.address);
        seen.push(server.address);
        is_new
    });
    servers
}

/// Runs the DNS client. Returns the amount of work.
pub(super) fn poll(networks: &mut [Network], state: &mut State, now: Instant) -> usize {
    let State { names, plane, document, refused, progress, rules_changed, .. } = state;
    let (config, rng) = (document.config(), &mut *plane.rng);
    let mut is_moved = names.update(networks, config, now);
    let Names { resolver, sockets, .. } = names;
    let mut worked = sockets.receive(resolver, networks, rng, now);
    resolver.poll(rng, now);
    worked += sockets.act(resolver, networks, rng, now);
    while let Some(Event { name, lookup, followed }) = resolver.next_event() {
        worked += 1;
        is_moved |= followed;
        match lookup {
            _ if !followed => {}
            Lookup::Failed(problem) => {
                let (asked, advice) = (name.to_string(), problem.to_string().into());
                let (what, reason) = ("name", problem.label());
                refused.add(Refusal { who: None, what, asked, reason, advice }, now);
            }
            known => log::info!("dns: {name} is {known}"),
        }
    }
    if is_moved {
        *rules_changed |= config.rule.iter().flat_map(|rule| &rule.backend).any(is_named);
        if let Some(remote_storage) = &mut plane.users.remote_storage {
            remote_storage.set_addresses(|name| resolver.peek(name), now);
        }
    }
    if let Some(result) = names.resolved(now) {
        progress.push_back(Progress::Done(result));
        worked += 1;
    }
    worked
}

fn is_named(target: &Target) -> bool {
    target.name().is_some()
}

/// The rules with addresses in the place of names: all addresses of a name are servers. Addresses of the appliance are
/// left out, because a rule cannot connect to the appliance itself.
pub(super) fn resolved_rules(
    config: &Config,
    resolver: Option<&Resolver>,
    networks: &[Network],
) -> Vec<Rule> {
    let is_ours = |ip: IpAddr| networks.iter().any(|n| n.interface.local().has(ip));
    let resolve = |target: &Target| -> Vec<Target> {
        let Target::Name(name, port) = target else { return vec![target.clone()] };
        let Some(Lookup::Known(addresses)) = resolver.map(|resolver| resolver.peek(name)) else {
            return Vec::new();
        };
        let (own, others): (Vec<IpAddr>, Vec<_>) =
            addresses.into_iter().partition(|ip| is_ours(*ip));
        for ip in own {
            log_ring::refused(
                "own_address",
                format_args!("rule: {name} is {ip}, an address of the appliance: not a server"),
            );
        }
        others.into_iter().map(|ip| Target::Socket(SocketAddr::new(ip, *port))).collect()
    };
    let rules = config.rule.iter().map(|rule| {
        let mut backend: Vec<Target> = rule.backend.iter().flat_map(resolve).collect();
        backend.truncate(MAX_BACKENDS);
        Rule { backend, ..rule.clone() }
    });
    rules.collect()
}
