//! All hosts, the network, and the order of events.

use super::check::Count;
use super::host::{Config, Host, MEMORY, PORT};
use super::side::{Side, State};
use super::strikes::Undo;
use drivers::hal::{Instant, Window};
use netsim::{Faults, Network, Rng};
use rand_core::Rng as _;
use roce::Limits;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use verbs::{ConnectionManager, ConnectionParameters, PathMtu};

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Connect { from: usize, to: usize },
    Post(usize),
    Receive { side: usize, buffer: usize },
    Strike,
    Undo(Undo),
    Boot(usize),
    Check,
}

/// Longest time of a request after the effects of all faults: early retransmissions, eight timeouts of 537 ms, and the waits of RNR
/// NAKs.
const REQUEST: Duration = Duration::from_millis(6500);

/// Time until the connection manager gives up: 16 times 4.6 s.
const CONNECTION: Duration = Duration::from_secs(80);

/// The world of a seed.
#[derive(Debug)]
pub struct World {
    pub network: Network,
    pub hosts: Vec<Host>,
    pub sides: Vec<Side>,
    pub rng: Rng,
    pub faults: Faults,
    pub latency: Duration,
    agenda: BTreeMap<(Instant, u64), Action>,
    actions: u64,
    /// Counts by host and boot.
    pub counts: BTreeMap<(usize, u32), Count>,
    /// Whether lost frames are the only faults.
    pub calm: bool,
    /// When the last frame arrives that was in flight when all faults ended: faults have no effect later.
    pub healed: Option<Instant>,
    /// Most bytes in a packet.
    pub mtu: usize,
}

impl World {
    /// `count` hosts that share `memory`.
    pub fn new(count: usize, memory: Window, mut rng: Rng) -> Self {
        let v6 = rng.chance(500);
        let mtu = rng.pick(&[576, 1500, 1500, 4200, 9000]);
        let limits = Limits {
            qps: rng.pick(&[16, 64]),
            regions: 64,
            keys: 256,
            wr: 64,
            connections: 64,
            half_open: 16,
            unacknowledged: rng.pick(&[2, 8, 128]),
            ..Limits::default()
        };
        let configs: Vec<Config> = (0..count as u8)
            .map(|n| Config {
                mac: [2, 0, 0, 0, 0, n],
                ip: if v6 {
                    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + n as u16))
                } else {
                    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + n))
                },
                mtu,
                limits,
            })
            .collect();
        let mut network = Network::new(rng.next_u64());
        network.trace = netsim::tracing().then_some(super::print);
        let mut hosts = Vec::new();
        for (n, config) in configs.iter().enumerate() {
            network.add_node(&[config.mac]);
            let memory = memory.slice(n * MEMORY, MEMORY).expect("the memory is large enough");
            let mut host = Host::new(*config, memory);
            host.boot(&configs, &mut rng);
            hosts.push(host);
        }
        let calm = rng.chance(300);
        let often = |rng: &mut Rng| if rng.chance(500) { rng.within(0..30) as u32 } else { 0 };
        let faults = Faults {
            loss: often(&mut rng),
            duplication: often(&mut rng),
            reordering: often(&mut rng),
            corruption: often(&mut rng),
        };
        let latency = Duration::from_micros(rng.pick(&[1, 10, 100, 3000]));
        let jitter = latency * rng.pick(&[0, 0, 1, 5]);
        network
            .set_links(|link| (link.latency, link.jitter, link.faults) = (latency, jitter, faults));
        let rate = rng.pick(&[0, 1_000_000_000, 25_000_000_000]);
        for node in 0..count {
            network.set_rate(netsim::Place { node, port: 0 }, rate);
        }
        World {
            network,
            hosts,
            sides: Vec::new(),
            rng,
            faults,
            latency,
            agenda: BTreeMap::new(),
            actions: 0,
            counts: BTreeMap::new(),
            calm,
            healed: None,
            mtu: PathMtu::for_ethernet(mtu).expect("large enough").bytes(),
        }
    }

    /// Prints a line, if the seed is replayed.
    pub fn trace(&self, what: &str) {
        if netsim::tracing() {
            println!("{:12.3} us  {what}", self.network.now.as_nanos() as f64 / 1000.0);
        }
    }

    /// Schedules an action.
    pub fn later(&mut self, wait: Duration, action: Action) {
        self.actions += 1;
        self.agenda.insert((self.network.now + wait, self.actions), action);
    }

    /// A random time below `most` microseconds.
    pub fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.rng.within(0..most))
    }

    /// Runs the whole scenario.
    pub fn run(mut self) {
        let lasts = self.rng.pick(&[5_000, 50_000, 500_000, 5_000_000]);
        self.trace(&format!(
            "{} hosts, {} bytes, calm: {}, {:?}, latency {:?}, {lasts} us",
            self.hosts.len(),
            self.mtu,
            self.calm,
            self.faults,
            self.latency,
        ));
        for _ in 0..self.rng.within(1..6) {
            let (from, to) = self.two_hosts();
            let at = self.micros(lasts / 4);
            self.later(at, Action::Connect { from, to });
        }
        if !self.calm {
            for _ in 0..self.rng.within(1..6) {
                let at = self.micros(lasts);
                self.later(at, Action::Strike);
            }
        }
        for _ in 0..6 {
            let at = self.micros(lasts);
            self.later(at, Action::Check);
        }
        self.run_for(Duration::from_micros(lasts), |_| false);
        self.heal();
        let quiet = self.run_for(self.after_faults(CONNECTION), |world| {
            world.are_quiet(&world.sides) && !world.are_connecting()
        });
        assert!(quiet, "requests or connections are pending 80 s after the effects of all faults");
        self.check();
        self.renew();
        self.end();
    }

    fn two_hosts(&mut self) -> (usize, usize) {
        let count = self.hosts.len();
        let from = self.rng.within(0..count as u64) as usize;
        (from, (from + self.rng.within(1..count as u64) as usize) % count)
    }

    /// Runs until `done`, or for `limit`. Returns whether `done` became true.
    fn run_for(&mut self, limit: Duration, done: impl Fn(&World) -> bool) -> bool {
        let end = self.network.now + limit;
        loop {
            self.drive();
            if done(self) {
                return true;
            }
            if self.network.now >= end {
                return false;
            }
            let next = self.agenda.keys().next().map_or(end, |&(at, _)| at.min(end));
            if !self.network.step_until(&mut self.hosts, Some(next)) {
                while let Some(entry) = self.agenda.first_entry()
                    && entry.key().0 <= self.network.now
                {
                    let action = entry.remove();
                    self.act(action);
                    self.drive();
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect { from, to } => drop(self.connect(from, to)),
            Action::Post(side) => self.post(side),
            Action::Receive { side, buffer } => {
                let it = &mut self.sides[side];
                if it.state != State::Gone {
                    it.post_receive(side, self.hosts[it.host].up(), buffer);
                }
            }
            Action::Strike if self.healed.is_none() => self.strike(),
            Action::Undo(undo) if self.healed.is_none() => self.undo(undo),
            // All faults have ended.
            Action::Strike | Action::Undo(_) => (),
            Action::Boot(host) => {
                if self.hosts[host].machine.is_none() {
                    let peers: Vec<Config> = self.hosts.iter().map(|host| host.config).collect();
                    self.hosts[host].boot(&peers, &mut self.rng);
                }
            }
            Action::Check => self.check(),
        }
    }

    /// Ends all faults, and causes no new ones.
    fn heal(&mut self) {
        self.trace("all faults have ended");
        self.network.heal();
        for host in 0..self.hosts.len() {
            self.set_link(host, true);
        }
        for host in 0..self.hosts.len() {
            self.act(Action::Boot(host));
        }
        self.healed = Some(self.network.last_arrival());
    }

    /// Whether connections are being made.
    fn are_connecting(&self) -> bool {
        let connecting = |side: &Side| matches!(side.state, State::Asked | State::Accepted);
        self.sides.iter().any(connecting)
    }

    /// Time from now until `limit` after the effects of all faults.
    fn after_faults(&self, limit: Duration) -> Duration {
        self.healed.expect("the faults have ended").since(self.network.now) + limit
    }

    /// Whether all connections that must succeed are established, and no request is in flight or left to post.
    fn are_quiet(&self, sides: &[Side]) -> bool {
        let now = self.network.now;
        let healed = self.healed.expect("the faults have ended");
        sides.iter().all(|side| match side.state {
            State::Asked | State::Accepted => !side.sound,
            State::Gone => true,
            State::Up => {
                for op in &side.ops {
                    let waited = now.since(op.at.max(healed));
                    assert!(waited < REQUEST || !op.signaled, "a request waits since {:?}", op.at);
                }
                side.budget == 0 && side.ops.iter().all(|op| !op.signaled)
            }
        })
    }

    /// Checks that new connections work.
    fn renew(&mut self) {
        let first = self.sides.len();
        for _ in 0..3 {
            let (from, to) = self.two_hosts();
            if self.connect(from, to).is_none() {
                // The host has no free memory.
                continue;
            }
            let last = self.sides.len() - 1;
            self.sides[last].sound = true;
        }
        // (Requests of hosts that lost power may still wait for their peers.)
        let limit = self.after_faults(REQUEST);
        let quiet = self.run_for(limit, |world| world.are_quiet(&world.sides[first..]));
        assert!(quiet, "requests of new connections do not end");
        for side in self.sides[first..].iter().filter(|side| side.sound) {
            assert_eq!((side.state, side.budget), (State::Up, 0), "a new connection fails");
        }
        self.check();
    }

    /// Ends all connections, and checks that all resources are released.
    fn end(&mut self) {
        // A delayed request of a host that lost power arrives last: nobody confirms the connection.
        let healed = self.healed.expect("the faults have ended");
        let made = |world: &World| world.network.now >= healed && !world.are_connecting();
        self.sides.iter_mut().for_each(|side| side.sound = false);
        assert!(self.run_for(self.after_faults(CONNECTION), made), "connections are pending");
        self.trace("the end");
        for number in 0..self.sides.len() {
            let both = self.rng.chance(300);
            let side = &self.sides[number];
            // One of the two sides suffices, if each has the other as its peer.
            let other_does = side.peer.is_some_and(|peer| {
                peer < number
                    && self.sides[peer].peer == Some(number)
                    && self.sides[peer].state != State::Gone
            });
            if matches!(side.state, State::Up | State::Accepted) && (both || !other_does) {
                let roce = &mut self.hosts[side.host].up().roce;
                roce.disconnect(side.connection, self.network.now)
                    .expect("the connection is established");
            }
        }
        let over = |world: &World| {
            world.sides.iter().all(|side| side.state == State::Gone)
                && world
                    .hosts
                    .iter()
                    .all(|host| host.machine.as_ref().is_some_and(|m| m.roce.connections() == 0))
        };
        assert!(self.run_for(Duration::from_secs(20), over), "connections do not end");
        self.check();
        for host in 0..self.hosts.len() {
            self.check_count(host);
            self.hosts[host].up().tear_down();
            self.check_host(host);
        }
    }

    /// Requests a connection. Returns its side, unless the host has no memory.
    fn connect(&mut self, from: usize, to: usize) -> Option<usize> {
        let host = &mut self.hosts[from];
        let machine = host.machine.as_mut()?;
        let number = self.sides.len();
        let mut side = Side::new(number, from, host.boots, machine, &mut self.rng)?;
        let introduction = side.introduction(number, machine);
        let (ip, mtu) = (host.config.ip, self.mtu);
        let to = SocketAddr::new(self.hosts[to].config.ip, PORT);
        let machine = self.hosts[from].up();
        let now = self.network.now;
        let asked =
            machine.roce.connect(side.qp, ip, to, &PARAMETERS, &introduction, now, &mut self.rng);
        match asked {
            Ok(connection) => side.connection = connection,
            Err(error) => panic!("the local host refuses a connection: {error:?} ({mtu})"),
        }
        side.sound = self.calm;
        self.trace(&format!("side {number}: host {from} requests a connection to {to}"));
        self.sides.push(side);
        Some(number)
    }
}

pub const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 3,
    initiator_depth: 3,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 8,
};
