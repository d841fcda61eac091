//! Tests of many connections through a gateway that runs only when it is woken, like a loop that halts: a lost event
//! stalls its connection.

use super::*;
use crate::machine::{self, Machine};
use crate::names::{Listen, Target};
use crate::relay::Rule;
use crate::relay::frames::Framing;
use core::net::SocketAddr;
use core::time::Duration;
use net::Interface;
use net::connector::{self, ConnectionHandle, Connector};
use net::tcp::{Limits, Listener, Stream};
use smcr::admission::Gate;
use std::format;
use std::vec;
use std::vec::Vec;

/// Bytes of a connection's buffers, in tests that do not depend on them.
const BUFFER: usize = 16 << 10;
const SERVER: u16 = 9000;
const RULES: u16 = 7000;

/// A gateway, and one other machine, on a wire.
struct World {
    now: Instant,
    gateway: Machine,
    /// The other machine, its server, and its connections to the gateway.
    peer: Interface,
    server: Listener,
    clients: Connector,
    served: Vec<Stream>,
}

fn rule(listen: u16, limits: Limits) -> Rule {
    Rule {
        name: "r".into(),
        listen: Listen::Port(listen),
        offers: false,
        backends: vec![Target::Socket(([10, 0, 0, 2], SERVER).into())],
        smc: false,
        proxy: false,
        connect_timeout: Duration::from_secs(5),
        idle_timeout: None,
        health_interval: None,
        gate: Gate::default(),
        limits,
        framing: Framing { lengths: true, longest: 64 << 10 },
        signal: None,
        buffers: None,
    }
}

impl World {
    /// Creates `rules` rules with at most `connections` connections each, and buffers of `buffer` bytes.
    fn new(rules: u16, connections: usize, buffer: usize) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let (mut gateway, mut peer) = (Machine::new(1, now), machine::interface(2, now));
        let limits = Limits { connections, receive: buffer, transmit: buffer };
        gateway.echo(false, limits);
        for n in 0..rules {
            gateway.add_rule(&format!("r{n}"), rule(RULES + n, limits), n, now);
        }
        let server = Listener::new(&mut peer, SERVER, limits);
        let Limits { connections, receive, transmit } = limits;
        let clients = Connector::new(connector::Limits { connections, receive, transmit }, 1);
        World { now, gateway, peer, server, clients, served: Vec::new() }
    }

    /// Whether a halted gateway would wake now.
    fn is_woken(&self) -> bool {
        let Machine { interface, users, engine, .. } = &self.gateway;
        let due = Instant::first([users.poll_timeout(), engine.poll_timeout()]);
        interface.has_news() || due.is_some_and(|at| at <= self.now)
    }

    /// Carries frames once each way. Returns whether there were any.
    fn carry(&mut self) -> bool {
        let mut moved = false;
        for ours in [true, false] {
            let (from, to) = match ours {
                true => (&mut self.gateway.interface, &mut self.peer),
                false => (&mut self.peer, &mut self.gateway.interface),
            };
            let frames = machine::frames(from, self.now);
            moved |= !frames.is_empty();
            frames.iter().for_each(|frame| to.handle_frame(frame, self.now));
        }
        while let Some(stream) = self.server.accept(&mut self.peer, self.now) {
            self.served.push(stream);
        }
        moved
    }

    /// Carries frames and runs the gateway until both machines are idle. Returns the number of rounds.
    fn settle(&mut self) -> usize {
        let mut rounds = 0;
        for _ in 0..100_000 {
            let woken = self.is_woken();
            if woken {
                self.gateway.round(self.now);
                rounds += 1;
            }
            if !self.carry() && !woken {
                return rounds;
            }
        }
        panic!("the machines never become idle");
    }

    /// Opens `count` connections to a port of the gateway at once.
    fn open(&mut self, port: u16, count: usize) -> Vec<ConnectionHandle> {
        let peer = SocketAddr::from(([10, 0, 0, 1], port));
        let links: Vec<ConnectionHandle> = (0..count)
            .map(|_| self.clients.connect(&mut self.peer, peer, false).unwrap())
            .collect();
        self.settle();
        // Delayed ACKs, and a first SYN that waited for its neighbour.
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(100);
            self.settle();
        }
        links
    }

    fn write(&mut self, link: ConnectionHandle, bytes: &[u8]) -> usize {
        self.clients.write(&mut self.peer, link, bytes).unwrap()
    }

    /// Reads a client's bytes from the gateway. Returns their number.
    fn read(&mut self, link: ConnectionHandle) -> usize {
        let mut piece = vec![0; 1 << 20];
        self.clients.read(&mut self.peer, link, &mut piece).unwrap()
    }

    /// Number of visits to connections, and to users.
    fn looked(&self) -> (u64, u64) {
        let users = &self.gateway.users;
        let services = users.services().map(|(_, echo)| echo.looked());
        let rules = users.rules().map(|(_, relay)| relay.looked());
        (services.chain(rules).sum(), users.rescheduled)
    }
}

/// Without a list, each of these rounds would look at a thousand connections.
#[test]
fn round_visits_only_connections_with_events() {
    const CROWD: usize = 1000;
    let mut w = World::new(64, CROWD + 8, BUFFER);
    let echoed = w.open(7, 1)[0];
    let relayed = w.open(RULES + 63, 1)[0];
    w.open(7, CROWD);
    for link in [echoed, relayed] {
        for _ in 0..4 {
            let (looked, users) = w.looked();
            assert_eq!(w.write(link, b"hello"), 5);
            w.settle();
            for stream in w.served.clone() {
                let mut piece = [0; 64];
                let count = w.server.read(&mut w.peer, stream, &mut piece).unwrap();
                w.server.write(&mut w.peer, stream, &piece[..count]).unwrap();
            }
            w.settle();
            w.now = w.now + Duration::from_millis(100);
            w.settle();
            assert_eq!(w.read(link), 5);
            // Request, reply and their acknowledgements, on each side.
            let (after, users_after) = w.looked();
            assert!(after - looked <= 6, "{} connections", after - looked);
            assert!(users_after - users <= 12, "{} users", users_after - users);
        }
    }
    let before = w.looked();
    w.settle();
    assert_eq!(w.looked(), before, "nothing has happened");
}

/// Many clients connect at once, more than are accepted in a round, and each sends data.
#[test]
fn simultaneous_connections_are_all_served() {
    let mut w = World::new(1, 300, BUFFER);
    for port in [7, RULES] {
        let links = w.open(port, 150);
        for &link in &links {
            assert_eq!(w.write(link, b"hello"), 5);
        }
        w.settle();
        if port == RULES {
            assert_eq!(w.served.len(), links.len());
            for stream in w.served.clone() {
                let mut piece = [0; 64];
                assert_eq!(w.server.read(&mut w.peer, stream, &mut piece), Ok(5));
                assert_eq!(w.server.write(&mut w.peer, stream, b"world"), Ok(5));
            }
            w.settle();
        }
        for link in links {
            assert_eq!(w.read(link), 5);
        }
    }
}

/// Connections with much data do not delay others.
#[test]
fn greedy_connections_wait_for_their_next_turn() {
    let mut w = World::new(2, 100, 160 << 10);
    let greedy = w.open(RULES, 90);
    let modest = w.open(RULES + 1, 1)[0];
    let bytes = vec![7; 150 << 10];
    for link in greedy {
        assert_eq!(w.write(link, &bytes), bytes.len());
    }
    assert_eq!(w.write(modest, b"hello"), 5);
    // The gateway is busy elsewhere while all of that arrives.
    for _ in 0..100 {
        while w.carry() {}
        w.now = w.now + Duration::from_millis(50);
    }
    w.gateway.round(w.now);
    let moved: Vec<u64> =
        w.gateway.users.rules().map(|(_, relay)| relay.counters().bytes_in).collect();
    assert!(moved[0] <= 64 * (96 << 10), "{moved:?}");
    assert_eq!(moved[1], 5);
    assert!(w.is_woken(), "the others wait for their turn");
}

/// Removing a rule resets its clients and servers, and clients that wait for a server. Other rules continue, and the
/// rule's memory is free again.
#[test]
fn removed_rule_ends_its_own_connections_and_no_others() {
    let mut w = World::new(2, 100, BUFFER);
    let memory = w.gateway.engine.admission.left();
    let gone = w.open(RULES, 3);
    let first = w.served.clone();
    let stays = w.open(RULES + 1, 2);
    // Not accepted yet: the SYN-ACK is in flight.
    let peer = SocketAddr::from(([10, 0, 0, 1], RULES));
    let late = w.clients.connect(&mut w.peer, peer, false).unwrap();
    w.carry();
    w.gateway.with_users(w.now, |users, world| users.remove_rule("r0", world));
    w.settle();
    for link in gone.into_iter().chain([late]) {
        let read = w.clients.read(&mut w.peer, link, &mut [0; 8]);
        assert_eq!(read, Err(net::tcp::Closed::Gone));
    }
    for &stream in &first {
        let read = w.server.read(&mut w.peer, stream, &mut [0; 8]);
        assert_eq!(read, Err(net::tcp::Closed::Gone));
    }
    for &link in &stays {
        assert_eq!(w.write(link, b"hello"), 5);
    }
    w.settle();
    for stream in w.served.clone().into_iter().filter(|stream| !first.contains(stream)) {
        let mut piece = [0; 8];
        assert_eq!(w.server.read(&mut w.peer, stream, &mut piece), Ok(5));
    }
    assert_eq!(w.gateway.users.rules().map(|(name, _)| name).collect::<Vec<_>>(), ["r1"]);
    let each = 4 * BUFFER as u64;
    assert_eq!(w.gateway.engine.admission.left(), memory - 2 * each);
    // The port is closed until another rule listens on it, with the removed rule's index.
    let refused = w.open(RULES, 1)[0];
    assert_eq!(w.clients.read(&mut w.peer, refused, &mut [0; 8]), Err(net::tcp::Closed::Gone));
    let limits = Limits { connections: 8, receive: BUFFER, transmit: BUFFER };
    w.gateway.add_rule("new", rule(RULES, limits), 9, w.now);
    w.settle();
    let served = w.served.len();
    let link = w.open(RULES, 1)[0];
    assert_eq!(w.write(link, b"hello"), 5);
    w.settle();
    let mut piece = [0; 8];
    assert_eq!(w.server.read(&mut w.peer, w.served[served], &mut piece), Ok(5));
}

/// No connection is forgotten that has used up its turn, or that has found no room.
#[test]
fn stuck_connections_continue_when_there_is_room() {
    const BYTES: usize = 500_000;
    let mut w = World::new(2, 100, 160 << 10);
    let mut links = w.open(RULES, 70);
    links.extend(w.open(RULES + 1, 1));
    assert_eq!(w.served.len(), links.len());
    let (mut sent, mut got) = (vec![0; links.len()], vec![0; links.len()]);
    let all = vec![7; BYTES];
    let mut reads = false;
    for _ in 0..2000 {
        let mut moved = false;
        for (link, sent) in links.iter().zip(&mut sent) {
            let count = w.clients.write(&mut w.peer, *link, &all[*sent..]).unwrap();
            *sent += count;
            moved |= count > 0;
        }
        let mut piece = vec![0; 200 << 10];
        for (at, got) in got.iter_mut().enumerate().filter(|_| reads) {
            let count = w.server.read(&mut w.peer, w.served[at], &mut piece).unwrap();
            *got += count;
            moved |= count > 0;
        }
        w.settle();
        w.now = w.now + Duration::from_millis(50);
        moved |= w.settle() > 0;
        if got.iter().all(|&got| got == BYTES) {
            return;
        }
        // The server begins to read when everything is full.
        reads |= !moved;
    }
    panic!("{got:?}");
}

/// The refusal of a client without a server has its address, the rule, the reason and advice.
#[test]
fn client_without_a_server_is_recorded_as_refused() {
    let mut w = World::new(0, 8, BUFFER);
    let limits = Limits { connections: 8, receive: BUFFER, transmit: BUFFER };
    let backends = [3, 4].map(|n| Target::Socket(([10, 0, 0, 2], SERVER + n).into()));
    w.gateway.add_rule("r0", Rule { backends: backends.into(), ..rule(RULES, limits) }, 9, w.now);
    w.settle();
    w.open(RULES, 1);
    let refusal = w.gateway.engine.admission.refusals.pop().expect("nothing was refused");
    assert_eq!(refusal.who, Some([10, 0, 0, 2].into()));
    assert_eq!((refusal.what, refusal.reason), ("connection", "no_server"));
    assert_eq!(refusal.asked, "rule r");
    let advice = "no server of the rule answers (10.0.0.2:9003 and 1 more): start one";
    assert!(refusal.advice.starts_with(advice), "{}", refusal.advice);
    assert!(w.gateway.engine.admission.refusals.is_empty(), "one for each client");
    let counters = w.gateway.users.rules().map(|(_, relay)| *relay.counters()).next().unwrap();
    assert_eq!(counters.refused, 1);
}
