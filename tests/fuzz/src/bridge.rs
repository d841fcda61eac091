//! NTRDMA over memory that two machines share, with an attacker that writes anything anywhere into it. Two providers
//! with a queue pair run, and the input overwrites shared memory between their turns. Apart from sent data, a machine's
//! private memory never appears in shared memory ([`leak`]), and never changes.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use drivers::ntb::{Ntb, SharedMemory, Side};
use netsim::Rng;
use ntrdma::{Config, Layout, Ntrdma};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use verbs::{
    Access, AddressVector, CqId, GidType, MemoryVerbs, PathMtu, Payload, PdId, Provider, QpId,
    QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest, Region, RemoteAddress, SendOperation,
    SendRequest, SendWith,
};

const LAYOUT: Layout = Layout { qps: 2, ring: 4, staging: 4096, landing: 4096 };
/// Bytes of each machine that the other can load from.
const LENT: usize = 16 << 10;
const PRIVATE: usize = 8 << 10;
const EVENTS: usize = 200;

struct Node {
    ntrdma: Ntrdma,
    bridge: SharedMemory,
    pd: PdId,
    cq: CqId,
    qp: QpId,
    region: Region,
    lent: Window,
    private: Window,
    /// A part of that, registered, whose key the peer does not have.
    secret: Region,
    rng: Rng,
}

fn half() -> usize {
    (LAYOUT.size() + LENT + 8192).next_multiple_of(4096)
}

fn address(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1 + node as u8))
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    with_nodes(|nodes, shared, now| {
        let mut input = Input(data);
        input.events(EVENTS, |input| event(nodes, shared, now, input));
    });
}

fn with_nodes(story: impl FnOnce(&mut [Node; 2], Window, &mut Instant)) {
    let all = 2 * half() + 2 * PRIVATE + 4096;
    netsim::with_memory(all, |memory| {
        let mut arena = Arena::new(memory);
        let shared = arena.alloc(2 * half(), 4096).expect("room");
        let mut nodes = [0, 1].map(|n| {
            let private = arena.alloc(PRIVATE, 4096).expect("room");
            leak::fill(private, Owner::Victim);
            Node::new(n, shared, private)
        });
        let mut now = Instant::from_nanos(1);
        for _ in 0..400 {
            now = now + Duration::from_millis(1);
            nodes.iter_mut().for_each(|node| node.poll(now));
        }
        let numbers = [0, 1].map(|n: usize| nodes[n].ntrdma.qp_number(nodes[n].qp));
        for (n, node) in nodes.iter_mut().enumerate() {
            if let Ok(number) = numbers[1 - n] {
                node.connect(n, number);
            }
        }
        story(&mut nodes, shared, &mut now);
        end(&nodes, shared);
    });
}

fn end(nodes: &[Node; 2], shared: Window) {
    for node in nodes {
        leak::untouched(node.private, Owner::Victim, "memory that was not lent");
    }
    leak::check(shared, "the other machine");
}

fn event(nodes: &mut [Node; 2], shared: Window, now: &mut Instant, input: &mut Input<'_>) {
    let what = input.byte();
    let n = usize::from(what >> 7);
    match what % 8 {
        // Overwrites a number, usually among doorbells and commands.
        0..=3 => {
            let control = what & 0x40 == 0;
            let end = if control { 0x2400 } else { shared.len() / 2 };
            let at = n * (shared.len() / 2) + (usize::from(input.word()) * 4) % end;
            let mut there = [0; 4];
            shared.read(at, &mut there).expect("inside");
            let value = u32::from(input.word());
            let value = match what % 4 {
                0 => value,
                1 => u32::MAX - value,
                2 => u32::from_le_bytes(there).wrapping_add(value & 3),
                _ => value << 16,
            };
            shared.write(at, &value.to_le_bytes()).expect("inside");
        }
        4 => {
            for _ in 0..=input.byte() % 16 {
                *now = *now + Duration::from_micros(u64::from(input.byte()) * 100);
                nodes.iter_mut().for_each(|node| node.poll(*now));
            }
        }
        5 => nodes[n].receive(input),
        6 => {
            let (theirs, secret) = (nodes[1 - n].region, nodes[1 - n].secret);
            nodes[n].send(theirs, secret, input);
        }
        _ => nodes[n].poll(*now),
    }
}

impl Node {
    fn new(n: usize, shared: Window, private: Window) -> Self {
        let side = if n == 0 { Side::A } else { Side::B };
        let bridge = SharedMemory::new(shared, side).expect("the memory is large enough");
        let config = Config::new(1 + n as u64, address(n), address(1 - n));
        let config = Config {
            layout: LAYOUT,
            pds: 4,
            cqs: 4,
            regions: 8,
            keys: 8,
            wr: 4,
            connections: 4,
            ..config
        };
        let mut rng = Rng::new(1 + n as u64);
        let exposed = bridge.exposed();
        let mut ntrdma = Ntrdma::new(config, exposed, &mut rng).expect("the layout fits");
        let pd = ntrdma.alloc_pd().expect("room");
        let cq = ntrdma.create_cq(64).expect("room");
        let init = QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = ntrdma.create_qp(&init, &mut rng).expect("room");
        let lent = exposed.slice(LAYOUT.size(), LENT).expect("the memory is large enough");
        let region = ntrdma.register(pd, lent, Access::all(), &mut rng).expect("room");
        let part = private.slice(PRIVATE / 2, PRIVATE / 2).expect("inside");
        let secret = ntrdma.register(pd, part, Access::empty(), &mut rng).expect("room");
        Node { ntrdma, bridge, pd, cq, qp, region, lent, private, secret, rng }
    }

    fn poll(&mut self, now: Instant) {
        self.ntrdma.poll(&mut self.bridge, now);
        while self.ntrdma.poll_cq(self.cq).is_some() {}
    }

    fn connect(&mut self, n: usize, to: u32) {
        let peer = ReadyToReceive {
            remote_qpn: to,
            rq_psn: 0,
            path_mtu: PathMtu::Mtu4096,
            address: AddressVector {
                local: address(n),
                remote: address(1 - n),
                gid_type: GidType::RoceV2,
                remote_mac: [0; 6],
                source_port: 0,
                traffic_class: 0,
                hop_limit: 0,
            },
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
        };
        let send = ReadyToSend {
            sq_psn: 0,
            max_rd_atomic: 2,
            ack_timeout: 17,
            retry_count: 7,
            rnr_retry: 7,
        };
        let _ = self.ntrdma.ready_to_receive(self.qp, &peer);
        let _ = self.ntrdma.ready_to_send(self.qp, &send);
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.word()) % 4096;
        let into = [self.lent.slice(0, len).expect("inside")];
        let into = if len == 0 { &[][..] } else { &into };
        let _ = self.ntrdma.post_recv(self.qp, &RecvRequest { id: 1, into });
        if input.byte() > 250 {
            // The peer's key becomes invalid.
            if let Ok(rkey) = self.ntrdma.rotate_key(self.region.id, &mut self.rng) {
                self.region.rkey = rkey;
            }
        }
    }

    fn send(&mut self, theirs: Region, secret: Region, input: &mut Input<'_>) {
        let kind = input.byte();
        let theirs = if kind & 0x38 == 0x38 { secret } else { theirs };
        let len = usize::from(input.word()) % 4096;
        let window = [self.lent.slice(4096, len).expect("inside")];
        let eight = self.lent.slice(8192, 8).expect("inside");
        let offset = u64::from(input.word()) & !7;
        let at = RemoteAddress {
            address: theirs.address.wrapping_add(offset),
            rkey: if kind & 0x80 == 0 { theirs.rkey } else { theirs.rkey ^ 4 },
        };
        let payload = Payload::Windows(&window);
        let operation = match kind % 6 {
            0 => SendOperation::Send { payload, with: SendWith::Immediate(7) },
            1 => SendOperation::Send { payload, with: SendWith::Invalidate(theirs.rkey) },
            2 => SendOperation::Write { payload, to: at, immediate: Some(1) },
            3 => SendOperation::Read { into: &window, from: at },
            4 => SendOperation::FetchAdd { into: eight, at, add: 1 },
            _ => SendOperation::CompareSwap { into: eight, at, compare: 0, swap: 1 },
        };
        let request = SendRequest {
            id: 2,
            operation,
            signaled: kind & 0x40 == 0,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        let _ = self.ntrdma.post_send(self.qp, &request);
        let _ = self.pd;
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    let turn = [4, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    let work = |kind: u8| [&[0x85, 1, 0, 0, 6, kind, 1, 0, 0, 0][..], &turn].concat();
    let mut lists: Vec<Vec<u8>> = (0..6).map(work).collect();
    // WRITE, READ and atomic to memory whose key the peer does not have.
    lists.extend([0x38, 0x39, 0x3a].map(work));
    let over = [2, 0, 0x42, 0, 1, 0x82, 0, 0x40, 0, 1, 1, 0, 0x41, 0, 0];
    lists.push([&work(0)[..], &over, &turn, &work(2)].concat());
    lists.push([&over[..], &turn, &over, &turn].concat());
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first machine posts a READ of memory whose key it does not have, and time passes.
    const READ: [u8; 6] = [6, 0x39, 1, 0, 0, 0];
    const TIME: [u8; 17] = [4, 15, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];

    fn read(nodes: &mut [Node; 2], shared: Window, now: &mut Instant) {
        event(nodes, shared, now, &mut Input(&READ));
        event(nodes, shared, now, &mut Input(&TIME));
    }

    #[test]
    fn read_of_memory_that_is_not_granted_is_refused() {
        with_nodes(read);
    }

    #[test]
    #[should_panic(expected = "the other machine has bytes of Victim")]
    fn leak_is_detected() {
        with_nodes(|nodes, shared, now| {
            let node = &mut nodes[1];
            let part = node.secret.memory;
            let open = node.ntrdma.register(node.pd, part, Access::all(), &mut node.rng);
            node.secret = open.expect("room");
            read(nodes, shared, now);
        });
    }
}
