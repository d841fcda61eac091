//! Test support: two providers on a bridge whose writes arrive in any order, or on a stream.

use super::{Config, Layout, Ntrdma, State};
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use drivers::ntb::Ntb;
use netsim::{BridgeEnd, Rng};
use std::vec::Vec;
use verbs::{
    Completion, CqId, Ctx, MemoryVerbs, PathMtu, PdId, Provider, QpId, QpInit, QpType,
    ReadyToReceive, ReadyToSend,
};

/// One end.
#[derive(Debug)]
pub struct Node {
    /// Its provider.
    pub ntrdma: Ntrdma,
    /// Its end of the bridge.
    pub bridge: BridgeEnd,
    /// Its memory.
    pub arena: Arena,
    /// All of the arena.
    pub memory: Window,
    /// Protection domain of its queue pair.
    pub pd: PdId,
    /// Completion queue of both queues.
    pub cq: CqId,
    /// Its queue pair.
    pub qp: QpId,
}

impl Node {
    /// Polls all completions.
    pub fn completions(&mut self) -> Vec<Completion> {
        core::iter::from_fn(|| self.ntrdma.poll_cq(self.cq)).collect()
    }
}

/// Two nodes, at 10.0.0.1 and 10.0.0.2.
#[derive(Debug)]
pub struct Pair {
    /// Both ends.
    pub nodes: [Node; 2],
    /// Current time.
    pub now: Instant,
    /// Random numbers, which decide the order in which writes arrive.
    pub rng: Rng,
}

/// Kind of link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A bridge over which loads are expensive.
    Posted,
    /// A bridge; the nodes' arenas are exposed and lent to each other.
    Lent,
    /// A bridge with engines that copy payload, and read it late.
    Engine,
    /// A stream of bytes.
    Stream,
}

impl Way {
    /// All kinds.
    pub const ALL: [Way; 4] = [Way::Posted, Way::Lent, Way::Engine, Way::Stream];
}

/// Small rings, so that they wrap and fill.
pub const SMALL: Layout = Layout { qps: 16, ring: 8, staging: 16 << 10, landing: 8 << 10 };

/// Bytes of each node's ring for Ethernet frames.
pub const FRAMES: u32 = 8192;

/// Bytes of each node's arena.
pub const ARENA: usize = 4 << 20;

impl Pair {
    /// Two nodes.
    pub fn new(seed: u64, layout: Layout, way: Way) -> Self {
        let mut rng = Rng::new(seed);
        let used = layout.size() + FRAMES as usize;
        let half = used + ARENA + 8192;
        let memory = Arena::on_heap(2 * half + 4096).alloc(2 * half, 4096).unwrap();
        let mut place = 0;
        let lent = way == Way::Lent;
        let ends = match way {
            Way::Stream => {
                let part = |n: usize| memory.slice(n * half / 64 * 64, used).unwrap();
                BridgeEnd::over_stream([part(0), part(1)], &mut rng)
            }
            Way::Engine => BridgeEnd::with_engines(memory, &mut rng),
            _ => BridgeEnd::pair(memory, lent, &mut rng),
        };
        let nodes = ends.map(|bridge| {
            place += 1;
            let exposed = bridge.exposed();
            let mut ntrdma = Ntrdma::new(Self::config(place, layout), exposed, &mut rng).unwrap();
            let memory = if lent {
                exposed.slice(used, ARENA).unwrap()
            } else {
                Arena::on_heap(ARENA + 4096).alloc(ARENA, 4096).unwrap()
            };
            let arena = Arena::new(memory);
            let pd = ntrdma.alloc_pd().unwrap();
            let cq = ntrdma.create_cq(4096).unwrap();
            let qp = ntrdma.create_qp(&Self::init(pd, cq), &mut rng).unwrap();
            Node { ntrdma, bridge, arena, memory, pd, cq, qp }
        });
        Pair { nodes, now: Instant::from_nanos(1), rng }
    }

    /// Address of node 1 or 2.
    pub fn address(node: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, node).into()
    }

    /// Configuration of node 1 or 2, with short timeouts of the link.
    pub fn config(node: u8, layout: Layout) -> Config {
        let (local, peer) = (Self::address(node), Self::address(3 - node));
        Config {
            layout,
            frames: FRAMES,
            regions: 4096,
            beat: Duration::from_millis(2),
            lost: Duration::from_millis(20),
            ..Config::new(node.into(), local, peer)
        }
    }

    /// A queue pair with large limits.
    pub fn init(pd: PdId, cq: CqId) -> QpInit {
        QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        }
    }

    /// Runs `act` with an engine context of a node, whose random numbers depend on the time.
    pub fn context<T>(&mut self, node: usize, act: impl FnOnce(&mut Ctx<'_, Ntrdma>) -> T) -> T {
        let now = self.now;
        let mut rng = Rng::new(now.as_nanos() + node as u64);
        let Node { ntrdma: provider, arena, .. } = &mut self.nodes[node];
        act(&mut Ctx { provider, arena, now, rng: &mut rng })
    }

    /// Advances the clock, polls both nodes, and delivers some writes.
    pub fn step(&mut self) {
        self.now = self.now + Duration::from_micros(50);
        for node in &mut self.nodes {
            node.ntrdma.handle_timeout(self.now);
            node.ntrdma.poll(&mut node.bridge, self.now);
            node.bridge.deliver(self.rng.within(0..40) as usize);
        }
    }

    /// Runs until `done`, for at most so long; returns whether it was done.
    pub fn run(&mut self, limit: Duration, done: impl Fn(&mut Pair) -> bool) -> bool {
        let end = self.now + limit;
        while self.now < end {
            if done(self) {
                return true;
            }
            self.step();
        }
        done(self)
    }

    /// Runs until the link is up on both sides.
    pub fn bring_up(&mut self) {
        let up = self.run(Duration::from_secs(2), |pair| {
            pair.nodes.iter().all(|node| node.ntrdma.link() == State::Up)
        });
        assert!(up, "the link does not come up");
    }

    /// Brings the link up and connects the nodes' queue pairs by their numbers.
    pub fn connect(&mut self) {
        self.bring_up();
        let numbers = [0, 1].map(|n| {
            let node = &self.nodes[n];
            node.ntrdma.qp_number(node.qp).unwrap()
        });
        for (node, number) in self.nodes.iter_mut().zip([numbers[1], numbers[0]]) {
            let peer = ReadyToReceive {
                remote_qpn: number,
                rq_psn: 0,
                path_mtu: PathMtu::Mtu4096,
                address: verbs::AddressVector {
                    local: Self::address(1),
                    remote: Self::address(2),
                    gid_type: verbs::GidType::RoceV2,
                    remote_mac: [0; 6],
                    source_port: 0,
                    traffic_class: 0,
                    hop_limit: 0,
                },
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
            };
            node.ntrdma.ready_to_receive(node.qp, &peer).unwrap();
            let send = ReadyToSend {
                sq_psn: 0,
                max_rd_atomic: 4,
                ack_timeout: 17,
                retry_count: 7,
                rnr_retry: 7,
            };
            node.ntrdma.ready_to_send(node.qp, &send).unwrap();
        }
    }

    /// Allocates exactly `len` bytes of a node's memory.
    pub fn memory(&mut self, node: usize, len: usize) -> Window {
        self.nodes[node].arena.alloc(len, 64).unwrap().slice(0, len).unwrap()
    }
}
