//! The client of a malicious storage server, RNBD over RTRS over RoCE. The input changes, drops or duplicates the
//! frames of a correct server, with valid ICRCs. The client's user reads and writes. Requests may fail, and nothing
//! panics. Whatever the server does, it receives only the data of write requests from the client's memory. All other
//! memory of the client is marked ([`leak`]), including the buffers of reads.

use crate::engine;
use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use netsim::{Node as _, Rng};
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::client as transport;
use rtrs::server::Config;
use sim::storage::disk::{Manners, SimDisk};
use sim::storage::gateway::{Gateway, Port};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use storage::rnbd::client::{self, Client, Losses, RemoteVolume};
use storage::rnbd::wire::{AccessMode, PORT};
use storage::volume::{Operation, Request, Volume};
use verbs::{ConnectionManager, Ctx, Provider};

const MTU: usize = 1500;
const SERVER: usize = 768 << 10;
const CLIENT: usize = 768 << 10;
/// The user's memory, in parts for one request each.
const BUFFER: usize = PARTS * PART;
const PARTS: usize = 4;
const PART: usize = 16 << 10;
/// The bytes that the user writes.
const WRITTEN: u8 = 0x55;
const EVENTS: usize = 300;

fn port(n: u8) -> Port {
    Port { mac: [2, 0, 0, 0, 0, n], ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)) }
}

struct World {
    gateway: Gateway,
    roce: Roce,
    tx: TxBuffer,
    client: Client,
    volume: RemoteVolume,
    arena: Arena,
    buffer: Window,
    /// Parts of it in use by requests.
    taken: [bool; PARTS],
    rng: Rng,
    to_client: VecDeque<Vec<u8>>,
    now: Instant,
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    netsim::with_memory(SERVER + CLIENT, |memory| {
        let mut world = World::new(memory);
        let mut input = Input(data);
        // The first byte is the number of unchanged frames.
        let honest = usize::from(input.byte());
        for _ in 0..honest {
            world.carry(None);
        }
        input.events(EVENTS, |input| world.event(input));
        // All requests end.
        for round in 0..400 {
            if round >= 20 && world.volume.is_idle() {
                break;
            }
            world.now = world.now + Duration::from_millis(250);
            world.carry(None);
        }
        assert!(world.volume.is_idle(), "a request never ends");
    });
}

impl World {
    fn new(memory: Window) -> Self {
        let mut rng = Rng::new(5);
        let (server, own) = (
            memory.slice(0, SERVER).expect("inside"),
            memory.slice(SERVER, CLIENT).expect("inside"),
        );
        let manners =
            Manners { cache: false, latency: Duration::ZERO, errors: 0, stalls: 0, kept: 0 };
        let config = Config { queue_depth: 8, chunk_size: 8192, ..Config::default() };
        let disk = SimDisk::new(16, manners, rng.fork());
        let mut gateway = Gateway::new(vec![port(1)], MTU, config, disk, 64, server);
        gateway.stations = vec![(0, port(2))];
        gateway.boot(&mut rng);
        let limits = Limits {
            qps: 32,
            cqs: 8,
            pds: 4,
            regions: 128,
            keys: 128,
            wr: 128,
            connections: 16,
            connections_per_host: 16,
            half_open: 8,
            unacknowledged: 16,
        };
        let config = PortConfig { mac: port(2).mac, addresses: vec![port(2).ip], mtu: MTU };
        let mut roce = Roce::new(config, limits, &mut rng);
        roce.pin_neighbour(0, port(1).ip, port(1).mac);
        leak::fill(own, Owner::Past);
        let mut arena = Arena::new(own);
        let now = Instant::from_nanos(1);
        let name = |text| Name::new(text).expect("a name");
        let mut context = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let devices = client::Config { wait: Duration::from_secs(5), ..client::Config::default() };
        let mut client =
            Client::new(devices, transport::Config::default(), name("gw"), &mut context)
                .expect("room");
        let to = SocketAddr::new(port(1).ip, PORT);
        client.transport_mut().add_path(port(2).ip, to, &mut context).expect("a path");
        let mode = AccessMode::ReadWrite;
        let (_, volume) =
            client.map(name("ram"), mode, Losses::ToFlush, &mut context).expect("room");
        let buffer = arena.alloc(BUFFER, 4096).expect("room");
        World {
            gateway,
            roce,
            tx: TxBuffer::new(),
            client,
            volume,
            arena,
            buffer,
            taken: [false; PARTS],
            rng,
            to_client: VecDeque::new(),
            now,
        }
    }

    /// Polls both ends, and delivers a frame to the client, changed if there is an input.
    fn carry(&mut self, change: Option<&mut Input<'_>>) {
        self.work();
        if let Some(mut frame) = self.to_client.pop_front() {
            if let Some(input) = change {
                // Behind the headers of Ethernet, IP and UDP: RoCE, with RTRS in it.
                for _ in 0..1 + input.byte() % 6 {
                    let room = frame.len().saturating_sub(42).max(1);
                    let at = (42 + usize::from(input.word()) % room).min(frame.len() - 1);
                    frame[at] = input.byte();
                }
                engine::seal(&mut frame);
            }
            // Part of a mark in a changed frame could come back as an address for the client's writes.
            if leak::in_part(&frame) {
                return;
            }
            self.roce.handle_frame(0, &frame, self.now);
        }
        self.work();
    }

    fn work(&mut self) {
        self.gateway.work(self.now);
        while let Some(frame) = self.gateway.poll_transmit(0, self.now) {
            if self.to_client.len() < 64 {
                self.to_client.push_back(frame);
            }
        }
        if self.roce.poll_timeout().is_some_and(|at| at <= self.now) {
            self.roce.handle_timeout(self.now);
        }
        let World { roce, client, arena, rng, now, .. } = self;
        let mut context = Ctx { provider: roce, arena, now: *now, rng };
        while let Some(event) = context.provider.poll_connection_event() {
            client.handle_connection_event(&event, &mut context);
        }
        while client.poll(&mut context).is_some() {}
        self.volume.flush_queue();
        while let Some(done) = self.volume.poll() {
            self.taken[done.tag.word as usize] = false;
        }
        while self.roce.poll_transmit(0, self.now, &mut self.tx) {
            let frame = netsim::bytes(&self.tx.packet());
            leak::check_bytes(&frame, "the server");
            self.gateway.handle_frame(0, &frame, self.now);
        }
    }

    /// Submits a request of the user, which may be refused, with a free part of its memory.
    fn request(&mut self, operation: Operation, sector: u64, len: usize) {
        let Some(part) = self.taken.iter().position(|taken| !taken) else { return };
        let memory = self.buffer.slice(part * PART, PART).expect("inside");
        let data = memory.slice(0, len).expect("inside");
        leak::fill(memory, Owner::Victim);
        if let Operation::Write { .. } = operation {
            data.fill(WRITTEN);
        }
        self.submit(operation, sector, part, data);
    }

    fn submit(&mut self, operation: Operation, sector: u64, part: usize, data: Window) {
        let tag = (part as u64).into();
        let submitted = self.volume.submit(&Request { tag, operation, sector, data });
        self.taken[part] = submitted.is_ok();
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.carry(Some(input)),
            2 => drop(self.to_client.pop_front()),
            3 => {
                if let Some(frame) = self.to_client.front().cloned() {
                    self.to_client.push_back(frame);
                }
            }
            4 => {
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 34));
                self.carry(None);
            }
            5 | 6 => {
                let len = 512 * (1 + input.below(32));
                let operation = match input.byte() % 3 {
                    0 => Operation::Read,
                    1 => Operation::Write { durable: false },
                    _ => Operation::Flush,
                };
                let sector = u64::from(input.byte());
                self.request(operation, sector, len);
                self.carry(None);
            }
            _ => {
                for _ in 0..=input.byte() % 16 {
                    self.carry(None);
                }
            }
        }
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    let io = |kind: u8| [5, 3, kind, 2, 7, 10];
    let work = [io(1), io(0), io(2)].concat();
    let lie = [0, 1, 0, 12, 9, 0, 20, 1, 0, 0, 30, 0xff];
    let mut lists: Vec<Vec<u8>> =
        [0u8, 2, 4, 8, 40].iter().map(|&honest| [&[honest][..], &lie, &work].concat()).collect();
    lists.push([&[60][..], &work, &lie, &work, &lie].concat());
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_world(story: impl FnOnce(&mut World)) {
        netsim::with_memory(SERVER + CLIENT, |memory| {
            let mut world = World::new(memory);
            for _ in 0..100 {
                world.carry(None);
            }
            story(&mut world);
            for _ in 0..100 {
                world.carry(None);
            }
        });
    }

    /// The user's data arrives, and memory beside it is not reported as a leak.
    #[test]
    fn correct_server_receives_written_data() {
        with_world(|world| {
            let mut seen = 0;
            world.request(Operation::Write { durable: false }, 8, 4096);
            while !world.volume.is_idle() && seen < 1000 {
                world.carry(None);
                seen += 1;
            }
            assert!(world.volume.is_idle(), "the write does not end");
            world.request(Operation::Read, 8, 4096);
            let part = world.taken.iter().position(|taken| *taken).expect("a part is in use");
            for _ in 0..1000 {
                world.carry(None);
            }
            let mut bytes = [0; 4096];
            world.buffer.read(part * PART, &mut bytes).expect("inside");
            assert!(bytes == [WRITTEN; 4096], "the volume has other data");
        });
    }

    /// The client sends memory that no request wrote.
    #[test]
    #[should_panic(expected = "the server has bytes of Victim")]
    fn leak_is_detected() {
        with_world(|world| {
            leak::fill(world.buffer, Owner::Victim);
            let data = world.buffer.slice(0, 512).expect("inside");
            world.submit(Operation::Write { durable: false }, 0, 0, data);
        });
    }
}
