//! Two RoCE engines under a list of events: verbs with any arguments; frames that are delivered, dropped, repeated,
//! changed or forged; and time. Memory that was not granted is not modified, and does not appear in frames ([`leak`]).
//! At the end all resources are free.

mod events;

use crate::capture;
use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use roce::wire::bth;
use roce::wire::frame::{ETHERNET_LEN, Frame};
use roce::wire::icrc::Icrc;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use verbs::{
    Access, AddressVector, ConnectionEvent, ConnectionManager, ConnectionParameters, CqId, GidType,
    MemoryVerbs, PathMtu, Payload, PdId, Provider, QpId, QpInit, QpType, ReadyToReceive,
    ReadyToSend, RecvRequest, Region, RejectReason, RemoteAddress, SendOperation, SendRequest,
    SendWith,
};

const MEMORY: usize = 64 << 10;
/// Bytes that are sent, behind the received ones. Memory behind them is neither sent nor received.
const SENT: usize = 2048 + 8;
/// Most events of an input.
const EVENTS: usize = 500;

struct Node {
    roce: Roce,
    pd: PdId,
    cq: CqId,
    qps: Vec<QpId>,
    regions: Vec<Region>,
    /// Memory that may be granted, between guards.
    ground: Window,
    /// Memory for receives, answers and requests.
    local: Window,
    guards: [Window; 3],
    /// Registered memory whose key no peer has.
    secret: Region,
}

struct World {
    nodes: [Node; 2],
    wire: VecDeque<(usize, Vec<u8>)>,
    now: Instant,
    rng: Rng,
}

fn mac(node: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + node as u8]
}

fn ip(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + node as u8))
}

fn address(node: usize) -> AddressVector {
    AddressVector {
        local: ip(node),
        remote: ip(1 - node),
        gid_type: GidType::RoceV2,
        remote_mac: mac(1 - node),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
    }
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    netsim::with_memory(2 * MEMORY, |memory| {
        let mut world = World::new(memory);
        let mut input = Input(data);
        input.events(EVENTS, |input| world.event(input));
        world.end();
    });
}

/// Lists of events that reach deep: an established connection, a connection set-up, and captured frames.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1);
    let random = (0..8).map(|_| {
        let mut bytes = vec![0; 600];
        rand_core::Rng::fill_bytes(&mut rng, &mut bytes);
        bytes
    });
    // Post receives and requests, deliver frames in both directions.
    let work: Vec<u8> =
        (0..40u8).flat_map(|n| [1, 1, 0, 0, n, n, 9, 1, 2, 0, 2, 1, 2, 0]).collect();
    // WRITE, READ and atomic to memory whose key no peer has.
    let secret = [0x1b, 0x1d, 0x1e].map(|kind| {
        let post = [0, 0, 0, kind, 2, 0, 0, 0, 0, 0, 0];
        [&post[..], &[2, 1].repeat(20)].concat()
    });
    let connect = [9, 0, 2, 0, 10, 1, 1, 2, 1, 10, 0, 1, 2, 0].repeat(4);
    let mut captured = Vec::new();
    for frame in capture::frames().iter().take(40).filter(|frame| frame.len() < 400) {
        captured.extend([7, 1]);
        captured.extend((frame.len() as u16).to_be_bytes());
        captured.extend(frame);
    }
    let random = random.chain(secret);
    random.chain([work.clone(), connect.clone(), captured, [connect, work].concat()]).collect()
}

impl World {
    fn new(memory: Window) -> Self {
        let mut rng = Rng::new(7);
        let nodes = [0, 1].map(|n| {
            let memory = memory.slice(n * MEMORY, MEMORY).expect("inside");
            leak::fill(memory, Owner::Past);
            let mut arena = Arena::new(memory);
            let port = PortConfig { mac: mac(n), addresses: vec![ip(n)], mtu: 576 };
            let limits = Limits {
                qps: 8,
                cqs: 4,
                pds: 4,
                regions: 9,
                keys: 18,
                wr: 16,
                connections: 8,
                connections_per_host: 4,
                half_open: 4,
                unacknowledged: 8,
            };
            let mut roce = Roce::new(port, limits, &mut rng);
            roce.pin_neighbour(0, ip(1 - n), mac(1 - n));
            roce.listen(7000).expect("the port is free");
            let pd = roce.alloc_pd().expect("room");
            let cq = roce.create_cq(64).expect("room");
            let mut take = |len| arena.alloc(len, 64).expect("room");
            let (low, ground, middle, local, high) =
                (take(4096), take(8192), take(4096), take(8192), take(4096));
            let guards = [low, middle, high];
            guards.iter().for_each(|guard| leak::fill(*guard, Owner::Gateway));
            let secret = take(4096);
            leak::fill(secret, Owner::Victim);
            leak::fill(local, Owner::Victim);
            ground.fill(0);
            local.slice(4096, SENT).expect("inside").fill(0);
            let secret = roce.register(pd, secret, Access::empty(), &mut rng).expect("room");
            let region = roce.register(pd, ground, Access::all(), &mut rng).expect("room");
            let qps = vec![roce.create_qp(&init(pd, cq, 8), &mut rng).expect("room")];
            let regions = vec![region];
            Node { roce, pd, cq, qps, regions, ground, local, guards, secret }
        });
        let mut world = World { nodes, wire: VecDeque::new(), now: Instant::from_nanos(1), rng };
        let numbers = [0, 1].map(|n| {
            let node = &world.nodes[n];
            node.roce.qp_number(node.qps[0]).expect("the queue pair exists")
        });
        for n in 0..2 {
            let peer = ReadyToReceive {
                remote_qpn: numbers[1 - n],
                rq_psn: 0xff_fffa,
                path_mtu: PathMtu::Mtu256,
                address: address(n),
                max_dest_rd_atomic: 2,
                min_rnr_timer: 1,
            };
            let to = ReadyToSend {
                sq_psn: 0xff_fffa,
                max_rd_atomic: 2,
                ack_timeout: 8,
                retry_count: 7,
                rnr_retry: 7,
            };
            let node = &mut world.nodes[n];
            node.roce.ready_to_receive(node.qps[0], &peer).expect("fresh");
            node.roce.ready_to_send(node.qps[0], &to).expect("fresh");
        }
        world
    }

    fn collect(&mut self) {
        let mut tx = TxBuffer::new();
        for n in 0..2 {
            while self.wire.len() < 64 && self.nodes[n].roce.poll_transmit(0, self.now, &mut tx) {
                let frame = netsim::bytes(&tx.packet());
                leak::check_bytes(&frame, "the peer");
                self.wire.push_back((1 - n, frame));
            }
        }
    }

    fn deliver(&mut self, n: usize, frame: &[u8]) {
        // A sender of a mark, in parts or at once, could receive it back.
        if leak::in_part(frame) {
            return;
        }
        let _ = self.nodes[n].roce.handle_frame(0, frame, self.now);
    }

    /// Releases all resources, and checks that they are free.
    fn end(&mut self) {
        for node in &mut self.nodes {
            for qp in node.qps.drain(..) {
                node.roce.destroy_qp(qp).expect("the queue pair exists");
            }
            assert!(node.roce.poll_cq(node.cq).is_none(), "a completion of a destroyed queue pair");
        }
        // No frame is delivered any more: all timers expire.
        let mut rounds = 0;
        loop {
            self.wire.clear();
            self.collect();
            for node in &mut self.nodes {
                while let Some(event) = node.roce.poll_connection_event() {
                    if let ConnectionEvent::Request { connection, .. } = event {
                        // The connection may have ended already.
                        let _ = node.roce.reject(connection, RejectReason::CONSUMER, b"");
                    }
                }
            }
            let next = self.nodes.iter().filter_map(|node| node.roce.poll_timeout()).min();
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            self.nodes.iter_mut().for_each(|node| node.roce.handle_timeout(self.now));
            rounds += 1;
            assert!(rounds < 2000, "timers never expire");
        }
        for node in &mut self.nodes {
            for region in node.regions.drain(..) {
                node.roce.deregister(region.id).expect("the region exists");
            }
            assert_eq!(node.roce.connections(), 0, "connections are left");
            assert_eq!(node.roce.queue_pairs(), 0);
            node.roce.deregister(node.secret.id).expect("the region exists");
            node.roce.dealloc_pd(node.pd).expect("no object uses it");
            node.roce.destroy_cq(node.cq).expect("no object uses it");
            for guard in &node.guards {
                leak::untouched(*guard, Owner::Gateway, "a guard");
            }
            leak::untouched(
                node.secret.memory,
                Owner::Victim,
                "registered memory whose key no peer has",
            );
        }
    }
}

fn init(pd: PdId, cq: CqId, depth: u32) -> QpInit {
    QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 64,
    }
}

fn parameters(input: &mut Input<'_>) -> ConnectionParameters {
    let mut small = |most: u8| if input.byte() > 250 { 255 } else { input.byte() % most };
    ConnectionParameters {
        responder_resources: small(4),
        initiator_depth: small(4),
        retry_count: small(8),
        rnr_retry_count: small(8),
        min_rnr_timer: small(32),
    }
}

/// Corrects the ICRC, so that the changed packet passes the ICRC check.
pub fn seal(frame: &mut [u8]) {
    let Ok(parsed) = Frame::parse(frame) else { return };
    let network = parsed.network;
    let start = ETHERNET_LEN + network.len() + bth::LEN;
    let end = ETHERNET_LEN + parsed.headers.len();
    if end < start + 4 {
        return;
    }
    let icrc = Icrc::new().compute(network, &parsed.headers[..parsed.headers.len() - 4], &[], 0);
    frame[end - 4..end].copy_from_slice(&icrc);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_world(story: impl FnOnce(&mut World)) {
        netsim::with_memory(2 * MEMORY, |memory| {
            let mut world = World::new(memory);
            story(&mut world);
            world.end();
        });
    }

    /// A READ of granted memory returns zeroes, a READ of other memory is refused.
    const READS: [[u8; 9]; 2] = [[0, 0, 0, 5, 2, 0, 0, 0, 0], [0, 0, 0, 5 | 0x18, 2, 0, 0, 0, 0]];

    #[test]
    fn read_of_memory_that_is_not_granted_is_refused() {
        with_world(|world| {
            for read in READS {
                let mut input = Input(&read);
                world.event(&mut input);
                for _ in 0..20 {
                    world.event(&mut Input(&[2, 1]));
                }
            }
        });
    }

    /// A connection request contains eight bytes of the input.
    #[test]
    fn bytes_of_the_sender_itself_are_no_leak() {
        with_world(|world| {
            let mark = leak::mark(Owner::Volume);
            let connect = [&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &mark].concat();
            world.event(&mut Input(&connect));
            world.event(&mut Input(&[2, 1]));
        });
    }

    #[test]
    #[should_panic(expected = "the peer has bytes of Victim")]
    fn leak_is_detected() {
        with_world(|world| {
            let node = &mut world.nodes[1];
            let secret = node.secret.memory;
            let open = node.roce.register(node.pd, secret, Access::all(), &mut world.rng);
            node.secret = open.expect("room");
            world.event(&mut Input(&READS[1]));
            for _ in 0..20 {
                world.event(&mut Input(&[2, 1]));
            }
        });
    }
}
