//! Two connected providers, and the wire between them.

use drivers::hal::{Arena, Instant, Window};
use rand_core::{Infallible, Rng as _, TryRng};
use roce::{Limits, PortConfig, Roce, TxBuffer};
use std::net::{IpAddr, Ipv4Addr};
use verbs::{
    AddressVector, CqId, GidType, MemoryVerbs, PathMtu, PdId, Provider, QpId, QpInit, QpType,
    ReadyToReceive, ReadyToSend,
};

/// A deterministic random generator.
pub struct Rng(u64);

impl TryRng for Rng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next_u64() >> 32) as u32)
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Ok(self.0)
    }
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        into.fill_with(|| self.next_u32() as u8);
        Ok(())
    }
}

/// One end.
pub struct Node {
    pub roce: Roce,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: QpId,
    mac: [u8; 6],
    ip: IpAddr,
}

impl Node {
    /// Attributes of a queue pair for `depth` requests in each direction.
    pub fn init(&self, depth: u32) -> QpInit {
        QpInit {
            kind: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 4,
            max_recv_sge: 1,
            max_inline: 0,
        }
    }
}

/// Two nodes, connected at a path MTU of 1024.
pub struct Fixture {
    pub nodes: [Node; 2],
    pub arena: Arena,
    pub rng: Rng,
    tx: TxBuffer,
}

/// The time of the whole bench, constant so that no timer expires.
pub const NOW: Instant = Instant::from_nanos(1);

impl Fixture {
    pub fn new() -> Self {
        let mut rng = Rng(1);
        let nodes = [1, 2].map(|n| {
            let mac = [2, 0, 0, 0, 0, n];
            let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
            let port = PortConfig { mac, addresses: vec![ip], mtu: 1500 };
            // Without a window, so that any number of packets can be made beforehand.
            let limits = Limits { unacknowledged: 1 << 20, qps: 2048, ..Limits::default() };
            let mut roce = Roce::new(port, limits, &mut rng);
            let pd = roce.alloc_pd().expect("room");
            let cq = roce.create_cq(4096).expect("room");
            let mut node = Node { roce, pd, cq, qp: QpId(0), mac, ip };
            let init = node.init(64);
            node.qp = node.roce.create_qp(&init, &mut rng).expect("room");
            node
        });
        let mut fixture =
            Fixture { nodes, arena: Arena::on_heap(16 << 20), rng, tx: TxBuffer::new() };
        for n in 0..2 {
            let qp = fixture.nodes[n].qp;
            fixture.connect(n, qp, 1 - n);
        }
        fixture
    }

    /// Makes `qp` of node `n` ready to send to the first queue pair of node `to`.
    pub fn connect(&mut self, n: usize, qp: QpId, to: usize) {
        let other = &self.nodes[to];
        let peer = ReadyToReceive {
            remote_qpn: other.roce.qp_number(other.qp).expect("made"),
            rq_psn: 0,
            path_mtu: PathMtu::Mtu1024,
            address: AddressVector {
                local: self.nodes[n].ip,
                remote: other.ip,
                gid_type: GidType::RoceV2,
                remote_mac: other.mac,
                source_port: 0xc000,
                traffic_class: 0,
                hop_limit: 64,
            },
            max_dest_rd_atomic: 0,
            min_rnr_timer: 12,
        };
        let send = ReadyToSend {
            sq_psn: 0,
            max_rd_atomic: 0,
            ack_timeout: 17,
            retry_count: 7,
            rnr_retry: 7,
        };
        let roce = &mut self.nodes[n].roce;
        roce.ready_to_receive(qp, &peer).expect("fresh");
        roce.ready_to_send(qp, &send).expect("fresh");
    }

    /// `len` bytes of memory.
    pub fn memory(&mut self, len: usize) -> Window {
        self.arena.alloc(len, 4096).expect("arena is large enough")
    }

    /// Polls the next packet of node `n` into the transmit buffer. False if there is none.
    pub fn poll(&mut self, n: usize) -> bool {
        self.nodes[n].roce.poll_transmit(0, NOW, &mut self.tx)
    }

    /// Assembles the frame of the transmit buffer in `into`, and returns its length.
    pub fn frame(&self, into: &mut [u8]) -> usize {
        let packet = self.tx.packet();
        let mut at = packet.header.len();
        into[..at].copy_from_slice(packet.header);
        for window in packet.payload {
            window.read(0, &mut into[at..at + window.len()]).expect("its own length");
            at += window.len();
        }
        let end = at + packet.trailer.len();
        into[at..end].copy_from_slice(packet.trailer);
        end
    }

    /// Carries one packet from node `n` to the other; false if there is none.
    pub fn carry(&mut self, n: usize) -> bool {
        let mut frame = [0; 2048];
        if !self.poll(n) {
            return false;
        }
        let len = self.frame(&mut frame);
        self.nodes[1 - n].roce.handle_frame(0, &frame[..len], NOW);
        true
    }
}
