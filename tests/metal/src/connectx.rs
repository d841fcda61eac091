//! Two ConnectX models, each in a machine of its own, joined by a wire, and their verbs providers.

use crate::Metal;
use connectx::{ConnectX, Function, Limits};
use drivers::driver::Class;
use drivers::ethernet::mlx5::Mlx5Port;
use drivers::hal::{Instant, Platform, Port, Window};
use models::mlx5::{Config, MAC, Mlx5};
use netsim::Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use verbs::{AddressVector, GidType, Provider};

/// Bytes of memory of a machine.
const MEMORY: usize = 32 << 20;
/// Latency of the wire.
const WIRE: Duration = Duration::from_micros(2);
/// Interval of the health checks of a card.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of the providers.
pub const LIMITS: Limits = Limits {
    qps: 64,
    cqs: 64,
    pds: 16,
    regions: 256,
    keys: 1024,
    spare_keys: 256,
    wr: 1024,
    log_completions: 14,
    connections: cm::Limits { connections: 64, connections_per_host: 32, half_open: 32 },
};

/// A machine with its provider.
pub struct Node {
    /// The machine.
    pub machine: Metal<Mlx5>,
    /// The provider on its card.
    pub device: ConnectX,
    /// The card's MAC address.
    pub mac: [u8; 6],
    /// The card's IP address.
    pub address: IpAddr,
}

/// Two joined nodes.
pub struct Pair {
    /// The nodes.
    pub nodes: [Node; 2],
    /// Sent frames are lost.
    pub is_cut: bool,
    checked: Instant,
}

/// The MAC address of a node.
fn mac(n: u8) -> [u8; 6] {
    let mut mac = MAC;
    mac[5] = n;
    mac
}

/// The IP address of a node.
fn address(n: u8, v6: bool) -> IpAddr {
    match v6 {
        true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())),
        false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
    }
}

/// Opens the card in a machine. An error is the reason.
pub fn open(
    machine: &mut Metal<Mlx5>,
    addresses: &[IpAddr],
    rng: &mut Rng,
) -> Result<ConnectX, String> {
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let port = drivers::ethernet::mlx5::open(device, machine, &|_| Some(1500), &clock);
    let port = port.map_err(|why| why.to_string())?;
    let port = port.downcast::<Mlx5Port>().map_err(|_| "port of another driver")?;
    let arena = machine.arena().share();
    ConnectX::open(Function::new(*port), arena, addresses, LIMITS, rng)
        .map_err(|why| why.to_string())
}

impl Pair {
    /// Creates two nodes with IPv4 or IPv6 addresses.
    pub fn new(seed: u64, v6: bool) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = [1, 2].map(|n| {
            let config = Config { mac: mac(n), ..Config::default() };
            let mut machine = Metal::new(Mlx5::new(config), MEMORY);
            let address = address(n, v6);
            let device = open(&mut machine, &[address], &mut rng).expect("the card works");
            Node { machine, device, mac: mac(n), address }
        });
        let mut pair = Pair { nodes, is_cut: false, checked: Instant::ZERO };
        for n in 0..2 {
            let (address, mac) = (pair.nodes[1 - n].address, pair.nodes[1 - n].mac);
            pair.nodes[n].device.pin_neighbour(address, mac);
        }
        // From now on both clocks are equal.
        let clocks = [0, 1].map(|n| pair.nodes[n].machine.pass(Duration::ZERO));
        let latest = clocks[0].max(clocks[1]);
        (0..2).for_each(|n| _ = pair.nodes[n].machine.pass(latest.since(clocks[n])));
        pair.checked = latest;
        pair.run(Duration::from_millis(1));
        pair
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.nodes[0].machine.pass(Duration::ZERO)
    }

    /// The address vector from a node to the other.
    pub fn way(&self, n: usize) -> AddressVector {
        AddressVector {
            local: self.nodes[n].address,
            remote: self.nodes[1 - n].address,
            gid_type: GidType::RoceV2,
            remote_mac: self.nodes[1 - n].mac,
            source_port: 0xc000 + n as u16,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    /// Allocates exactly this many bytes of a node's memory.
    pub fn memory(&mut self, n: usize, len: usize) -> Window {
        let memory = self.nodes[n].machine.arena().alloc(len.max(1), 64).expect("there is memory");
        memory.slice(0, len).expect("the allocation has this size")
    }

    /// Carries frames over the wire. Returns whether there were any.
    fn carry(&mut self) -> bool {
        let mut any = false;
        for n in 0..2 {
            let sent = self.nodes[n].machine.model(|card| std::mem::take(&mut card.sent));
            any |= !sent.is_empty();
            if !self.is_cut {
                self.nodes[1 - n].machine.model(|card| card.arriving.extend(sent));
            }
        }
        any
    }

    /// Advances to the next event, at most to `until`.
    pub fn step(&mut self, until: Instant) {
        let now = self.now();
        if now.since(self.checked) >= CHECK_INTERVAL {
            self.checked = now;
            self.nodes.iter_mut().for_each(|node| node.device.port().watch(now));
        }
        for node in &mut self.nodes {
            node.device.poll(now);
            node.machine.run();
        }
        let passes = match self.carry() {
            true => WIRE,
            false => {
                let due = self.nodes.iter().flat_map(|node| {
                    [node.machine.due(), node.device.poll_timeout()].into_iter().flatten()
                });
                let next = due.chain([self.checked + CHECK_INTERVAL, until]).min().unwrap_or(until);
                next.max(now).since(now).max(WIRE)
            }
        };
        self.nodes.iter().for_each(|node| _ = node.machine.pass(passes));
    }

    /// Advances the time.
    pub fn run(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step(until);
        }
    }

    /// Complaints of both models.
    pub fn complaints(&self) -> Vec<String> {
        let of = |node: &Node| node.machine.model(|card| card.complaints.clone());
        self.nodes.iter().flat_map(of).collect()
    }
}
