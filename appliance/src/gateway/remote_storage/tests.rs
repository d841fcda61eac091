//! Tests of two storage gateways, one of which maps volumes of the other: their engines over a lossless wire.

use super::read_benchmark::Reading;
use super::{Reconnecting, RemoteStorage};
use crate::config::{Config, Document, PathPair};
use crate::console::Progress;
use crate::gateway::plane_user::{PlaneUser, Setup};
use crate::gateway::storage::Storage;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use management::orders::Reads;
use net::dns::Lookup;
use provider_set::ProviderSet;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use std::sync::Arc;
use storage::volume::mirror::{MemberState, RESERVED};
use storage::volume::{Completion, Operation, RamMemory, Request, Submitted, Volume};
use verbs::{ConnectionManager, Ctx, Provider, QpState};

const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const IP: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

struct Side {
    devices: ProviderSet,
    arena: Arena,
    rng: ChaCha12Rng,
    storage: Storage,
    remote_storage: Option<RemoteStorage>,
    config: Config,
}

impl Side {
    fn new(number: usize, settings: &[(&str, &str)], now: Instant) -> Self {
        let mut document = Document::default();
        for (path, value) in settings {
            document.set(path, value).unwrap();
        }
        let config = document.config().clone();
        let mut rng = ChaCha12Rng::seed_from_u64(number as u64);
        let port = PortConfig { mac: MAC[number], addresses: vec![IP[number]], mtu: 1500 };
        let mut roce = Roce::new(port, Limits::default(), &mut rng);
        roce.pin_neighbour(0, IP[1 - number], MAC[1 - number]);
        let mut arena = Arena::on_heap(40 << 20);
        let mut devices = ProviderSet::new(roce, None);
        let provider = Some(&mut devices);
        let mut storage = Storage::new(&config, &mut [], &mut arena, provider, &mut rng, || true);
        let remote_storage = RemoteStorage::of(&mut Setup {
            config: &config,
            is_first: true,
            storage: &mut storage,
            ctx: Ctx { provider: &mut devices, arena: &mut arena, now, rng: &mut rng },
        });
        storage.apply_exports(&config);
        Side { devices, arena, rng, storage, remote_storage, config }
    }

    fn serve(&mut self, now: Instant) {
        if self.devices.poll_timeout().is_some_and(|at| at <= now) {
            self.devices.handle_timeout(now);
        }
        let (provider, arena) = (&mut self.devices, &mut self.arena);
        let mut ctx = Ctx { provider, arena, now, rng: &mut self.rng };
        while let Some(event) = ctx.provider.poll_connection_event() {
            let (server, remote) = (self.storage.server.as_mut(), self.remote_storage.as_mut());
            let _ = server.is_some_and(|s| s.handle_connection_event(&event, &mut ctx))
                || remote.is_some_and(|r| r.on_connection(&event, &mut ctx));
        }
        if let Some(remote_storage) = &mut self.remote_storage {
            remote_storage.poll(&mut self.storage, &mut ctx);
        }
    }
}

struct World {
    sides: [Side; 2],
    now: Instant,
    cut: bool,
    /// The volume that the test uses. The test alone takes its completions.
    volume: Option<Box<dyn Volume>>,
    done: Option<Completion>,
}

impl World {
    fn new(settings: &[(&str, &str)]) -> Self {
        let now = Instant::from_nanos(1);
        let small = [("rnbd.queue_depth", "16"), ("rnbd.chunk_size", "16KiB")];
        let far = [("volume.0.size", "256KiB")];
        let near: Vec<_> = [("rnbd.enabled", "off")].iter().chain(settings).copied().collect();
        let far: Vec<_> = small.iter().chain(&far).copied().collect();
        let sides = [Side::new(0, &near, now), Side::new(1, &far, now)];
        World { sides, now, cut: false, volume: None, done: None }
    }

    /// Takes a volume out of the set, for the test.
    fn take(&mut self, name: &str) {
        let volumes = &mut self.sides[0].storage.volumes;
        let id = volumes.find(name).unwrap();
        self.volume = volumes.remove(id);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(1);
            let tends = (self.now.as_nanos() / 1_000_000).is_multiple_of(1000);
            if let Some(volume) = self.volume.as_mut().filter(|_| tends) {
                volume.tend(self.now);
            }
            for _ in 0..8 {
                if let Some(volume) = &mut self.volume {
                    self.done = volume.poll().or(self.done.take());
                }
                for n in 0..2 {
                    self.serve(n);
                    self.carry(n);
                }
            }
        }
    }

    /// Polls a side.
    fn serve(&mut self, n: usize) {
        if n == 1 {
            let Side { devices, arena, rng, storage, .. } = &mut self.sides[1];
            let mut ctx = Ctx { provider: devices, arena, now: self.now, rng };
            if let Some(server) = &mut storage.server {
                server.poll(&mut storage.volumes, &mut ctx);
            }
        }
        self.sides[n].serve(self.now);
    }

    /// Carries a side's frames to the other, unless the network is cut.
    fn carry(&mut self, n: usize) {
        let mut tx = TxBuffer::new();
        while self.sides[n].devices.roce.poll_transmit(0, self.now, &mut tx) {
            let packet = tx.packet();
            let mut frame = packet.header.to_vec();
            for part in packet.payload {
                let at = frame.len();
                frame.resize(at + part.len(), 0);
                part.read(0, &mut frame[at..]).unwrap();
            }
            frame.extend_from_slice(packet.trailer);
            if !self.cut {
                let _ = self.sides[1 - n].devices.roce.handle_frame(0, &frame, self.now);
            }
        }
    }

    /// Submits a request, and waits for its completion.
    fn request(&mut self, operation: Operation, byte: u8) -> Vec<u8> {
        self.request_at(operation, 8, byte)
    }

    fn request_at(&mut self, operation: Operation, sector: u64, byte: u8) -> Vec<u8> {
        let data = self.sides[0].arena.alloc(4096, 4096).unwrap();
        data.fill(byte);
        let request = Request { tag: 9.into(), operation, sector, data };
        let submitted = self.volume.as_mut().unwrap().submit(&request).unwrap();
        assert!(matches!(submitted, Submitted::Pending));
        let end = self.now + Duration::from_secs(200);
        let done = loop {
            self.pass(Duration::from_millis(1));
            match self.done.take() {
                Some(done) => break done,
                None => assert!(self.now < end, "it does not end"),
            }
        };
        assert_eq!((done.tag.word, done.result), (9, Ok(())));
        let mut bytes = vec![0; 4096];
        data.read(0, &mut bytes).unwrap();
        self.sides[0].arena.free(data);
        bytes
    }

    /// Submits a read whose response is lost.
    fn begin_unacknowledged_read(&mut self) {
        let data = self.sides[0].arena.alloc(4096, 4096).unwrap();
        let request = Request { tag: 5.into(), operation: Operation::Read, sector: 8, data };
        let volume = self.volume.as_mut().unwrap();
        volume.submit(&request).unwrap();
        volume.flush_queue();
        self.serve(0);
        self.carry(0);
        self.cut = true;
        for _ in 0..8 {
            self.serve(1);
            self.carry(1);
        }
    }

    /// Makes this the address of all names.
    fn answer(&mut self, ip: IpAddr) {
        let Side { devices, arena, rng, remote_storage, .. } = &mut self.sides[0];
        let mut ctx = Ctx { provider: devices, arena, now: self.now, rng };
        let remote_storage = remote_storage.as_mut().unwrap();
        remote_storage.set_addresses(|_| Lookup::Known(vec![ip]), self.now);
        remote_storage.follow_names(&mut ctx);
    }

    /// The servers of all paths.
    fn servers(&self) -> Vec<IpAddr> {
        let sessions = &self.remote_storage().sessions;
        sessions[0].client.transport().paths().map(|path| path.to.ip()).collect()
    }

    fn remote_storage(&self) -> &RemoteStorage {
        self.sides[0].remote_storage.as_ref().unwrap()
    }

    fn state(&self, volume: &str) -> &'static str {
        self.remote_storage()
            .find_device(volume)
            .map_or("gone", |(_, device)| device.state.as_str())
    }
}

const REMOTE: [(&str, &str); 2] = [
    ("volume.0.size", "256KiB"),
    (
        "remote",
        "[{name = \"far\", sessname = \"gw\", path = \"10.0.0.1@10.0.0.2\", device_path = \"ram0\"}]",
    ),
];

#[test]
fn remote_volume_serves_reads_and_writes_across_an_outage() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.state("far"), "open");
    world.take("far");
    world.request(Operation::Write { durable: true }, 0x5a);
    assert_eq!(world.request(Operation::Read, 0), [0x5a; 4096]);
    // The server is silent: the request waits, and is executed when the server is back.
    world.cut = true;
    world.pass(Duration::from_secs(40));
    assert_eq!(world.state("far"), "disconnected");
    world.cut = false;
    assert_eq!(world.request(Operation::Read, 0), [0x5a; 4096]);
    let Side { devices, arena, rng, storage, remote_storage, .. } = &mut world.sides[0];
    let mut ctx = Ctx { provider: devices, arena, now: world.now, rng };
    let remote_storage = remote_storage.as_mut().unwrap();
    remote_storage.remove_remote("far", storage, &mut ctx);
    assert!(remote_storage.sessions.is_empty());
    assert!(storage.volumes.find("far").is_none());
}

/// The console reads a volume that others can use meanwhile.
/// A path goes to another address of its name only while it is being retried: neither while it is up, nor after the
/// operator has disconnected or removed it.
#[test]
fn named_path_follows_its_name_but_not_against_the_operator() {
    let (name, settings) = ("far.example.net", REMOTE[1].1);
    let settings = settings.replace(&IP[1].to_string(), name);
    let mut world = World::new(&[REMOTE[0], ("remote", &settings)]);
    let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    let ends = PathPair { from: IP[0], to: IP[1] };
    world.answer(IP[1]);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.state("far"), "open");
    world.answer(other);
    assert_eq!(world.servers(), [IP[1]], "it is up");
    let order = |world: &mut World, connect: Option<bool>, ends: PathPair| {
        let Side { devices, arena, rng, remote_storage, .. } = &mut world.sides[0];
        let mut ctx = Ctx { provider: devices, arena, now: world.now, rng };
        let session = &mut remote_storage.as_mut().unwrap().sessions[0];
        let id = session.path_between(ends.from, ends.to).unwrap().id;
        let known = match connect {
            Some(true) => session.client.transport_mut().reconnect(id, &mut ctx),
            Some(false) => session.client.transport_mut().disconnect(id, &mut ctx),
            None => {
                session.forget_named(ends);
                session.client.transport_mut().remove_path(id, &mut ctx)
            }
        };
        assert!(known);
    };
    order(&mut world, Some(false), ends);
    world.answer(other);
    assert_eq!(world.servers(), [IP[1]], "the operator has disconnected it");
    world.cut = true;
    order(&mut world, Some(true), ends);
    for _ in 0..400 {
        world.pass(Duration::from_millis(100));
        world.answer(other);
    }
    assert_eq!(world.servers(), [other]);
    order(&mut world, None, PathPair { to: other, ..ends });
    world.answer(IP[1]);
    assert!(world.servers().is_empty(), "the operator has removed it");
}

/// The operator waits for a reconnect, and gets its result.
#[test]
fn reconnect_answers_with_its_result() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    let ends = PathPair { from: IP[0], to: IP[1] };
    let reconnect = |world: &mut World| {
        let Side { devices, arena, rng, remote_storage, .. } = &mut world.sides[0];
        let mut ctx = Ctx { provider: devices, arena, now: world.now, rng };
        let session = &mut remote_storage.as_mut().unwrap().sessions[0];
        let id = session.path_between(ends.from, ends.to).unwrap().id;
        assert!(session.client.transport_mut().reconnect(id, &mut ctx));
        Reconnecting::new(session.name(), ends, world.now)
    };
    let result = |world: &World, waits: &Reconnecting| {
        let session = &world.sides[0].remote_storage.as_ref().unwrap().sessions[0];
        waits.result(session.path_between(ends.from, ends.to).as_ref(), world.now)
    };
    let waits = reconnect(&mut world);
    assert_eq!(result(&world, &waits), None, "the attempt runs");
    world.pass(Duration::from_millis(200));
    let connected = "path ip:10.0.0.1@ip:10.0.0.2 is connected".to_string();
    assert_eq!(result(&world, &waits), Some(Ok(connected)));
    world.cut = true;
    let mut waits = reconnect(&mut world);
    assert_eq!(result(&world, &waits), None, "the attempt runs");
    world.pass(Duration::from_secs(31));
    let failed = result(&world, &waits).unwrap().unwrap_err();
    assert!(failed.contains("is not connected"), "{failed}");
    waits.cancel();
    assert!(result(&world, &waits).unwrap().unwrap_err().contains("cancelled"));
    assert!(waits.result(None, world.now).unwrap().is_err(), "the path was removed");
}

#[test]
fn remote_read_reads_a_volume_in_use() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    let Side { arena, storage, remote_storage, .. } = &mut world.sides[0];
    let id = storage.volumes.find("far").unwrap();
    let wanted = Reads { count: 100, size: 4096, depth: 8 };
    let volume = storage.volumes.get(id).unwrap();
    let reading = Reading::start(id, volume, wanted, arena, world.now).unwrap();
    remote_storage.as_mut().unwrap().reading = Some(reading.into());
    assert!(storage.volumes.find("far").is_some());
    world.pass(Duration::from_secs(1));
    let reading = world.remote_storage().reading.as_ref().unwrap();
    let Some(Progress::Done(Ok(result))) = reading.result(world.now) else {
        panic!("it has failed");
    };
    assert!(result.starts_with("100 reads of 4096 bytes in"), "{result}");
}

#[test]
fn mirror_of_memory_and_remote_volume_survives_an_outage() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    let members = ["ram0", "far"].map(|name| name.parse().unwrap()).to_vec();
    let mirror = crate::config::Mirror { name: "safe".parse().unwrap(), members, timeout_ms: 5000 };
    let now = world.now;
    let Side { arena, storage, remote_storage, config, .. } = &mut world.sides[0];
    config.mirror.push(mirror.clone());
    let remote_storage = remote_storage.as_mut().unwrap();
    remote_storage.add_mirror(&mirror, Some([7; 16]), storage, arena, now).unwrap();
    assert!(storage.volumes.find("far").is_none(), "a member is not a volume of its own");
    let exports = storage.wanted_exports(config);
    assert_eq!(exports.len(), 1);
    let status = |world: &World| world.remote_storage().mirrors[0].status.get().members;
    world.take("safe");
    world.pass(Duration::from_secs(10));
    assert_eq!(status(&world), [MemberState::InSync; 2]);
    world.request(Operation::Write { durable: false }, 0x77);
    world.cut = true;
    world.pass(Duration::from_secs(5));
    // The remote member waits for a minute, the mirror only for five seconds.
    let before = world.now;
    world.request(Operation::Write { durable: false }, 0x78);
    assert!(world.now.since(before) < Duration::from_secs(7), "the mirror waited for longer");
    assert_eq!(status(&world), [MemberState::InSync, MemberState::Out]);
    world.cut = false;
    world.pass(Duration::from_secs(60));
    assert_eq!(status(&world), [MemberState::InSync; 2]);
    assert_eq!(world.request(Operation::Read, 0), [0x78; 4096]);
    // After the mirror is dissolved, its members still have the data, behind the mirror's own sectors.
    let mirror = world.volume.take().unwrap();
    let Side { arena, storage, remote_storage, .. } = &mut world.sides[0];
    storage.volumes.add(crate::gateway::storage::name(&"safe").unwrap(), mirror).unwrap();
    let free = arena.available();
    assert!(remote_storage.as_mut().unwrap().end_mirror("safe", storage, arena));
    assert!(storage.volumes.find("safe").is_none() && storage.volumes.find("ram0").is_some());
    assert!(arena.available() > free, "its memory is given back");
    world.take("far");
    assert_eq!(world.request_at(Operation::Read, 8 + RESERVED, 0), [0x78; 4096]);
}

/// A world whose first side has the mirror `safe` of `ram0` and the remote volume `far`.
fn mirrored() -> World {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    let members = ["ram0", "far"].map(|name| name.parse().unwrap()).to_vec();
    let mirror = crate::config::Mirror { name: "safe".parse().unwrap(), members, timeout_ms: 5000 };
    let now = world.now;
    let Side { arena, storage, remote_storage, .. } = &mut world.sides[0];
    let remote_storage = remote_storage.as_mut().unwrap();
    remote_storage.add_mirror(&mirror, Some([7; 16]), storage, arena, now).unwrap();
    world
}

/// No client uses the mirror, and the server is unreachable: the member is left out within seconds, and returns later.
#[test]
fn idle_mirror_leaves_out_a_remote_member_that_is_cut_off() {
    let mut world = mirrored();
    let status = |world: &World| world.remote_storage().mirrors[0].status.get();
    world.pass(Duration::from_secs(10));
    assert!(status(&world).is_whole());
    world.cut = true;
    world.pass(Duration::from_secs(9));
    assert_eq!(status(&world).members, [MemberState::InSync, MemberState::Out]);
    assert_eq!(status(&world).to_string(), "running on one member");
    world.cut = false;
    world.pass(Duration::from_secs(60));
    assert!(status(&world).is_whole());
    assert_eq!(status(&world).why, [None; 2], "it is in sync");
}

/// A mirror finishes its operations before it is dissolved, and starts no new ones.
#[test]
fn mirror_that_copies_becomes_idle_before_it_is_dissolved() {
    let mut world = mirrored();
    let slot = |world: &World| {
        let mirror = &world.remote_storage().mirrors[0];
        (mirror.status.get(), mirror.ending.clone())
    };
    while slot(&world).0.members[1] != MemberState::Syncing {
        world.pass(Duration::from_millis(1));
    }
    // Now the server is silent: the copy stalls.
    world.cut = true;
    world.pass(Duration::from_millis(5));
    let ends = |world: &mut World| {
        let Side { arena, storage, remote_storage, .. } = &mut world.sides[0];
        remote_storage.as_mut().unwrap().end_mirror("safe", storage, arena)
    };
    slot(&world).1.set(true);
    assert!(!ends(&mut world), "a copy is under way");
    world.cut = false;
    world.pass(Duration::from_secs(5));
    assert_eq!(slot(&world).0.members[1], MemberState::Syncing);
    assert!(slot(&world).0.stale > 0, "it should have copied no more");
    assert!(ends(&mut world));
}

/// A response that refers to the memory of a volume may be retransmitted until its client has acknowledged it.
#[test]
fn memory_of_a_volume_is_not_freed_before_its_responses_are_acknowledged() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    world.take("far");
    assert_eq!(world.request(Operation::Write { durable: false }, 7), [7; 4096]);
    world.pass(Duration::from_millis(100));
    world.begin_unacknowledged_read();
    let (now, later) = (world.now, world.now + Duration::from_secs(1));
    let Side { arena, storage, devices, .. } = &mut world.sides[1];
    let memory = arena.alloc(4096, 4096).unwrap();
    let free = arena.available();
    storage.retire(Arc::new(RamMemory::new(memory)), arena, Some(devices), now);
    storage.free_retired(arena, Some(devices), later);
    assert_eq!(arena.available(), free, "the answer may be sent again");
    let qps = devices.under_way();
    world.cut = false;
    world.pass(Duration::from_millis(2000));
    let now = world.now;
    let Side { arena, storage, devices, .. } = &mut world.sides[1];
    storage.free_retired(arena, Some(devices), now);
    assert_eq!(arena.available(), free + 4096, "it is acknowledged");
    assert!(qps.queue_pairs().all(|qp| devices.qp_state(qp) == Ok(QpState::Rts)));
}

/// A client that has not acknowledged for a minute loses its connection, and the memory is free.
#[test]
fn memory_of_a_volume_is_freed_after_a_minute_without_acknowledgement() {
    let mut world = World::new(&REMOTE);
    world.pass(Duration::from_millis(100));
    world.take("far");
    assert_eq!(world.request(Operation::Write { durable: false }, 7), [7; 4096]);
    world.pass(Duration::from_millis(100));
    world.begin_unacknowledged_read();
    let now = world.now;
    let Side { arena, storage, devices, .. } = &mut world.sides[1];
    let memory = arena.alloc(4096, 4096).unwrap();
    let free = arena.available();
    storage.retire(Arc::new(RamMemory::new(memory)), arena, Some(devices), now);
    let under_way = devices.under_way();
    assert!(under_way.queue_pairs().next().is_some());
    storage.free_retired(arena, Some(devices), now + Duration::from_secs(59));
    assert_eq!(arena.available(), free);
    storage.free_retired(arena, Some(devices), now + Duration::from_secs(60));
    assert_eq!(arena.available(), free + 4096);
    assert!(under_way.queue_pairs().all(|qp| devices.qp_state(qp) == Ok(QpState::Error)));
}

/// Cost follows work: idle sessions are not polled.
#[test]
fn sessions_are_polled_only_when_they_have_work() {
    let remotes: Vec<String> = (0..8)
        .map(|n| {
            let path = "10.0.0.1@10.0.0.2";
            format!("{{name = \"far{n}\", sessname = \"gw{n}\", path = \"{path}\", device_path = \"ram0\", access_mode = \"ro\"}}")
        })
        .collect();
    let remotes = format!("[{}]", remotes.join(", "));
    let mut world = World::new(&[("volume.0.size", "256KiB"), ("remote", &remotes)]);
    world.pass(Duration::from_millis(200));
    let states =
        |world: &World| (0..8).map(|n| world.state(&format!("far{n}"))).collect::<Vec<_>>();
    assert_eq!(states(&world), ["open"; 8]);
    let polls = |world: &World| world.remote_storage().session_polls;
    let before = polls(&world);
    world.pass(Duration::from_secs(4));
    let polled = polls(&world) - before;
    assert!(polled <= 8, "{polled} polls of idle sessions with one timer each");
    let before = polls(&world);
    world.take("far5");
    for _ in 0..10 {
        assert_eq!(world.request(Operation::Read, 0), [0; 4096]);
    }
    let polled = polls(&world) - before;
    assert!(polled <= 50, "{polled} polls for ten reads of one of eight sessions");
    // Heartbeats of all.
    world.pass(Duration::from_secs(60));
    assert_eq!(states(&world), ["open"; 8]);
    assert_eq!(world.remote_storage().due.len(), 8);
    // A free number is reused.
    let Side { devices, arena, rng, storage, remote_storage, config } = &mut world.sides[0];
    let mut ctx = Ctx { provider: devices, arena, now: world.now, rng };
    let held = remote_storage.as_mut().unwrap();
    held.remove_remote("far2", storage, &mut ctx);
    held.remove_remote("far6", storage, &mut ctx);
    let remote = config.remote.iter().find(|remote| remote.name.as_str() == "far2").unwrap();
    held.add_remote(remote, config, storage, &mut ctx).unwrap();
    world.pass(Duration::from_millis(200));
    assert_eq!(world.state("far2"), "open");
    let remote_storage = world.remote_storage();
    assert_eq!((remote_storage.sessions.len(), remote_storage.due.len()), (7, 7));
}
