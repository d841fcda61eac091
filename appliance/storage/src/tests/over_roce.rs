//! The gateway and a host over RoCE in software, on a network without and with faults.

use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::{
    Completion, Operation as Op, RamVolume, Request, Submitted, Volume, VolumeError,
};
use core::time::Duration;
use drivers::hal::{Arena, Geometry, Instant};
use rand_core::Rng;
use roce::testing::{Faults, Pair};
use roce::{Limits, Roce};
use rtrs::Name;
use rtrs::client::{self, Client, DownReason, Event, Outcome, PathId, Permit};
use rtrs::server::Config;
use rtrs::server::ServerDevice;
use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;
use verbs::{ChunksOnDemand, Provider, Status};

/// Node 0 is the gateway, node 1 the host.
pub struct RocePair(pub Pair);

impl RocePair {
    pub fn new(seed: u64, mtu: usize) -> Self {
        let limits = Limits { qps: 16, regions: 2048, ..Limits::default() };
        RocePair(Pair::with_limits(seed, mtu, false, limits))
    }

    fn counters(&self) -> [&roce::Counters; 2] {
        [self.0.nodes[0].roce.counters(), self.0.nodes[1].roce.counters()]
    }
}

impl Wire for RocePair {
    fn gateway(&mut self) -> &mut dyn ServerDevice {
        let roce: &mut Roce = &mut self.0.nodes[0].roce;
        roce
    }
    fn host(&mut self) -> &mut dyn ServerDevice {
        let roce: &mut Roce = &mut self.0.nodes[1].roce;
        roce
    }
    fn step(&mut self, now: &mut Instant) -> bool {
        self.0.network.now = self.0.network.now.max(*now);
        let moved = self.0.step();
        *now = self.0.network.now;
        moved
    }
}

pub fn world(seed: u64, mtu: usize, config: Config) -> World<RocePair> {
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let volume = Box::new(RamVolume::new(ram, false));
    World::over(RocePair::new(seed, mtu), config, 4 << 20, volume)
}

/// Random reads and writes, eight at a time, checked against a copy of the volume.
pub fn exercise<W: Wire>(world: &mut World<W>, rounds: usize) {
    let client = world.connect("s1");
    world.open(client, "/dev/ram0", AccessMode::ReadWrite).unwrap();
    let mut copy = std::vec![0u8; 1 << 20];
    for _ in 0..rounds {
        let mut calls: Vec<(Permit, Option<(usize, usize)>)> = Vec::new();
        // Eight ranges that do not overlap, so that their order does not matter.
        for n in 0..8 {
            let at = n * (128 << 10) + (world.rng.next_u32() as usize % 200) * 512;
            let len = (1 + world.rng.next_u32() as usize % 24) * 512;
            let sector = (at / 512) as u64;
            if world.rng.next_u32().is_multiple_of(2) {
                let mut data = std::vec![0; len];
                world.rng.fill_bytes(&mut data);
                copy[at..at + len].copy_from_slice(&data);
                let user = user_io(Operation::Write, sector, len as u32);
                calls.push((world.start_write(client, &user, &data), None));
            } else {
                let user = user_io(Operation::Read, sector, len as u32);
                let permit = world.start_read(client, &user, len as u32);
                calls.push((permit, Some((at, len))));
            }
        }
        world.run();
        for (permit, read) in calls {
            assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
            if let Some((at, len)) = read {
                let mut bytes = std::vec![0; len];
                world.data(client, permit).read(0, &mut bytes).unwrap();
                assert!(bytes == copy[at..at + len], "{len} bytes at {at}");
            }
            world.clients[client].put_permit(permit);
        }
    }
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.server.transport().sessions().count(), 0);
}

#[test]
fn data_survives_with_every_mode_and_mtu() {
    for (seed, mtu, always_invalidate) in
        [(1, 1500, true), (2, 1500, false), (3, 9000, true), (4, 576, false)]
    {
        let mut world = world(seed, mtu, World::small(always_invalidate));
        let memory = world.arena.available();
        exercise(&mut world, 60);
        assert_eq!(world.arena.available(), memory);
        for counters in world.wire.counters() {
            assert_eq!((counters.retries, counters.completions_lost), (0, 0));
        }
    }
}

#[test]
fn data_survives_loss_duplication_reordering_and_corruption() {
    for seed in 10..14 {
        let mut world = world(seed, 1500, World::small(seed % 2 == 0));
        world.wire.0.network.set_faults(Faults {
            loss: 20,
            duplication: 10,
            reordering: 10,
            corruption: 5,
        });
        exercise(&mut world, 40);
        assert!(world.wire.counters()[0].retries > 0, "the network lost frames");
    }
}

#[test]
fn a_read_of_4_kib_costs_the_fewest_packets() {
    for (always_invalidate, sent) in [(true, 6), (false, 5)] {
        let mut world = world(5, 1500, World::small(always_invalidate));
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
        let before = world.wire.counters()[0].acks_repeated as usize;
        world.wire.0.network.record = Some(Vec::new());
        world.read(client, &user_io(Operation::Read, 0, 4096), 4096).unwrap();
        let frames = world.wire.0.network.record.take().unwrap();
        // Repeated ACKs of an idle connection come later.
        let again = world.wire.counters()[0].acks_repeated as usize - before;
        let opcodes: Vec<u8> = frames.iter().filter(|f| f.0 == 0).map(|f| f.1[42]).collect();
        // 4 KiB are 4 packets of WRITE with a path MTU of 1024; then the ACK of the request.
        let data = opcodes.iter().filter(|&&opcode| opcode != 0x11).count();
        assert_eq!(data, sent - 1, "{opcodes:x?}");
        assert_eq!(opcodes.len() - again, sent, "{opcodes:x?}");
    }
}

/// Only the client waits for a response: the gateway does not request an ACK for each.
#[test]
fn responses_share_acknowledgements() {
    for always_invalidate in [true, false] {
        netsim::label!(always_invalidate);
        let mut world = world(5, 1500, World::small(always_invalidate));
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
        let acks = |world: &World<RocePair>| world.wire.counters()[0].received.acknowledges;
        let before = acks(&world);
        for _ in 0..32 {
            let permit = world.start_read(client, &user_io(Operation::Read, 0, 512), 512);
            while world.outcome(client, permit).is_none() {
                world.turn();
            }
            world.clients[client].put_permit(permit);
        }
        assert!(acks(&world) - before <= 16, "{} for 32 reads", acks(&world) - before);
    }
}

#[test]
fn vanished_host_is_noticed_and_its_memory_is_released() {
    let mut world = world(6, 1500, World::small(true));
    let memory = world.arena.available();
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.pass(20);
    assert_eq!(world.server.transport().sessions().count(), 1);
    for node in 0..2 {
        world.wire.0.network.mute(node, true);
    }
    world.pass(60);
    assert_eq!(world.server.transport().sessions().count(), 0);
    assert_eq!(world.arena.available(), memory);
    let down = |event: &(usize, Event)| matches!(event.1, Event::PathDown(PathId(0), _));
    assert!(world.events.iter().any(down));
    world.wire.0.network.heal();
    world.now = world.now + Duration::from_secs(60);
    world.clients[client].reconnect(PathId(0), context!(world, host));
    world.run();
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
}

/// A volume that completes requests later and into the caller's memory, as disks do.
struct Late(RamVolume, VecDeque<Completion>);

impl Volume for Late {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        if self.1.len() >= 3 {
            return Err(VolumeError::Busy);
        }
        if let (Op::Read, Ok(Submitted::Lent(data))) = (request.operation, self.0.submit(request)) {
            request.data.write_window(0, &data).unwrap();
        }
        self.1.push_back(Completion { tag: request.tag, result: Ok(()) });
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.1.pop_front()
    }
}

#[test]
fn sessions_share_memory_and_short_memory_only_slows_them_down() {
    for (seed, pool, late, faults) in [
        (20, 512 << 10, false, 0),
        (21, 512 << 10, true, 0),
        (22, 48 << 10, true, 0),
        (23, 48 << 10, false, 0),
        (24, 64 << 10, true, 20),
    ] {
        let config = Config { oversubscribe: 8, ..World::small(seed % 2 == 0) };
        let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
        let ram = RamVolume::new(ram, false);
        let volume: Box<dyn Volume> =
            if late { Box::new(Late(ram, VecDeque::new())) } else { Box::new(ram) };
        let mut pair = RocePair::new(seed, 1500);
        let memory = Arena::on_heap(pool + 4096).alloc(pool, 4096).unwrap();
        pair.0.nodes[0].roce.give_memory(memory, 16 << 10).unwrap();
        let mut world = World::over(pair, config, 64 << 10, volume);
        let faults = Faults { loss: faults, ..Faults::default() };
        world.wire.0.network.set_faults(faults);
        let free = world.arena.available();
        exercise(&mut world, 60);
        let status = world.wire.0.nodes[0].roce.on_demand().unwrap();
        assert_eq!(status.available, pool, "all memory is released");
        assert!(status.lowest < pool);
        assert_eq!(status.short > 0, pool <= 64 << 10, "{status:?}");
        assert_eq!(world.arena.available(), free);
    }
}

#[test]
fn overcommit_of_the_pool_is_limited_and_refused_at_connect() {
    // One host may use the whole pool.
    let memory_per_host = Some(1 << 20);
    let config = Config { oversubscribe: 2, memory_per_host, ..World::small(true) };
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let mut pair = RocePair::new(30, 1500);
    // 320 KiB may be promised: two sessions of 128 KiB, and no third one.
    let memory = Arena::on_heap(200 << 10).alloc(160 << 10, 4096).unwrap();
    pair.0.nodes[0].roce.give_memory(memory, 16 << 10).unwrap();
    let volume = Box::new(RamVolume::new(ram, false));
    let mut world = World::over(pair, config, 64 << 10, volume);
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let name = Name::new(name).unwrap();
        let once = client::Config { max_reconnect_attempts: Some(0), ..Default::default() };
        let client = Client::new(once, name, context!(world, host)).unwrap();
        world.clients.push(client);
        world.add_path(number, World::address(0));
    }
    assert_eq!(world.server.transport().sessions().count(), 2);
    assert_eq!(world.server.transport().counters().refused, 1);
    let server = world.server.transport();
    assert_eq!((server.promised(), server.shared()), (256 << 10, Some(320 << 10)));
}

/// A write whose acknowledgement is lost while its response arrives. The data may be retransmitted.
fn write_without_acknowledgement() -> (World<RocePair>, usize, Permit) {
    let mut world = world(3, 1500, World::small(true));
    let client = world.connect("s1");
    world.open(client, "/dev/ram0", AccessMode::ReadWrite).unwrap();
    world.wire.0.nodes[1].hears_no_acks = true;
    let permit = world.start_write(client, &user_io(Operation::Write, 0, 4096), &[7; 4096]);
    let under_way = |world: &World<RocePair>| {
        world.clients[client].paths().next().is_some_and(|path| path.in_flight > 0)
    };
    while under_way(&world) {
        world.turn();
    }
    assert!(world.wire.0.nodes[1].roce.under_way().queue_pairs().next().is_some());
    (world, client, permit)
}

#[test]
fn data_returns_to_its_user_when_it_cannot_be_retransmitted() {
    let (mut world, client, permit) = write_without_acknowledgement();
    assert_eq!(world.outcome(client, permit), None);
    assert!(!world.clients[client].put_permit(permit), "it has not ended");
    world.wire.0.nodes[1].hears_no_acks = false;
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    assert!(world.clients[client].put_permit(permit));
}

#[test]
fn write_with_a_response_ends_with_its_path() {
    let (mut world, client, permit) = write_without_acknowledgement();
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    let mut left = world.wire.0.nodes[1].roce.under_way();
    assert!(world.wire.0.nodes[1].roce.is_done(&mut left));
}

#[test]
fn write_with_a_response_can_be_taken_back() {
    let (mut world, client, permit) = write_without_acknowledgement();
    world.clients[client].take_back(permit, context!(world, host));
    assert!(world.clients[client].put_permit(permit));
    world.run();
    assert_eq!(world.outcome(client, permit), None);
    assert_eq!(world.clients[client].available_permits(), 8);
}

/// The end of a path that is cut is not reported as a disconnect by the server.
#[test]
fn a_path_that_is_cut_is_not_disconnected_by_the_server() {
    let mut world = world(3, 1500, World::small(true));
    let client = world.connect("s1");
    world.open(client, "/dev/ram0", AccessMode::ReadWrite).unwrap();
    world.events.clear();
    world.wire.0.network.mute(0, true);
    world.start_write(client, &user_io(Operation::Write, 0, 4096), &[7; 4096]);
    let why = loop {
        world.turn();
        if let Some((_, Event::PathDown(_, reason))) = world.events.first() {
            break *reason;
        }
    };
    assert_eq!(why, DownReason::Transport(Status::RetryExceeded));
}
