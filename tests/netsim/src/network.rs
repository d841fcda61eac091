//! Ports joined by a switch, and the frames in flight between them.

use crate::{Faults, Link, Node, Rng};
use drivers::hal::Instant;
use rand_core::Rng as _;
use std::collections::BTreeMap;
use std::time::Duration;

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The node, counted from 0.
    pub node: usize,
    /// Its port, counted from 0.
    pub port: usize,
}

/// Fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Arrives at this time.
    Arrives(Instant),
    /// Arrives at this time with a wrong bit.
    Corrupted(Instant),
    /// Randomly lost.
    Lost,
    /// The link between the ports is cut.
    Cut,
    /// One of the two ports' links is down.
    Down,
}

/// A sent frame, for traces.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Time of sending.
    pub at: Instant,
    /// Sending port.
    pub from: Place,
    /// Destination port.
    pub to: Place,
    /// Fate of the frame.
    pub fate: Fate,
    /// The frame as sent.
    pub bytes: &'a [u8],
}

#[derive(Debug)]
struct Port {
    place: Place,
    mac: [u8; 6],
    up: bool,
    /// Bits per second; 0 for no limit.
    rate: u64,
    /// When the last bit of the sent frames is on the wire.
    busy_until: Instant,
}

/// Rounds without progress of time after which a node counts as faulty.
const STANDSTILL: u32 = 100_000;

/// The network, and its clock.
#[derive(Debug)]
pub struct Network {
    /// The current time.
    pub now: Instant,
    /// Called for every sent frame, if set.
    pub trace: Option<fn(&Event<'_>)>,
    /// All sent frames with their nodes, if set.
    pub record: Option<Vec<(usize, Vec<u8>)>>,
    /// The number of the frame to lose, counted from the next sent frame, if set.
    pub lose: Option<u64>,
    rng: Rng,
    sent: u64,
    ports: Vec<Port>,
    /// Links from each port (row) to each port (column).
    links: Vec<Vec<Link>>,
    /// Arrival of the last frame in order, from each port (row) to each port (column).
    last: Vec<Vec<Instant>>,
    /// Frames in flight, by time of arrival and order of sending.
    wire: BTreeMap<(Instant, u64), (Place, Vec<u8>)>,
    frames: u64,
    standstill: u32,
}

impl Network {
    /// Creates an empty network with a random generator from `seed`.
    pub fn new(seed: u64) -> Self {
        Network {
            now: Instant::from_nanos(1),
            trace: None,
            record: None,
            lose: None,
            rng: Rng::new(seed),
            sent: 0,
            ports: Vec::new(),
            links: Vec::new(),
            last: Vec::new(),
            wire: BTreeMap::new(),
            frames: 0,
            standstill: 0,
        }
    }

    /// Adds a node with a port for each MAC address, and returns its number. Default [`Link`]s join every port with
    /// every other.
    pub fn add_node(&mut self, macs: &[[u8; 6]]) -> usize {
        let node = self.ports.last().map_or(0, |port| port.place.node + 1);
        for (port, &mac) in macs.iter().enumerate() {
            let place = Place { node, port };
            let busy_until = Instant::ZERO;
            self.ports.push(Port { place, mac, up: true, rate: 0, busy_until });
            let count = self.ports.len();
            self.links.push(Vec::new());
            self.links.iter_mut().for_each(|row| row.resize(count, Link::default()));
            self.last.push(Vec::new());
            self.last.iter_mut().for_each(|row| row.resize(count, Instant::ZERO));
        }
        node
    }

    fn index(&self, place: Place) -> usize {
        self.ports.iter().position(|port| port.place == place).expect("the port exists")
    }

    /// The link from one port to another. The opposite direction is another link.
    pub fn link_mut(&mut self, from: Place, to: Place) -> &mut Link {
        let (from, to) = (self.index(from), self.index(to));
        &mut self.links[from][to]
    }

    /// Changes all links.
    pub fn set_links(&mut self, mut change: impl FnMut(&mut Link)) {
        self.links.iter_mut().flatten().for_each(&mut change);
    }

    /// Sets the faults of all links.
    pub fn set_faults(&mut self, faults: Faults) {
        self.set_links(|link| link.faults = faults);
    }

    /// Cuts the outgoing links of all ports of a node, or restores them.
    pub fn mute(&mut self, node: usize, mute: bool) {
        for (port, row) in self.ports.iter().zip(&mut self.links) {
            if port.place.node == node {
                row.iter_mut().for_each(|link| link.cut = mute);
            }
        }
    }

    /// Removes all faults, delays and cuts, and sets all links up. Frames in flight still arrive when they would have
    /// arrived, and delay the frames behind them: see [`Network::last_arrival`].
    pub fn heal(&mut self) {
        self.set_links(|link| {
            (link.faults, link.delay, link.cut) = (Faults::default(), Duration::ZERO, false);
        });
        self.ports.iter_mut().for_each(|port| port.up = true);
    }

    /// Sets the link of a port down or up. The caller must notify the node.
    pub fn set_up(&mut self, place: Place, up: bool) {
        let port = self.index(place);
        self.ports[port].up = up;
    }

    /// Sets the rate of a port in bits per second, 0 for no limit. Frames that exceed it wait.
    pub fn set_rate(&mut self, place: Place, rate: u64) {
        let port = self.index(place);
        self.ports[port].rate = rate;
    }

    /// Number of frames sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of frames in flight.
    pub fn under_way(&self) -> usize {
        self.wire.len()
    }

    /// Arrival of the last frame in flight; the current time if there is none.
    pub fn last_arrival(&self) -> Instant {
        self.wire.keys().next_back().map_or(self.now, |&(at, _)| at.max(self.now))
    }

    /// Sends a frame to the port with its destination MAC address, or to all other ports.
    pub fn send(&mut self, from: Place, bytes: Vec<u8>) {
        if let Some(record) = &mut self.record {
            record.push((from.node, bytes.clone()));
        }
        let from = self.index(from);
        self.sent += 1;
        let sent = self.serialise(from, bytes.len());
        if let Some(left) = &mut self.lose {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => {
                    self.lose = None;
                    return;
                }
            }
        }
        let group = bytes.first().is_some_and(|first| first & 1 == 1);
        for to in 0..self.ports.len() {
            if to != from && (group || bytes.get(..6) == Some(&self.ports[to].mac)) {
                self.carry(from, to, sent, &bytes);
            }
        }
    }

    /// The time at which the last bit of a frame leaves a port.
    fn serialise(&mut self, from: usize, len: usize) -> Instant {
        let port = &mut self.ports[from];
        if port.rate == 0 {
            return self.now;
        }
        // Adds preamble, frame check sequence and inter-frame gap.
        let bits = 8 * (len.max(60) as u64 + 24);
        let took = Duration::from_nanos(bits * 1_000_000_000 / port.rate);
        port.busy_until = port.busy_until.max(self.now) + took;
        port.busy_until
    }

    fn carry(&mut self, from: usize, to: usize, sent: Instant, bytes: &[u8]) {
        let link = self.links[from][to];
        let (source, target) = (self.ports[from].place, self.ports[to].place);
        let trace = self.trace;
        let report = |fate| {
            if let Some(trace) = trace {
                trace(&Event { at: sent, from: source, to: target, fate, bytes });
            }
        };
        if !self.ports[from].up || !self.ports[to].up {
            return report(Fate::Down);
        }
        if link.cut {
            return report(Fate::Cut);
        }
        if self.rng.chance(link.faults.loss) {
            return report(Fate::Lost);
        }
        let copies = 1 + self.rng.chance(link.faults.duplication) as usize;
        let mut arriving = bytes.to_vec();
        let corrupted = self.rng.chance(link.faults.corruption) && bytes.len() > 14;
        if corrupted {
            // Only the frame check sequence covers the Ethernet header, so the wrong bit is after it.
            let bit = self.rng.next_u64() as usize % ((bytes.len() - 14) * 8);
            arriving[14 + bit / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            let jitter = link.jitter.as_nanos() as u64;
            let jitter = Duration::from_nanos(self.rng.within(0..jitter + 1));
            let latency = link.latency + link.delay;
            let mut at = sent + latency + jitter;
            if self.rng.chance(link.faults.reordering) {
                at = at + latency * 3;
            } else {
                at = at.max(self.last[from][to]);
                self.last[from][to] = at;
            }
            self.frames += 1;
            self.wire.insert((at, self.frames), (target, arriving.clone()));
            report(if corrupted { Fate::Corrupted(at) } else { Fate::Arrives(at) });
        }
    }

    /// Takes the next arrived frame, if any.
    fn arrived(&mut self) -> Option<(Place, Vec<u8>)> {
        let first = self.wire.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    /// Runs one step: sends the nodes' frames, advances to the next event, and handles it. Returns false if there is no
    /// event.
    pub fn step<N: Node>(&mut self, nodes: &mut [N]) -> bool {
        self.step_until(nodes, None)
    }

    /// Runs one step, at most to `until`. Without an event before, advances to `until` and returns false.
    pub fn step_until<N: Node>(&mut self, nodes: &mut [N], until: Option<Instant>) -> bool {
        self.collect(nodes);
        let arrival = self.wire.keys().next().map(|&(at, _)| at);
        let timer = nodes.iter().filter_map(Node::poll_timeout).min();
        match [arrival, timer].into_iter().flatten().min() {
            Some(next) if until.is_none_or(|until| next <= until) => {
                self.advance(next, nodes);
                true
            }
            _ => {
                self.now = self.now.max(until.unwrap_or(self.now));
                false
            }
        }
    }

    /// Sends all frames that the nodes have ready.
    fn collect<N: Node>(&mut self, nodes: &mut [N]) {
        for at in 0..self.ports.len() {
            let place = self.ports[at].place;
            while let Some(frame) = nodes[place.node].poll_transmit(place.port, self.now) {
                self.send(place, frame);
            }
        }
    }

    /// Advances to `next`, unless it is past, and handles all events that are due.
    fn advance<N: Node>(&mut self, next: Instant, nodes: &mut [N]) {
        self.standstill = if next > self.now { 0 } else { self.standstill + 1 };
        assert!(self.standstill < STANDSTILL, "a node's timer never advances");
        self.now = self.now.max(next);
        while let Some((to, frame)) = self.arrived() {
            if self.ports[self.index(to)].up {
                nodes[to.node].handle_frame(to.port, &frame, self.now);
            }
        }
        for node in nodes {
            node.work(self.now);
        }
    }

    /// Steps until `done` or until `limit` has passed. Returns whether `done` was reached.
    pub fn run<N: Node>(
        &mut self,
        nodes: &mut [N],
        limit: Duration,
        mut done: impl FnMut(&mut Network, &mut [N]) -> bool,
    ) -> bool {
        let end = self.now + limit;
        loop {
            if done(self, nodes) {
                return true;
            }
            if !self.step(nodes) || self.now > end {
                return done(self, nodes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends frames from `out`, and collects received frames with their times in microseconds.
    #[derive(Default)]
    struct Host {
        out: Vec<Vec<u8>>,
        got: Vec<(u128, Vec<u8>)>,
    }

    impl Node for Host {
        fn handle_frame(&mut self, _: usize, frame: &[u8], now: Instant) {
            self.got.push((now.since(Instant::ZERO).as_micros(), frame.to_vec()));
        }
        fn poll_transmit(&mut self, _: usize, _: Instant) -> Option<Vec<u8>> {
            if self.out.is_empty() { None } else { Some(self.out.remove(0)) }
        }
        fn poll_timeout(&self) -> Option<Instant> {
            None
        }
        fn work(&mut self, _: Instant) {}
    }

    /// A frame to a node, of 1000 bytes.
    fn frame(to: u8, number: u8) -> Vec<u8> {
        [vec![2, 0, 0, 0, 0, to], vec![number; 994]].concat()
    }

    fn hosts(seed: u64) -> (Network, [Host; 3]) {
        let mut network = Network::new(seed);
        for n in 0..3 {
            network.add_node(&[[2, 0, 0, 0, 0, n]]);
        }
        (network, Default::default())
    }

    fn run(network: &mut Network, hosts: &mut [Host; 3]) {
        network.run(hosts, Duration::from_secs(1), |_, _| false);
    }

    const A: Place = Place { node: 0, port: 0 };
    const B: Place = Place { node: 1, port: 0 };

    #[test]
    fn frames_reach_their_destinations() {
        let (mut network, mut hosts) = hosts(1);
        let broadcast = [vec![0xff; 6], vec![9; 100]].concat();
        hosts[0].out = vec![frame(1, 1), frame(7, 2), broadcast.clone()];
        run(&mut network, &mut hosts);
        assert_eq!(hosts[1].got, [(10, frame(1, 1)), (10, broadcast.clone())]);
        assert_eq!(hosts[2].got, [(10, broadcast)]);
    }

    #[test]
    fn a_rate_spaces_frames() {
        let (mut network, mut hosts) = hosts(1);
        network.set_rate(A, 1_000_000_000);
        hosts[0].out = vec![frame(1, 1), frame(1, 2)];
        run(&mut network, &mut hosts);
        // 1024 bytes with their overhead take 8.192 microseconds.
        assert_eq!(hosts[1].got.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [18, 26]);
    }

    #[test]
    fn a_cut_is_one_way_and_a_link_that_is_down_is_not() {
        let (mut network, mut hosts) = hosts(1);
        network.link_mut(A, B).cut = true;
        hosts[0].out = vec![frame(1, 1)];
        hosts[1].out = vec![frame(0, 2)];
        run(&mut network, &mut hosts);
        assert_eq!((hosts[0].got.len(), hosts[1].got.len()), (1, 0));
        network.heal();
        network.set_up(A, false);
        hosts[0].out = vec![frame(1, 1)];
        hosts[1].out = vec![frame(0, 2)];
        run(&mut network, &mut hosts);
        assert_eq!((hosts[0].got.len(), hosts[1].got.len()), (1, 0));
        // Frames in flight when the link goes down are lost.
        network.heal();
        hosts[1].out = vec![frame(0, 2)];
        network.collect(&mut hosts);
        network.set_up(A, false);
        run(&mut network, &mut hosts);
        assert_eq!(hosts[0].got.len(), 1);
    }

    #[test]
    fn frame_sent_after_heal_arrives_behind_delayed_frame() {
        let (mut network, mut hosts) = hosts(1);
        assert_eq!(network.last_arrival(), network.now);
        network.link_mut(A, B).delay = Duration::from_micros(90);
        network.send(A, frame(1, 1));
        network.heal();
        assert_eq!(network.link_mut(A, B).delay, Duration::ZERO);
        assert_eq!(network.last_arrival(), network.now + Duration::from_micros(100));
        hosts[0].out = vec![frame(1, 2), frame(2, 3)];
        run(&mut network, &mut hosts);
        assert_eq!(hosts[1].got, [(100, frame(1, 1)), (100, frame(1, 2))]);
        assert_eq!(hosts[2].got, [(10, frame(2, 3))]);
        assert_eq!(network.last_arrival(), network.now);
    }

    #[test]
    fn same_seed_gives_the_same_run() {
        let run = |seed| {
            let (mut network, mut hosts) = hosts(seed);
            let faults = Faults { loss: 100, duplication: 100, reordering: 100, corruption: 100 };
            network.set_faults(faults);
            network.set_links(|link| link.jitter = Duration::from_micros(5));
            hosts[0].out = (0..100).map(|n| frame(1, n)).collect();
            super::tests::run(&mut network, &mut hosts);
            core::mem::take(&mut hosts[1].got)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let got = run(1);
        let of = |n: u8| got.iter().filter(|(_, f)| f[..] == frame(1, n)[..]).count();
        let whole: Vec<usize> = (0..100).map(of).collect();
        let count = |times| whole.iter().filter(|&&n| n == times).count();
        // Lost or corrupted, once, twice.
        assert!(count(0) > 5 && count(1) > 50 && count(2) > 2, "{whole:?}");
    }
}
