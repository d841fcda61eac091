//! Two engines over two soft-RoCE providers with a wire between them, and TCP connections that
//! lose nothing, in virtual time.

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
use verbs::EngineContext;
use verbs::{PathMtu, Provider};

/// Whoever is asked for is known once somebody has asked twice.
#[derive(Debug, Default)]
pub struct Way {
    pub asked: u32,
    pub none: bool,
    /// Nobody answers.
    pub silent: bool,
}

impl Neighbours for Way {
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

/// A TCP connection: which sockets it has, and the bytes under way to each.
#[derive(Debug, Default)]
pub struct Tcp {
    pub ends: [Option<SocketId>; 2],
    pub bytes: [Vec<u8>; 2],
    /// What becomes of CLC messages on their way to a host.
    pub valve: Option<Valve>,
}

/// What becomes of the message with number `at` on its way to host `to`.
#[derive(Debug)]
pub struct Valve {
    pub to: usize,
    pub at: usize,
    pub what: Fate,
    /// Messages that came so far, and those that are under way.
    pub seen: usize,
    pub late: Vec<(Instant, Vec<u8>)>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Lost, with all that follow.
    Lost,
    Late(Duration),
    /// A Decline comes in its place, and its sender is told nothing.
    Declined(Reason),
}

impl Valve {
    /// What arrives of `bytes`, which are whole messages, at `now`.
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

/// A host: the provider and the engine on it.
#[derive(Debug)]
pub struct Host {
    pub roce: Cards,
    /// The packets that its ports are sending.
    tx: Vec<TxBuffer>,
    pub arena: Arena,
    pub engine: Engine,
    pub way: Way,
    rng: Rng,
    now: Instant,
    /// What was told of each socket.
    pub told: HashMap<SocketId, Ready>,
}

impl Host {
    /// Host `n`; its engine uses so many of its ports.
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
        let mut ctx = EngineContext { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let engine = Engine::new(config, devices, &mut ctx).unwrap();
        let way = Way::default();
        let tx = (0..PORTS).map(|_| TxBuffer::new()).collect();
        Host { roce, tx, arena, engine, way, rng, now, told: HashMap::new() }
    }

    fn ctx(&mut self) -> (&mut Engine, EngineContext<'_, Cards>, &mut Way) {
        let Host { roce, arena, engine, way, rng, now, .. } = self;
        (engine, EngineContext { provider: roce, arena, now: *now, rng }, way)
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
        let (engine, mut ctx, way) = self.ctx();
        engine.handle_timeout(&mut ctx, way);
        while engine.poll(&mut ctx) > 0 {}
        while let Some((id, ready, _)) = self.engine.poll_event() {
            let ready = ready.difference(Ready::CLC);
            if !ready.is_empty() {
                *self.told.entry(id).or_default() |= ready;
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

/// The address of the port that has a GID, of either version.
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

/// The subnet of a port, with a prefix of that length.
pub fn subnet(n: usize, port: usize, prefix: u8) -> Subnet {
    Subnet::new(device(n, port).ip, ip(n, port), prefix)
}

/// The world. Host 0 is the server of all connections, unless they are opened the other way.
#[derive(Debug)]
pub struct World {
    pub network: Network,
    pub hosts: [Host; 2],
    pub tcp: Vec<Tcp>,
    boots: u64,
    /// Who speaks version 1, too.
    v1: [bool; 2],
    /// Between which addresses TCP goes.
    pub addresses: [IpAddr; 2],
}

/// The settings that tests begin with.
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

    /// Hosts whose engines use so many ports.
    pub fn with_ports(seed: u64, configs: [Config; 2], ports: [usize; 2]) -> Self {
        Self::of_kind(Kind::OneDevice, seed, configs, ports)
    }

    /// Hosts with ports of that kind.
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

    /// Hosts that speak one version alone.
    pub fn of_version(version: u8, seed: u64, configs: [Config; 2], ports: [usize; 2]) -> Self {
        Self::of_version_and_kind((version, Kind::OneDevice), seed, configs, ports)
    }

    /// Likewise, with ports of that kind.
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
        (0..2).for_each(|n| world.speak_v1(n));
        world
    }

    /// Host `n` speaks version 1 from here on.
    pub fn speak_v1(&mut self, n: usize) {
        self.v1[n] = true;
        let subnets = (0..PORTS).map(|port| subnet(n, port, 24));
        self.hosts[n].engine.set_subnets(subnets.collect());
    }

    /// Host `n` loses everything that it knew, as after a power cut.
    pub fn reboot(&mut self, n: usize) {
        self.boots += 1;
        let config = self.hosts[n].engine.config().clone();
        let ports = (self.hosts[n].engine.devices().len(), self.hosts[n].roce.kind());
        self.hosts[n] = Host::new(n, 7777 + self.boots, config, ports, self.network.now);
        if self.v1[n] {
            self.speak_v1(n);
        }
        for tcp in &mut self.tcp {
            tcp.ends[n] = None;
        }
    }

    /// Something with engine `n`.
    pub fn with_engine<R>(
        &mut self,
        n: usize,
        f: impl FnOnce(&mut Engine, &mut EngineContext<'_, Cards>, &mut Way) -> R,
    ) -> R {
        self.hosts[n].now = self.network.now;
        let (engine, mut ctx, way) = self.hosts[n].ctx();
        f(engine, &mut ctx, way)
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

    /// An established connection from host 1 to host 0; the sockets, by host.
    pub fn established(&mut self) -> [SocketId; 2] {
        let at = self.connect_from(1);
        let ids = self.tcp[at].ends.map(Option::unwrap);
        self.run(Duration::from_secs(10), |w| {
            (0..2).all(|n| w.was_told(n, ids[n], Ready::ESTABLISHED))
        });
        for (n, &id) in ids.iter().enumerate() {
            let engine = &mut self.hosts[n].engine;
            let why = (n, engine.fallback(id), engine.poll_notice());
            assert!(self.was_told(n, id, Ready::ESTABLISHED), "{why:?}");
        }
        ids
    }

    pub fn was_told(&self, n: usize, id: SocketId, what: Ready) -> bool {
        self.hosts[n].told.get(&id).is_some_and(|told| told.contains(what))
    }

    /// Forgets what was told.
    pub fn hear_nothing(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.told.clear());
    }

    /// Nothing arrives any more, or does again.
    pub fn mute(&mut self, mute: bool) {
        self.network.mute(0, mute);
        self.network.mute(1, mute);
    }

    /// Both hosts do what there is to do, and TCP carries its bytes, without time passing.
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
                let mut said = Vec::new();
                loop {
                    let count = self.hosts[n].engine.poll_clc_bytes(id, &mut buffer);
                    if count == 0 {
                        break;
                    }
                    said.extend_from_slice(&buffer[..count]);
                    moved = true;
                }
                let now = self.network.now;
                let Tcp { bytes, valve, .. } = &mut self.tcp[at];
                match valve.as_mut().filter(|valve| valve.to == 1 - n) {
                    Some(valve) => {
                        let through = valve.pass(&said, now);
                        moved |= !through.is_empty();
                        bytes[1 - n].extend(through);
                    }
                    None => bytes[1 - n].extend(said),
                }
                let bytes = core::mem::take(&mut self.tcp[at].bytes[n]);
                let taken = self.with_engine(n, |engine, ctx, way| {
                    engine.handle_clc_bytes(id, &bytes, ctx, way)
                });
                self.tcp[at].bytes[n] = bytes[taken..].to_vec();
                moved |= taken > 0;
            }
        }
        moved
    }

    /// A round, then time passes to the next thing that happens, at most to `limit`.
    pub fn step(&mut self, limit: Instant) {
        self.round();
        let late = self.tcp.iter().flat_map(|tcp| &tcp.valve).flat_map(|valve| &valve.late);
        let limit = late.map(|(at, _)| *at).fold(limit, Instant::min);
        self.network.step_until(&mut self.hosts, Some(limit));
    }

    /// Runs until `done`, or until `limit` has passed; whether it was done.
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

    /// Reads what is there.
    pub fn recv(&mut self, n: usize, id: SocketId) -> Vec<u8> {
        let mut buffer = std::vec![0; 1 << 17];
        let count = self.hosts[n].engine.recv(id, &mut buffer).unwrap_or(0);
        buffer.truncate(count);
        buffer
    }

    pub fn close(&mut self, n: usize, id: SocketId) {
        self.with_engine(n, |engine, ctx, _| engine.close(id, ctx));
    }

    /// All of `bytes` from host `from` to the other, which reads in pieces of up to `piece`.
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
        assert!(got == bytes, "what was read is what was written");
    }
}

/// `len` bytes that tell their place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}
