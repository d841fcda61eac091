//! Two providers on a simulated network.

use crate::wire::opcode::Opcode;
use crate::{Limits, PortConfig, Roce, TxBuffer, Verdict};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use netsim::{Network, Rng};
use std::vec::Vec;
use verbs::{
    AddressVector, Completion, CqId, Ctx, GidType, MemoryVerbs, PathMtu, PdId, Provider, QpId,
    QpInit, QpType, RdmaDevice, ReadyToReceive, ReadyToSend,
};

/// A device based on RoCE, which receives and sends frames.
pub trait OverRoce: RdmaDevice {
    /// Its RoCE provider.
    fn roce(&mut self) -> &mut Roce;
}

impl OverRoce for Roce {
    fn roce(&mut self) -> &mut Roce {
        self
    }
}

/// One end of the pair.
#[derive(Debug)]
pub struct Node<D = Roce> {
    /// Its provider, or the device around it.
    pub roce: D,
    /// Its memory.
    pub arena: Arena,
    /// Protection domain of its queue pair.
    pub pd: PdId,
    /// Completion queue of both its queues.
    pub cq: CqId,
    /// Its queue pair.
    pub qp: QpId,
    /// MAC address of its port.
    pub mac: [u8; 6],
    /// IP address of its port.
    pub ip: IpAddr,
    /// The packet to be sent.
    pub tx: TxBuffer,
    /// Whether ACKs to this node are dropped.
    pub hears_no_acks: bool,
    /// Bytes of the longest frame that the path to this node passes.
    pub longest_frame: usize,
}

impl<D: OverRoce> Node<D> {
    /// Takes all completions.
    pub fn completions(&mut self) -> Vec<Completion> {
        core::iter::from_fn(|| self.roce.poll_cq(self.cq)).collect()
    }
}

/// Two nodes, each with the other in its neighbour table. Node 0 is at 10.0.0.1, node 1 at 10.0.0.2 (or fd00::1 and
/// fd00::2).
#[derive(Debug)]
pub struct Pair<D = Roce> {
    /// Both ends.
    pub nodes: [Node<D>; 2],
    /// The network between them.
    pub network: Network,
}

impl<D: OverRoce> netsim::Node for Node<D> {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        // The opcode follows Ethernet, IPv4 and UDP headers.
        let is_ack = frame.get(42) == Some(&(Opcode::Acknowledge as u8));
        if !(is_ack && self.hears_no_acks) && frame.len() <= self.longest_frame {
            self.roce.roce().handle_frame(port, frame, now);
        }
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        self.roce.roce().poll_transmit(port, now, &mut self.tx).then(|| frame(&self.tx))
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.roce.poll_timeout()
    }
    fn work(&mut self, now: Instant) {
        self.roce.handle_timeout(now);
    }
}

impl Pair {
    /// Two nodes, each with a queue pair in state Init.
    pub fn new(seed: u64, mtu: usize, v6: bool) -> Self {
        Self::with_limits(seed, mtu, v6, Limits { qps: 64, regions: 256, ..Limits::default() })
    }

    /// As `new`, with other limits.
    pub fn with_limits(seed: u64, mtu: usize, v6: bool, limits: Limits) -> Self {
        Self::within(seed, mtu, v6, limits, |roce| roce)
    }

    /// Parameters as Linux sets them: ACK timeout 17 (537 ms), 7 retries.
    pub const LINUX: ReadyToSend =
        ReadyToSend { sq_psn: 0, max_rd_atomic: 4, ack_timeout: 17, retry_count: 7, rnr_retry: 7 };

    /// Parameters of the queue pairs of a pair.
    pub fn init(pd: PdId, cq: CqId) -> QpInit {
        QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 512,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 96,
        }
    }
}

impl<D: OverRoce> Pair<D> {
    /// Two nodes whose providers `around` puts into another device.
    pub fn within(
        seed: u64,
        mtu: usize,
        v6: bool,
        limits: Limits,
        around: impl Fn(Roce) -> D,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let address = |n: u8| match v6 {
            true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())),
            false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)),
        };
        let nodes = [1u8, 2].map(|n| {
            let (ip, mac) = (address(n), [0x52, 0x54, 0, 0, 0, n]);
            let port = PortConfig { mac, addresses: std::vec![ip], mtu };
            let mut roce = Roce::new(port, limits, &mut rng);
            roce.pin_neighbour(0, address(3 - n), [0x52, 0x54, 0, 0, 0, 3 - n]);
            let pd = roce.alloc_pd().unwrap();
            let cq = roce.create_cq(4096).unwrap();
            let init = Pair::init(pd, cq);
            let qp = roce.create_qp(&init, &mut rng).unwrap();
            Node {
                roce: around(roce),
                arena: Arena::on_heap(16 << 20),
                pd,
                cq,
                qp,
                mac,
                ip,
                tx: TxBuffer::new(),
                hears_no_acks: false,
                longest_frame: usize::MAX,
            }
        });
        let mut network = Network::new(seed);
        for node in &nodes {
            network.add_node(&[node.mac]);
        }
        Pair { nodes, network }
    }

    /// Address vector from node `n` to the other.
    pub fn address(&self, n: usize) -> AddressVector {
        AddressVector {
            local: self.nodes[n].ip,
            remote: self.nodes[1 - n].ip,
            gid_type: GidType::RoceV2,
            remote_mac: self.nodes[1 - n].mac,
            source_port: 0xc000 + n as u16,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    /// Connects the two queue pairs without the connection manager.
    pub fn connect(&mut self, path_mtu: PathMtu, to: ReadyToSend) {
        let psns = [0xff_fff0, 0x12_3456];
        for n in 0..2 {
            let remote_qpn = self.nodes[1 - n].roce.qp_number(self.nodes[1 - n].qp).unwrap();
            let peer = ReadyToReceive {
                remote_qpn,
                rq_psn: psns[1 - n],
                path_mtu,
                address: self.address(n),
                max_dest_rd_atomic: 4,
                min_rnr_timer: 12,
            };
            let node = &mut self.nodes[n];
            node.roce.ready_to_receive(node.qp, &peer).unwrap();
            node.roce.ready_to_send(node.qp, &ReadyToSend { sq_psn: psns[n], ..to }).unwrap();
        }
    }

    /// Lends node `n` to an engine, with a random seed that depends on the time.
    pub fn context<T>(&mut self, n: usize, act: impl FnOnce(&mut Ctx<'_, D>) -> T) -> T {
        let now = self.network.now;
        let mut rng = Rng::new(now.as_nanos() + n as u64);
        let Node { roce: provider, arena, .. } = &mut self.nodes[n];
        act(&mut Ctx { provider, arena, now, rng: &mut rng })
    }

    /// Delivers a frame to node `n` now.
    pub fn deliver(&mut self, n: usize, bytes: &[u8]) -> Verdict {
        self.nodes[n].roce.roce().handle_frame(0, bytes, self.network.now)
    }

    /// Steps to the next event. False if there is none.
    pub fn step(&mut self) -> bool {
        self.network.step(&mut self.nodes)
    }

    /// Steps until `done` or until `limit` has passed; returns whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair<D>) -> bool) -> bool {
        let end = self.network.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.step() || self.network.now > end {
                return done(self);
            }
        }
    }
}

/// The bytes of a packet.
pub fn frame(tx: &TxBuffer) -> Vec<u8> {
    netsim::bytes(&tx.packet())
}
