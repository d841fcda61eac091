//! Tests of rules that are changed or removed while a host uses them and others: only connections of a removed rule
//! end. The host's SMC-R is our own client, which sends messages in Linux's order: after its Confirm it is done and
//! writes at once.

use super::machine::{LIMITS, Machine, RULE, ip};
use super::*;
use crate::names::{Listen, Target};
use crate::relay::Rule;
use crate::relay::frames::Framing;
use core::net::SocketAddr;
use core::time::Duration;
use net::connector::{ConnectionHandle, Connector};
use net::hosts::Hosts;
use net::tcp::{Closed, Limits};
use smcr::admission::Gate;
use smcr::echo::ECHO_PORT;
use std::vec;
use std::vec::Vec;

const STEP: Duration = Duration::from_micros(500);
/// Ports of the host's rules, which connect over SMC-R to the gateway's echo service and to its rule.
const TO_ECHO: u16 = 7001;
const TO_RULE: u16 = 7002;
/// Limits of connections to the host.
const MANY: Limits = Limits { connections: 2000, receive: 4 << 10, transmit: 4 << 10 };

/// The gateway, and a host that speaks SMC-R with it.
struct World {
    now: Instant,
    gateway: Machine,
    host: Machine,
    /// Connections to the host's ports, from the gateway's interface.
    users: Connector,
}

fn rule(listen: u16, (host, port): (u8, u16), smc: bool) -> Rule {
    machine::rule(listen, SocketAddr::from((ip(host), port)), smc)
}

/// The gateway's rule: to the echo service of the host, over TCP.
fn relayed() -> Rule {
    rule(RULE, (2, ECHO_PORT), false)
}

impl World {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let [mut gateway, mut host] = [1, 2].map(|n| Machine::new(n, now));
        gateway.echo(true, LIMITS);
        host.echo(true, MANY);
        gateway.add_rule("r", relayed(), 1, now);
        let named = |rule: Rule, name: &str| Rule { name: name.into(), limits: MANY, ..rule };
        host.add_rule("echo", named(rule(TO_ECHO, (1, ECHO_PORT), true), "echo"), 2, now);
        host.add_rule("rule", named(rule(TO_RULE, (1, RULE), true), "rule"), 3, now);
        World { now, gateway, host, users: Connector::new(MANY, 7) }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        self.gateway.round(now);
        self.host.round(now);
        let sent = self.gateway.sent(now);
        self.host.receive(&sent, now);
        let sent = self.host.sent(now);
        self.gateway.receive(&sent, now);
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn open(&mut self, port: u16) -> ConnectionHandle {
        let to = SocketAddr::from((ip(2), port));
        self.users.connect(&mut self.gateway.interface, to, false).unwrap()
    }

    /// Whether an echo comes back within some seconds.
    fn echoes(&mut self, link: ConnectionHandle) -> bool {
        let mut wrote = 0;
        let end = self.now + Duration::from_secs(5);
        while self.now < end {
            let interface = &mut self.gateway.interface;
            if wrote == 0 {
                wrote = self.users.write(interface, link, b"hello").unwrap_or(0);
            }
            match self.users.read(interface, link, &mut [0; 8]) {
                Ok(5) => return true,
                Err(Closed::Gone) if wrote > 0 => return false,
                _ => self.step(),
            }
        }
        false
    }

    fn is_gone(&mut self, link: ConnectionHandle) -> bool {
        self.users.read(&mut self.gateway.interface, link, &mut [0; 8]) == Err(Closed::Gone)
    }

    fn adjust(&mut self, rule: Rule) -> Option<usize> {
        self.gateway.with_users(self.now, |users, world| users.adjust_rule(rule, world))
    }

    fn remove(&mut self) {
        self.gateway.with_users(self.now, |users, world| users.remove_rule("r", world));
    }

    /// Asserts that no link of either machine was lost.
    fn assert_no_link_lost(&self) {
        for machine in [&self.gateway, &self.host] {
            let counters = machine.engine.counters();
            assert_eq!((counters.links_failed, counters.violations), (0, 0), "{counters:?}");
        }
    }
}

/// A rule is removed and added again at every step of eight handshakes with it.
#[test]
fn removed_rule_in_the_middle_of_handshakes_disturbs_no_other_connection() {
    let mut w = World::new();
    let other = w.open(TO_ECHO);
    assert!(w.echoes(other));
    let group = w.host.engine.counts()[1];
    let mut given_up = 0;
    for turn in 0..60 {
        let links: Vec<_> = (0..8).map(|_| w.open(TO_RULE)).collect();
        // They write as soon as they can.
        let mut wrote = vec![0; links.len()];
        for step in 0..60 {
            for (&link, wrote) in links.iter().zip(&mut wrote).filter(|(_, wrote)| **wrote == 0) {
                *wrote = w.users.write(&mut w.gateway.interface, link, b"hello").unwrap_or(0);
            }
            if step == turn {
                w.remove();
                given_up += usize::from(
                    w.gateway
                        .users
                        .users
                        .iter()
                        .flatten()
                        .any(|user| matches!(user, User::Ending(_))),
                );
                w.gateway.add_rule("r", relayed(), 1, w.now);
            }
            w.step();
        }
        for link in links {
            w.users.close(&mut w.gateway.interface, link, true);
        }
        w.wait(Duration::from_millis(20));
        w.assert_no_link_lost();
    }
    assert!(given_up > 0, "no handshake was in the middle");
    assert!(w.echoes(other));
    w.wait(Duration::from_secs(30));
    assert!(w.echoes(other));
    assert_eq!(w.host.engine.counts()[1], group, "the link group is the same");
    // All were closed at the host, and nothing is left of those that were given up.
    assert_eq!((w.host.engine.counts()[0], w.gateway.engine.counts()[0]), (1, 1));
    assert_eq!(w.gateway.engine.retained(), 0);
    assert!(!w.gateway.users.users.iter().flatten().any(|user| matches!(user, User::Ending(_))));
    let again = w.open(TO_RULE);
    assert!(w.echoes(again));
}

/// The first connection of a host creates the link group. A rule that is removed meanwhile ends at most that group.
#[test]
fn removed_rule_in_the_middle_of_a_first_contact_lets_the_next_through() {
    for steps in 0..40 {
        netsim::label!(steps);
        let mut w = World::new();
        let first = w.open(TO_RULE);
        (0..steps).for_each(|_| w.step());
        w.remove();
        w.gateway.add_rule("r", relayed(), 1, w.now);
        let other = w.open(TO_ECHO);
        assert!(w.echoes(other));
        w.users.close(&mut w.gateway.interface, first, true);
        let again = w.open(TO_RULE);
        assert!(w.echoes(again) && w.echoes(other));
    }
}

/// The host is the server here. The gateway as client gives its handshakes up, because its own client disconnects.
#[test]
fn client_that_goes_while_its_server_is_dialled_disturbs_no_other_connection() {
    let mut w = World::new();
    // The gateway's rule goes to the host over SMC-R.
    w.adjust(rule(RULE, (2, ECHO_PORT), true)).unwrap();
    let mut users = Connector::new(MANY, 8);
    let to = SocketAddr::from((ip(1), RULE));
    let open = |w: &mut World, users: &mut Connector| {
        users.connect(&mut w.host.interface, to, false).unwrap()
    };
    let good = open(&mut w, &mut users);
    let echo = |w: &mut World, users: &mut Connector| {
        let mut wrote = 0;
        for _ in 0..4000 {
            if wrote == 0 {
                wrote = users.write(&mut w.host.interface, good, b"hello").unwrap_or(0);
            }
            match users.read(&mut w.host.interface, good, &mut [0; 8]) {
                Ok(5) => return true,
                Err(Closed::Gone) if wrote > 0 => return false,
                _ => w.step(),
            }
        }
        false
    };
    assert!(echo(&mut w, &mut users));
    for steps in 0..40 {
        let links: Vec<_> = (0..4).map(|_| open(&mut w, &mut users)).collect();
        (0..steps).for_each(|_| w.step());
        links.into_iter().for_each(|link| users.close(&mut w.host.interface, link, true));
        w.wait(Duration::from_millis(20));
        w.assert_no_link_lost();
    }
    assert!(echo(&mut w, &mut users));
}

#[test]
fn changed_limits_servers_and_times_end_no_connection() {
    let mut w = World::new();
    let links: Vec<_> = (0..3).map(|_| w.open(TO_RULE)).collect();
    for &link in &links {
        assert!(w.echoes(link));
    }
    let absent = Target::Socket(SocketAddr::from((ip(9), 9)));
    let changes: [fn(&mut Rule); 8] = [
        |rule| rule.limits.connections = 310,
        |rule| rule.limits = Limits { connections: 64, receive: 8 << 10, transmit: 2 << 10 },
        |rule| rule.name = "another".into(),
        |rule| rule.connect_timeout = Duration::from_secs(1),
        |rule| rule.idle_timeout = Some(Duration::from_secs(1000)),
        |rule| rule.health_interval = Some(Duration::from_secs(1)),
        |rule| (rule.smc, rule.proxy) = (true, true),
        |rule| rule.framing = Framing { lengths: false, longest: 100 },
    ];
    let left = w.gateway.engine.admission.left();
    for (n, change) in changes.into_iter().enumerate() {
        netsim::label!(n);
        let mut rule = relayed();
        change(&mut rule);
        assert_eq!(w.adjust(rule), Some(0));
        assert_eq!(w.gateway.engine.admission.left(), left);
        for &link in &links {
            assert!(w.echoes(link));
        }
    }
    // Add a server, then remove the first one: connections to it continue.
    let mut more = relayed();
    more.backends.insert(0, absent.clone());
    assert_eq!(w.adjust(more), Some(0));
    let counts = |w: &World| {
        let (_, relay) = w.gateway.users.rules().next().unwrap();
        relay.backends().iter().map(|one| one.connections).collect::<Vec<_>>()
    };
    assert_eq!(counts(&w), [0, 3]);
    let elsewhere = Rule { backends: vec![absent], ..relayed() };
    assert_eq!(w.adjust(elsewhere), Some(0));
    assert_eq!(counts(&w), [0]);
    for &link in &links {
        assert!(w.echoes(link));
    }
    let late = w.open(TO_RULE);
    w.wait(Duration::from_secs(4));
    assert!(!w.echoes(late), "new ones go elsewhere");
    for link in links {
        w.users.close(&mut w.gateway.interface, link, true);
    }
    w.users.close(&mut w.gateway.interface, late, true);
    assert_eq!(w.adjust(relayed()), Some(0));
    w.wait(Duration::from_secs(1));
    assert_eq!(counts(&w), [0]);
    let next = w.open(TO_RULE);
    assert!(w.echoes(next));
    w.assert_no_link_lost();
}

/// A limit applies to new connections and ends none.
#[test]
fn lowered_limit_ends_no_connection_and_keeps_others_out() {
    let mut w = World::new();
    let links: Vec<_> = (0..3).map(|_| w.open(TO_RULE)).collect();
    for &link in &links {
        assert!(w.echoes(link));
    }
    let with = |connections| Rule { limits: Limits { connections, ..LIMITS }, ..relayed() };
    assert_eq!(w.adjust(with(2)), Some(0));
    let late = w.open(TO_RULE);
    assert!(!w.echoes(late));
    for &link in &links {
        assert!(w.echoes(link));
    }
    assert_eq!(w.adjust(with(4)), Some(0));
    let next = w.open(TO_RULE);
    assert!(w.echoes(next));
}

/// A connection that waits for a server goes to another one when that server is removed from the rule.
#[test]
fn connection_that_waits_for_a_removed_server_gets_another() {
    let mut w = World::new();
    // No host has this address, so nothing answers.
    let silent = Target::Socket(SocketAddr::from((ip(77), 9)));
    assert_eq!(w.adjust(Rule { backends: vec![silent], ..relayed() }), Some(0));
    let link = w.open(TO_RULE);
    w.wait(Duration::from_millis(200));
    assert_eq!(w.adjust(relayed()), Some(0));
    assert!(w.echoes(link));
}

#[test]
fn hosts_no_longer_admitted_lose_their_connections() {
    let mut w = World::new();
    let link = w.open(TO_RULE);
    let other = w.open(TO_ECHO);
    assert!(w.echoes(link) && w.echoes(other));
    let admits = |network: &str| {
        let hosts = Hosts::new(vec![network.parse().unwrap()]);
        Rule { gate: Gate { hosts, ..Gate::default() }, ..relayed() }
    };
    assert_eq!(w.adjust(admits("10.0.0.0/24")), Some(0));
    assert!(w.echoes(link));
    // In the middle of a handshake, too.
    let late = w.open(TO_RULE);
    (0..8).for_each(|_| w.step());
    let ended = w.adjust(admits("10.9.0.0/24")).unwrap();
    assert!((1..=2).contains(&ended));
    w.wait(Duration::from_secs(1));
    assert!(w.is_gone(link));
    assert!(!w.echoes(late));
    assert!(w.echoes(other));
    w.assert_no_link_lost();
    let refused = w.open(TO_RULE);
    assert!(!w.echoes(refused));
}

#[test]
fn changed_idle_timeout_applies_to_open_connections() {
    let mut w = World::new();
    let link = w.open(TO_RULE);
    assert!(w.echoes(link));
    w.wait(Duration::from_secs(2));
    let idle = |time| Rule { idle_timeout: Some(Duration::from_secs(time)), ..relayed() };
    assert_eq!(w.adjust(idle(4)), Some(0));
    w.wait(Duration::from_secs(1));
    assert!(!w.is_gone(link));
    w.wait(Duration::from_secs(2));
    assert!(w.is_gone(link));
}

#[test]
fn rule_with_another_listen_end_is_not_adjusted() {
    let mut w = World::new();
    assert_eq!(w.adjust(Rule { listen: Listen::Port(RULE + 50), ..relayed() }), None);
    assert_eq!(w.adjust(Rule { offers: false, ..relayed() }), None);
    assert_eq!(w.adjust(Rule { signal: Some(7), ..relayed() }), Some(0), "there are no signals");
    let message = Target::Message("linx:far/gate".parse().unwrap());
    let to_message = Rule { backends: vec![message], ..relayed() };
    assert_eq!(w.adjust(to_message.clone()), Some(0));
    assert_eq!(w.adjust(Rule { signal: Some(7), ..to_message.clone() }), None);
    let framing = Framing { lengths: false, longest: 64 << 10 };
    assert_eq!(w.adjust(Rule { framing, ..to_message }), None);
}
