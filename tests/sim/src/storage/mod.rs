//! Storage: hosts map volumes of a gateway with the real client and server, over one or two paths, while paths are cut,
//! the gateway loses power, and disks are slow, fail, and lose unflushed data. The requests and answers of every user
//! must be consistent ([`history`]).

pub mod disk;
pub mod failover;
pub mod gateway;
pub(crate) mod history;
mod host;
pub mod leak;
mod rogue;
pub(crate) mod user;

use disk::{Manners, SimDisk};
use drivers::hal::Instant;
use gateway::{Gateway, Port};
use history::History;
use host::Host;
use netsim::{Faults, Network, Place, Rng};
use rand_core::Rng as _;
use rtrs::client::{self as transport, PathId, Policy};
use rtrs::server;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;
use storage::rnbd::client;
use user::User;

/// Bytes of memory of the gateway, and of a host.
const MEMORY: usize = 1 << 20;
/// Sectors of the volumes: few, so that requests overlap.
const SECTORS: usize = 40;

enum Node {
    Gateway(Box<Gateway>),
    Host(Box<Host>),
    Gone,
}

impl netsim::Node for Node {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        match self {
            Node::Gateway(node) => node.handle_frame(port, frame, now),
            Node::Host(node) => node.handle_frame(port, frame, now),
            Node::Gone => {}
        }
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        match self {
            Node::Gateway(node) => node.poll_transmit(port, now),
            Node::Host(node) => node.poll_transmit(port, now),
            Node::Gone => None,
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Node::Gateway(node) => node.poll_timeout(),
            Node::Host(node) => node.poll_timeout(),
            Node::Gone => None,
        }
    }
    fn work(&mut self, now: Instant) {
        match self {
            Node::Gateway(node) => node.work(now),
            Node::Host(node) => node.work(now),
            Node::Gone => {}
        }
    }
}

/// A port of a node on one of the networks.
fn port(node: usize, network: usize) -> Port {
    Port {
        mac: [2, 0, 0, 0, network as u8, node as u8],
        ip: IpAddr::V4(Ipv4Addr::new(10, 0, network as u8, 1 + node as u8)),
    }
}

/// Faults of a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    paths: usize,
    hosts: usize,
    cuts: bool,
    power_cuts: bool,
    loss: u32,
    /// The gateway announces restarts.
    announces: bool,
    disk: Manners,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        Plan {
            paths: rng.pick(&[1, 2, 2]),
            hosts: rng.pick(&[1, 1, 2]),
            cuts: rng.chance(700),
            power_cuts: rng.chance(500),
            loss: rng.pick(&[0, 0, 0, 5, 20]),
            announces: rng.chance(500),
            disk: Manners {
                cache: rng.chance(750),
                latency: Duration::from_micros(rng.pick(&[5, 200, 5000])),
                errors: rng.pick(&[0, 0, 0, 10]),
                stalls: rng.pick(&[0, 0, 3, 10]),
                kept: rng.pick(&[0, 500, 1000]),
            },
        }
    }
}

struct World {
    network: Network,
    nodes: Vec<Node>,
    rng: Rng,
    plan: Plan,
    histories: [Rc<RefCell<History>>; 2],
    /// When the gateway's power comes back.
    power_at: Option<Instant>,
    /// When the links work again.
    whole_at: Option<Instant>,
}

fn trace(now: Instant, what: std::fmt::Arguments<'_>) {
    if netsim::tracing() {
        println!("{:>12} {what}", now.as_nanos() / 1000);
    }
}

impl World {
    fn gateway(&mut self) -> &mut Gateway {
        match &mut self.nodes[0] {
            Node::Gateway(gateway) => gateway,
            Node::Host(_) | Node::Gone => unreachable!("the gateway is the first node"),
        }
    }

    fn hosts(&mut self) -> impl Iterator<Item = &mut Host> {
        self.nodes.iter_mut().filter_map(|node| match node {
            Node::Gateway(_) | Node::Gone => None,
            Node::Host(host) => Some(host.as_mut()),
        })
    }

    /// Runs for a while.
    fn pass(&mut self, time: Duration) {
        let until = self.network.now + time;
        self.network.run(&mut self.nodes, time, |_, _| false);
        self.network.now = self.network.now.max(until);
        // Nodes may have work from outside of the network.
        let now = self.network.now;
        for node in &mut self.nodes {
            netsim::Node::work(node, now);
        }
    }

    fn cut_power(&mut self) {
        let now = self.network.now;
        trace(now, format_args!("power cut"));
        self.gateway().cut_power();
        for history in &self.histories {
            history.borrow_mut().cut_power(now);
        }
    }

    /// Causes faults, or ends them.
    fn happen(&mut self) {
        let now = self.network.now;
        if self.power_at.is_some_and(|at| at <= now) {
            self.power_at = None;
            let mut rng = self.rng.fork();
            trace(now, format_args!("power on"));
            self.gateway().boot(&mut rng);
        }
        if self.whole_at.is_some_and(|at| at <= now) {
            self.whole_at = None;
            self.network.set_links(|link| link.cut = false);
            trace(now, format_args!("links whole"));
        }
        let after = |rng: &mut Rng| {
            let most = rng.pick(&[30, 300, 6000]);
            Some(now + Duration::from_millis(rng.within(20..20 + most)))
        };
        if self.plan.power_cuts && self.power_at.is_none() && self.rng.chance(60) {
            self.power_at = after(&mut self.rng);
            self.cut_power();
        }
        if self.plan.cuts && self.whole_at.is_none() && self.rng.chance(100) {
            self.whole_at = after(&mut self.rng);
            let port = self.rng.within(0..self.plan.paths as u64) as usize;
            let node = 1 + self.rng.within(0..self.plan.hosts as u64) as usize;
            let (near, far) = (Place { node, port }, Place { node: 0, port });
            let both = self.rng.within(0..3);
            self.network.link_mut(near, far).cut = both != 1;
            self.network.link_mut(far, near).cut = both != 2;
            trace(now, format_args!("cut of host {node} path {port} ({both})"));
        }
        if self.plan.cuts && self.rng.chance(20) {
            let path = PathId(self.rng.within(0..self.plan.paths as u64) as u32);
            let policies = [Policy::RoundRobin, Policy::MinInflight, Policy::MinLatency];
            let policy = self.rng.pick(&policies);
            if let Some(host) = self.hosts().next() {
                host.with_transport(now, |transport, ctx| {
                    transport.set_policy(policy);
                    transport.reconnect(path, ctx);
                });
            }
        }
    }

    /// Ends all faults.
    fn heal(&mut self) {
        trace(self.network.now, format_args!("healed"));
        self.network.heal();
        self.whole_at = None;
        self.plan = Plan { cuts: false, power_cuts: false, ..self.plan };
        let mut rng = self.rng.fork();
        let gateway = self.gateway();
        gateway.disk.heal();
        if !gateway.is_up() {
            gateway.boot(&mut rng);
        }
        self.power_at = None;
    }
}

/// Runs a seed.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let plan = Plan::draw(&mut rng);
    trace(Instant::ZERO, format_args!("{plan:?}"));
    netsim::with_memory(MEMORY * (1 + plan.hosts), |memory| {
        let part = |n: usize| memory.slice(n * MEMORY, MEMORY).expect("a part of it");
        let mut network = Network::new(rng.next_u64());
        network.set_links(|link| link.jitter = Duration::from_micros(5));
        let mtu = rng.pick(&[1500, 9000]);
        let ports = |node| (0..plan.paths).map(|n| port(node, n)).collect::<Vec<Port>>();
        let mut nodes = Vec::new();
        for node in 0..=plan.hosts {
            let macs: Vec<[u8; 6]> = ports(node).iter().map(|port| port.mac).collect();
            network.add_node(&macs);
        }
        let disk = SimDisk::new(SECTORS, plan.disk, rng.fork());
        let heartbeat = Duration::from_millis(500);
        let config = server::Config {
            queue_depth: rng.pick(&[2, 8, 16]),
            chunk_size: 16 << 10,
            oversubscribe: rng.pick(&[1, 1, 6, 12]),
            always_invalidate: rng.chance(500),
            max_sessions: 4,
            max_connections: 8,
            completions: 2048,
            incarnation: u64::from(plan.announces),
            heartbeat_interval: heartbeat,
            handshake_timeout: Duration::from_secs(4),
            ..server::Config::default()
        };
        let mut gateway = Gateway::new(ports(0), mtu, config, disk, SECTORS, part(0));
        let stations = (1..=plan.hosts).flat_map(|host| ports(host).into_iter().enumerate());
        gateway.stations = stations.collect();
        gateway.boot(&mut rng);
        nodes.push(Node::Gateway(Box::new(gateway)));
        let histories = [("disk", true), ("ram", false)].map(|(name, durable)| {
            Rc::new(RefCell::new(History::new(name.as_bytes()[0], SECTORS, durable)))
        });
        let now = network.now;
        for name in 1..=plan.hosts {
            let device = client::Config {
                depth: 8,
                wait: Duration::from_secs(600),
                open_delay: Duration::from_millis(200),
            };
            let session = transport::Config {
                connections: rng.pick(&[1, 2]),
                completions: 2048,
                heartbeat_interval: heartbeat,
                connect_timeout: Duration::from_secs(4),
                ..transport::Config::default()
            };
            let (own, memory) = (ports(name), part(name));
            let settings = (device, session);
            let far = ports(0);
            let mut host = Host::new(name, &own, &far, mtu, settings, memory, rng.fork(), now);
            for (device, history) in ["disk", "ram"].into_iter().zip(&histories) {
                let history = history.clone();
                let (depth, left) = (rng.pick(&[1, 4, 8]), rng.within(40..120) as u32);
                host.map(device, now, |arena, rng| {
                    User::new(name, history, depth, left, arena, rng)
                });
            }
            nodes.push(Node::Host(Box::new(host)));
        }
        network.set_faults(Faults { loss: plan.loss, ..Faults::default() });
        let whole_at = None;
        let mut world = World { network, nodes, rng, plan, histories, power_at: None, whole_at };
        story(&mut world);
    });
}

fn story(world: &mut World) {
    let plan = world.plan;
    let end = world.network.now + Duration::from_secs(20);
    while world.network.now < end && !world.hosts().all(|host| host.is_done()) {
        let pause = world.rng.within(1..200);
        world.pass(Duration::from_millis(pause));
        world.happen();
    }
    world.heal();
    let limit = world.network.now + Duration::from_secs(120);
    while !world.hosts().all(|host| host.is_done()) {
        assert!(world.network.now < limit, "requests do not end");
        world.pass(Duration::from_millis(500));
    }
    for host in world.hosts() {
        for (user, _) in &host.users {
            if plan.disk.errors == 0 {
                assert_eq!(user.errors, 0, "requests failed without a reason");
                // Without announcements, a reconnected server counts as restarted.
                let reason = plan.power_cuts || !plan.announces;
                let kept = reason || user.broken_promises == 0;
                assert!(kept, "durable requests failed without a reason");
            }
        }
    }
    for history in &world.histories {
        history.borrow().check();
    }
    // After another power cut the flushed data is there.
    world.cut_power();
    let now = world.network.now;
    let later = now + Duration::from_secs(1);
    let mut disk = world.gateway().disk.clone();
    let mut arena = drivers::hal::Arena::new(world.gateway().memory);
    let window = arena.alloc(512, 512).expect("room");
    let history = world.histories[0].clone();
    let sectors = history.borrow().sectors();
    for sector in 0..sectors {
        use drivers::hal::{Disk, Operation, Request};
        let request = Request { tag: 0, operation: Operation::Read, sector, data: window };
        disk.submit(&request).expect("nothing else is in flight");
        disk.set_now(now + Duration::from_secs(1 + sector));
        disk.poll().expect("the request is done").result.expect("the disk is healed");
        let mut bytes = [0; 512];
        window.read(0, &mut bytes).expect("a sector");
        history.borrow_mut().end_read(sector, &bytes, later, later);
    }
    teardown(world);
}

/// Checks that all resources are released.
fn teardown(world: &mut World) {
    let mut rng = world.rng.fork();
    world.gateway().boot(&mut rng);
    let idle = world.gateway().in_use();
    world.pass(Duration::from_secs(8));
    let hosts = world.plan.hosts;
    assert_eq!(world.gateway().in_use().0, hosts, "all hosts have a session");
    for n in 1..=hosts {
        let Node::Host(host) = std::mem::replace(&mut world.nodes[n], Node::Gone) else {
            unreachable!("a host");
        };
        let Host { mut roce, client, mut arena, mut rng, users, .. } = *host;
        let now = world.network.now;
        let buffers: usize = users.iter().map(|(user, _)| user.memory()).sum();
        let mut ctx = verbs::Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        client.end(&mut ctx);
        assert_eq!(roce.queue_pairs(), 0, "queue pairs are left");
        assert_eq!(arena.capacity() - arena.available(), buffers, "memory is left");
    }
    // Disconnecting from a silent peer takes more than a minute.
    world.pass(Duration::from_secs(150));
    assert_eq!(world.gateway().in_use(), idle, "the gateway holds unused resources");
}
