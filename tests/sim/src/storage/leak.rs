//! Checks that hosts receive no foreign data: every byte of the gateway's memory and of its volumes is marked with its
//! owner, and malicious hosts ([`rogue`](super::rogue)) search all received data.

use super::disk::{Manners, SimDisk};
use super::gateway::{Gateway, Port};
use super::rogue::Rogue;
use super::{MEMORY, SECTORS, port};
use drivers::hal::Instant;
use netsim::{Network, Rng};
use rand_core::Rng as _;
use rtrs::server;
use std::time::Duration;

/// Initial contents of the gateway's memory.
const FREE: u8 = 0xf1;
/// Mark of a host's own bytes: this plus its number.
const FIRST: u8 = 0xc0;
/// Contents of a host's memory that was not written.
pub const UNTOUCHED: u8 = 0xee;
/// Successive foreign bytes that count as a leak. Fewer of them occur in headers by chance.
const RUN: usize = 8;

/// The mark of a host's bytes.
pub fn mark(host: usize) -> u8 {
    FIRST + host as u8
}

/// Panics if data for a host contains bytes of others.
pub fn check(host: usize, bytes: &[u8], what: std::fmt::Arguments<'_>) {
    let foreign =
        |byte: u8| byte == FREE || (FIRST..FIRST + 8).contains(&byte) && byte != mark(host);
    let found =
        bytes.windows(RUN).position(|run| foreign(run[0]) && run.iter().all(|b| *b == run[0]));
    if let Some(at) = found {
        let owner = match bytes[at] {
            FREE => "the gateway's memory".into(),
            other => format!("host {}", other - FIRST),
        };
        panic!("host {host} sees bytes of {owner} at {at} of {}: {what}", bytes.len());
    }
}

enum Node {
    Gateway(Box<Gateway>),
    Rogue(Box<Rogue>),
}

impl Node {
    fn as_node(&mut self) -> &mut dyn netsim::Node {
        match self {
            Node::Gateway(node) => node.as_mut(),
            Node::Rogue(node) => node.as_mut(),
        }
    }
}

impl netsim::Node for Node {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        self.as_node().handle_frame(port, frame, now);
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        self.as_node().poll_transmit(port, now)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Node::Gateway(node) => node.poll_timeout(),
            Node::Rogue(node) => node.poll_timeout(),
        }
    }
    fn work(&mut self, now: Instant) {
        self.as_node().work(now);
    }
}

/// A station with the first host's IP address and session name, and its own MAC address, beside that host. The station
/// gets no answers, although it begins first, and the host works undisturbed.
pub fn thief(seed: u64) {
    let mut rng = Rng::new(seed);
    netsim::with_memory(MEMORY * 3, |memory| {
        let part = |n: usize| memory.slice(n * MEMORY, MEMORY).expect("a part of it");
        part(0).fill(FREE);
        let mut network = Network::new(rng.next_u64());
        for node in 0..3 {
            network.add_node(&[port(node, 0).mac]);
        }
        let latency = Duration::from_micros(5);
        let disk = Manners { cache: false, latency, errors: 0, stalls: 0, kept: 1000 };
        let config = config();
        let disk = SimDisk::new(SECTORS, disk, rng.fork());
        let mut gateway = Gateway::new(vec![port(0, 0)], 1500, config, disk, SECTORS, part(0));
        let host = port(1, 0);
        gateway.private = vec![host.ip];
        gateway.stations = vec![(0, host)];
        gateway.boot(&mut rng);
        let stolen = Port { mac: port(2, 0).mac, ip: host.ip };
        let mut nodes = vec![Node::Gateway(Box::new(gateway))];
        for (n, own) in [(1, host), (2, stolen)] {
            let rogue = Rogue::new(1, own, port(0, 0), part(n), rng.fork());
            nodes.push(Node::Rogue(Box::new(rogue)));
        }
        let end = network.now + Duration::from_secs(3);
        while network.now < end {
            let pause = Duration::from_millis(rng.within(1..100));
            let until = network.now + pause;
            network.run(&mut nodes, pause, |_, _| false);
            network.now = network.now.max(until);
            let now = network.now;
            nodes.iter_mut().rev().for_each(|node| netsim::Node::work(node, now));
        }
        let answered = |node: &Node| match node {
            Node::Rogue(rogue) => rogue.answered,
            Node::Gateway(_) => 0,
        };
        assert!(answered(&nodes[1]) >= 3, "the host was answered {} times", answered(&nodes[1]));
        assert_eq!(answered(&nodes[2]), 0, "the thief was answered");
    });
}

/// The server of a gateway with little memory.
fn config() -> server::Config {
    server::Config {
        queue_depth: 8,
        chunk_size: 16 << 10,
        max_sessions: 4,
        max_connections: 8,
        completions: 2048,
        heartbeat_interval: Duration::from_millis(500),
        handshake_timeout: Duration::from_secs(4),
        ..server::Config::default()
    }
}

/// Runs a seed.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let hosts = rng.pick(&[1, 2, 3]);
    netsim::with_memory(MEMORY * (1 + hosts), |memory| {
        let part = |n: usize| memory.slice(n * MEMORY, MEMORY).expect("a part of it");
        part(0).fill(FREE);
        let mut network = Network::new(rng.next_u64());
        for node in 0..=hosts {
            network.add_node(&[port(node, 0).mac]);
        }
        let disk = Manners {
            cache: false,
            latency: Duration::from_micros(rng.pick(&[5, 200])),
            errors: rng.pick(&[0, 50]),
            stalls: 0,
            kept: 1000,
        };
        let config = server::Config {
            queue_depth: rng.pick(&[2, 8]),
            oversubscribe: rng.pick(&[1, 1, 6]),
            always_invalidate: rng.chance(500),
            ..config()
        };
        let disk = SimDisk::new(SECTORS, disk, rng.fork());
        let mut gateway = Gateway::new(vec![port(0, 0)], 1500, config, disk, SECTORS, part(0));
        // Long enough that packets in a port's queue are retransmitted.
        let stalls = rng.pick(&[0, 5, 150]);
        gateway.stalls = stalls;
        gateway.stations = (1..=hosts).map(|host| (0, port(host, 0))).collect();
        gateway.private = (1..=hosts).map(|host| port(host, 0).ip).collect();
        gateway.boot(&mut rng);
        let mut nodes = vec![Node::Gateway(Box::new(gateway))];
        for host in 1..=hosts {
            let rogue = Rogue::new(host, port(host, 0), port(0, 0), part(host), rng.fork());
            nodes.push(Node::Rogue(Box::new(rogue)));
        }
        let end = network.now + Duration::from_secs(3);
        let mut boot_at = None;
        while network.now < end {
            let pause = Duration::from_millis(rng.within(1..100));
            let until = network.now + pause;
            network.run(&mut nodes, pause, |_, _| false);
            network.now = network.now.max(until);
            let now = network.now;
            if let Node::Gateway(gateway) = &mut nodes[0] {
                // The memory keeps its contents.
                if boot_at.is_none() && rng.chance(10) {
                    gateway.cut_power();
                    boot_at = Some(now + Duration::from_millis(200));
                }
                if boot_at.is_some_and(|at| at <= now) {
                    boot_at = None;
                    gateway.boot(&mut rng);
                }
            }
            nodes.iter_mut().for_each(|node| netsim::Node::work(node, now));
        }
        let answered: u32 = nodes
            .iter()
            .map(|node| match node {
                Node::Rogue(rogue) => rogue.answered,
                Node::Gateway(_) => 0,
            })
            .sum();
        assert!(
            answered >= if stalls < 150 { 3 } else { 0 },
            "only {answered} requests were answered"
        );
    });
}
