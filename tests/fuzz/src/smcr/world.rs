//! The hosts, the packets in flight between them, and the behaviour of each host.

use super::host::{Host, Known, ip, mac};
use super::{ARENA, ATTACKER, GATEWAY, HOSTS, PIECE, PORTS, VICTIM};
use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Instant, Window};
use netsim::Rng;
use smcr::engine::{Role, SocketId};
use smcr::wire::llc::Token;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Capacity of a wire in packets.
const WIRE: usize = 256;
/// Latency of a packet.
const LATENCY: Duration = Duration::from_micros(1);
/// Packets after which gateway and victim are idle in any case.
const MOST: usize = 10_000;

/// A TCP connection between the gateway and a peer: both sockets, and the bytes in flight to each.
pub(super) struct Tcp {
    pub peer: usize,
    pub ends: [Option<SocketId>; 2],
    pub bytes: [Vec<u8>; 2],
}

/// A packet in flight.
pub(super) struct Flight {
    pub from: usize,
    pub to: usize,
    pub port: usize,
    pub frame: Vec<u8>,
}

/// State of the target.
pub(super) struct World {
    pub hosts: Vec<Host>,
    pub tcp: Vec<Tcp>,
    /// Packets from and to the attacker. A full wire drops further packets.
    pub wire: VecDeque<Flight>,
    /// Packets between gateway and victim. None is lost, whatever the attacker sends.
    pub victims: VecDeque<Flight>,
    pub now: Instant,
    /// Users of the gateway forward bytes in place, without a copy.
    pub forwards: bool,
    /// The gateway is the client of its connections with the attacker.
    pub calls: bool,
    /// Keys and addresses seen on the wire.
    pub seen: VecDeque<Token>,
    /// Numbers of bytes that the victim has written and read.
    pub victim: (u64, u64),
    /// Free memory of the gateway at the start.
    pub free: u64,
}

impl World {
    pub fn new(memory: Window, how: u8) -> Self {
        let mut rng = Rng::new(11);
        let version = if how & 2 == 0 { 2 } else { 1 };
        let ports = if how & 4 == 0 { 1 } else { 2 };
        let hosts: Vec<Host> = (0..HOSTS)
            .map(|n| {
                let memory = memory.slice(n * ARENA, ARENA).expect("inside");
                if n == GATEWAY {
                    leak::fill(memory, Owner::Past);
                }
                Host::new(n, memory, ports, version, &mut rng)
            })
            .collect();
        let free = hosts[GATEWAY].arena.available() as u64;
        World {
            hosts,
            tcp: Vec::new(),
            wire: VecDeque::new(),
            victims: VecDeque::new(),
            now: Instant::from_nanos(1),
            forwards: how & 8 == 0,
            calls: how & 1 == 1,
            seen: VecDeque::new(),
            victim: (0, 0),
            free,
        }
    }

    /// Connects both peers, and exchanges data over both connections.
    pub fn connect_peers(&mut self) {
        self.connect(VICTIM, false);
        self.settle();
        self.victim_writes(100);
        self.settle();
        self.connect(ATTACKER, self.calls);
        self.settle();
        self.attacker_writes(0, &[0x21; 300]);
        self.settle();
    }

    /// Opens a TCP connection with a peer. With `calls` the gateway is the client.
    pub fn connect(&mut self, peer: usize, calls: bool) {
        let now = self.now;
        let ends = [GATEWAY, peer].map(|host| {
            let other = if host == GATEWAY { peer } else { GATEWAY };
            let role = if (host == GATEWAY) == calls { Role::Client } else { Role::Server };
            let addresses = [host, other].map(|host| IpAddr::V4(ip(host, 0)));
            self.hosts[host].with(now, |engine, ctx| engine.open(role, addresses, 0, ctx))
        });
        self.tcp.push(Tcp { peer, ends, bytes: Default::default() });
    }

    /// The attacker's socket of its connection number `n`.
    pub fn socket(&self, n: usize) -> Option<SocketId> {
        self.tcp.iter().filter(|tcp| tcp.peer == ATTACKER).nth(n)?.ends[1]
    }

    pub fn attacker_writes(&mut self, n: usize, bytes: &[u8]) {
        let Some(socket) = self.socket(n) else { return };
        let now = self.now;
        self.hosts[ATTACKER].with(now, |engine, ctx| {
            let _ = engine.send(socket, bytes, ctx);
            engine.flush(ctx);
        });
    }

    pub fn victim_socket(&self) -> Option<SocketId> {
        self.tcp.first()?.ends[1]
    }

    /// The victim writes its mark.
    pub fn victim_writes(&mut self, len: usize) {
        let Some(socket) = self.victim_socket() else { return };
        let (mark, now, from) = (leak::mark(Owner::Victim), self.now, self.victim.0);
        let bytes: Vec<u8> =
            (from..from + len as u64).map(|n| mark[n as usize % mark.len()]).collect();
        let sent = self.hosts[VICTIM].with(now, |engine, ctx| {
            let sent = engine.send(socket, &bytes, ctx);
            engine.flush(ctx);
            sent
        });
        self.victim.0 += sent.unwrap_or(0) as u64;
    }

    /// The victim reads, and checks that it reads its own data.
    pub fn victim_reads(&mut self) {
        let Some(socket) = self.victim_socket() else { return };
        let mut bytes = [0; PIECE];
        loop {
            match self.hosts[VICTIM].engine.recv(socket, &mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    let mark = leak::mark(Owner::Victim);
                    for &byte in &bytes[..count] {
                        let right = mark[self.victim.1 as usize % mark.len()];
                        assert_eq!(byte, right, "the victim reads foreign data");
                        self.victim.1 += 1;
                    }
                    assert!(self.victim.1 <= self.victim.0, "the victim reads more than it wrote");
                }
                Err(error) => panic!("the victim's connection has ended: {error:?}"),
            }
        }
    }

    /// Collects the CLC bytes that sockets send. Returns whether there were any.
    pub fn collect_clc(&mut self) -> bool {
        let mut moved = false;
        for tcp in &mut self.tcp {
            for side in 0..2 {
                let Some(socket) = tcp.ends[side] else { continue };
                let host = [GATEWAY, tcp.peer][side];
                let mut buffer = [0; 256];
                loop {
                    let count = self.hosts[host].engine.poll_clc_bytes(socket, &mut buffer);
                    if count == 0 {
                        break;
                    }
                    if host == GATEWAY && tcp.peer == ATTACKER {
                        no_leak(&buffer[..count]);
                    }
                    tcp.bytes[1 - side].extend(&buffer[..count]);
                    moved = true;
                }
            }
        }
        moved
    }

    pub fn carry_clc(&mut self) -> bool {
        let mut moved = self.collect_clc();
        let now = self.now;
        for tcp in &mut self.tcp {
            for side in 0..2 {
                let Some(socket) = tcp.ends[side] else { continue };
                let host = &mut self.hosts[[GATEWAY, tcp.peer][side]];
                let bytes = &mut tcp.bytes[side];
                if bytes.is_empty() {
                    continue;
                }
                let taken = host.with(now, |engine, ctx| {
                    engine.handle_clc_bytes(socket, bytes, ctx, &mut Known)
                });
                bytes.drain(..taken);
                moved |= taken > 0;
            }
        }
        moved
    }

    /// Polls all hosts until they are idle, and puts their packets in flight.
    pub fn work(&mut self) {
        let now = self.now;
        for _ in 0..20 {
            let moved = self.carry_clc();
            self.hosts.iter_mut().for_each(|host| host.work(now));
            self.serve();
            for host in &mut self.hosts {
                host.with(now, |engine, ctx| {
                    while engine.poll_event().is_some() {}
                    engine.flush(ctx);
                });
            }
            if !moved {
                break;
            }
        }
        for (from, host) in self.hosts.iter_mut().enumerate() {
            for port in 0..PORTS {
                while host.roce.poll_transmit(port, now, &mut host.tx) {
                    let frame = netsim::bytes(&host.tx.packet());
                    let to = (0..HOSTS).find(|&to| frame[..6] == mac(to, port));
                    let Some(to) = to else { continue };
                    if from == GATEWAY && to == ATTACKER {
                        no_leak(&frame);
                    }
                    let flight = Flight { from, to, port, frame };
                    if flight.from != ATTACKER && flight.to != ATTACKER {
                        self.victims.push_back(flight);
                    } else if self.wire.len() < WIRE {
                        self.wire.push_back(flight);
                    }
                }
            }
        }
    }

    /// The gateway's users echo the data that they read. The attacker discards received data.
    pub fn serve(&mut self) {
        let (now, forwards) = (self.now, self.forwards);
        for tcp in &self.tcp {
            if let Some(socket) = tcp.ends[0] {
                self.hosts[GATEWAY].with(now, |engine, ctx| {
                    if forwards {
                        let _ = match socket.token() % 2 {
                            0 => engine.forward(socket, socket, ctx),
                            _ => engine.turn_back(socket, ctx),
                        };
                        return;
                    }
                    let room = engine.room(socket).min(PIECE);
                    let mut bytes = [0; PIECE];
                    if let Ok(count) = engine.recv(socket, &mut bytes[..room]) {
                        let sent = engine.send(socket, &bytes[..count], ctx);
                        assert!(sent.is_err() || sent == Ok(count), "there was room");
                    }
                });
            }
            if let (ATTACKER, Some(socket)) = (tcp.peer, tcp.ends[1]) {
                let mut bytes = [0; PIECE];
                let _ = self.hosts[ATTACKER].engine.recv(socket, &mut bytes);
            }
        }
        self.victim_reads();
    }

    /// Delivers the next packet. With an input, it is the attacker's next packet, changed.
    pub fn carry(&mut self, changes: Option<&mut Input<'_>>) {
        self.work();
        let at = changes
            .as_ref()
            .and_then(|_| self.wire.iter().position(|flight| flight.from == ATTACKER));
        let next = self.wire.remove(at.unwrap_or(0)).or_else(|| self.victims.pop_front());
        let Some(mut flight) = next else { return };
        if let (Some(input), ATTACKER) = (changes, flight.from) {
            self.change(&mut flight.frame, input);
            if leak::in_part(&flight.frame) {
                return;
            }
        }
        self.deliver(&flight);
    }

    /// Delivers a packet after the latency. Without latency an engine would not count a packet as the answer to a
    /// request that it sent at the same time.
    pub fn deliver(&mut self, flight: &Flight) {
        self.now = self.now + LATENCY;
        self.learn(&flight.frame);
        let now = self.now;
        let _ = self.hosts[flight.to].roce.handle_frame(flight.port, &flight.frame, now);
        self.work();
    }

    /// Delivers all packets between gateway and victim.
    pub fn carry_victims(&mut self) {
        for _ in 0..MOST {
            let Some(flight) = self.victims.pop_front() else { return };
            self.deliver(&flight);
        }
        panic!("gateway and victim never become idle");
    }

    /// Delivers packets until none is in flight.
    pub fn settle(&mut self) {
        self.work();
        for _ in 0..300 {
            let next = self.wire.pop_front().or_else(|| self.victims.pop_front());
            let Some(flight) = next else { break };
            self.deliver(&flight);
        }
    }

    /// Checks that the victim's connection works, then ends all connections and checks that all memory is free.
    pub fn end(&mut self) {
        for _ in 0..4 {
            self.settle();
            self.carry_victims();
            self.now = self.now + Duration::from_millis(300);
        }
        self.victim_writes(64);
        for _ in 0..40 {
            self.settle();
            self.carry_victims();
            self.now = self.now + Duration::from_millis(50);
        }
        let (wrote, read) = self.victim;
        assert_eq!(wrote, read, "the victim did not read back its own bytes");

        let now = self.now;
        for tcp in &self.tcp {
            if let Some(socket) = tcp.ends[0] {
                self.hosts[GATEWAY].with(now, |engine, ctx| engine.abort(socket, ctx));
            }
        }
        self.tcp.clear();
        let mut rounds = 0;
        while let Some(next) = self.hosts[GATEWAY].timeout() {
            self.now = self.now.max(next);
            let (now, host) = (self.now, &mut self.hosts[GATEWAY]);
            host.work(now);
            host.with(now, |engine, ctx| engine.flush(ctx));
            for port in 0..PORTS {
                while host.roce.poll_transmit(port, now, &mut host.tx) {}
            }
            rounds += 1;
            assert!(rounds < 5000, "timers never expire");
        }
        let gateway = &self.hosts[GATEWAY];
        assert_eq!(gateway.engine.sockets().count(), 0, "sockets are left");
        assert_eq!(gateway.engine.groups().count(), 0, "link groups are left");
        assert_eq!(gateway.roce.queue_pairs(), 0, "queue pairs are left");
        let free = gateway.arena.available() as u64 + gateway.engine.kept(&gateway.roce);
        assert_eq!(free, self.free, "memory is left");
    }
}

/// Panics if data for the attacker contains a mark.
fn no_leak(bytes: &[u8]) {
    if let Some((owner, at)) = leak::find(bytes) {
        panic!("the attacker gets bytes of {owner:?} at {at}: {:02x?}", bytes);
    }
}
