//! Tests of two engines in one process, and of an engine with a scripted peer.

mod machine;
mod messages;
mod order;

use super::*;
use crate::wire::riocm::{Ends, Header, LONGEST, Packet, Part};
use drivers::hal::Window;
use std::time::Duration;

const IDS: [u16; 2] = [0x0101, 0x0202];
const PORTS: [u16; 2] = [11, 22];

fn memory(bytes: usize) -> Window {
    drivers::hal::Arena::on_heap(bytes + 8192).alloc(bytes, 4096).unwrap()
}

fn config(side: usize) -> ConnectionConfig<'static> {
    ConnectionConfig {
        receive_bytes: 2 << 20,
        send_bytes: 1 << 20,
        max_message: 1 << 20,
        ..ConnectionConfig::new("rio0", IDS[1 - side], 2, (PORTS[side], PORTS[1 - side]))
    }
}

/// An engine with a connection.
struct Side {
    riocm: Riocm,
    pool: Pool,
    id: ConnectionId,
    port: usize,
    now: Instant,
    log: Vec<String>,
    received: Vec<(u32, u32, Vec<u8>)>,
}

impl Side {
    fn new(side: usize, config: &ConnectionConfig<'_>, mtu: u16) -> Side {
        let mut pool = Pool::new(memory(8 << 20), 16);
        let now = Instant::from_nanos(1_000_000_000);
        let mut riocm = Riocm::new(Config::default(), &pool, 7 + side as u64);
        let port = riocm.add_port("rio0", IDS[side], mtu).unwrap();
        let id = riocm.create(&mut pool, config, now).unwrap();
        Side { riocm, pool, id, port, now, log: Vec::new(), received: Vec::new() }
    }

    /// Packets that it sends now.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some(packet) = self.riocm.poll_transmit(&mut self.pool, self.now) {
            assert_eq!((packet.port, packet.mailbox), (self.port, 2));
            let mut bytes = std::vec![0xaa; packet.len().next_multiple_of(8)];
            packet.write(&mut bytes);
            if IDS.contains(&packet.destination) {
                sent.push(bytes);
            }
        }
        self.events();
        sent
    }

    /// Packets that it sends now, as lines without sender, ports and generation.
    fn lines(&mut self) -> Vec<String> {
        let line = |bytes: Vec<u8>| {
            let (packet, _) = Packet::parse(&bytes).unwrap();
            let text = packet.to_string();
            text.split_once("> ").unwrap().1.split_once(' ').unwrap().1.to_string()
        };
        self.sent().into_iter().map(line).collect()
    }

    fn receive(&mut self, from: u16, bytes: &[u8]) {
        self.riocm.receive(&mut self.pool, self.port, from, bytes, self.now);
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.riocm.next_event() {
            match event {
                Event::Message { message, .. } => {
                    let mut bytes = std::vec![0; message.chain.len()];
                    self.pool.read(&message.chain, 0, &mut bytes);
                    self.pool.free(message.chain);
                    self.received.push((message.source, message.destination, bytes));
                }
                Event::Connected(_) => self.log.push("connected".into()),
                Event::Disconnected { why, unsent, .. } => {
                    self.log.push(format!("disconnected {why:?} {unsent}"));
                }
                Event::Sent { cookie, done, .. } => self.log.push(format!("sent {cookie} {done}")),
                Event::Room(_) => self.log.push("room".into()),
            }
        }
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    fn state(&self) -> State {
        self.riocm.status(self.id).unwrap().state
    }

    fn counters(&self) -> Counters {
        self.riocm.status(self.id).unwrap().counters
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.riocm.send(&mut self.pool, self.id, (1, 2), &[], bytes).unwrap();
    }
}

use std::string::{String, ToString};
use std::{format, vec::Vec};

/// Runs two sides for some time. Packets are delivered at once.
fn run(sides: &mut [Side; 2], millis: u64) {
    for _ in 0..millis.div_ceil(10) {
        loop {
            let mut any = false;
            for n in 0..2 {
                for packet in sides[n].sent() {
                    any = true;
                    sides[1 - n].receive(IDS[n], &packet);
                }
            }
            if !any {
                break;
            }
        }
        sides.iter_mut().for_each(|side| side.wait(10));
    }
}

fn connected(configs: [ConnectionConfig<'_>; 2], mtus: [u16; 2]) -> [Side; 2] {
    let mut sides = [0, 1].map(|n| Side::new(n, &configs[n], mtus[n]));
    sides.iter_mut().for_each(|side| assert!(side.riocm.connect(side.id)));
    run(&mut sides, 1000);
    for side in &mut sides {
        assert_eq!(side.state(), State::Connected);
        assert_eq!(side.take_log(), ["connected"]);
    }
    sides
}

/// A side with a scripted peer.
struct ScriptedPeer {
    side: Side,
    peer_cid: u16,
    generation: u8,
    sequence: u16,
}

impl ScriptedPeer {
    fn new(mtu: u16) -> ScriptedPeer {
        let mut side = Side::new(0, &config(0), mtu);
        side.riocm.connect(side.id);
        ScriptedPeer { side, peer_cid: 77, generation: 200, sequence: 0 }
    }

    fn packet(&self, header: Header, payload: &[u8]) -> Vec<u8> {
        let ends = Ends { to_port: PORTS[0], sender: IDS[1], from_port: PORTS[1] };
        let mut bytes = [0; LONGEST];
        let length = Packet { ends, header }.emit(payload.len(), &mut bytes);
        [&bytes[..length], payload].concat()
    }

    fn send_header(&mut self, header: Header) {
        let bytes = self.packet(header, &[]);
        self.side.receive(IDS[1], &bytes);
    }

    fn request(&mut self) {
        self.send_header(Header::Request { generation: self.generation, mtu: 4096, heartbeat: 5 });
    }

    fn ack(&mut self) {
        let status = self.side.riocm.status(self.side.id).unwrap();
        let Agreed { mtu, heartbeat } = status.agreed;
        let (generation, acknowledged) = (self.generation, status.generations.0);
        self.send_header(Header::Ack {
            generation,
            mtu,
            acknowledged,
            heartbeat,
            cid: self.peer_cid,
        });
    }

    /// Waits for the end of the pause after a connection's end.
    fn until_connecting(&mut self) {
        for _ in 0..100 {
            if self.side.state() == State::Connecting {
                return;
            }
            self.side.wait(10);
            self.side.sent();
        }
        panic!("it does not leave the pause");
    }

    fn connect(&mut self) {
        self.until_connecting();
        self.request();
        self.ack();
        assert_eq!(self.side.state(), State::Connected);
        self.side.sent();
        self.side.take_log();
    }

    fn data_at(&mut self, sequence: u16, id: u8, part: Part, payload: &[u8]) {
        let cid = self.side.id.cid().into();
        let bytes = self.packet(Header::Data { id, sequence, cid, part }, payload);
        self.side.receive(IDS[1], &bytes);
    }

    fn data(&mut self, id: u8, part: Part, payload: &[u8]) {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        self.data_at(sequence, id, part, payload);
    }
}

fn message_of(size: u32) -> crate::wire::riocm::Message {
    crate::wire::riocm::Message { source: 2, destination: 1, size }
}
