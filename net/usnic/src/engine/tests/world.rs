//! Two engines and a link between them, in virtual time: loss, duplication, reordering, corruption, cuts.

use crate::engine::{Channel, Config, EndpointConfig, EndpointId, Engine, InterfaceConfig};
use crate::wire::header::Layout;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::vec::Vec;

pub const TAG: u8 = 0x41;
const PORTS: [u16; 3] = [100, 101, 102];

/// Faults of the link, in thousandths of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub loss: u32,
    pub twice: u32,
    pub late: u32,
    /// Corrupted datagrams, which are dropped because of the UDP checksum.
    pub corrupt: u32,
    /// Largest delay of a late datagram in microseconds.
    pub later: u64,
    pub latency: u64,
    /// Longest datagram that is delivered.
    pub longest: usize,
    /// Sides that receive no datagrams.
    pub cut: [bool; 2],
}

impl Default for Wire {
    fn default() -> Self {
        Wire {
            loss: 0,
            twice: 0,
            late: 0,
            corrupt: 0,
            later: 500,
            latency: 20,
            longest: 70_000,
            cut: [false; 2],
        }
    }
}

/// A datagram on the wire.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub to: usize,
    pub from: SocketAddrV4,
    pub port: u16,
    pub bytes: Vec<u8>,
}

/// Parameters of a world.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub mtu: u16,
    pub isns: [u16; 2],
    pub config: Config,
    pub memory: usize,
    pub layout: Layout,
    pub link_speed: u32,
}

impl Default for Setup {
    fn default() -> Self {
        let config = Config {
            endpoints: 4,
            sends: 256,
            messages: 512,
            receive_windows: 2,
            max_message: 1 << 20,
            grants: 8,
        };
        Setup {
            seed: 0,
            mtu: 1500,
            isns: [10, 60_000],
            config,
            memory: 1 << 22,
            layout: Layout::V4,
            link_speed: 10_000,
        }
    }
}

/// One of the two sides.
pub struct Side {
    pub engine: Engine,
    pub endpoint: EndpointId,
    pub arena: Arena,
    pub came: Vec<(u8, Vec<u8>)>,
    pub completed: Vec<(u64, bool)>,
    /// Its user takes no messages.
    pub is_deaf: bool,
}

/// Both sides and the link.
pub struct World {
    pub now: Instant,
    pub sides: [Side; 2],
    pub wire: Wire,
    pub rng: Rng,
    pub flying: BTreeMap<(Instant, u64), Datagram>,
    pub count: u64,
    /// Every datagram sent, with its time, if logging is on.
    pub log: Option<Vec<(Instant, Datagram)>>,
    pub setup: Setup,
    /// Memory of the engines, including those of former engines.
    memory: Vec<Window>,
}

impl Drop for World {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.append(&mut self.memory));
    }
}

pub fn address(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, side as u8 + 1)
}

/// Source of a side's datagrams.
pub fn socket(side: usize, channel: Channel) -> SocketAddrV4 {
    SocketAddrV4::new(address(side), port(channel))
}

pub fn port(channel: Channel) -> u16 {
    match channel {
        Channel::Priority => PORTS[0],
        Channel::Data => PORTS[1],
        Channel::Ping => PORTS[2],
    }
}

pub fn sender(side: usize) -> u64 {
    1 << 32 | side as u64
}

std::thread_local! {
    /// Memory of former worlds for reuse, because an arena never returns memory to the heap.
    static SPARE: RefCell<Vec<Window>> = const { RefCell::new(Vec::new()) };
}

/// Memory for an engine and its arena.
fn memory(setup: &Setup) -> Window {
    let len = setup.memory + (8 << 20);
    let spare = SPARE.with_borrow_mut(|spare| {
        let fits = spare.iter().position(|window| window.len() == len)?;
        Some(spare.swap_remove(fits))
    });
    spare.unwrap_or_else(|| Arena::on_heap(len + 4096).alloc(len, 4096).expect("room"))
}

/// An engine at a side, with its interface and no endpoint.
pub fn engine(setup: &Setup, side: usize, isn: u16, now: Instant) -> (Engine, Arena) {
    engine_in(memory(setup), setup, side, isn, now)
}

fn engine_in(
    memory: Window,
    setup: &Setup,
    side: usize,
    isn: u16,
    now: Instant,
) -> (Engine, Arena) {
    let mut arena = Arena::new(memory);
    let memory = arena.alloc(setup.memory + 65_000, 4096).expect("room");
    // Former contents, which must not leak.
    memory.fill(0xee);
    let mut engine = Engine::new(setup.config, memory, setup.seed.wrapping_mul(77) | 1, now);
    let interface = InterfaceConfig {
        address: address(side),
        netmask: Ipv4Addr::new(255, 255, 255, 0),
        priority_port: PORTS[0],
        data_port: PORTS[1],
        ping_port: PORTS[2],
        link_speed: setup.link_speed,
        mtu: setup.mtu,
        isn,
    };
    engine.add_interface(interface).expect("it is valid");
    (engine, arena)
}

impl World {
    pub fn new(setup: Setup) -> World {
        Self::with(setup, |_, _| ())
    }

    pub fn with(setup: Setup, configure: impl Fn(usize, &mut EndpointConfig)) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let memory = [memory(&setup), memory(&setup)];
        let mut made =
            [0, 1].map(|side| engine_in(memory[side], &setup, side, setup.isns[side], now));
        let modexes = [0, 1].map(|side| made[side].0.modex(0).expect("it exists"));
        let endpoints = [0, 1].map(|side: usize| {
            let other = 1 - side;
            let mut config = EndpointConfig::new(0, sender(side), sender(other), modexes[other]);
            config.layout = setup.layout;
            config.check_connectivity = false;
            config.tag = Some(TAG);
            configure(side, &mut config);
            made[side].0.add_endpoint(&config, now).expect("it is valid")
        });
        let [a, b] = made;
        let side = |(engine, arena): (Engine, Arena), endpoint| Side {
            engine,
            endpoint,
            arena,
            came: Vec::new(),
            completed: Vec::new(),
            is_deaf: false,
        };
        World {
            now,
            sides: [side(a, endpoints[0]), side(b, endpoints[1])],
            wire: Wire::default(),
            rng: Rng::new(setup.seed),
            flying: BTreeMap::new(),
            count: 0,
            log: None,
            setup,
            memory: memory.into(),
        }
    }

    /// Restarts a side with another first sequence number, and exchanges the modexes again. That takes longer than
    /// any datagram is in flight.
    pub fn restart(&mut self, side: usize, isn: u16) {
        let (setup, now, other) = (self.setup, self.now, 1 - side);
        let memory = memory(&setup);
        self.memory.push(memory);
        (self.sides[side].engine, self.sides[side].arena) =
            engine_in(memory, &setup, side, isn, now);
        self.flying.clear();
        let old = self.sides[other].endpoint;
        self.sides[other].engine.remove(old);
        for side in 0..2 {
            let modex = self.sides[1 - side].engine.modex(0).expect("it exists");
            let mut config = EndpointConfig::new(0, sender(side), sender(1 - side), modex);
            config.layout = setup.layout;
            config.check_connectivity = false;
            let added = self.sides[side].engine.add_endpoint(&config, now);
            self.sides[side].endpoint = added.expect("it is valid");
        }
    }

    /// Sends a message; false if there is no room.
    pub fn send(&mut self, side: usize, message: &[u8]) -> bool {
        let now = self.now;
        let Side { engine, endpoint, .. } = &mut self.sides[side];
        engine.send(*endpoint, TAG, message, now).is_ok()
    }

    pub fn window(&mut self, side: usize, bytes: &[u8]) -> Window {
        let window = self.sides[side].arena.alloc(bytes.len(), 64).expect("room");
        window.write(0, bytes).expect("both have the same length");
        window
    }

    pub fn counters(&self, side: usize) -> crate::engine::Counters {
        let Side { engine, endpoint, .. } = &self.sides[side];
        *engine.counters(*endpoint).expect("it exists")
    }

    /// Puts a datagram on the link.
    pub fn fly(&mut self, datagram: Datagram) {
        if let Some(log) = &mut self.log {
            log.push((self.now, datagram.clone()));
        }
        let wire = self.wire;
        let lost = self.rng.chance(wire.loss) || self.rng.chance(wire.corrupt);
        if lost || wire.cut[datagram.to] || datagram.bytes.len() > wire.longest {
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(wire.twice));
        for _ in 0..copies {
            let mut after = wire.latency * 1000 + self.rng.within(0..1000);
            if self.rng.chance(wire.late) {
                after += self.rng.within(0..wire.later * 1000 + 1);
            }
            self.count += 1;
            let at = self.now + Duration::from_nanos(after);
            self.flying.insert((at, self.count), datagram.clone());
        }
    }

    /// Sends all datagrams that are due now, and takes messages that have arrived.
    pub fn settle(&mut self) {
        for side in 0..2 {
            for n in 0.. {
                assert!(n < 100_000, "the engine sends without end");
                let now = self.now;
                let Some(packet) = self.sides[side].engine.poll_transmit(now) else { break };
                let mut bytes = packet.header().to_vec();
                for window in packet.payload() {
                    let mut part = std::vec![0; window.len()];
                    window.read(0, &mut part).expect("both have the same length");
                    bytes.extend(part);
                }
                assert_eq!(bytes.len(), packet.len());
                assert!(bytes.len() <= usize::from(self.setup.mtu) - 28, "{}", bytes.len());
                let from = socket(side, packet.channel);
                let (ip, port) = (*packet.to.ip(), packet.to.port());
                if ip == address(1 - side) {
                    self.fly(Datagram { to: 1 - side, from, port, bytes });
                }
            }
            self.collect(side);
        }
    }

    pub fn collect(&mut self, side: usize) {
        let Side { engine, endpoint, came, completed, is_deaf, .. } = &mut self.sides[side];
        while engine.next_news().is_some() {}
        while !*is_deaf && let Some(message) = engine.take_message(*endpoint) {
            let mut bytes = std::vec![0; message.bytes.len()];
            message.bytes.read(0, &mut bytes).expect("both have the same length");
            engine.release(message);
            came.push((message.tag, bytes));
        }
        while let Some(end) = engine.next_completion(*endpoint) {
            completed.push((end.cookie, end.acknowledged));
        }
    }

    /// Advances to the next event; false if there is none.
    pub fn step(&mut self) -> bool {
        self.settle();
        let arrival = self.flying.first_key_value().map(|(&(at, _), _)| at);
        let deadlines = self.sides.each_mut().map(|side| side.engine.deadline());
        let Some(next) = Instant::first([arrival, deadlines[0], deadlines[1]]) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(first) = self.flying.first_entry()
            && first.key().0 <= self.now
        {
            let datagram = first.remove();
            let Datagram { to, from, port, bytes } = datagram;
            let now = self.now;
            self.sides[to].engine.receive(0, from, port, &bytes, now);
        }
        true
    }

    /// Runs until `done`; panics if that takes longer than `most`, or no event is left.
    pub fn run(&mut self, most: Duration, mut done: impl FnMut(&mut World) -> bool) {
        let end = self.now + most;
        while !done(self) {
            let has_event = self.step();
            if done(self) {
                return;
            }
            assert!(has_event, "no event is left: {:#?}", [0, 1].map(|n| self.counters(n)));
            assert!(self.now < end, "not in time: {:#?}", [0, 1].map(|n| self.counters(n)));
        }
    }

    /// Runs for so long.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            if !self.step() {
                self.now = end;
            }
        }
    }

    /// Whether all packets of a side are acknowledged.
    pub fn is_drained(&self, side: usize) -> bool {
        let Side { engine, endpoint, .. } = &self.sides[side];
        engine.backlog(*endpoint) == Some((0, 0))
    }
}

/// A message: its number, and bytes that depend on it.
pub fn message(number: u32, length: usize) -> Vec<u8> {
    let bytes = (0..length).map(|i| (number as usize * 31 + i * 7 + (i >> 8)) as u8);
    let mut bytes: Vec<u8> = bytes.collect();
    bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(byte, digit)| *byte = digit);
    bytes
}
