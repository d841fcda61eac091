//! The scenarios of `./isthmus bench roce`, as a program to run under callgrind: `bench-roce SCENARIO COUNT` runs a
//! scenario COUNT times. All other work is the same for every COUNT, so the difference between two runs is the cost of
//! the scenario.

mod fixture;

use drivers::hal::Window;
use fixture::{Fixture, NOW, Node};
use roce::wire::frame::Network;
use roce::wire::icrc::Icrc;
use std::hint::black_box;
use verbs::{
    Access, MemoryVerbs, Payload, Provider, RecvRequest, RemoteAddress, SendOperation, SendRequest,
    SendWith,
};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Largest COUNT.
const MAX: usize = 4000;
const PAYLOAD: usize = 1024;
/// Ethernet, IPv4, UDP, BTH.
const HEADERS: usize = 54;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0).min(MAX);
    match arguments.get(1).map(String::as_str) {
        Some("receive") => receive(count),
        Some("transmit") => transmit(count),
        Some("round") => {
            round(count);
        }
        Some("carry") => carry(count),
        Some("icrc-4096") => icrc(count, 4096),
        Some("icrc-1024") => icrc(count, PAYLOAD),
        Some("icrc-64") => icrc(count, 64),
        Some("icrc-ack") => icrc(count, 4),
        Some("icrc-window") => icrc_window(count),
        Some("copy") => copy(count),
        Some("memory") => memory(),
        _ => eprintln!("bench-roce SCENARIO COUNT; see ./isthmus bench roce"),
    }
}

/// Posts a WRITE of `packets` full packets at node 0.
fn post_write(fixture: &mut Fixture, packets: usize) {
    let from = fixture.memory(MAX * PAYLOAD);
    let memory = fixture.memory(MAX * PAYLOAD);
    let node = &mut fixture.nodes[1];
    let access = Access::REMOTE_WRITE;
    let region = node.roce.register(node.pd, memory, access, &mut fixture.rng).expect("room");
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    let windows = [from.slice(0, packets * PAYLOAD).expect("within")];
    let payload = Payload::Windows(&windows);
    let operation = SendOperation::Write { payload, to, immediate: None };
    let node = &mut fixture.nodes[0];
    let request = SendRequest {
        id: 0,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    node.roce.post_send(node.qp, &request).expect("room");
}

/// Receives packets of 1024 bytes.
fn receive(count: usize) {
    let mut fixture = Fixture::new();
    post_write(&mut fixture, MAX);
    let frames: Vec<Vec<u8>> = (0..MAX)
        .map(|_| {
            let mut frame = vec![0; 2048];
            fixture.poll(0);
            let len = fixture.frame(&mut frame);
            frame.truncate(len);
            frame
        })
        .collect();
    for frame in &frames[..count] {
        black_box(fixture.nodes[1].roce.handle_frame(0, frame, NOW));
    }
}

/// Builds packets of 1024 bytes for transmission.
fn transmit(count: usize) {
    let mut fixture = Fixture::new();
    post_write(&mut fixture, MAX);
    for _ in 0..count {
        black_box(fixture.poll(0));
    }
}

/// SENDs of 64 bytes with their ACKs. Returns the number of allocations.
fn round(count: usize) -> u64 {
    let mut fixture = Fixture::new();
    let from = fixture.memory(64);
    let into = fixture.memory(64);
    let before = allocations::calls();
    for id in 0..count as u64 {
        let [a, b] = &mut fixture.nodes;
        b.roce.post_recv(b.qp, &RecvRequest { id, into: &[into] }).expect("room");
        post_send(a, id, from);
        fixture.carry(0);
        fixture.carry(1);
        let [a, b] = &mut fixture.nodes;
        assert!(a.roce.poll_cq(a.cq).is_some() && b.roce.poll_cq(b.cq).is_some());
    }
    allocations::calls() - before
}

/// Posts a SEND of 64 bytes.
fn post_send(node: &mut Node, id: u64, from: Window) {
    let windows = [from];
    let payload = Payload::Windows(&windows);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let request = SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    node.roce.post_send(node.qp, &request).expect("room");
}

/// Cost of the wire in `round`, which is not part of the provider: assembly of two frames. (The ACK is shorter by the
/// payload of 64 bytes.)
fn carry(count: usize) {
    let mut fixture = Fixture::new();
    let from = fixture.memory(64);
    post_send(&mut fixture.nodes[0], 0, from);
    fixture.poll(0);
    let mut frame = [0; 2048];
    for _ in 0..2 * count {
        black_box(fixture.frame(&mut frame));
    }
}

/// ICRCs of packets with `bytes` bytes behind the BTH, computed as for received packets.
fn icrc(count: usize, bytes: usize) {
    let icrc = Icrc::new();
    let packet = vec![0x5a; HEADERS + 4096];
    for _ in 0..count {
        let covered = black_box(&packet[14..HEADERS + bytes]);
        black_box(icrc.compute(Network::Ipv4, covered, &[], 0));
    }
}

/// ICRCs of packets of 1024 bytes, computed as for sent packets.
fn icrc_window(count: usize) {
    let mut fixture = Fixture::new();
    let window = fixture.memory(PAYLOAD);
    let icrc = Icrc::new();
    let headers = [0x5a; HEADERS];
    for _ in 0..count {
        let headers = black_box(&headers[14..]);
        black_box(icrc.compute(Network::Ipv4, headers, &[window], 0));
    }
}

/// Copies of 1024 bytes into a window.
fn copy(count: usize) {
    let mut fixture = Fixture::new();
    let window: Window = fixture.memory(PAYLOAD);
    let bytes = [0x5a; PAYLOAD];
    for _ in 0..count {
        black_box(window.write(0, black_box(&bytes)).is_ok());
    }
}

/// Prints allocations after set-up, and bytes of a connected queue pair for four requests in each direction.
fn memory() {
    let allocations = round(MAX);
    let mut fixture = Fixture::new();
    let before = allocations::bytes();
    const QPS: u64 = 1000;
    for _ in 0..QPS {
        let node = &mut fixture.nodes[0];
        let init = node.init(4);
        let qp = node.roce.create_qp(&init, &mut fixture.rng).expect("room");
        fixture.connect(0, qp, 1);
    }
    println!("{allocations} {}", (allocations::bytes() - before) / QPS);
}
