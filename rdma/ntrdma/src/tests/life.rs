//! Tests of machines that lose power and reboot at any time during traffic, and of links that flap: the
//! link comes up again, requests in flight end as specified, no state
//! remains, and only granted memory changes.

use super::connections::PARAMETERS;
use super::verbs::request;
use crate::testing::{Node, Pair, SMALL, Way};
use crate::{Ntrdma, State};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use drivers::ntb::Ntb;
use netsim::Rng;
use netsim::contents;
use std::vec::Vec;
use verbs::{
    Access, ConnectionEvent, ConnectionManager, MemoryVerbs, Payload, Provider, QpId, RecvRequest,
    Region, RemoteAddress, SendOperation, SendWith, Status,
};

const PORT: u16 = 7;
/// Fill byte of memory that must not be written.
const GUARD: u8 = 0xa5;
// Offsets of parts in a machine's memory, each of `PART` bytes, with guards between them.
const PART: usize = 32 << 10;
const REGION: usize = 64 << 10;
const RECEIVES: usize = 128 << 10;
const SOURCE: usize = 192 << 10;
const SINK: usize = 256 << 10;

/// The user of a provider: one connection at a time, with a region granted to its peer.
#[derive(Debug, Default)]
struct User {
    qp: Option<QpId>,
    region: Option<Region>,
    /// The region that the peer has granted, once the connection is established.
    granted: Option<RemoteAddress>,
    outstanding: usize,
    /// Contents of the region since it was revoked.
    since_revoked: Option<Vec<u8>>,
    done: u64,
    /// Statuses of the requests of a lost connection.
    ends: Vec<Status>,
}

fn part(node: &Node, at: usize) -> Window {
    node.memory.slice(at, PART).unwrap()
}

impl User {
    /// Creates a queue pair with its receives, and a region; returns the private data that grants the region.
    fn open(&mut self, node: &mut Node, rng: &mut Rng) -> [u8; 12] {
        let memory = part(node, REGION);
        if let Some(before) = self.since_revoked.take() {
            assert!(contents(&memory) == before, "a region changed after its key was revoked");
        }
        let qp = node.ntrdma.create_qp(&Pair::init(node.pd, node.cq), rng).expect("a free slot");
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = node.ntrdma.register(node.pd, memory, all, rng).expect("a free region");
        for id in 0..4 {
            let into = part(node, RECEIVES).slice(id * 8192, 8192).unwrap();
            let receive = RecvRequest { id: id as u64, into: &[into] };
            node.ntrdma.post_recv(qp, &receive).unwrap();
        }
        (self.qp, self.region, self.outstanding) = (Some(qp), Some(region), 0);
        let mut grant = [0; 12];
        grant[..8].copy_from_slice(&region.address.to_le_bytes());
        grant[8..].copy_from_slice(&region.rkey.to_le_bytes());
        grant
    }

    fn store_grant(&mut self, grant: &[u8]) {
        let address = u64::from_le_bytes(grant[..8].try_into().unwrap());
        let rkey = u32::from_le_bytes(grant[8..12].try_into().unwrap());
        self.granted = Some(RemoteAddress { address, rkey });
    }

    fn close(&mut self, node: &mut Node) {
        if let Some(region) = self.region.take() {
            node.ntrdma.deregister(region.id).unwrap();
            self.since_revoked = Some(contents(&part(node, REGION)));
        }
        if let Some(qp) = self.qp.take() {
            node.ntrdma.destroy_qp(qp).unwrap();
        }
        self.granted = None;
        self.ends.clear();
    }

    /// Makes progress: connects (on the second machine), accepts, posts, polls completions.
    fn run(&mut self, node: &mut Node, active: bool, now: Instant, rng: &mut Rng) {
        while node.ntrdma.poll_event().is_some() {}
        while let Some(event) = node.ntrdma.poll_connection_event() {
            match event {
                ConnectionEvent::Request { connection, private_data, .. } => {
                    self.close(node);
                    let grant = self.open(node, rng);
                    self.store_grant(private_data.as_slice());
                    let qp = self.qp.unwrap();
                    node.ntrdma.accept(connection, qp, &PARAMETERS, &grant, now).unwrap();
                }
                ConnectionEvent::Established { private_data, .. } if active => {
                    self.store_grant(private_data.as_slice());
                }
                ConnectionEvent::Established { .. } => (),
                ConnectionEvent::Rejected { .. } | ConnectionEvent::Disconnected { .. } => {
                    self.take_completions(node);
                    self.check_ends();
                    self.close(node);
                }
            }
        }
        if active && self.qp.is_none() && node.ntrdma.link() == State::Up {
            let grant = self.open(node, rng);
            let qp = self.qp.unwrap();
            let (from, to) = (Pair::address(2), SocketAddr::new(Pair::address(1), PORT));
            node.ntrdma.connect(qp, from, to, &PARAMETERS, &grant, now, rng).unwrap();
        }
        self.take_completions(node);
        while self.granted.is_some() && self.outstanding < 8 && self.post(node, rng) {
            self.outstanding += 1;
        }
    }

    fn post(&mut self, node: &mut Node, rng: &mut Rng) -> bool {
        let (Some(qp), Some(granted)) = (self.qp, self.granted) else { return false };
        let length = rng.pick(&[8, 64, 65, 3000, 8192]);
        let offset = rng.within(0..(PART - length) as u64);
        let to = RemoteAddress { address: granted.address + offset, ..granted };
        let source = [part(node, SOURCE).slice(0, length).unwrap()];
        let sink = [part(node, SINK).slice(0, length).unwrap()];
        let payload = Payload::Windows(&source);
        let operation = match rng.within(0..3) {
            0 => SendOperation::Write { payload, to, immediate: None },
            1 => SendOperation::Read { into: &sink, from: to },
            _ => SendOperation::Send { payload, with: SendWith::Nothing },
        };
        node.ntrdma.post_send(qp, &request(100, operation)).is_ok()
    }

    fn take_completions(&mut self, node: &mut Node) {
        for completion in node.completions() {
            if Some(completion.qp) != self.qp {
                continue;
            }
            match (completion.id, completion.status) {
                (100, status) => {
                    self.outstanding -= 1;
                    self.done += u64::from(status == Status::Success);
                    if status != Status::Success {
                        self.ends.push(status);
                    }
                }
                (id, Status::Success) => {
                    let into = part(node, RECEIVES).slice(id as usize * 8192, 8192).unwrap();
                    let receive = RecvRequest { id, into: &[into] };
                    // (The queue pair may have failed since.)
                    let _ = node.ntrdma.post_recv(completion.qp, &receive);
                }
                (_, status) => assert_eq!(status, Status::Flushed),
            }
        }
    }

    /// Checks that the oldest request ended without a response, and that the others were flushed.
    fn check_ends(&self) {
        let is_end = |status: &Status| matches!(status, Status::RetryExceeded | Status::Flushed);
        assert!(self.ends.first().is_none_or(is_end), "{:?}", self.ends);
        assert!(self.ends.iter().skip(1).all(|status| *status == Status::Flushed));
    }
}

/// Checks that only granted memory and buffers of requests have changed.
fn check_memory(node: &Node) {
    for (at, byte) in contents(&node.memory).iter().enumerate() {
        let used = at % (2 * PART) < PART && (REGION..SINK + PART).contains(&at);
        assert!(used || *byte == GUARD, "byte {at} changed");
    }
}

struct World {
    pair: Pair,
    users: [User; 2],
    off_until: [Instant; 2],
}

impl World {
    fn new(seed: u64, way: Way) -> Self {
        let mut pair = Pair::new(seed, SMALL, way);
        for node in &mut pair.nodes {
            node.ntrdma.destroy_qp(node.qp).unwrap();
            node.memory.fill(GUARD);
        }
        pair.nodes[0].ntrdma.listen(PORT).unwrap();
        World { pair, users: Default::default(), off_until: [Instant::ZERO; 2] }
    }

    fn step(&mut self) {
        self.pair.now = self.pair.now + Duration::from_micros(100);
        let now = self.pair.now;
        let rng = &mut self.pair.rng;
        for (n, node) in self.pair.nodes.iter_mut().enumerate() {
            if now < self.off_until[n] {
                continue;
            }
            self.users[n].run(node, n == 1, now, rng);
            node.ntrdma.handle_timeout(now);
            node.ntrdma.poll(&mut node.bridge, now);
            node.bridge.deliver(rng.within(0..60) as usize);
        }
    }

    /// A machine loses power for so long.
    fn reboot(&mut self, n: usize, pause: Duration) {
        self.off_until[n] = self.pair.now + pause;
        let node = &mut self.pair.nodes[n];
        check_memory(node);
        node.bridge.power_off();
        // Exposed memory keeps its contents; the rest of the machine's memory does not.
        node.memory.fill(GUARD);
        let config = Pair::config(n as u8 + 1, SMALL);
        let rng = &mut self.pair.rng;
        node.ntrdma = Ntrdma::new(config, node.bridge.exposed(), rng).unwrap();
        node.pd = node.ntrdma.alloc_pd().unwrap();
        node.cq = node.ntrdma.create_cq(64).unwrap();
        if n == 0 {
            node.ntrdma.listen(PORT).unwrap();
        }
        self.users[n] = User::default();
    }

    /// Checks that both machines complete so many requests within half a second.
    fn expect_traffic(&mut self, count: u64) {
        let end = self.pair.now + Duration::from_millis(500);
        let before = self.users.each_ref().map(|user| user.done);
        while self.pair.now < end {
            self.step();
            if (0..2).all(|n| self.users[n].done >= before[n] + count) {
                return;
            }
        }
        let links = self.pair.nodes.each_ref().map(|node| node.ntrdma.link());
        panic!("no traffic: {links:?} {:?}", self.users);
    }

    fn run_for(&mut self, micros: u64) {
        let end = self.pair.now + Duration::from_micros(micros);
        while self.pair.now < end {
            self.step();
        }
    }

    /// Closes everything, and checks that no state remains.
    fn end(mut self) {
        for (user, node) in self.users.iter_mut().zip(&mut self.pair.nodes) {
            check_memory(node);
            user.close(node);
        }
        let all = SMALL.qps as usize;
        let free = self.pair.run(Duration::from_millis(500), |pair| {
            pair.nodes.iter().all(|node| node.ntrdma.queue_pairs() == (0, all))
        });
        assert!(free, "{:?}", self.pair.nodes.each_ref().map(|n| n.ntrdma.queue_pairs()));
        for node in &mut self.pair.nodes {
            while node.ntrdma.poll_connection_event().is_some() {}
            assert_eq!(node.ntrdma.connections(), 0);
            assert_eq!(node.ntrdma.counters().violations, 0);
            assert_eq!(node.ntrdma.destroy_cq(node.cq), Ok(()));
            assert_eq!(node.ntrdma.dealloc_pd(node.pd), Ok(()));
        }
    }
}

#[test]
fn a_hundred_reboots_under_load() {
    for (seed, way) in (1..).zip(Way::ALL) {
        netsim::label!(way);
        let mut world = World::new(seed, way);
        world.expect_traffic(20);
        for _ in 0..50 {
            let rng = &mut world.pair.rng;
            let (n, pause) = (rng.within(0..2) as usize, rng.pick(&[0, 1, 5, 29, 150, 400]));
            let wait = rng.within(0..20_000);
            world.run_for(wait);
            world.reboot(n, Duration::from_millis(pause));
            if world.pair.rng.chance(200) {
                // Reboot both machines, or the same one again before the link is up.
                let rng = &mut world.pair.rng;
                let (n, wait) = (rng.within(0..2) as usize, rng.within(0..30_000));
                world.run_for(wait);
                world.reboot(n, Duration::ZERO);
            }
            world.run_for(pause * 1000);
            world.expect_traffic(5);
        }
        world.end();
    }
}

#[test]
fn flapping_link_comes_up_again() {
    for seed in 0..6 {
        netsim::label!(seed);
        let mut world = World::new(seed, Way::ALL[seed as usize % Way::ALL.len()]);
        world.expect_traffic(20);
        for _ in 0..20 {
            let wait = world.pair.rng.within(0..20_000);
            world.run_for(wait);
            for node in &mut world.pair.nodes {
                node.bridge.set_link(false);
            }
            let down = world.pair.rng.pick(&[100, 1000, 200_000]);
            world.run_for(down);
            for node in &mut world.pair.nodes {
                node.bridge.set_link(true);
            }
            world.expect_traffic(5);
        }
        world.end();
    }
}

/// The machine that takes the link down sends a last heartbeat: the peer does not wait for the timeout, and its
/// requests in flight end.
#[test]
fn last_heartbeat_takes_the_link_down_at_once() {
    for way in Way::ALL {
        for for_good in [false, true] {
            netsim::label!(way, for_good);
            let mut pair = Pair::new(3, SMALL, way);
            pair.connect();
            let [left, _] = &mut pair.nodes;
            match for_good {
                true => left.ntrdma.shut_down(&mut left.bridge),
                false => assert!(left.ntrdma.reset_link()),
            }
            let lost = Pair::config(1, SMALL).lost;
            let downs = pair.nodes[1].ntrdma.counters().link_down;
            let down = pair.run(lost / 4, |pair| pair.nodes[1].ntrdma.counters().link_down > downs);
            assert!(down, "{way:?}, for good: {for_good}");
            // After a shutdown the link stays down; otherwise it comes up again.
            let back = pair.run(Duration::from_secs(2), |pair| {
                pair.nodes.iter().all(|node| node.ntrdma.link() == State::Up)
            });
            assert_eq!(back, !for_good, "{way:?}");
        }
    }
}
