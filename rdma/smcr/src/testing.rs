//! Test world: two engines over two software RoCE providers with a simulated network between them, and lossless TCP
//! connections, in virtual time.

mod by_hand;
mod cards;

pub use cards::{Cards, Kind};

use crate::engine::{Config, Device, Engine, Ready, Role, SocketId, Subnet};
use crate::wire::{Decline, Eid, Os, PeerId, Reason, frame_length};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use net::Neighbours;
use net::Resolution;
use netsim::{Network, Node, Rng};
use roce::testing::frame;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use std::collections::HashMap;
use std::vec;
use std::vec::Vec;
use verbs::{Ctx, PathMtu, Provider};

/// A neighbour table that resolves an address at the second request.
#[derive(Debug, Default)]
pub struct TestNeighbours {
    pub asked: u32,
    pub none: bool,
    /// No neighbour answers.
    pub silent: bool,
}

impl Neighbours for TestNeighbours {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }
    fn resolve(&mut self, remote: IpAddr, _: Instant) -> Resolution {
        self.asked += 1;
        let places = (0..2).flat_map(|n| [(n, 0), (n, 1)]);
        let known = places.into_iter().find(|&(n, port)| ip(n, port) == remote);
        match (self.asked, known) {
            _ if self.none => Resolution::NoRoute,
            _ if self.silent => Resolution::Pending,
            (_, None) => Resolution::NoRoute,
            (1, _) => Resolution::Pending,
            (_, Some((n, port))) => Resolution::Known(mac(n, port)),
        }
    }
}

/// A TCP connection: the sockets at its ends, and the bytes under way to each.
#[derive(Debug, Default)]
pub struct Tcp {
    pub ends: [Option<SocketId>; 2],
    pub bytes: [Vec<u8>; 2],
    /// Fault injected into CLC messages to one host.
    pub valve: Option<Valve>,
}

/// Injects a fault into message number `at` to host `to`.
#[derive(Debug)]
pub struct Valve {
    pub to: usize,
    pub at: usize,
    pub what: Fate,
    /// Messages seen so far.
    pub seen: usize,
    /// Delayed messages, and when they are due.
    pub late: Vec<(Instant, Vec<u8>)>,
}

/// Fault of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The message and all following ones are lost.
    Lost,
    Late(Duration),
    /// A Decline replaces the message, without its sender's knowledge.
    Declined(Reason),
}

impl Valve {
    /// The bytes that arrive at `now` of `bytes`, which are complete messages.
    fn pass(&mut self, mut bytes: &[u8], now: Instant) -> Vec<u8> {
        let mut through = Vec::new();
        while let Ok(Some(length)) = frame_length(bytes) {
            let (message, rest) = bytes.split_at(length);
            bytes = rest;
            self.seen += 1;
            match self.what {
                _ if self.seen <= self.at => through.extend(message),
                Fate::Lost => {}
                Fate::Late(by) if self.seen == self.at + 1 => {
                    self.late.push((now + by, message.to_vec()));
                }
                Fate::Late(_) => through.extend(message),
                Fate::Declined(reason) if self.seen == self.at + 1 => {
                    let peer_id = PeerId([7; 8]);
                    let (version, os) = (2, Os::LINUX);
                    let decline = Decline { version, out_of_sync: false, peer_id, reason, os };
                    through.extend(decline.emit());
                }
                Fate::Declined(_) => {}
            }
        }
        let due = self.late.iter().filter(|(at, _)| *at <= now);
        through.extend(due.flat_map(|(_, message)| message));
        self.late.retain(|(at, _)| *at > now);
        through
    }
}

/// A host: provider and engine.
#[derive(Debug)]
pub struct Host {
    pub roce: Cards,
    /// Transmit buffers of its ports.
    tx: Vec<TxBuffer>,
    pub arena: Arena,
    pub engine: Engine,
    pub neighbours: TestNeighbours,
    rng: Rng,
    now: Instant,
    /// Events reported for each socket.
    pub events: HashMap<SocketId, Ready>,
}

impl Host {
    /// Creates host `n`; its engine uses `ports` of its ports.
    fn new(
        n: usize,
        seed: u64,
        config: Config,
        (ports, kind): (usize, Kind),
        now: Instant,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let limits = Limits { qps: 64, regions: 1024, ..Limits::default() };
        let addresses = |at| vec![ip(n, at), net::link_local(mac(n, at)).into()];
        let port = |at| PortConfig { mac: mac(n, at), addresses: addresses(at), mtu: 1500 };
        let mut roce = Roce::new(port(0), limits, &mut rng);
        for at in 1..PORTS {
            roce.add_port(port(at));
        }
        let mut roce = Cards::new(roce, kind, ip(n, 1));
        let mut arena = Arena::on_heap(24 << 20);
        let devices = (0..ports).map(|at| device(n, at)).collect();
        let mut ctx = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let engine = Engine::new(config, devices, &mut ctx).unwrap();
        let neighbours = TestNeighbours::default();
        let tx = (0..PORTS).map(|_| TxBuffer::new()).collect();
        Host { roce, tx, arena, engine, neighbours, rng, now, events: HashMap::new() }
    }

    fn ctx(&mut self) -> (&mut Engine, Ctx<'_, Cards>, &mut TestNeighbours) {
        let Host { roce, arena, engine, neighbours, rng, now, .. } = self;
        (engine, Ctx { provider: roce, arena, now: *now, rng }, neighbours)
    }
}

impl netsim::Node for Host {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        self.roce.handle_frame(port, frame, now);
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        let tx = &mut self.tx[port];
        self.roce.poll_transmit(port, now, tx).then(|| frame(tx))
    }
    fn poll_timeout(&self) -> Option<Instant> {
        [self.roce.poll_timeout(), self.engine.poll_timeout()].into_iter().flatten().min()
    }
    fn work(&mut self, now: Instant) {
        self.now = now;
        self.roce.handle_timeout(now);
        let (engine, mut ctx, neighbours) = self.ctx();
        engine.handle_timeout(&mut ctx, neighbours);
        while engine.poll(&mut ctx) > 0 {}
        while let Some((id, ready, _)) = self.engine.poll_event() {
            let ready = ready.difference(Ready::CLC);
            if !ready.is_empty() {
                *self.events.entry(id).or_default() |= ready;
            }
        }
        let (engine, mut ctx, _) = self.ctx();
        engine.flush(&mut ctx);
    }
}

/// Ports of a host.
pub const PORTS: usize = 2;

pub fn mac(n: usize, port: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, port as u8, 1 + n as u8]
}

pub fn ip(n: usize, port: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, port as u8, 1 + n as u8).into()
}

/// The address of the port with a GID of either version.
pub fn ip_of(gid: Ipv6Addr) -> IpAddr {
    let mut places = (0..2).flat_map(|n| [(n, 0), (n, 1)]);
    let found = places.find(|&(n, port)| net::link_local(mac(n, port)) == gid);
    found.map_or(gid.to_canonical(), |(n, port)| ip(n, port))
}

pub fn device(n: usize, port: usize) -> Device {
    let ip = Ipv4Addr::new(10, 0, port as u8, 1 + n as u8);
    let pnet = Some("LAB".parse().unwrap());
    Device { ip, address: ip.into(), mac: mac(n, port), path_mtu: PathMtu::Mtu1024, pnet }
}

/// The subnet of a port.
pub fn subnet(n: usize, port: usize, prefix: u8) -> Subnet {
    Subnet::new(device(n, port).ip, ip(n, port), prefix)
}

/// The test world. Host 0 is the server of all connections, unless a test opens them in the other direction.
#[derive(Debug)]
pub struct World {
    pub network: Network,
    pub hosts: [Host; 2],
    pub tcp: Vec<Tcp>,
    boots: u64,
    /// Hosts with version 1 enabled.
    v1: [bool; 2],
    /// Addresses of the TCP connections.
    pub addresses: [IpAddr; 2],
}

/// Default settings of the tests.
pub fn config() -> Config {
    let eids = std::vec![Eid::new("LAB.SMC.EID").unwrap()];
    Config { eids, rmb_size: 0, send_buffer: 16 << 10, ..Config::default() }
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, [config(), config()])
    }

    pub fn with(seed: u64, configs: [Config; 2]) -> Self {
        Self::with_ports(seed, configs, [1, 1])
    }

    /// A world whose engines use `ports`.
    pub fn with_ports(seed: u64, configs: [Config; 2], ports: [usize; 2]) -> Self {
        Self::of_kind(Kind::OneDevice, seed, configs, ports)
    }

    /// A world with devices of `kind`.
    fn of_kind(kind: Kind, seed: u64, configs: [Config; 2], ports: [usize; 2]) -> Self {
        let mut network = Network::new(seed);
        for n in 0..2 {
            network.add_node(&[mac(n, 0), mac(n, 1)]);
        }
        let now = network.now;
        let [first, second] = configs;
        let hosts = [
            Host::new(0, seed, first, (ports[0], kind), now),
            Host::new(1, seed + 1000, second, (ports[1], kind), now),
        ];
        World {
            network,
            hosts,
            tcp: Vec::new(),
            boots: 0,
            v1: [false; 2],
            addresses: [ip(0, 0), ip(1, 0)],
        }
    }

    /// A world with one version only.
    pub fn of_version(version: u8, seed: u64, configs: [Config; 2], ports: [usize; 2]) -> Self {
        Self::of_version_and_kind((version, Kind::OneDevice), seed, configs, ports)
    }

    /// A world with one version only, and devices of `kind`.
    pub fn of_version_and_kind(
        (version, kind): (u8, Kind),
        seed: u64,
        configs: [Config; 2],
        ports: [usize; 2],
    ) -> Self {
        if version > 1 {
            return Self::of_kind(kind, seed, configs, ports);
        }
        let configs = configs.map(|config| Config { eids: Vec::new(), ..config });
        let mut world = Self::of_kind(kind, seed, configs, ports);
        (0..2).for_each(|n| world.enable_v1(n));
        world
    }

    /// Enables version 1 at host `n`.
    pub fn enable_v1(&mut self, n: usize) {
        self.v1[n] = true;
        let subnets = (0..PORTS).map(|port| subnet(n, port, 24));
        self.hosts[n].engine.set_subnets(subnets.collect());
    }

    /// Host `n` loses all its state, as after a power cut.
    pub fn reboot(&mut self, n: usize) {
        self.boots += 1;
        let config = self.hosts[n].engine.config().clone();
        let ports = (self.hosts[n].engine.devices().len(), self.hosts[n].roce.kind());
        self.hosts[n] = Host::new(n, 7777 + self.boots, config, ports, self.network.now);
        if self.v1[n] {
            self.enable_v1(n);
        }
        for tcp in &mut self.tcp {
            tcp.ends[n] = None;
        }
    }

    /// Calls `f` with engine `n`.
    pub fn with_engine<R>(
        &mut self,
        n: usize,
        f: impl FnOnce(&mut Engine, &mut Ctx<'_, Cards>, &mut TestNeighbours) -> R,
    ) -> R {
        self.hosts[n].now = self.network.now;
        let (engine, mut ctx, neighbours) = self.hosts[n].ctx();
        f(engine, &mut ctx, neighbours)
    }

    /// Opens a TCP connection from `client` to the other node, and both sockets.
    pub fn connect_from(&mut self, client: usize) -> usize {
        let mut tcp = Tcp::default();
        for n in 0..2 {
            let role = if n == client { Role::Client } else { Role::Server };
            let (local, remote) = (self.addresses[n], self.addresses[1 - n]);
            tcp.ends[n] =
                self.with_engine(n, |engine, ctx, _| engine.open(role, [local, remote], 0, ctx));
        }
        self.tcp.push(tcp);
        self.tcp.len() - 1
    }

    /// Establishes a connection from host 1 to host 0. Returns its sockets, by host.
    pub fn established(&mut self) -> [SocketId; 2] {
        let at = self.connect_from(1);
        let ids = self.tcp[at].ends.map(Option::unwrap);
        self.run(Duration::from_secs(10), |w| {
            (0..2).all(|n| w.has_event(n, ids[n], Ready::ESTABLISHED))
        });
        for (n, &id) in ids.iter().enumerate() {
            let engine = &mut self.hosts[n].engine;
            let why = (n, engine.fallback(id), engine.poll_notice());
            assert!(self.has_event(n, id, Ready::ESTABLISHED), "{why:?}");
        }
        ids
    }

    pub fn has_event(&self, n: usize, id: SocketId, what: Ready) -> bool {
        self.hosts[n].events.get(&id).is_some_and(|events| events.contains(what))
    }

    /// Clears the reported events.
    pub fn clear_events(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.events.clear());
    }

    /// Stops or resumes delivery of all frames.
    pub fn mute(&mut self, mute: bool) {
        self.network.mute(0, mute);
        self.network.mute(1, mute);
    }

    /// Lets both hosts work and TCP carry its bytes, without time passing.
    pub fn round(&mut self) {
        let now = self.network.now;
        loop {
            let moved = self.carry_tcp();
            for host in &mut self.hosts {
                host.work(now);
            }
            if !moved {
                return;
            }
        }
    }

    fn carry_tcp(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.tcp.len() {
            for n in 0..2 {
                let Some(id) = self.tcp[at].ends[n] else { continue };
                let mut buffer = [0; 100];
                let mut sent = Vec::new();
                loop {
                    let count = self.hosts[n].engine.poll_clc_bytes(id, &mut buffer);
                    if count == 0 {
                        break;
                    }
                    sent.extend_from_slice(&buffer[..count]);
                    moved = true;
                }
                let now = self.network.now;
                let Tcp { bytes, valve, .. } = &mut self.tcp[at];
                match valve.as_mut().filter(|valve| valve.to == 1 - n) {
                    Some(valve) => {
                        let through = valve.pass(&sent, now);
                        moved |= !through.is_empty();
                        bytes[1 - n].extend(through);
                    }
                    None => bytes[1 - n].extend(sent),
                }
                let bytes = core::mem::take(&mut self.tcp[at].bytes[n]);
                let taken = self.with_engine(n, |engine, ctx, neighbours| {
                    engine.handle_clc_bytes(id, &bytes, ctx, neighbours)
                });
                self.tcp[at].bytes[n] = bytes[taken..].to_vec();
                moved |= taken > 0;
            }
        }
        moved
    }

    /// A round, then time passes to the next event, at most to `limit`.
    pub fn step(&mut self, limit: Instant) {
        self.round();
        let late = self.tcp.iter().flat_map(|tcp| &tcp.valve).flat_map(|valve| &valve.late);
        let limit = late.map(|(at, _)| *at).fold(limit, Instant::min);
        self.network.step_until(&mut self.hosts, Some(limit));
    }

    /// Runs until `done` or for `limit`. Returns whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.network.now + limit;
        loop {
            self.round();
            if done(self) {
                return true;
            }
            if self.network.now >= end {
                return false;
            }
            self.step(end);
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) {
        self.run(time, |_| false);
    }

    pub fn send(&mut self, n: usize, id: SocketId, bytes: &[u8]) -> usize {
        self.with_engine(n, |engine, ctx, _| engine.send(id, bytes, ctx)).unwrap()
    }

    /// Reads all received bytes.
    pub fn recv(&mut self, n: usize, id: SocketId) -> Vec<u8> {
        let mut buffer = std::vec![0; 1 << 17];
        let count = self.hosts[n].engine.recv(id, &mut buffer).unwrap_or(0);
        buffer.truncate(count);
        buffer
    }

    pub fn close(&mut self, n: usize, id: SocketId) {
        self.with_engine(n, |engine, ctx, _| engine.close(id, ctx));
    }

    /// Sends all of `bytes` from host `from` to the other, which reads in pieces of up to `piece`.
    pub fn transfer(&mut self, from: usize, ids: [SocketId; 2], bytes: &[u8], piece: usize) {
        let (mut sent, mut got) = (0, Vec::new());
        let end = self.network.now + Duration::from_secs(60);
        while got.len() < bytes.len() {
            if sent < bytes.len() {
                sent += self.send(from, ids[from], &bytes[sent..]);
            }
            let mut buffer = std::vec![0; piece];
            let count = self.hosts[1 - from].engine.recv(ids[1 - from], &mut buffer).unwrap();
            got.extend_from_slice(&buffer[..count]);
            if count == 0 {
                assert!(self.network.now < end, "{} of {} arrived", got.len(), bytes.len());
                self.step(end);
            }
        }
        assert!(got == bytes, "bytes read differ from bytes written");
    }
}

/// `len` bytes that depend on their position.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}
