//! Rules that change or go while a host works with them and with others: it loses no connection but those of what is
//! gone. The host speaks SMC-R by our own client, whose order of messages is that of Linux: it is done when it has said
//! Confirm, and writes at once.

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
/// Ports of the host, behind each of which is SMC-R to the gateway: to its echo service, and to its rule.
const TO_ECHO: u16 = 7001;
const TO_RULE: u16 = 7002;
/// Of connections to the host.
const MANY: Limits = Limits { connections: 2000, receive: 4 << 10, transmit: 4 << 10 };

/// The gateway, and a host that speaks SMC-R with it.
struct World {
    now: Instant,
    gateway: Machine,
    host: Machine,
    /// Who uses the host's ports, from the gateway's interface.
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
        let said = self.gateway.sent(now);
        self.host.hear(&said, now);
        let said = self.host.sent(now);
        self.gateway.hear(&said, now);
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

    /// No link of either was lost.
    fn nothing_was_lost(&self) {
        for machine in [&self.gateway, &self.host] {
            let counters = machine.engine.counters();
            assert_eq!((counters.links_failed, counters.violations), (0, 0), "{counters:?}");
        }
    }
}

/// A rule goes and comes again at every moment of eight handshakes with it.
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
        w.nothing_was_lost();
    }
    assert!(given_up > 0, "no handshake was in the middle");
    assert!(w.echoes(other));
    w.wait(Duration::from_secs(30));
    assert!(w.echoes(other));
    assert_eq!(w.host.engine.counts()[1], group, "the link group is the same");
    // The host was told of each, and nothing is left of those that were given up.
    assert_eq!((w.host.engine.counts()[0], w.gateway.engine.counts()[0]), (1, 1));
    assert_eq!(w.gateway.engine.retained(), 0);
    assert!(!w.gateway.users.users.iter().flatten().any(|user| matches!(user, User::Ending(_))));
    let again = w.open(TO_RULE);
    assert!(w.echoes(again));
}

/// The first connection of a host makes the link group; a rule that goes meanwhile takes it with it at most.
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

/// The host is the server here: the gateway as client gives its handshakes up, because its own client goes.
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
        w.nothing_was_lost();
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
    let nobody = Target::Socket(SocketAddr::from((ip(9), 9)));
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
    // One more server, and then another in place of the first: those that are connected to that go on.
    let mut more = relayed();
    more.backends.insert(0, nobody.clone());
    assert_eq!(w.adjust(more), Some(0));
    let counts = |w: &World| {
        let (_, relay) = w.gateway.users.rules().next().unwrap();
        relay.backends().iter().map(|one| one.connections).collect::<Vec<_>>()
    };
    assert_eq!(counts(&w), [0, 3]);
    let elsewhere = Rule { backends: vec![nobody], ..relayed() };
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
    w.nothing_was_lost();
}

/// The limit counts for those who come: nobody is sent away who is there.
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

/// A connection that waits for a server which is taken out of the rule goes to another.
#[test]
fn connection_that_waits_for_a_removed_server_gets_another() {
    let mut w = World::new();
    // Nobody is there, and nobody says so.
    let silent = Target::Socket(SocketAddr::from((ip(77), 9)));
    assert_eq!(w.adjust(Rule { backends: vec![silent], ..relayed() }), Some(0));
    let link = w.open(TO_RULE);
    w.wait(Duration::from_millis(200));
    assert_eq!(w.adjust(relayed()), Some(0));
    assert!(w.echoes(link));
}

#[test]
fn hosts_that_a_rule_admits_no_more_lose_their_connections() {
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
    w.nothing_was_lost();
    let refused = w.open(TO_RULE);
    assert!(!w.echoes(refused));
}

#[test]
fn silence_is_measured_by_the_new_time() {
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
fn rule_that_listens_elsewhere_is_another() {
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
