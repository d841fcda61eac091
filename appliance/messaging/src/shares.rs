//! Tests of shares with the default limits: a greedy host opens as many connections as it can, and an honest host is
//! served all the same.

use super::machine::{LIMITS, Machine, RULE, frames, interface, ip};
use super::*;
use crate::names::{Listen, Target};
use crate::relay::Rule;
use crate::relay::frames::Framing;
use core::net::SocketAddr;
use core::time::Duration;
use net::Interface;
use net::connector::{ConnectionHandle, Connector};
use net::tcp::{Closed, Limits, Listener};
use smcr::admission::{Admission, Gate, share_of};
use smcr::echo::ECHO_PORT;
use std::vec;
use std::vec::Vec;

const STEP: Duration = Duration::from_millis(1);
/// The port of the rules' server.
const SERVER: u16 = 9000;
/// Limits of a connector.
const MANY: Limits = Limits { connections: 5000, receive: 1 << 10, transmit: 1 << 10 };

/// The gateway, and two hosts.
struct World {
    now: Instant,
    gateway: Machine,
    hosts: [(Interface, Connector); 2],
    server: Listener,
}

impl World {
    /// Defaults: echo has 128 connections, each rule 64 with buffers of 16 KiB. `pool` is the machine's memory for
    /// buffers, in bytes.
    fn new(rules: u16, pool: u64) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut gateway = Machine::new(1, now);
        gateway.engine.admission = Admission::new(pool, 1024);
        gateway.echo_for(false, Limits { connections: 128, ..LIMITS }, share_of(128));
        for n in 0..rules {
            let limits = Limits { connections: 64, receive: 16 << 10, transmit: 16 << 10 };
            let rule = Rule {
                name: std::format!("r{n}"),
                listen: Listen::Port(RULE + n),
                offers: false,
                backends: vec![Target::Socket(SocketAddr::from((ip(3), SERVER)))],
                smc: false,
                proxy: false,
                connect_timeout: Duration::from_secs(3),
                idle_timeout: None,
                health_interval: None,
                gate: Gate { per_host: Some(share_of(64)), ..Gate::default() },
                limits,
                framing: Framing { lengths: true, longest: 64 << 10 },
                signal: None,
                buffers: None,
            };
            gateway.add_rule(&std::format!("r{n}"), rule, n, now);
        }
        let host = |n| (interface(n, now), Connector::new(MANY, n.into()));
        let mut hosts = [2, 3].map(host);
        // The server accepts connections and sends nothing.
        let server = Listener::new(&mut hosts[1].0, SERVER, MANY);
        World { now, gateway, hosts, server }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        self.gateway.round(now);
        let [sent, _] = self.gateway.sent(now);
        for (host, _) in &mut self.hosts {
            sent.iter().for_each(|frame| host.handle_frame(frame, now));
        }
        while self.server.accept(&mut self.hosts[1].0, now).is_some() {}
        for (host, _) in &mut self.hosts {
            let sent = frames(host, now);
            self.gateway.receive(&[sent, Vec::new()], now);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn open(&mut self, host: usize, port: u16) -> ConnectionHandle {
        let (interface, connector) = &mut self.hosts[host];
        connector.connect(interface, SocketAddr::from((ip(1), port)), false).unwrap()
    }

    /// How many of these connections are open.
    fn open_count(&mut self, host: usize, links: &[ConnectionHandle]) -> usize {
        let (interface, connector) = &mut self.hosts[host];
        let read = |link: &&ConnectionHandle| {
            connector.read(interface, **link, &mut [0; 8]) != Err(Closed::Gone)
        };
        links.iter().filter(read).count()
    }
}

#[test]
fn greedy_host_leaves_places_of_a_rule_and_of_services_to_others() {
    for (port, places, share) in [(RULE, 64, 48), (ECHO_PORT, 128, 96)] {
        netsim::label!(port);
        let mut w = World::new(1, 1 << 30);
        let greedy: Vec<_> = (0..2 * places).map(|_| w.open(0, port)).collect();
        w.wait(Duration::from_secs(3));
        assert_eq!(w.open_count(0, &greedy), share);
        let refusal = w.gateway.engine.admission.refusals.pop().unwrap();
        assert!(refusal.advice.contains("connections_per_host allows no more"), "{refusal:?}");
        let honest: Vec<_> = (0..places - share).map(|_| w.open(1, port)).collect();
        w.wait(Duration::from_secs(3));
        assert_eq!(w.open_count(1, &honest), places - share);
        // More attempts of the greedy host get no more connections.
        let more: Vec<_> = (0..places).map(|_| w.open(0, port)).collect();
        w.wait(Duration::from_secs(3));
        assert_eq!((w.open_count(0, &more), w.open_count(0, &greedy)), (0, share));
    }
}

/// Over many rules the greedy host gets three quarters of the memory for buffers.
#[test]
fn greedy_host_leaves_memory_of_buffers_to_others() {
    // 64 KiB for each connection.
    let pool = 4 << 20;
    let mut w = World::new(8, pool);
    let greedy: Vec<_> = (0..8 * 20).map(|n| w.open(0, RULE + n % 8)).collect();
    w.wait(Duration::from_secs(3));
    assert_eq!(w.open_count(0, &greedy), 48);
    assert_eq!(w.gateway.engine.admission.left(), pool / 4);
    let honest: Vec<_> = (0..16).map(|n| w.open(1, RULE + n % 8)).collect();
    w.wait(Duration::from_secs(3));
    assert_eq!(w.open_count(1, &honest), 16);
}
