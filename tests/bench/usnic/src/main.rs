//! The scenarios of `./isthmus bench usnic`, as a program to run under callgrind: `bench-usnic SCENARIO COUNT` runs a
//! scenario COUNT times. All other work is the same for every COUNT, so the difference between two runs is the cost of
//! the scenario.

use drivers::hal::{Arena, Instant, Window};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use usnic::wire::modex::Modex;
use usnic::{Channel, Config, EndpointConfig, EndpointId, Engine, InterfaceConfig, Transmit};

mod engine;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const TAG: u8 = 0x41;
const MEGABYTE: usize = 1 << 20;
const LARGEST: usize = 9000;
const IDLE: u32 = 1000;
const EIGHT: u64 = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.get(1).map(String::as_str) {
        Some("send-64") => send(count / EIGHT, 0, Pair::send_eight),
        Some("send-64-beside-idle") => send(count / EIGHT, IDLE, Pair::send_eight),
        Some("send-64-alone") => send(count, 0, Pair::send_alone),
        Some("put-1m-1500") => drop(put(count, 1500)),
        Some("put-1m-9000") => drop(put(count, 9000)),
        Some("memory") => memory(),
        _ => eprintln!("bench-usnic SCENARIO COUNT; see ./isthmus bench usnic"),
    }
}

/// Two engines, and the wire between them.
struct Pair {
    engines: [Engine; 2],
    endpoints: [EndpointId; 2],
    arena: Arena,
    now: Instant,
    datagram: Vec<u8>,
}

fn interface(side: u8, mtu: u16) -> InterfaceConfig {
    InterfaceConfig {
        address: Ipv4Addr::new(10, 0, 0, side + 1),
        netmask: Ipv4Addr::new(255, 255, 255, 0),
        priority_port: 100,
        data_port: 101,
        ping_port: 0,
        link_speed: 100_000,
        mtu,
        isn: 1,
    }
}

impl Pair {
    fn new(mtu: u16, idle: u32) -> Pair {
        let mut arena = Arena::on_heap(64 << 20);
        let config = Config { endpoints: 2 * IDLE as usize, ..Config::default() };
        let now = Instant::from_nanos(1_000_000_000);
        let mut engines = [0, 1].map(|side| {
            let memory = arena.alloc(4 << 20, 4096).expect("room");
            let mut engine = Engine::new(config, memory, 0x1234_5678_9abc_def1, now);
            engine.add_interface(interface(side, mtu)).expect("a good one");
            engine
        });
        let modexes = [0, 1].map(|side| interface(side, mtu).modex());
        let endpoints = [0, 1].map(|side: usize| {
            let (us, them) = (1 + side as u64, 2 - side as u64);
            let config = EndpointConfig::new(0, us, them, modexes[1 - side]);
            engines[side].add_endpoint(&config, now).expect("a good one")
        });
        for engine in &mut engines {
            add_idle(engine, idle, mtu, now);
        }
        Pair { engines, endpoints, arena, now, datagram: vec![0; LARGEST] }
    }

    /// Carries the datagrams of a side to the other, until there are no more.
    fn carry(&mut self, side: usize) {
        let [a, b] = &mut self.engines;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        while let Some(packet) = engine::poll_transmit(from, self.now) {
            let (length, address) = wire(packet, side, &mut self.datagram);
            engine::receive(to, address, packet.to.port(), &self.datagram[..length], self.now);
        }
    }

    fn wait(&mut self, micros: u64) {
        self.now = self.now + Duration::from_micros(micros);
    }

    /// Sends, takes and releases a number of messages of 64 bytes, in one round of both ends.
    fn send_64(&mut self, messages: u64) {
        let [a, b] = self.endpoints;
        for _ in 0..messages {
            engine::send(&mut self.engines[0], a, TAG, &[5; 64], self.now);
        }
        self.wait(2);
        self.carry(0);
        assert_eq!(engine::next_news(&mut self.engines[1]), Some(b));
        for _ in 0..messages {
            engine::take_and_release(&mut self.engines[1], b);
        }
    }

    /// Eight messages of a stream, with the engine's ACKs for streams.
    fn send_eight(&mut self) {
        self.send_64(EIGHT);
        self.wait(8);
        self.carry(1);
    }

    /// A single message, acknowledged by a separate packet after the ACK delay.
    fn send_alone(&mut self) {
        self.send_64(1);
        self.wait(70);
        self.carry(1);
    }
}

/// The wire, which is not part of the engine and not counted. Assembles a datagram, and returns its length and source.
fn wire(packet: &Transmit, side: usize, datagram: &mut [u8]) -> (usize, SocketAddrV4) {
    let mut length = packet.header().len();
    datagram[..length].copy_from_slice(packet.header());
    for window in packet.payload() {
        let end = length + window.len();
        window.read(0, &mut datagram[length..end]).expect("as long");
        length = end;
    }
    let port = if packet.channel == Channel::Data { 101 } else { 100 };
    (length, SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, side as u8 + 1), port))
}

fn add_idle(engine: &mut Engine, idle: u32, mtu: u16, now: Instant) {
    let modex = interface(9, mtu).modex();
    for n in 0..idle {
        let modex = Modex { address: Ipv4Addr::from_bits(0x0a01_0000 + n), ..modex };
        let config = EndpointConfig::new(0, 1, 100, modex);
        engine.add_endpoint(&config, now).expect("room");
    }
}

fn send(count: u64, idle: u32, message: fn(&mut Pair)) {
    let mut pair = Pair::new(1500, idle);
    for _ in 0..count {
        message(&mut pair);
    }
    pair.wait(70);
    pair.carry(1);
    assert_eq!(pair.engines[0].backlog(pair.endpoints[0]), Some((0, 0)));
}

/// PUTs of a megabyte. Returns the number of retransmitted packets.
fn put(count: u64, mtu: u16) -> u64 {
    let mut pair = Pair::new(mtu, 0);
    let from = pair.arena.alloc(MEGABYTE, 4096).expect("room");
    let into = pair.arena.alloc(MEGABYTE, 4096).expect("room");
    let [a, b] = pair.endpoints;
    pair.engines[1].grant(b, 0x1000, into).expect("room");
    pair.engines[0].permit_put(a, 0x1000, MEGABYTE as u64);
    for cookie in 0..count {
        let windows = [from, Window::empty()];
        engine::put(&mut pair.engines[0], a, 0x1000, windows, cookie, pair.now);
        loop {
            pair.wait(20);
            pair.carry(0);
            pair.carry(1);
            if let Some(end) = engine::next_completion(&mut pair.engines[0], a) {
                assert!(end.acknowledged);
                break;
            }
        }
    }
    pair.engines[0].counters(a).map_or(0, |counters| counters.num_resends)
}

/// Prints allocations after set-up, and bytes of an idle endpoint.
fn memory() {
    let mut pair = Pair::new(1500, 0);
    (0..10).for_each(|_| pair.send_eight());
    let before = allocations::calls();
    (0..1000).for_each(|_| pair.send_eight());
    let from = pair.arena.alloc(MEGABYTE, 4096).expect("room");
    let calls = allocations::calls() - before;
    let now = Instant::from_nanos(1_000_000_000);
    let mut arena = Arena::on_heap(1 << 20);
    let memory = arena.alloc(1 << 19, 4096).expect("room");
    let bytes = [IDLE as usize, 2 * IDLE as usize].map(|endpoints| {
        let before = allocations::bytes();
        let mut engine = Engine::new(Config { endpoints, ..Config::default() }, memory, 1, now);
        engine.add_interface(interface(0, 1500)).expect("a good one");
        add_idle(&mut engine, endpoints as u32, 1500, now);
        let taken = allocations::bytes() - before;
        drop(engine);
        taken
    });
    println!("{calls} {}", (bytes[1] - bytes[0]) / u64::from(IDLE));
    black_box(from);
}
