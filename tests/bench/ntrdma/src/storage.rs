//! A host reads 4 KiB at a time, 32 in flight, from a volume in memory: over NTRDMA and over RoCE. All work of the
//! server's machine is in `server_turn`, which callgrind can count separately.

use crate::fixture::{self, Node, address};
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::client::{self, Channel, Client, Event, Outcome, Permit, Request};
use rtrs::server::{Config, RequestKind, ServerDevice};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use storage::rnbd::server::{Export, Server};
use storage::rnbd::wire::{AccessMode, Io, IoFlags, Open, OpenResponse, Operation, SessionInfo};
use storage::volume::{RamVolume, Volumes};
use verbs::{ConnectionManager, Ctx, Provider};

const DEPTH: usize = 32;
const SIZE: usize = 4096;
const VOLUME: usize = 1 << 20;

/// A machine's end of the fabric.
pub trait End {
    type Provider: ServerDevice;
    fn provider(&mut self) -> &mut Self::Provider;
    /// Receives, and sends what is due.
    fn turn(&mut self, now: Instant);
    /// Carries sent frames to the other end. This is not counted.
    fn carry(&mut self, other: &mut Self);
}

impl End for Node {
    type Provider = ntrdma::Ntrdma;
    fn provider(&mut self) -> &mut Self::Provider {
        &mut self.ntrdma
    }
    fn turn(&mut self, now: Instant) {
        self.ntrdma.handle_timeout(now);
        self.poll(now);
    }
    fn carry(&mut self, _other: &mut Self) {}
}

/// A port with RoCE, and frames in flight.
struct RoceEnd {
    roce: Roce,
    tx: TxBuffer,
    arrived: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

impl RoceEnd {
    fn pair() -> [RoceEnd; 2] {
        let mut ends = [1, 2].map(|n| {
            let mac = [2, 0, 0, 0, 0, n];
            let port = PortConfig { mac, addresses: vec![address(n)], mtu: 1500 };
            let roce = Roce::new(port, Limits::default(), &mut Rng::new(n.into()));
            RoceEnd { roce, tx: TxBuffer::new(), arrived: VecDeque::new(), sent: VecDeque::new() }
        });
        for (end, other) in ends.iter_mut().zip([2, 1]) {
            end.roce.pin_neighbour(0, address(other), [2, 0, 0, 0, 0, other]);
        }
        ends
    }
}

impl End for RoceEnd {
    type Provider = Roce;
    fn provider(&mut self) -> &mut Roce {
        &mut self.roce
    }
    fn turn(&mut self, now: Instant) {
        if self.roce.poll_timeout().is_some_and(|at| at <= now) {
            self.roce.handle_timeout(now);
        }
        while let Some(frame) = self.arrived.pop_front() {
            self.roce.handle_frame(0, &frame, now);
        }
        while self.roce.poll_transmit(0, now, &mut self.tx) {
            self.sent.push_back(frame(&self.tx));
        }
    }
    fn carry(&mut self, other: &mut Self) {
        other.arrived.append(&mut self.sent);
    }
}

/// Assembles the frame of a transmit buffer, which a network card would do in hardware.
#[inline(never)]
fn frame(tx: &TxBuffer) -> Vec<u8> {
    let packet = tx.packet();
    let mut whole = Vec::from(packet.header);
    for window in packet.payload {
        let at = whole.len();
        whole.resize(at + window.len(), 0);
        window.read(0, &mut whole[at..]).expect("its own length");
    }
    whole.extend_from_slice(packet.trailer);
    whole
}

/// A gateway and a host.
pub struct Site<E> {
    gateway: E,
    host: E,
    server: Server,
    volumes: Volumes,
    client: Client,
    arenas: [Arena; 2],
    rng: Rng,
    now: Instant,
}

fn context<'a, P: ServerDevice>(
    provider: &'a mut P,
    arena: &'a mut Arena,
    now: Instant,
    rng: &'a mut Rng,
) -> Ctx<'a, P> {
    Ctx { provider, arena, now, rng }
}

impl<E: End> Site<E> {
    /// A gateway with a volume in memory, and a host with a session.
    pub fn new([mut gateway, mut host]: [E; 2], mut arenas: [Arena; 2], now: Instant) -> Self {
        let mut rng = Rng::new(1);
        let config = Config { queue_depth: 64, ..Config::default() };
        let mut server = Server::new(config, 4, gateway.provider()).expect("good settings");
        let mut volumes = Volumes::new();
        let memory = arenas[0].alloc(VOLUME, 4096).expect("as much as that");
        let name = Name::new("ram0").expect("short");
        let volume = volumes.add(name, Box::new(RamVolume::new(memory, false))).expect("first");
        let (allow, hosts, limiter) = (Vec::new(), Default::default(), Default::default());
        let export = Export { name, volume, read_only: false, allow, hosts, limiter };
        server.add_export(export, &volumes).expect("first");
        let mut ctx = context(host.provider(), &mut arenas[1], now, &mut rng);
        let name = Name::new("bench").expect("short");
        let client = Client::new(client::Config::default(), name, &mut ctx).expect("room");
        let mut site = Site { gateway, host, server, volumes, client, arenas, rng, now };
        let to = SocketAddr::new(address(1), Config::default().port);
        let mut ctx = context(site.host.provider(), &mut site.arenas[1], now, &mut site.rng);
        site.client.add_path(address(2), to, &mut ctx).expect("first");
        while !site.round().iter().any(|event| matches!(event, Event::LinkUp { .. })) {}
        site
    }

    /// The work of the server's machine.
    #[inline(never)]
    fn server_turn(&mut self) {
        self.gateway.turn(self.now);
        let provider = self.gateway.provider();
        let mut ctx = context(provider, &mut self.arenas[0], self.now, &mut self.rng);
        while let Some(event) = ctx.provider.poll_connection_event() {
            self.server.handle_connection_event(&event, &mut ctx);
        }
        self.server.poll(&mut self.volumes, &mut ctx);
        self.gateway.turn(self.now);
    }

    /// A round of both machines. Returns the client's events.
    fn round(&mut self) -> Vec<Event> {
        self.now = self.now + Duration::from_micros(10);
        self.host.turn(self.now);
        self.host.carry(&mut self.gateway);
        self.server_turn();
        self.gateway.carry(&mut self.host);
        self.host.turn(self.now);
        let provider = self.host.provider();
        let mut ctx = context(provider, &mut self.arenas[1], self.now, &mut self.rng);
        while let Some(event) = ctx.provider.poll_connection_event() {
            self.client.handle_connection_event(&event, &mut ctx);
        }
        std::iter::from_fn(|| self.client.poll(&mut ctx)).collect()
    }

    fn submit(&mut self, permit: Permit, user: &[u8], data: Window, channel: Channel) {
        let request = Request { kind: RequestKind::Read, user, data, channel };
        let provider = self.host.provider();
        let mut ctx = context(provider, &mut self.arenas[1], self.now, &mut self.rng);
        self.client.submit(permit, &request, &mut ctx).expect("a path is up");
    }

    /// Sends a request, and waits for the answer.
    fn ask(&mut self, user: &[u8], length: usize) -> Vec<u8> {
        let data = self.arenas[1].alloc(4096, 4096).expect("room");
        let into = data.slice(0, length).expect("short");
        let permit = self.client.get_permit().expect("one is free");
        self.submit(permit, user, into, Channel::Service);
        while !self.round().iter().any(|event| matches!(event, Event::Done(..))) {}
        self.client.put_permit(permit);
        let mut bytes = vec![0; length];
        into.read(0, &mut bytes).expect("its own length");
        bytes
    }

    /// Does `count` reads.
    pub fn read(&mut self, count: u64) {
        self.ask(&SessionInfo { version: 2 }.emit(), SessionInfo::SIZE);
        let open = Open { mode: Ok(AccessMode::ReadOnly), name: Name::new("ram0").expect("short") };
        let answer = self.ask(&open.emit(), OpenResponse::SIZE);
        let device = OpenResponse::parse(&answer).expect("opened").device;
        let places: Vec<Window> =
            (0..64).map(|_| self.arenas[1].alloc(SIZE, 4096).expect("room")).collect();
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && begun < ended + DEPTH as u64 {
                let permit = self.client.get_permit().expect("one is free");
                let sector = begun * 8 % (VOLUME as u64 / 512);
                let (operation, flags) = (Operation::Read, IoFlags::SYNC);
                let io =
                    Io { device, sector, operation, flags, size: SIZE as u32, priority: 0 }.emit();
                self.submit(permit, &io, places[permit.index() % 64], Channel::Io(0));
                begun += 1;
            }
            for event in self.round() {
                if let Event::Done(permit, outcome) = event {
                    assert!(matches!(outcome, Outcome::Answered(Ok(()))), "{outcome:?}");
                    self.client.put_permit(permit);
                    ended += 1;
                }
            }
        }
    }
}

/// Reads over NTRDMA.
pub fn over_ntrdma(count: u64) {
    let ([mut a, mut b], now) = fixture::linked();
    let arenas = [a.memory(15 << 20), b.memory(15 << 20)].map(Arena::new);
    Site::new([a, b], arenas, now).read(count);
}

/// Reads over NTRDMA, with memory of volumes and sessions outside of the shared memory.
pub fn over_ivshmem(count: u64) {
    let ([a, b], now) = fixture::linked();
    let arenas = [0; 2].map(|_| Arena::on_heap(16 << 20));
    Site::new([a, b], arenas, now).read(count);
}

/// Reads over RoCE.
pub fn over_roce(count: u64) {
    let arenas = [0; 2].map(|_| Arena::on_heap(16 << 20));
    Site::new(RoceEnd::pair(), arenas, Instant::from_nanos(1)).read(count);
}
