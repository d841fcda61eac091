//! The LINX scenarios of `./isthmus bench riocm`, as a program to run under callgrind: `bench-linx SCENARIO COUNT` runs
//! a scenario COUNT times. All other work is the same for every COUNT, so the difference between two runs is the cost
//! of the scenario.

use drivers::hal::{Arena, Instant, Window};
use linx::riocm::{ConnectionConfig, Fragmentation, Transmit};
use linx::{Config, EndpointId, Event, LinkConfig, LinkId, Node, PeerId, Phase, Sender, Transport};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const LARGE: usize = 65536;
const NAMES: usize = 1000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.get(1).map(String::as_str) {
        Some("message-64") => messages(count, 0),
        Some("message-64-beside-names") => messages(count, NAMES),
        Some("message-64k") => large(count, Fragmentation::Simple),
        Some("message-64k-patched") => large(count, Fragmentation::Patch),
        Some("memory") => memory(),
        _ => eprintln!("bench-linx SCENARIO COUNT; see ./isthmus bench riocm"),
    }
}

/// The driver's work, which is not part of the engine: it assembles a packet in its slot. `./isthmus bench riocm`
/// subtracts the instructions of this function, by its name, from `message-64`.
#[inline(never)]
fn driver(packet: &Transmit<'_>, slot: &mut [u8; 4096]) -> usize {
    packet.write(slot)
}

/// Two nodes with a RIOCM link with an MTU of 4096. Each has a name that has found the other's.
struct Pair {
    nodes: [Node; 2],
    links: [LinkId; 2],
    endpoints: [EndpointId; 2],
    peer: PeerId,
    now: Instant,
    /// A slot of the driver's ring.
    slot: [u8; 4096],
}

impl Pair {
    fn new(names: usize, fragmentation: Fragmentation) -> Pair {
        let mut arena = Arena::on_heap(16 << 20);
        let now = Instant::from_nanos(1_000_000_000);
        let config = Config { links: 4, endpoints: 2 * NAMES + 10, ..Config::default() };
        let mut links = Vec::new();
        let mut nodes = [0u16, 1].map(|side| {
            let memory = arena.alloc(4 << 20, 4096).expect("room");
            let mut node = Node::new(config, memory, 0x1234_5678 + u64::from(side));
            node.add_port("rio0", side + 1, 4096).expect("a good one");
            let connection = ConnectionConfig {
                fragmentation,
                ..ConnectionConfig::new("rio0", 2 - side, 2, (5, 5))
            };
            let mut link = LinkConfig::new("link", Transport::Riocm(connection));
            link.max_addresses = 2 * NAMES as u32 + 10;
            links.push(node.add_link(&link, now).expect("a good one"));
            node
        });
        let links = [links[0], links[1]];
        let endpoints = [
            nodes[0].open(b"client", now).expect("room"),
            nodes[1].open(b"server", now).expect("room"),
        ];
        nodes[0].hunt(endpoints[0], links[0], b"server", now).expect("room");
        let mut found = None;
        let mut pair = Partly { nodes, now, slot: [0; 4096] };
        for _ in 0..200 {
            pair.now = pair.now + Duration::from_millis(10);
            found = pair.turn().or(found);
        }
        let peer = found.expect("the name is found");
        // Idle published names.
        for n in 0..names {
            let name = format!("a name that does nothing {n}");
            pair.nodes[1].open(name.as_bytes(), pair.now).expect("room");
            let now = pair.now;
            pair.nodes[0].hunt(endpoints[0], links[0], name.as_bytes(), now).expect("room");
            pair.turn();
            pair.turn();
        }
        let Partly { nodes, now, slot } = pair;
        Pair { nodes, links, endpoints, peer, now, slot }
    }

    /// Carries the packets of a side to the other, until there are no more.
    fn carry(&mut self, side: usize) {
        let [a, b] = &mut self.nodes;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        while let Some(packet) = from.poll_transmit(self.now) {
            let length = driver(&packet, &mut self.slot);
            to.receive(0, side as u16 + 1, &self.slot[..length], self.now);
        }
    }

    /// Delivers the sent signal, and releases its memory.
    fn deliver(&mut self, bytes: usize) {
        self.carry(0);
        let (now, server) = (self.now, self.endpoints[1]);
        assert!(matches!(self.nodes[1].next_event(now), Some(Event::Signals(id)) if id == server));
        let signal = self.nodes[1].next_signal(server).expect("it has arrived");
        assert_eq!(signal.len(), bytes);
        self.nodes[1].release(signal);
    }

    /// A signal of 64 bytes, from one endpoint to the other.
    fn send_64(&mut self) {
        let from = Sender::Endpoint(self.endpoints[0]);
        self.nodes[0].send(from, self.peer, 7, &[5; 60], self.now).expect("room");
        self.deliver(60);
    }

    /// A signal of 64 KiB, without a copy.
    fn send_large(&mut self, windows: [Window; 2]) {
        let from = Sender::Endpoint(self.endpoints[0]);
        self.nodes[0].send_windows(from, self.peer, windows, 1, self.now).expect("room");
        self.deliver(LARGE - 4);
        self.nodes[0].poll(self.now);
        assert!(matches!(self.nodes[0].next_event(self.now), Some(Event::Sent { done: true, .. })));
    }
}

/// A pair before its endpoints have found each other.
struct Partly {
    nodes: [Node; 2],
    now: Instant,
    slot: [u8; 4096],
}

impl Partly {
    fn turn(&mut self) -> Option<PeerId> {
        let mut found = None;
        for side in 0..2 {
            let [a, b] = &mut self.nodes;
            let (from, to) = if side == 0 { (a, b) } else { (b, a) };
            while let Some(packet) = from.poll_transmit(self.now) {
                let length = packet.write(&mut self.slot);
                to.receive(0, side as u16 + 1, &self.slot[..length], self.now);
            }
            for node in &mut self.nodes {
                while let Some(event) = node.next_event(self.now) {
                    if let Event::Found { peer, .. } = event {
                        found = Some(peer);
                    }
                }
            }
        }
        found
    }
}

fn messages(count: u64, names: usize) {
    let mut pair = Pair::new(names, Fragmentation::Simple);
    for _ in 0..count {
        pair.send_64();
    }
    let up = pair.nodes[0].link(pair.links[0]).expect("it is there");
    assert_eq!((up.phase, up.counters.ups), (Phase::Up, 1));
}

fn large(count: u64, fragmentation: Fragmentation) {
    let mut pair = Pair::new(0, fragmentation);
    let mut arena = Arena::on_heap(1 << 17);
    let window = arena.alloc(LARGE, 4096).expect("room");
    let windows = [window, Window::empty()];
    for _ in 0..count {
        pair.send_large(windows);
    }
}

/// Prints allocations after set-up.
fn memory() {
    let mut pair = Pair::new(10, Fragmentation::Simple);
    let mut arena = Arena::on_heap(1 << 17);
    let window = arena.alloc(LARGE, 4096).expect("room");
    let windows = [window, Window::empty()];
    pair.send_64();
    pair.send_large(windows);
    let before = allocations::calls();
    for _ in 0..1000 {
        pair.send_64();
    }
    for _ in 0..20 {
        pair.send_large(windows);
    }
    println!("{} {}", allocations::calls() - before, allocations::bytes());
}
