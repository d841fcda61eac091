//! The usNIC engine with an honest peer and an attacker, whose packets are the input. The engine's user echoes
//! messages. The attacker never receives a byte of others, and writes only to granted memory. The honest peer's
//! messages still arrive.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use usnic::wire::header::{Header, Kind, Layout, MAX_HEADER};
use usnic::wire::modex::Modex;
use usnic::{Channel, Config, Delivery, EndpointConfig, EndpointId, Engine, InterfaceConfig};

const MEMORY: usize = 1 << 18;
const TAG: u8 = 0x41;
/// Ports: of ACKs, of data, of the connectivity checker.
const PORTS: [u16; 3] = [100, 101, 102];
/// Size and address of the memory to which the attacker may write.
const GRANT: usize = 4096;
const BASE: u64 = 0x10_0000;
const GUARD: usize = 4096;
const EVENTS: usize = 300;
const ATTACKER: usize = 0;
const HONEST: usize = 1;

struct World {
    engine: Engine,
    endpoints: [EndpointId; 2],
    layouts: [Layout; 2],
    now: Instant,
    /// Memory granted to the attacker, and the memory around it.
    before: Window,
    granted: Window,
    behind: Window,
    /// Next sequence number of each peer, and the last one of the engine that each has received.
    next: [u16; 2],
    known: [u16; 2],
    /// Messages of the honest peer that have arrived.
    arrived: u32,
}

fn interface(n: u8) -> InterfaceConfig {
    InterfaceConfig {
        address: Ipv4Addr::new(10, 0, 0, n),
        netmask: Ipv4Addr::new(255, 255, 255, 0),
        priority_port: PORTS[0],
        data_port: PORTS[1],
        ping_port: PORTS[2],
        link_speed: 10_000,
        mtu: 1500,
        isn: 0x10,
    }
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.byte();
    netsim::with_memory(MEMORY + (1 << 17), |memory| {
        let mut world = World::new(&mut Arena::new(memory), flags);
        input.events(EVENTS, |input| world.event(input));
        world.settle();
        // Messages of the honest peer still arrive.
        let before = world.arrived;
        world.honest_message();
        for _ in 0..1000 {
            world.pass(1000);
            if world.arrived > before {
                break;
            }
        }
        assert!(world.arrived > before, "messages of the honest peer do not arrive any more");
        world.check_guards();
    });
}

impl World {
    fn new(arena: &mut Arena, flags: u8) -> World {
        let pool = arena.alloc(MEMORY, 4096).expect("room");
        let [before, granted, behind] = [GUARD, GRANT, GUARD].map(|bytes| {
            let window = arena.alloc(bytes, 4096).expect("room");
            leak::fill(window, Owner::Gateway);
            window
        });
        leak::fill(pool, Owner::Past);
        granted.fill(0);
        let config = Config {
            endpoints: 4,
            sends: 64,
            messages: 64,
            receive_windows: 2,
            max_message: 20_000,
            grants: 4,
        };
        let now = Instant::from_nanos(1_000_000_000);
        let mut engine = Engine::new(config, pool, 0x1234_5678_9abc_def1, now);
        engine.add_interface(interface(1)).expect("the configuration is valid");
        let layouts = [flags & 1, flags >> 1 & 1].map(|bit| match bit {
            0 => Layout::V4,
            _ => Layout::V5,
        });
        let mut add = |peer: usize| {
            let modex: Modex = interface(2 + peer as u8).modex();
            let mut config = EndpointConfig::new(0, 1, 2 + peer as u64, modex);
            config.layout = layouts[peer];
            config.messages = 24;
            config.receive_bytes = 60_000;
            config.send_bytes = 60_000;
            config.sends = 24;
            if flags & 4 > 0 {
                config.delivery = Delivery::InOrder;
            }
            engine.add_endpoint(&config, now).expect("the configuration is valid")
        };
        let endpoints = [add(ATTACKER), add(HONEST)];
        engine.grant(endpoints[ATTACKER], BASE, granted).expect("room");
        engine.permit_put(endpoints[ATTACKER], BASE, 1 << 20);
        let (next, known) = ([0x10; 2], [0x0f; 2]);
        World { engine, endpoints, layouts, now, before, granted, behind, next, known, arrived: 0 }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what % 8 {
            0..=3 => self.attack(what, input),
            4 => {
                let length = usize::from(input.byte());
                let bytes = leak::plain(input.take(length));
                self.arrive(ATTACKER, usize::from(what >> 4) % 3, &bytes);
            }
            5 => self.honest_message(),
            6 => {
                // A PUT to the attacker, from memory that the attacker may write.
                let endpoint = self.endpoints[ATTACKER];
                let window = self.granted.slice(0, 1 + usize::from(input.word()) % GRANT);
                let windows = [window.expect("inside"), Window::empty()];
                let address = BASE + u64::from(input.word());
                let _ = self.engine.put(endpoint, address, windows, 7, self.now);
            }
            _ => self.pass(1 + u64::from(input.byte()) * u64::from(what >> 3) * 8),
        }
        self.settle();
    }

    /// A packet of the attacker, usually nearly valid.
    fn attack(&mut self, what: u8, input: &mut Input<'_>) {
        let shape = input.byte();
        let sequence = match shape % 4 {
            0 | 1 => {
                self.next[ATTACKER] = self.next[ATTACKER].wrapping_add(1);
                self.next[ATTACKER].wrapping_sub(1)
            }
            2 => self.next[ATTACKER].wrapping_add(u16::from(input.byte())),
            _ => input.word(),
        };
        let acknowledged = match shape >> 2 & 3 {
            0 => None,
            1 => Some(self.known[ATTACKER]),
            2 => Some(self.known[ATTACKER].wrapping_sub(u16::from(input.byte()))),
            _ => Some(input.word()),
        };
        let put_address = match shape >> 4 & 3 {
            0 | 1 => 0,
            2 => BASE + u64::from(input.word()) % (2 * GRANT as u64),
            _ => BASE.wrapping_sub(u64::from(input.word()) << (input.byte() % 56)),
        };
        let kind = match what % 4 {
            0 => Kind::Ack,
            1 => Kind::Fragment,
            _ => Kind::Chunk {
                fragment: u32::from(input.byte() % 8),
                size: u32::from(input.word()) >> (shape >> 6),
                offset: u32::from(input.word()) >> (shape >> 6),
            },
        };
        let length = if kind == Kind::Ack { 0 } else { usize::from(input.word()) % 1425 };
        let header = Header {
            sender: 2 + u64::from(what == 0xff),
            sequence,
            acknowledged,
            put_address,
            tag: TAG,
            kind,
        };
        let mut bytes = [0; MAX_HEADER];
        let claimed = if what & 0x40 > 0 { length as u16 } else { length as u16 & 0x5ff };
        let at = header.emit(self.layouts[ATTACKER], claimed, &mut bytes);
        let mut packet = bytes[..at].to_vec();
        packet.resize(at + length, 0x55);
        self.arrive(ATTACKER, usize::from(what >> 7), &packet);
    }

    fn arrive(&mut self, peer: usize, channel: usize, datagram: &[u8]) {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2 + peer as u8), PORTS[channel]);
        self.engine.receive(0, from, PORTS[channel], datagram, self.now);
    }

    /// The honest peer sends a message that only this peer may receive back.
    fn honest_message(&mut self) {
        let number = self.next[HONEST];
        let header = Header {
            sender: 3,
            sequence: number,
            acknowledged: Some(self.known[HONEST]),
            put_address: 0,
            tag: TAG,
            kind: Kind::Fragment,
        };
        let mut bytes = [0; MAX_HEADER];
        let payload = leak::mark(Owner::Victim).repeat(8);
        let at = header.emit(self.layouts[HONEST], payload.len() as u16, &mut bytes);
        let packet = [&bytes[..at], &payload].concat();
        let before = self.arrived;
        self.arrive(HONEST, 1, &packet);
        self.collect();
        if self.arrived > before {
            self.next[HONEST] = number.wrapping_add(1);
        }
    }

    fn pass(&mut self, micros: u64) {
        let end = self.now + Duration::from_micros(micros);
        while let Some(at) = self.engine.deadline().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.settle();
            // Deadlines are rounded to ticks, so an expired one may become due only in the next tick.
            self.now = self.now + Duration::from_micros(20);
        }
        self.now = self.now.max(end);
        self.settle();
    }

    /// Takes and echoes messages, and sends packets.
    fn settle(&mut self) {
        self.collect();
        for n in 0.. {
            assert!(n < 20_000, "the engine sends for ever");
            let Some(packet) = self.engine.poll_transmit(self.now) else { break };
            let mut bytes = packet.header().to_vec();
            for window in packet.payload() {
                let at = bytes.len();
                bytes.resize(at + window.len(), 0);
                window.read(0, &mut bytes[at..]).expect("the lengths are equal");
            }
            let peer = usize::from(packet.to.ip().octets()[3]) - 2;
            if peer == ATTACKER
                && let Some((owner, at)) = leak::find(&bytes)
            {
                panic!("the attacker was sent bytes of {owner:?} at {at}");
            }
            if packet.channel == Channel::Ping {
                continue;
            }
            let header =
                Header::parse(self.layouts[peer], &bytes).expect("a sent packet is valid").0;
            if header.kind != Kind::Ack {
                // The network is lossless: packets arrive in order, except retransmissions.
                let ahead = header.sequence.wrapping_sub(self.known[peer]) as i16;
                if ahead == 1 {
                    self.known[peer] = header.sequence;
                }
            }
        }
    }

    fn collect(&mut self) {
        while self.engine.next_news().is_some() {}
        for peer in [ATTACKER, HONEST] {
            let endpoint = self.endpoints[peer];
            while self.engine.next_completion(endpoint).is_some() {}
            while let Some(message) = self.engine.take_message(endpoint) {
                let mut bytes = vec![0; message.bytes.len()];
                message.bytes.read(0, &mut bytes).expect("the lengths are equal");
                self.engine.release(message);
                if peer == ATTACKER {
                    if let Some((owner, at)) = leak::find(&bytes) {
                        panic!("the attacker's message has bytes of {owner:?} at {at}");
                    }
                } else {
                    assert_eq!(bytes, leak::mark(Owner::Victim).repeat(8));
                    self.arrived += 1;
                }
                let _ = self.engine.send(endpoint, TAG, &bytes, self.now);
            }
        }
    }

    fn check_guards(&self) {
        for guard in [self.before, self.behind] {
            let mut bytes = vec![0; guard.len()];
            guard.read(0, &mut bytes).expect("the lengths are equal");
            let mark = leak::mark(Owner::Gateway);
            let whole = bytes.chunks(mark.len()).all(|chunk| chunk == mark);
            assert!(whole, "memory that was not granted was written");
        }
        leak::check(self.granted, "the attacker's region");
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    // As `World::event` reads them: flags, then events.
    let fragment = [0x41, 0x04, 0, 60];
    let chunk = |fragment: u8, size: [u8; 2], offset: [u8; 2], length: [u8; 2]| {
        [&[0x42, 0x04, fragment][..], &size, &offset, &length].concat()
    };
    let message = [
        chunk(1, [0x0b, 0x20], [0, 0], [0x05, 0x90]),
        chunk(1, [0x0b, 0x20], [0x05, 0x90], [0x05, 0x90]),
    ]
    .concat();
    let put = [0x41, 0x24, 0, 100, 0, 200];
    let wide = [0x42, 0x24, 0, 0, 3, 0x10, 0, 0, 0, 0x05, 0x00];
    let time = [0xff, 200];
    let mut lists = Vec::new();
    for flags in [0, 1, 4, 7] {
        for events in [&fragment[..], &message, &put, &wide] {
            lists.push([&[flags], events, &[5], events, &time].concat());
        }
        let late = chunk(2, [0x0b, 0x20], [0x05, 0x90], [0x05, 0x90]);
        lists.push([&[flags], &late[..], &[0x41, 0x06, 9, 0, 60, 5], &fragment, &time].concat());
        lists
            .push([&[flags, 6, 0x0f, 0xff, 0, 0, 0x40, 0x0c, 0, 0], &time[..], &fragment].concat());
    }
    lists
}
