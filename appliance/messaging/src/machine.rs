//! A machine for tests: an interface, RoCE, the SMC-R engine, services and rules.

use super::*;
use crate::messages::Messages;
use crate::names::{Listen, Target};
use crate::relay::Rule;
use crate::relay::frames::Framing;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::Arena;
use net::hosts::Hosts;
use net::tcp::Limits;
use net::{Addressing, Interface};
use netsim::{Collector, Rng};
use roce::testing::frame;
use roce::{Limits as RoceLimits, PortConfig, Roce, TxBuffer};
use smcr::admission::Gate;
use smcr::engine::{Config, Device, Engine};
use smcr::wire::Eid;
use std::vec;
use verbs::PathMtu;
use verbs::{Ctx, Provider};

/// The port of the first rule.
pub const RULE: u16 = 7000;
/// Limits of each listener.
pub const LIMITS: Limits = Limits { connections: 64, receive: 4 << 10, transmit: 4 << 10 };

struct OneInterface<'a>(&'a mut Interface);

impl Interfaces for OneInterface<'_> {
    fn count(&self) -> usize {
        1
    }
    fn get(&mut self, _: usize) -> &mut Interface {
        self.0
    }
}

/// A machine with an interface, RoCE, and the engine.
pub struct Machine {
    pub interface: Interface,
    pub roce: Roce,
    tx: TxBuffer,
    pub arena: Arena,
    rng: Rng,
    pub engine: Engine,
    pub users: Users,
    piece: Vec<u8>,
}

/// The address of a machine.
pub fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// A rule from a port to a server, with defaults for the other keys.
pub fn rule(listen: u16, server: SocketAddr, smc: bool) -> Rule {
    Rule {
        name: "r".into(),
        listen: Listen::Port(listen),
        offers: true,
        backends: vec![Target::Socket(server)],
        smc,
        proxy: false,
        connect_timeout: Duration::from_secs(3),
        idle_timeout: None,
        health_interval: None,
        gate: Gate::default(),
        limits: LIMITS,
        framing: Framing { lengths: true, longest: 64 << 10 },
        signal: None,
        buffers: None,
    }
}

/// The interface of a machine.
pub fn interface(n: u8, now: Instant) -> Interface {
    let mut interface = Interface::new(mac(n), 1500, [n; 32], now);
    let addresses = vec![std::format!("{}/24", ip(n)).parse().unwrap()];
    let addressing = Addressing { addresses, ..Addressing::default() };
    interface.set_addressing(addressing, now).unwrap();
    interface
}

/// The frames that an interface transmits now.
pub fn frames(interface: &mut Interface, now: Instant) -> Vec<Vec<u8>> {
    interface.poll(now);
    let mut port = Collector::new(256);
    interface.transmit(&mut port, |_| ());
    port.frames
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

impl Machine {
    pub fn new(n: u8, now: Instant) -> Self {
        let mut rng = Rng::new(n.into());
        let (mac, interface) = (mac(n), interface(n, now));
        let limits = RoceLimits { qps: 64, regions: 1024, ..RoceLimits::default() };
        let port = PortConfig { mac, addresses: vec![ip(n).into()], mtu: 1500 };
        let mut roce = Roce::new(port, limits, &mut rng);
        let mut arena = Arena::on_heap(24 << 20);
        let mut ctx = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let eids = vec![Eid::new("LAB.SMC.EID").unwrap()];
        let path_mtu = PathMtu::Mtu1024;
        let device = Device { ip: ip(n), address: ip(n).into(), mac, path_mtu, pnet: None };
        let config = Config { eids, ..Config::default() };
        let engine = Engine::new(config, vec![device], &mut ctx).unwrap();
        let (users, piece, tx) = (Users::default(), Vec::new(), TxBuffer::new());
        Machine { interface, roce, tx, arena, rng, engine, users, piece }
    }

    /// One round of its loop.
    pub fn round(&mut self, now: Instant) {
        let Machine { interface, roce, arena, rng, engine, .. } = self;
        roce.handle_timeout(now);
        let mut ctx = Ctx { provider: roce, arena, now, rng };
        engine.poll(&mut ctx);
        engine.handle_timeout(&mut ctx, interface);
        self.with_users(now, |users, world| {
            users.poll(world);
            world.engine.flush(world.ctx);
        });
    }

    /// Calls `act` with the users and their context.
    pub fn with_users<T>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Users, &mut relay::World<'_, '_, Roce>) -> T,
    ) -> T {
        let Machine { interface, roce, arena, rng, engine, users, piece, .. } = self;
        let ctx = &mut Ctx { provider: roce, arena, now, rng };
        let (interfaces, messages) = (&mut OneInterface(interface), &mut Messages::default());
        act(users, &mut relay::World { interfaces, engine, piece, ctx, messages })
    }

    /// Adds a rule.
    pub fn add_rule(&mut self, name: &str, rule: Rule, seed: u16, now: Instant) {
        let interfaces = &mut OneInterface(&mut self.interface);
        self.users.add_rule(name.into(), interfaces, |owner, interfaces| {
            Relay::new(rule, interfaces, owner, seed, now)
        });
    }

    /// Adds a rule on [`RULE`] that relays to `server`, over SMC-R if possible.
    pub fn relay(&mut self, server: SocketAddr, now: Instant) {
        self.add_rule("r", rule(RULE, server, true), 1, now);
    }

    /// Adds an echo service. `offers`: whether it offers SMC-R.
    pub fn echo(&mut self, offers: bool, limits: Limits) {
        self.echo_for(offers, limits, limits.connections as u32);
    }

    /// Adds an echo service with at most `per_host` connections of a host.
    pub fn echo_for(&mut self, offers: bool, limits: Limits, per_host: u32) {
        let interface = &mut self.interface;
        let limits = (limits, per_host);
        let make = |owner| Echo::new(interface, false, offers, limits, &Hosts::default(), owner);
        self.users.add_service(0, make);
    }

    /// Frames to transmit: those of its interface, and RoCE packets.
    pub fn sent(&mut self, now: Instant) -> [Vec<Vec<u8>>; 2] {
        let mut packets = Vec::new();
        while self.roce.poll_transmit(0, now, &mut self.tx) {
            packets.push(frame(&self.tx));
        }
        [frames(&mut self.interface, now), packets]
    }

    /// Handles frames and packets of another machine's [`Machine::sent`].
    pub fn receive(&mut self, [frames, packets]: &[Vec<Vec<u8>>; 2], now: Instant) {
        frames.iter().for_each(|frame| self.interface.handle_frame(frame, now));
        packets.iter().for_each(|packet| {
            self.roce.handle_frame(0, packet, now);
        });
    }
}
