//! Two providers over a bridge of shared memory.

use drivers::hal::{Arena, Instant, Window};
use drivers::ntb::{Ntb, SharedMemory, Side};
use netsim::Rng;
use ntrdma::{Config, Layout, Ntrdma, State};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use verbs::{
    AddressVector, CqId, GidType, MemoryVerbs, PathMtu, PdId, Provider, QpId, QpInit, QpType,
    ReadyToReceive, ReadyToSend,
};

/// Memory of each node that its peer can load from.
const LENT: usize = 16 << 20;

/// One end.
pub struct Node {
    pub ntrdma: Ntrdma,
    pub bridge: SharedMemory,
    pub arena: Arena,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: QpId,
    pub rng: Rng,
}

impl Node {
    fn new(number: u8, memory: Window) -> Self {
        let side = if number == 1 { Side::A } else { Side::B };
        let bridge = SharedMemory::new(memory, side).expect("large enough");
        let layout = Layout::default();
        // On a busy host a thread may not run for a long time.
        let lost = Duration::from_secs(60);
        let config = Config::new(number.into(), address(number), address(3 - number));
        let config = Config { layout, lost, ..config };
        let mut rng = Rng::new(number.into());
        let exposed = bridge.exposed();
        let mut ntrdma = Ntrdma::new(config, exposed, &mut rng).expect("it fits");
        let pd = ntrdma.alloc_pd().expect("room");
        let cq = ntrdma.create_cq(4096).expect("room");
        let qp = ntrdma.create_qp(&init(pd, cq), &mut rng).expect("room");
        let arena = Arena::new(exposed.slice(layout.size(), LENT).expect("large enough"));
        Node { ntrdma, bridge, arena, pd, cq, qp, rng }
    }

    /// Polls the provider.
    #[inline]
    pub fn poll(&mut self, now: Instant) {
        self.ntrdma.poll(&mut self.bridge, now);
    }

    /// `len` bytes of memory that the peer can load from.
    pub fn memory(&mut self, len: usize) -> Window {
        self.arena.alloc(len, 4096).expect("arena is large enough")
    }

    fn connect(&mut self, to: u32) {
        let (peer, send) = peer_of(to);
        self.ntrdma.ready_to_receive(self.qp, &peer).expect("fresh");
        self.ntrdma.ready_to_send(self.qp, &send).expect("fresh");
    }
}

/// A queue pair.
pub fn init(pd: PdId, cq: CqId) -> QpInit {
    QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 1,
        max_inline: 0,
    }
}

/// Attributes that connect a queue pair to queue pair `to` of the peer.
pub fn peer_of(to: u32) -> (ReadyToReceive, ReadyToSend) {
    let peer = ReadyToReceive {
        remote_qpn: to,
        rq_psn: 0,
        path_mtu: PathMtu::Mtu4096,
        address: AddressVector {
            local: address(1),
            remote: address(2),
            gid_type: GidType::RoceV2,
            remote_mac: [0; 6],
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
        },
        max_dest_rd_atomic: 0,
        min_rnr_timer: 12,
    };
    let send =
        ReadyToSend { sq_psn: 0, max_rd_atomic: 0, ack_timeout: 17, retry_count: 7, rnr_retry: 7 };
    (peer, send)
}

/// Address of node 1 or 2.
pub fn address(node: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, node).into()
}

/// Two nodes whose link is up, and the current time.
pub fn linked() -> ([Node; 2], Instant) {
    let half = (Layout::default().size() + LENT + 8192).next_multiple_of(4096);
    let memory = Arena::on_heap(2 * half + 4096).alloc(2 * half, 4096).expect("as much as that");
    let mut nodes = [1, 2].map(|number| Node::new(number, memory));
    let mut now = Instant::from_nanos(1);
    while nodes.iter().any(|node| node.ntrdma.link() != State::Up) {
        now = now + Duration::from_millis(1);
        nodes.iter_mut().for_each(|node| node.poll(now));
    }
    (nodes, now)
}

/// Two nodes, connected.
pub fn connected() -> ([Node; 2], Instant) {
    let (mut nodes, now) = linked();
    let numbers =
        [0, 1].map(|n: usize| nodes[n].ntrdma.qp_number(nodes[n].qp).expect("it was made"));
    nodes[0].connect(numbers[1]);
    nodes[1].connect(numbers[0]);
    (nodes, now)
}
