//! A host of the target: an SMC-R engine over a RoCE engine with two ports.

use super::{HOSTS, PORTS};
use drivers::hal::{Arena, Instant, Window};
use net::Neighbours;
use net::Resolution;
use netsim::Rng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use smcr::engine::{Config, Device, Engine, Subnet};
use smcr::wire::Eid;
use std::net::{IpAddr, Ipv4Addr};
use verbs::{Ctx, PathMtu, Provider};

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

/// A host.
pub(super) struct Host {
    pub roce: Roce,
    pub tx: TxBuffer,
    pub arena: Arena,
    pub engine: Engine,
    rng: Rng,
}

/// MAC address of a port.
pub(super) fn mac(host: usize, port: usize) -> [u8; 6] {
    [2, 0, 0, 0, port as u8, 1 + host as u8]
}

/// IP address of a port.
pub(super) fn ip(host: usize, port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port as u8, 1 + host as u8)
}

/// Address resolution that always succeeds.
pub(super) struct Known;

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
    /// A host whose engine has `ports` of the two ports. It speaks only SMC-R `version`, 1 or 2.
    pub fn new(host: usize, memory: Window, ports: usize, version: u8, rng: &mut Rng) -> Self {
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
                roce.pin_neighbour(n, ip(other, n).into(), mac(other, n));
                roce.pin_neighbour(n, net::link_local(mac(other, n)).into(), mac(other, n));
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
        let mut ctx = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let mut engine = Engine::new(config, devices, &mut ctx).expect("a sound configuration");
        if version == 1 {
            let subnet = |n| Subnet::new(ip(host, n), ip(host, n).into(), 24);
            engine.set_subnets((0..PORTS).map(subnet).collect());
        }
        Host { roce, tx: TxBuffer::new(), arena, engine, rng }
    }

    /// Calls `f` with the engine and its context.
    pub fn with<R>(
        &mut self,
        now: Instant,
        f: impl FnOnce(&mut Engine, &mut Ctx<'_, Roce>) -> R,
    ) -> R {
        let Host { roce, arena, engine, rng, .. } = self;
        f(engine, &mut Ctx { provider: roce, arena, now, rng })
    }

    /// The next deadline.
    pub fn timeout(&self) -> Option<Instant> {
        Instant::first([self.roce.poll_timeout(), self.engine.poll_timeout()])
    }

    /// Polls the engines.
    pub fn work(&mut self, now: Instant) {
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
