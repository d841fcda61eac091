//! The messaging gateway, SMC-R over RoCE, with a peer that lies: CLC over TCP, then LLC, CDC and WRITEs on the
//! links. The attacker's engine and queue pairs are honest ones, so that handshakes get somewhere and every
//! packet has the PSN and the ICRC that it needs; what they say is changed on its way, or replaced, as the
//! input has it. Each user of the gateway sends back what it reads. A second peer, whom the attacker knows
//! nothing of, does so too.
//!
//! What must hold: nothing panics; no packet and no CLC byte for the attacker has bytes of others ([`leak`]);
//! the other peer reads what it wrote and nothing else; and when everybody is gone, all memory is back.

use crate::engine;
use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use fabric::Rng;
use net::Resolution;
use rdma::roce::wire::bth;
use rdma::roce::wire::frame::{ETHERNET_LEN, Frame};
use rdma::roce::{Limits, PortConfig, Roce, TxBuffer};
use rdma::rtrs::Context;
use rdma::services::Neighbours;
use rdma::smcr::engine::{Config, Device, Engine, Role, SocketId, Subnet};
use rdma::smcr::wire::cdc::{Cdc, Cursor, End, Producer};
use rdma::smcr::wire::llc::{
    AddLink, AddLinkV2, Body, DeleteReason, KeyMove, LinkEnd, Llc, Order, Token,
};
use rdma::smcr::wire::{AcceptConfirm, Eid, cdc};
use rdma::verbs::{PathMtu, Provider};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const GATEWAY: usize = 0;
const ATTACKER: usize = 1;
const VICTIM: usize = 2;
const HOSTS: usize = 3;
/// Ports of each host; the second one carries second links.
const PORTS: usize = 2;
/// Memory of each host's arena.
const ARENA: usize = 512 << 10;
const EVENTS: usize = 250;
/// Most TCP connections of the attacker in an input.
const CONNECTIONS: usize = 8;
/// What a user of the gateway moves at a time.
const PIECE: usize = 4096;

const LIMITS: Limits = Limits {
    qps: 24,
    cqs: 4,
    pds: 8,
    regions: 64,
    keys: 128,
    wr: 128,
    connections: 4,
    connections_per_host: 4,
    half_open: 4,
    unacknowledged: 4,
};

struct Host {
    roce: Roce,
    tx: TxBuffer,
    arena: Arena,
    engine: Engine,
    rng: Rng,
}

/// A TCP connection between the gateway and a peer: both sockets, and the bytes on their way to each.
struct Tcp {
    peer: usize,
    ends: [Option<SocketId>; 2],
    bytes: [Vec<u8>; 2],
}

/// A packet on its way.
struct Flight {
    from: usize,
    to: usize,
    port: usize,
    frame: Vec<u8>,
}

struct World {
    hosts: Vec<Host>,
    tcp: Vec<Tcp>,
    wire: VecDeque<Flight>,
    now: Instant,
    /// Users of the gateway hand bytes on where they lie, and do not copy them out and in.
    forwards: bool,
    /// The gateway is the client of the attacker's connections.
    calls: bool,
    /// Keys and places that were seen on the wire.
    seen: VecDeque<Token>,
    /// Bytes that the victim has written and read.
    victim: (u64, u64),
    victim_lost: bool,
    /// Memory of the gateway that was free at first.
    free: u64,
}

fn mac(host: usize, port: usize) -> [u8; 6] {
    [2, 0, 0, 0, port as u8, 1 + host as u8]
}

fn ip(host: usize, port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port as u8, 1 + host as u8)
}

/// Everybody knows everybody.
struct Known;

impl Neighbours for Known {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }
    fn resolve(&mut self, remote: IpAddr, _: Instant) -> Resolution {
        let mut places = (0..HOSTS).flat_map(|host| (0..PORTS).map(move |port| (host, port)));
        match places.find(|&(host, port)| IpAddr::V4(ip(host, port)) == remote) {
            Some((host, port)) => Resolution::Known(mac(host, port)),
            None => Resolution::NoRoute,
        }
    }
}

impl Host {
    /// `ports` of its two are the engine's; `version` 1 is spoken alone, or else 2.
    fn new(host: usize, memory: Window, ports: usize, version: u8, rng: &mut Rng) -> Self {
        let mut rng = rng.fork();
        let addresses = |port| vec![ip(host, port).into(), net::link_local(mac(host, port)).into()];
        let port =
            |port| PortConfig { mac: mac(host, port), addresses: addresses(port), mtu: 1500 };
        let mut roce = Roce::new(port(0), LIMITS, &mut rng);
        for n in 1..PORTS {
            roce.add_port(port(n));
        }
        for other in (0..HOSTS).filter(|&other| other != host) {
            for n in 0..PORTS {
                roce.learn_neighbour(ip(other, n).into(), mac(other, n));
                roce.learn_neighbour(net::link_local(mac(other, n)).into(), mac(other, n));
            }
        }
        let eid = Eid::new("LAB.SMC.EID").expect("a name");
        let config = Config {
            eids: if version == 1 { Vec::new() } else { vec![eid] },
            rmb_size: 0,
            send_buffer: 4096,
            spare_buffers: 2,
            max_sockets: 12,
            max_groups: 4,
            max_links: ports as u8,
            completions: 512,
            ..Config::default()
        };
        let device = |n| Device {
            ip: ip(host, n),
            address: ip(host, n).into(),
            mac: mac(host, n),
            path_mtu: PathMtu::Mtu1024,
            pnet: "LAB".parse().ok(),
        };
        let devices = (0..ports).map(device).collect();
        let mut arena = Arena::new(memory);
        let now = Instant::from_nanos(1);
        let mut ctx = Context { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let mut engine = Engine::new(config, devices, &mut ctx).expect("a sound configuration");
        if version == 1 {
            let subnet = |n| Subnet::new(ip(host, n), ip(host, n).into(), 24);
            engine.set_subnets((0..PORTS).map(subnet).collect());
        }
        Host { roce, tx: TxBuffer::new(), arena, engine, rng }
    }

    fn with<R>(
        &mut self,
        now: Instant,
        f: impl FnOnce(&mut Engine, &mut Context<'_, Roce>) -> R,
    ) -> R {
        let Host { roce, arena, engine, rng, .. } = self;
        f(engine, &mut Context { provider: roce, arena, now, rng })
    }

    fn timeout(&self) -> Option<Instant> {
        Instant::first([self.roce.poll_timeout(), self.engine.poll_timeout()])
    }

    fn work(&mut self, now: Instant) {
        if self.timeout().is_some_and(|at| at <= now) {
            self.roce.handle_timeout(now);
            self.with(now, |engine, ctx| engine.handle_timeout(ctx, &mut Known));
        }
        self.with(now, |engine, ctx| {
            while engine.poll(ctx) > 0 {}
            while engine.poll_notice().is_some() {}
        });
    }
}

/// Takes a list of events.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.byte();
    fabric::with_memory(HOSTS * ARENA, |memory| {
        let mut world = World::new(memory, how);
        world.greet();
        for _ in 0..EVENTS {
            if input.is_empty() {
                break;
            }
            world.event(&mut input);
        }
        world.end();
    });
}

impl World {
    fn new(memory: Window, how: u8) -> Self {
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
            now: Instant::from_nanos(1),
            forwards: how & 8 == 0,
            calls: how & 1 == 1,
            seen: VecDeque::new(),
            victim: (0, 0),
            victim_lost: false,
            free,
        }
    }

    /// What honest peers do first: both have a connection, and have used it.
    fn greet(&mut self) {
        self.connect(VICTIM, false);
        self.settle();
        self.victim_speaks(100);
        self.settle();
        self.connect(ATTACKER, self.calls);
        self.settle();
        self.speak(0, &[0x21; 300]);
        self.settle();
    }

    /// A TCP connection with a peer, which the gateway opens if it `calls`.
    fn connect(&mut self, peer: usize, calls: bool) {
        let now = self.now;
        let ends = [GATEWAY, peer].map(|host| {
            let other = if host == GATEWAY { peer } else { GATEWAY };
            let role = if (host == GATEWAY) == calls { Role::Client } else { Role::Server };
            let addresses = [host, other].map(|host| IpAddr::V4(ip(host, 0)));
            self.hosts[host].with(now, |engine, ctx| engine.open(role, addresses, 0, ctx))
        });
        self.tcp.push(Tcp { peer, ends, bytes: Default::default() });
    }

    /// The attacker's socket of his connection with this number.
    fn socket(&self, n: usize) -> Option<SocketId> {
        self.tcp.iter().filter(|tcp| tcp.peer == ATTACKER).nth(n)?.ends[1]
    }

    fn speak(&mut self, n: usize, bytes: &[u8]) {
        let Some(socket) = self.socket(n) else { return };
        let now = self.now;
        self.hosts[ATTACKER].with(now, |engine, ctx| {
            let _ = engine.send(socket, bytes, ctx);
            engine.flush(ctx);
        });
    }

    fn victim_socket(&self) -> Option<SocketId> {
        self.tcp.first()?.ends[1]
    }

    /// The victim writes bytes of its own.
    fn victim_speaks(&mut self, len: usize) {
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

    /// What comes back to the victim is what it wrote.
    fn victim_reads(&mut self) {
        let Some(socket) = self.victim_socket() else { return };
        let mut bytes = [0; PIECE];
        loop {
            match self.hosts[VICTIM].engine.recv(socket, &mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    let mark = leak::mark(Owner::Victim);
                    for &byte in &bytes[..count] {
                        let right = mark[self.victim.1 as usize % mark.len()];
                        assert_eq!(byte, right, "the victim reads what it did not write");
                        self.victim.1 += 1;
                    }
                    assert!(self.victim.1 <= self.victim.0, "more than the victim wrote");
                }
                // Who is lost reads nothing wrong.
                Err(_) => {
                    self.victim_lost = true;
                    return;
                }
            }
        }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.byte() % 14 {
            0..=3 => self.carry(Some(input)),
            4 => (0..=input.byte() % 32).for_each(|_| self.carry(None)),
            5 => {
                if let Some(at) = self.attackers() {
                    self.wire.remove(at);
                }
            }
            6 => {
                let flight = self.attackers().and_then(|at| self.wire.get(at));
                if let Some(Flight { from, to, port, frame }) = flight {
                    let again = Flight { from: *from, to: *to, port: *port, frame: frame.clone() };
                    self.wire.push_back(again);
                }
            }
            7 => {
                // The victim's network loses nothing, and is faster than any timer.
                self.carry_victims();
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 36));
                self.work();
                self.carry_victims();
            }
            8 => {
                let n = input.below(CONNECTIONS);
                let len = usize::from(input.word()) % 2048;
                self.speak(n, &vec![input.byte() & 0x7f; len]);
            }
            9 => {
                if self.tcp.len() <= CONNECTIONS {
                    self.connect(ATTACKER, input.byte() & 1 == 1);
                }
            }
            10 => self.part(input),
            11 => self.lie_in_clc(input),
            12 => {
                self.victim_speaks(usize::from(input.byte()) * 4);
                self.victim_reads();
            }
            _ => self.settle(),
        }
    }

    /// Somebody ends a connection with the attacker, in one of the ways that there are.
    fn part(&mut self, input: &mut Input<'_>) {
        let n = input.below(CONNECTIONS);
        let how = input.byte();
        let Some(tcp) = self.tcp.iter().filter(|tcp| tcp.peer == ATTACKER).nth(n) else { return };
        let side = usize::from(how >> 7);
        let Some(socket) = tcp.ends[side] else { return };
        let host = [GATEWAY, ATTACKER][side];
        let now = self.now;
        self.hosts[host].with(now, |engine, ctx| {
            match how % 4 {
                0 => engine.shutdown(socket, ctx),
                1 => engine.close(socket, ctx),
                2 => engine.abort(socket, ctx),
                _ => engine.handle_tcp_gone(socket, ctx),
            }
            engine.flush(ctx);
        });
    }

    /// What is on its way over TCP to the gateway is changed, cut or replaced.
    fn lie_in_clc(&mut self, input: &mut Input<'_>) {
        let n = input.below(CONNECTIONS);
        self.hear_clc();
        let Some(tcp) = self.tcp.iter_mut().filter(|tcp| tcp.peer == ATTACKER).nth(n) else {
            return;
        };
        let bytes = &mut tcp.bytes[0];
        match input.byte() % 8 {
            0 => bytes.truncate(usize::from(input.byte())),
            2..=4 => {
                if let Ok(mut said) = AcceptConfirm::parse(bytes) {
                    lie_in_confirm(&mut said, input);
                    *bytes = said.emit();
                }
            }
            1 => {
                let len = usize::from(input.byte());
                bytes.extend(input.take(len));
            }
            _ if bytes.is_empty() => {}
            _ => {
                for _ in 0..1 + input.byte() % 6 {
                    let at = usize::from(input.word()) % bytes.len();
                    bytes[at] = input.byte();
                }
            }
        }
        self.work();
    }

    /// Takes what sockets have to say over TCP.
    fn hear_clc(&mut self) -> bool {
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

    fn carry_clc(&mut self) -> bool {
        let mut moved = self.hear_clc();
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

    /// Everybody does what there is to do, and what was said is under way.
    fn work(&mut self) {
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
                while self.wire.len() < 256 && host.roce.poll_transmit(port, now, &mut host.tx) {
                    let frame = fabric::bytes(&host.tx.packet());
                    if let Some(to) = (0..HOSTS).find(|&to| frame[..6] == mac(to, port)) {
                        if from == GATEWAY && to == ATTACKER {
                            no_leak(&frame);
                        }
                        self.wire.push_back(Flight { from, to, port, frame });
                    }
                }
            }
        }
    }

    /// The gateway's users send back what they read; the attacker takes what he is sent.
    fn serve(&mut self) {
        let (now, forwards) = (self.now, self.forwards);
        for tcp in &self.tcp {
            if let Some(socket) = tcp.ends[0] {
                self.hosts[GATEWAY].with(now, |engine, ctx| {
                    if forwards {
                        let _ = engine.forward(socket, socket, ctx);
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

    /// A packet arrives; the attacker's may have been changed.
    fn carry(&mut self, lie: Option<&mut Input<'_>>) {
        self.work();
        let at = lie.as_ref().and_then(|_| {
            // The next one of the attacker's.
            self.wire.iter().position(|flight| flight.from == ATTACKER)
        });
        let Some(mut flight) = self.wire.remove(at.unwrap_or(0)) else { return };
        if let (Some(input), ATTACKER) = (lie, flight.from) {
            self.lie(&mut flight.frame, input);
        }
        self.deliver(&flight);
    }

    fn deliver(&mut self, flight: &Flight) {
        self.learn(&flight.frame);
        let now = self.now;
        let _ = self.hosts[flight.to].roce.handle_frame(flight.port, &flight.frame, now);
        self.work();
    }

    /// Place of the next packet from the attacker or to him.
    fn attackers(&self) -> Option<usize> {
        self.wire.iter().position(|flight| flight.from == ATTACKER || flight.to == ATTACKER)
    }

    /// Everything arrives that is on its way between gateway and victim.
    fn carry_victims(&mut self) {
        for _ in 0..200 {
            let is_victims = |flight: &Flight| flight.from == VICTIM || flight.to == VICTIM;
            let Some(at) = self.wire.iter().position(is_victims) else { break };
            if let Some(flight) = self.wire.remove(at) {
                self.deliver(&flight);
            }
        }
    }

    /// Keeps keys and places that the attacker has seen.
    fn learn(&mut self, frame: &[u8]) {
        let Some(at) = transport(frame) else { return };
        let Some(extended) = frame.get(at + bth::LEN..at + bth::LEN + 12) else { return };
        if matches!(frame[at], WRITE_FIRST | WRITE_ONLY) {
            let (address, rkey) = extended.split_at(8);
            let token = Token {
                rkey: u32::from_be_bytes(rkey.try_into().expect("4 bytes")),
                address: u64::from_be_bytes(address.try_into().expect("8 bytes")),
            };
            if !self.seen.contains(&token) {
                self.seen.push_back(token);
                if self.seen.len() > 16 {
                    self.seen.pop_front();
                }
            }
        }
    }

    /// Changes what a packet of the attacker's says.
    fn lie(&mut self, frame: &mut Vec<u8>, input: &mut Input<'_>) {
        let Some(at) = transport(frame) else { return };
        let body = at + bth::LEN;
        let what = input.byte();
        match frame[at] {
            SEND_ONLY if what % 8 < 3 && frame.get(body) == Some(&cdc::TYPE) => {
                let Some(message) = frame[body..].first_chunk_mut() else { return };
                let Some(mut said) = Cdc::parse(message) else { return };
                for _ in 0..1 + what / 128 {
                    lie_in_cdc(&mut said, input);
                }
                *message = said.emit();
            }
            SEND_ONLY if what % 8 < 6 => {
                let message = match what % 8 {
                    3 | 4 => self.llc(input).emit(),
                    5 => {
                        let len = usize::from(input.word()) % 1000;
                        input.take(len).to_vec()
                    }
                    _ => {
                        let mut message = input.take(cdc::LEN).to_vec();
                        message.resize(cdc::LEN, 0);
                        message
                    }
                };
                replace(frame, at, &message);
            }
            WRITE_FIRST | WRITE_ONLY if what % 4 < 3 => {
                let seen = self.seen.get(input.below(self.seen.len())).copied();
                let Some(header) = frame.get_mut(body..body + 16) else { return };
                let field = header.first_chunk_mut::<8>().expect("8 bytes");
                let address = match (what >> 4 & 1, seen) {
                    (1, Some(token)) => token.address,
                    _ => u64::from_be_bytes(*field),
                };
                let by = i64::from(input.word() as i16);
                *field = address.wrapping_add_signed(by).to_be_bytes();
                match (what % 4, seen) {
                    (1, Some(token)) => header[8..12].copy_from_slice(&token.rkey.to_be_bytes()),
                    (2, _) => header[12 + input.below(4)] = input.byte(),
                    _ => {}
                }
            }
            _ => {
                for _ in 0..1 + what % 4 {
                    let at = at + usize::from(input.word()) % (frame.len() - at);
                    frame[at] = input.byte();
                }
            }
        }
        engine::seal(frame);
    }

    /// An LLC message of any kind, with numbers that have been seen.
    fn llc(&self, input: &mut Input<'_>) -> Llc {
        let kind = input.byte();
        let token = |input: &mut Input<'_>| {
            let token = self.seen.get(input.below(self.seen.len().max(1))).copied();
            let token = token.unwrap_or(Token { rkey: 0x1234, address: 4096 });
            match input.byte() {
                below @ 240.. => Token { address: u64::MAX - u64::from(below), ..token },
                change @ 200.. => Token { rkey: token.rkey ^ u32::from(change), ..token },
                _ => token,
            }
        };
        let end = |input: &mut Input<'_>| {
            let (host, port) = (input.below(HOSTS), input.below(PORTS));
            LinkEnd {
                mac: mac(host, port),
                gid: ip(host, port).to_ipv6_mapped(),
                qpn: u32::from(input.byte()),
            }
        };
        let link = input.byte() % 4;
        let body = match kind % 8 {
            0 => Body::ConfirmLink {
                end: end(input),
                link,
                uid: u32::from(input.byte()),
                max_links: input.byte() % 4,
                max_conns: input.byte(),
                no_eyecatcher: true,
            },
            1 => {
                let end = end(input);
                let rejected = (input.byte() > 200).then_some(5);
                let (path_mtu, psn) = (input.byte() % 8, u32::from(input.word()));
                let keys = (0..input.byte() % 20)
                    .map(|_| KeyMove { known: token(input).rkey, token: token(input) })
                    .collect();
                let target = ip(GATEWAY, input.below(PORTS)).to_ipv6_mapped();
                let v2 = (kind & 64 == 0).then_some(AddLinkV2 { direct: true, target, keys });
                Body::AddLink(AddLink { end, link, path_mtu, psn, rejected, v2 })
            }
            2 => Body::AddLinkContinue {
                link,
                left: input.byte(),
                keys: (0..2)
                    .map(|_| KeyMove { known: token(input).rkey, token: token(input) })
                    .collect(),
            },
            3 => Body::DeleteLink {
                link,
                all: input.byte() & 1 == 0,
                orderly: input.byte() & 1 == 0,
                reason: DeleteReason(u32::from(input.byte()) << 16),
            },
            4 => Body::RequestAddLink {
                gids: (0..input.byte() % 9)
                    .map(|n| ip(ATTACKER, usize::from(n) % PORTS).to_ipv6_mapped())
                    .collect(),
            },
            5 => Body::ConfirmKey {
                token: token(input),
                others: (0..input.byte() % 3).map(|_| (link, token(input))).collect(),
                negative: input.byte() > 200,
                retry: input.byte() > 200,
            },
            6 => Body::DeleteKey {
                keys: (0..input.byte() % 9).map(|_| token(input).rkey).collect(),
                unknown: input.byte(),
                negative: input.byte() > 200,
            },
            _ => Body::TestLink { data: [input.byte(); 16] },
        };
        let version = if kind & 32 == 0 { 2 } else { 1 };
        let order = if kind & 16 == 0 { Order::Big } else { Order::Little };
        Llc { version, response: kind & 128 != 0, order, body }
    }

    /// Until nothing is under way any more.
    fn settle(&mut self) {
        self.work();
        for _ in 0..300 {
            let Some(flight) = self.wire.pop_front() else { break };
            self.deliver(&flight);
        }
    }

    /// The victim's connection has come through; then everybody goes, and all memory comes back.
    fn end(&mut self) {
        for _ in 0..4 {
            self.settle();
            self.carry_victims();
            self.now = self.now + Duration::from_millis(300);
        }
        self.victim_speaks(64);
        for _ in 0..40 {
            self.settle();
            self.carry_victims();
            self.now = self.now + Duration::from_millis(50);
        }
        let (wrote, read) = self.victim;
        assert!(self.victim_lost || wrote == read, "the victim does not hear its own bytes");

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
            assert!(rounds < 5000, "timers never rest");
        }
        let gateway = &self.hosts[GATEWAY];
        assert_eq!(gateway.engine.sockets().count(), 0, "sockets are left");
        assert_eq!(gateway.engine.groups().count(), 0, "link groups are left");
        assert_eq!(gateway.roce.queue_pairs(), 0, "queue pairs are left");
        let free = gateway.arena.available() as u64 + gateway.engine.kept(&gateway.roce);
        assert_eq!(free, self.free, "memory is left");
    }
}

const SEND_ONLY: u8 = 4;
const WRITE_FIRST: u8 = 6;
const WRITE_ONLY: u8 = 10;

/// Where the base transport header begins.
fn transport(frame: &[u8]) -> Option<usize> {
    let parsed = Frame::parse(frame).ok()?;
    Some(ETHERNET_LEN + parsed.network.len()).filter(|at| at + bth::LEN + 4 <= frame.len())
}

/// Panics if the attacker is shown what is not his.
fn no_leak(bytes: &[u8]) {
    if let Some((owner, at)) = leak::find(bytes) {
        panic!("the attacker gets bytes of {owner:?} at {at}: {:02x?}", bytes);
    }
}

/// Gives a SEND another message. RoCEv1's keeps its length.
fn replace(frame: &mut Vec<u8>, at: usize, message: &[u8]) {
    let body = at + bth::LEN;
    if frame[12..14] != [8, 0] {
        let there = frame.len() - 4 - body;
        let len = there.min(message.len());
        frame[body..body + len].copy_from_slice(&message[..len]);
        return;
    }
    let pad = message.len().wrapping_neg() % 4;
    let mut header: [u8; bth::LEN] = frame[at..body].try_into().expect("its length");
    header[1] = header[1] & !0x30 | (pad as u8) << 4;
    let len = 8 + bth::LEN + message.len() + pad + 4;
    let udp = [&frame[34..38], &(len as u16).to_be_bytes(), &[0, 0]].concat();
    let [from, to] = [26, 30].map(|at| frame[at..at + 4].try_into().expect("4 bytes"));
    let whole = [&udp[..], &header, message, &[0; 8][..pad + 4]].concat();
    let mut changed = crate::ip::v4(17, from, to, &whole);
    changed[..12].copy_from_slice(&frame[..12]);
    // No checksum.
    changed[40..42].fill(0);
    *frame = changed;
}

fn lie_in_confirm(said: &mut AcceptConfirm, input: &mut Input<'_>) {
    match input.byte() % 10 {
        0 => said.first_contact = !said.first_contact,
        1 => said.peer_id.0[input.below(8)] = input.byte(),
        2 => said.gid = ip(input.below(HOSTS), input.below(PORTS)).to_ipv6_mapped(),
        3 => said.mac[input.below(6)] = input.byte(),
        4 => said.qpn = said.qpn.wrapping_add_signed(i32::from(input.byte() as i8)),
        5 => said.rkey ^= 1 << (input.byte() % 32),
        6 => said.rmbe_index = input.byte(),
        7 => said.token = said.token.wrapping_add_signed(i32::from(input.byte() as i8)),
        8 => (said.rmbe_size, said.path_mtu) = (input.byte() % 16, input.byte() % 16),
        _ => said.address = u64::MAX.rotate_left(input.byte().into()) - u64::from(input.word()),
    }
}

fn lie_in_cdc(said: &mut Cdc, input: &mut Input<'_>) {
    let move_cursor = |cursor: &mut Cursor, input: &mut Input<'_>| match input.byte() % 4 {
        0 => cursor.count = cursor.count.wrapping_add_signed(i32::from(input.byte() as i8)),
        1 => cursor.count = u32::from(input.word()),
        2 => cursor.wrap = cursor.wrap.wrapping_add_signed(i16::from(input.byte() as i8)),
        _ => cursor.count = cursor.count.wrapping_add(u32::from(input.word())),
    };
    match input.byte() % 8 {
        0..=2 => move_cursor(&mut said.produced, input),
        3 => move_cursor(&mut said.consumed, input),
        4 => said.producer = Producer::from_bits_truncate(input.byte()),
        5 => said.end = End::from_bits_truncate(input.byte()),
        6 => said.seqno = said.seqno.wrapping_add_signed(i16::from(input.byte() as i8)),
        _ => said.token = said.token.wrapping_add_signed(i32::from(input.byte() as i8)),
    }
}

/// Lists of events that get far, in every way in which a world can be set up.
pub fn corpus() -> Vec<Vec<u8>> {
    let talk = [8, 0, 1, 0, 0x33, 4, 20];
    let cursor = |kind: u8| [8, 0, 0, 200, 0x44, 4, 1, 0, 0, kind, 0, 50, 13];
    let llc = |kind: u8| [8, 0, 0, 10, 0x11, 4, 1, 0, 3, kind, 1, 0, 0, 0, 0, 0, 13];
    let another = [9, 0, 11, 1, 7, 1, 0, 20, 9, 13, 8, 1, 0, 50, 0x55, 13];
    let confirm = |kind: u8| [9, 0, 4, 5, 11, 1, 2, kind, 1, 1, 1, 13, 8, 1, 0, 50, 0x55, 13];
    let end = [10, 0, 1, 13, 9, 1, 13, 10, 1, 0x82, 13];
    let mut lists = Vec::new();
    for how in 0..16u8 {
        let lie = cursor(how % 8);
        lists.push([&[how][..], &talk, &lie, &llc(how % 8), &talk].concat());
        lists.push([&[how][..], &talk, &another, &[12, 50], &end, &llc(128 | how % 8)].concat());
        lists.push([&[how][..], &confirm(how % 10), &talk].concat());
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an honest peer does works, so that the attacker starts from connections that stand.
    #[test]
    fn both_peers_have_a_connection_and_hear_their_own_bytes() {
        for how in 0..16 {
            fabric::with_memory(HOSTS * ARENA, |memory| {
                let mut world = World::new(memory, how);
                world.greet();
                let links = if how & 4 == 0 { 1 } else { 2 };
                let groups: Vec<_> = world.hosts[GATEWAY].engine.groups().collect();
                assert_eq!(groups.len(), 2, "how {how}");
                assert!(groups.iter().all(|group| group.links == links), "how {how}: {groups:?}");
                assert_eq!(world.victim, (100, 100), "how {how}");
                let socket = world.socket(0).expect("it is open");
                let attacker = &world.hosts[ATTACKER].engine;
                let status = attacker.socket_status(socket).expect("it is there");
                assert_eq!(status.bytes, (300, 300), "how {how}");
                world.end();
            });
        }
    }
}
