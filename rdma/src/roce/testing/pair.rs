//! Two providers with a wire between them, in virtual time: latency, loss, duplication, reordering
//! and corruption from one seed.

use super::Rng;
use crate::roce::{Limits, PortConfig, Roce, TxBuffer, Verdict};
use crate::verbs::{
    AddressVector, Completion, CqId, GidType, PathMtu, PdId, Provider, QpId, QpInit, QpType,
    ReadyToReceive, ReadyToSend,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use std::collections::BTreeMap;
use std::vec::Vec;

/// What the wire does to frames, in thousandths of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    pub corruption: u32,
}

/// One end.
#[derive(Debug)]
pub struct Node {
    pub roce: Roce,
    pub arena: Arena,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: QpId,
    pub mac: [u8; 6],
    pub ip: IpAddr,
}

impl Node {
    /// All completions that are there.
    pub fn completions(&mut self) -> Vec<Completion> {
        core::iter::from_fn(|| self.roce.poll_cq(self.cq)).collect()
    }
}

/// Two nodes. Node 0 is at 10.0.0.1, node 1 at 10.0.0.2 (or fd00::1 and fd00::2).
#[derive(Debug)]
pub struct Pair {
    pub nodes: [Node; 2],
    pub rng: Rng,
    pub now: Instant,
    pub faults: Faults,
    pub latency: Duration,
    /// Frames that are under way, by time of arrival: to whom, and the bytes.
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    frames: u64,
    /// Every frame that was sent, if wanted: by whom, and the bytes.
    pub record: Option<Vec<(usize, Vec<u8>)>>,
    /// Frames from this node vanish.
    pub mute: [bool; 2],
}

impl Pair {
    /// Two nodes, each with a queue pair in state Init.
    pub fn new(seed: u64, mtu: usize, v6: bool) -> Self {
        Self::with_limits(seed, mtu, v6, Limits { qps: 64, regions: 256, ..Limits::default() })
    }

    /// Likewise, with other limits.
    pub fn with_limits(seed: u64, mtu: usize, v6: bool, limits: Limits) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = [1u8, 2].map(|n| {
            let ip = if v6 {
                IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n as u16))
            } else {
                IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
            };
            let mac = [0x52, 0x54, 0, 0, 0, n];
            let port = PortConfig { mac, addresses: std::vec![ip], mtu };
            let mut roce = Roce::new(port, limits, &mut rng);
            let pd = roce.alloc_pd().unwrap();
            let cq = roce.create_cq(4096).unwrap();
            let init = Self::init(pd, cq);
            let qp = roce.create_qp(&init, &mut rng).unwrap();
            Node { roce, arena: Arena::on_heap(16 << 20), pd, cq, qp, mac, ip }
        });
        Pair {
            nodes,
            rng,
            now: Instant::from_nanos(1),
            faults: Faults::default(),
            latency: Duration::from_micros(10),
            wire: BTreeMap::new(),
            frames: 0,
            record: None,
            mute: [false; 2],
        }
    }

    /// How the queue pairs of a pair are made.
    pub fn init(pd: PdId, cq: CqId) -> QpInit {
        QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 512,
        }
    }

    /// The way from node `n` to the other.
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

    /// The way Linux connects: ACK timeout 17 (537 ms), 7 retries.
    pub const LINUX: ReadyToSend =
        ReadyToSend { sq_psn: 0, max_rd_atomic: 4, ack_timeout: 17, retry_count: 7, rnr_retry: 7 };

    /// Puts a frame of node `from` on the wire.
    fn transmit(&mut self, from: usize, mut bytes: Vec<u8>) {
        if let Some(record) = &mut self.record {
            record.push((from, bytes.clone()));
        }
        if self.mute[from] || self.rng.chance(self.faults.loss) {
            return;
        }
        let copies = 1 + self.rng.chance(self.faults.duplication) as usize;
        if self.rng.chance(self.faults.corruption) {
            // Behind the Ethernet header, which only the frame check sequence covers.
            let bit = self.rng.0 as usize % ((bytes.len() - 14) * 8);
            bytes[14 + bit / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            let mut at = self.now + self.latency;
            if self.rng.chance(self.faults.reordering) {
                at = at + self.latency * 3;
            }
            self.frames += 1;
            self.wire.insert((at, self.frames), (1 - from, bytes.clone()));
        }
    }

    /// Takes everything that the nodes have to send now.
    fn collect(&mut self) {
        let mut tx = TxBuffer::new();
        for n in 0..2 {
            while self.nodes[n].roce.poll_transmit(0, self.now, &mut tx) {
                self.transmit(n, frame(&tx));
            }
        }
    }

    /// Gives node `n` a frame, now.
    pub fn deliver(&mut self, n: usize, bytes: &[u8]) -> Verdict {
        self.nodes[n].roce.handle_frame(0, bytes, self.now)
    }

    /// One step: to the next moment at which anything happens. False if nothing ever will.
    pub fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.keys().next().map(|&(at, _)| at);
        let timers = self.nodes.iter().filter_map(|n| n.roce.poll_timeout()).min();
        let Some(next) = [arrival, timers].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, bytes) = entry.remove();
            self.deliver(to, &bytes);
        }
        for node in &mut self.nodes {
            node.roce.handle_timeout(self.now);
        }
        true
    }

    /// Steps until `done` or until `limit` has passed; returns whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.step() || self.now > end {
                return done(self);
            }
        }
    }
}

/// The bytes of a packet.
pub fn frame(tx: &TxBuffer) -> Vec<u8> {
    let packet = tx.packet();
    let mut bytes = packet.header.to_vec();
    for window in packet.payload {
        bytes.extend(super::contents(window));
    }
    bytes.extend(packet.trailer);
    bytes
}
