//! The client against the server, over a link in memory.

use super::client::{self, Client, DeviceId, DeviceState, Losses, Notice, RemoteVolume};
use super::server::Export;
use super::wire::{self, AccessMode};
use crate::testing::{Context, Loopback, User, Wire, World, context};
use crate::volume::testing::ModelDisk;
use crate::volume::{DiskVolume, Operation, RamVolume, Request, Submitted, Volume, VolumeError};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Arena, Features, Window};
use rtrs::client::{self as transport, PathId};
use rtrs::server::Config;
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::vec::Vec;
use verbs::ConnectionEvent;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A gateway that exports `ram0`, and a host that maps it.
struct Pair {
    world: World,
    host: Mapper,
    volume: RemoteVolume,
    device: DeviceId,
    buffer: Window,
}

/// The host.
struct Mapper {
    client: Client,
    notices: Vec<Notice>,
}

impl User for Mapper {
    fn handle_event(&mut self, event: &ConnectionEvent, ctx: &mut Context<'_>) {
        self.client.handle_connection_event(event, ctx);
    }
    fn work(&mut self, ctx: &mut Context<'_>) -> bool {
        let before = self.notices.len();
        self.notices.extend(core::iter::from_fn(|| self.client.poll(ctx)));
        self.notices.len() > before
    }
}

fn ram() -> Box<dyn Volume> {
    let memory = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    Box::new(RamVolume::new(memory, false))
}

fn disk() -> Box<dyn Volume> {
    let disk = ModelDisk::new(&mut Arena::on_heap(1 << 16), 4);
    Box::new(DiskVolume::new(disk, false))
}

/// Values in place of an incarnation: fate of a stock server, which was rebooted, or whose link was cut.
const BOOTED: u64 = 1000;
const CUT: u64 = 1001;

fn gateway(incarnation: u64) -> Config {
    Config { incarnation, ..World::small(true) }
}

impl Pair {
    fn new(volume: Box<dyn Volume>, config: client::Config) -> Self {
        Self::over(Loopback::default(), 1, volume, config)
    }

    /// With a server that does not report its incarnation, but numbers connections as Linux does.
    fn of_stock(volume: Box<dyn Volume>, config: client::Config) -> Self {
        let mut wire = Loopback::default();
        wire.linux_ids = Some((40, 0x5e11_9af0));
        Self::over(wire, 0, volume, config)
    }

    fn over(
        wire: Loopback,
        incarnation: u64,
        volume: Box<dyn Volume>,
        config: client::Config,
    ) -> Self {
        let mut world = World::over(wire, gateway(incarnation), 1 << 20, volume);
        world.client_arena = Arena::on_heap(1 << 20);
        let [session, name] = ["s1", "ram0"].map(|name| Name::new(name).unwrap());
        let ctx = context!(world, host);
        let mut client = Client::new(config, transport::Config::default(), session, ctx).unwrap();
        let (device, volume) =
            client.map(name, AccessMode::ReadWrite, Losses::ToFlush, ctx).unwrap();
        let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), wire::PORT);
        client.transport_mut().add_path(HOST, to, ctx).unwrap();
        let buffer = world.client_arena.alloc(64 << 10, 4096).unwrap();
        let host = Mapper { client, notices: Vec::new() };
        let mut pair = Pair { world, host, volume, device, buffer };
        pair.run();
        pair
    }

    fn run(&mut self) {
        self.world.run_with(&mut self.host);
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.world.now = self.world.now + Duration::from_millis(100);
            self.run();
        }
    }

    /// Starts a request with `length` bytes of the buffer.
    fn start(&mut self, tag: u64, operation: Operation, sector: u64, length: usize) {
        let data = self.buffer.slice(0, length).unwrap();
        let taken = self.volume.submit(&Request { tag: tag.into(), operation, sector, data });
        assert!(matches!(taken, Ok(Submitted::Pending)), "{taken:?}");
    }

    fn end(&mut self) -> Option<Result<(), VolumeError>> {
        self.run();
        self.volume.poll().map(|done| done.result)
    }

    fn write(&mut self, durable: bool, sector: u64, byte: u8, length: usize) {
        self.buffer.slice(0, length).unwrap().fill(byte);
        self.start(1, Operation::Write { durable }, sector, length);
        assert_eq!(self.end(), Some(Ok(())));
    }

    fn read(&mut self, sector: u64, length: usize) -> Vec<u8> {
        self.buffer.fill(0xee);
        self.start(2, Operation::Read, sector, length);
        assert_eq!(self.end(), Some(Ok(())));
        let mut bytes = std::vec![0; length];
        self.buffer.read(0, &mut bytes).unwrap();
        bytes
    }

    fn flush(&mut self) -> Result<(), VolumeError> {
        self.start(3, Operation::Flush, u64::MAX, 0);
        self.end().expect("an answer")
    }

    /// The gateway loses its paths and is restarted.
    fn restart(&mut self, incarnation: u64) {
        self.world.restart_with(gateway(incarnation), &mut self.host);
    }

    fn state(&self) -> DeviceState {
        self.host.client.devices().next().unwrap().state
    }
}

#[test]
fn a_mapped_device_is_a_volume() {
    let mut pair = Pair::new(ram(), client::Config::default());
    let geometry = pair.volume.geometry();
    assert_eq!((geometry.sectors, geometry.logical_block), (2048, 512));
    assert!(geometry.features.contains(Features::DISCARD | Features::WRITE_ZEROES));
    // A transfer larger than a chunk is split.
    pair.buffer.fill(7);
    pair.start(9, Operation::Write { durable: true }, 100, 40 << 10);
    pair.run();
    let done = pair.volume.poll().unwrap();
    assert_eq!((done.tag.word, done.result), (9, Ok(())));
    assert_eq!(
        pair.world.server.volume_stats(pair.world.volumes.find("ram0").unwrap()).unwrap().writes,
        4
    );
    let back = pair.read(99, 42 << 10);
    assert!(
        back[..512].iter().all(|&b| b == 0) && back[512..512 + (40 << 10)].iter().all(|&b| b == 7)
    );
    pair.start(4, Operation::WriteZeroes { sectors: 2 }, 101, 0);
    assert_eq!(pair.end(), Some(Ok(())));
    let back = pair.read(100, 2048);
    assert_eq!([back[0], back[512], back[1535], back[1536]], [7, 0, 0, 7]);
    pair.flush().unwrap();
    let past = Request {
        tag: 1.into(),
        operation: Operation::Read,
        sector: 2048,
        data: pair.buffer.slice(0, 512).unwrap(),
    };
    assert_eq!(pair.volume.submit(&past).err(), Some(VolumeError::PastEnd));
    assert_eq!(pair.world.server.devices().count(), 1);
    assert_eq!(pair.world.server.opened(), 1);
    // All memory is released.
    let device = pair.device;
    assert!(pair.host.client.unmap(device, context!(pair.world, host)));
    pair.run();
    assert_eq!((pair.world.server.devices().count(), pair.host.client.devices().count()), (0, 0));
    assert_eq!(pair.world.server.opened(), 2, "and closed");
    assert_eq!(pair.volume.submit(&past).err(), Some(VolumeError::Io));
    pair.host.client.end(context!(pair.world, host));
    assert_eq!(pair.world.client_arena.available(), (1 << 20) - (64 << 10));
}

#[test]
fn requests_without_a_path_fail_after_the_wait() {
    let config = client::Config { wait: Duration::from_secs(20), ..client::Config::default() };
    let mut pair = Pair::new(ram(), config);
    pair.write(false, 5, 5, 512);
    pair.world.wire.cut.push(HOST);
    pair.start(1, Operation::Read, 5, 512);
    pair.pass(45);
    assert_eq!(pair.end(), None, "the path was given up after 35 s, and the request waits since");
    assert_eq!(pair.state(), DeviceState::Disconnected);
    pair.pass(15);
    assert_eq!(pair.end(), Some(Err(VolumeError::Io)));
    // A request that arrives while no path is up.
    pair.start(2, Operation::Read, 5, 512);
    pair.pass(10);
    pair.world.wire.cut.clear();
    let path = PathId(0);
    pair.host.client.transport_mut().reconnect(path, context!(pair.world, host));
    assert_eq!(pair.end(), Some(Ok(())));
    assert_eq!(pair.state(), DeviceState::Open);

    let mut pair = Pair::new(ram(), client::Config { wait: Duration::ZERO, ..config });
    pair.write(false, 5, 5, 512);
    pair.host.client.transport_mut().disconnect(path, context!(pair.world, host));
    pair.run();
    pair.start(1, Operation::Read, 5, 512);
    assert_eq!(pair.end(), Some(Err(VolumeError::Io)), "at once");
}

#[test]
fn flush_after_a_server_restart_fails_once_for_unflushed_writes() {
    // (whether the write is durable, whether a flush precedes, the server's incarnation afterwards, result of the
    // flush)
    let io = Err(VolumeError::Io);
    for (durable, flushed, incarnation, expected) in [
        (false, false, 2, io),
        (false, false, 0, io),
        (false, false, 1, Ok(())),
        (false, true, 2, Ok(())),
        (true, false, 2, Ok(())),
        // A stock server, recognised by the numbers that its connection manager draws at boot.
        (false, false, BOOTED, io),
        (false, false, CUT, Ok(())),
    ] {
        let stock = incarnation > 2;
        let mut pair = match stock {
            true => Pair::of_stock(disk(), client::Config::default()),
            false => Pair::new(disk(), client::Config::default()),
        };
        assert!(pair.volume.geometry().features.contains(Features::VOLATILE_CACHE));
        pair.write(durable, 5, 5, 1024);
        if flushed {
            pair.flush().unwrap();
        }
        if incarnation == BOOTED {
            pair.world.wire.linux_ids = Some((40, 0x77c0_0142));
        }
        pair.restart(if stock { 0 } else { incarnation });
        pair.pass(3);
        assert_eq!(pair.state(), DeviceState::Open);
        let is_loss = |notice: &Notice| matches!(notice, Notice::WritesLost { .. });
        assert_eq!(pair.host.notices.iter().any(is_loss), expected.is_err());
        assert_eq!(pair.read(5, 512)[0], 5, "reads still succeed");
        pair.buffer.fill(6);
        pair.start(3, Operation::Write { durable: true }, 9, 512);
        assert_eq!(pair.end(), Some(expected), "a durable write promises the same");
        pair.flush().unwrap();
    }
}

#[test]
fn durable_write_flushes_earlier_writes() {
    let mut pair = Pair::new(disk(), client::Config::default());
    let id = pair.world.volumes.find("ram0").unwrap();
    let flushes = |pair: &Pair| pair.world.server.volume_stats(id).unwrap().others;
    pair.write(true, 1, 1, 512);
    assert_eq!(flushes(&pair), 0, "no earlier write needs a flush");
    pair.write(false, 2, 1, 512);
    pair.write(true, 3, 1, 512);
    let once = flushes(&pair);
    pair.write(true, 4, 1, 512);
    assert_eq!(flushes(&pair), once, "all earlier writes were flushed");
}

#[test]
fn a_device_that_is_closed_at_the_server_stays_closed_until_it_is_mapped_again() {
    let mut pair = Pair::new(ram(), client::Config::default());
    let device = pair.world.server.devices().next().unwrap();
    assert!(pair.world.server.force_close(device.session, device.id));
    pair.start(1, Operation::Read, 0, 512);
    assert_eq!(pair.end(), Some(Err(VolumeError::Io)));
    assert_eq!(pair.state(), DeviceState::Closed);
    pair.start(1, Operation::Read, 0, 512);
    assert_eq!(pair.end(), Some(Err(VolumeError::Io)));
    let id = pair.device;
    assert!(pair.host.client.remap(id, context!(pair.world, host)));
    pair.run();
    pair.read(0, 512);
}

#[test]
fn open_that_the_server_refuses_is_retried() {
    let mut pair = Pair::new(ram(), client::Config::default());
    let name = Name::new("v1").unwrap();
    let (_, mut other) = pair
        .host
        .client
        .map(name, AccessMode::ReadOnly, Losses::ToFlush, context!(pair.world, host))
        .unwrap();
    pair.run();
    let refused = Notice::DeviceRefused { device: name, errno: Errno::ENOENT };
    assert_eq!(pair.host.notices.last(), Some(&refused));
    assert_eq!(other.geometry().sectors, 0);
    pair.pass(5);
    let volume = pair.world.volumes.add(name, ram()).unwrap();
    let export = Export {
        name,
        volume,
        read_only: true,
        allow: Vec::new(),
        hosts: Default::default(),
        limiter: Default::default(),
    };
    pair.world.server.add_export(export, &pair.world.volumes).unwrap();
    pair.pass(2);
    assert_eq!(pair.host.notices.last(), Some(&Notice::DeviceOpen { device: name, sectors: 2048 }));
    assert!(other.geometry().features.contains(Features::READ_ONLY));
    let data = pair.buffer.slice(0, 512).unwrap();
    let write = Operation::Write { durable: false };
    let write = Request { tag: 1.into(), operation: write, sector: 0, data };
    assert_eq!(other.submit(&write).err(), Some(VolumeError::ReadOnly));
    assert_eq!(
        pair.host
            .client
            .map(name, AccessMode::ReadOnly, Losses::ToFlush, context!(pair.world, host))
            .err(),
        Some(client::MapError::Exists)
    );
}

/// Linux's client oopses on a secure erase, so the server advertises it only if the operator enables it.
#[test]
fn secure_erase_is_offered_only_when_enabled() {
    let mut pair = Pair::new(ram(), client::Config::default());
    pair.write(false, 8, 0x5a, 4096);
    assert!(!pair.volume.geometry().features.contains(Features::SECURE_ERASE));
    for offered in [false, true] {
        pair.world.server.offer_secure_erase(offered);
        assert_eq!(pair.world.server.offers_secure_erase(), offered);
    }
    let id = pair.device;
    assert!(pair.host.client.remap(id, context!(pair.world, host)));
    pair.run();
    assert!(pair.volume.geometry().features.contains(Features::SECURE_ERASE));
    pair.start(4, Operation::SecureErase { sectors: 8 }, 8, 0);
    assert_eq!(pair.end(), Some(Ok(())));
    assert_eq!(pair.read(8, 4096), [0; 4096]);
}

/// As in Linux, `/dev/ram0` and `ram0` are one device.
#[test]
fn second_open_of_a_device_by_a_session_is_refused() {
    let mut pair = Pair::new(ram(), client::Config::default());
    let name = Name::new("/dev/ram0").unwrap();
    let ctx = context!(pair.world, host);
    pair.host.client.map(name, AccessMode::ReadOnly, Losses::ToFlush, ctx).unwrap();
    pair.run();
    let refused = Notice::DeviceRefused { device: name, errno: Errno::EEXIST };
    assert_eq!(pair.host.notices.last(), Some(&refused));
    assert_eq!(pair.world.server.devices().count(), 1);
}

#[test]
fn requests_up_to_the_depth_survive_a_restart() {
    let mut pair = Pair::new(ram(), client::Config { depth: 32, ..client::Config::default() });
    for n in 0..32 {
        pair.start(n, Operation::Write { durable: false }, n * 8, 4096);
    }
    let data = pair.buffer.slice(0, 512).unwrap();
    let one_more = Request { tag: 99.into(), operation: Operation::Read, sector: 0, data };
    assert_eq!(pair.volume.submit(&one_more).err(), Some(VolumeError::Busy));
    // They fill all chunks of the session; then the session is established anew.
    while let Some(notice) = pair.host.client.poll(context!(pair.world, host)) {
        pair.host.notices.push(notice);
    }
    pair.restart(2);
    pair.pass(3);
    let mut tags: Vec<u64> = core::iter::from_fn(|| pair.volume.poll())
        .map(|done| {
            assert_eq!(done.result, Ok(()));
            done.tag.word
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..32).collect::<Vec<u64>>());
}

/// A request that is given up ends at once, and the user owns its memory again. The volume is idle only when the
/// server has responded with the same permit.
#[test]
fn given_up_request_settles_when_the_server_responds() {
    let mut pair = Pair::new(ram(), client::Config::default());
    pair.write(false, 5, 5, 512);
    let permits = pair.host.client.transport().available_permits();
    for connected in [false, true] {
        if !connected {
            pair.world.wire.cut.push(HOST);
        }
        pair.buffer.slice(0, 512).unwrap().fill(7);
        pair.start(1, Operation::Write { durable: false }, 5, 512);
        // It is sent.
        while let Some(notice) = pair.host.client.poll(context!(pair.world, host)) {
            pair.host.notices.push(notice);
        }
        pair.volume.give_up();
        assert_eq!(pair.end(), Some(Err(VolumeError::Io)));
        assert!(!pair.volume.is_idle(), "the server may still do it");
        assert_eq!(pair.host.client.devices().next().unwrap().requests, 0);
        pair.world.wire.cut.clear();
        pair.pass(5);
        assert!(pair.volume.is_idle(), "the server has ended it");
        assert_eq!(pair.host.client.transport().available_permits(), permits);
        assert_eq!(pair.end(), None, "it ended once");
        pair.flush().unwrap();
    }
    // A request to a server that does not return ends at last.
    pair.world.wire.cut.push(HOST);
    pair.start(1, Operation::Read, 5, 512);
    pair.run();
    pair.volume.give_up();
    assert_eq!(pair.end(), Some(Err(VolumeError::Io)));
    pair.pass(50);
    assert!(!pair.volume.is_idle());
    pair.pass(100);
    assert!(pair.volume.is_idle());
}
