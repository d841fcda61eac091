use crate::rnbd::wire::{AccessMode, Close, Open, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::reservation::{Command, Kind, Reservations, Stored};
use rtrs::client::{Outcome, PathId};
use rtrs::{Errno, Name};
use std::vec::Vec;

/// Bytes that depend on their position.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_mul(31).wrapping_add(i as u8) ^ (i >> 8) as u8).collect()
}

#[test]
pub fn map_write_read_unmap_in_both_modes() {
    for always_invalidate in [true, false] {
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        let memory = world.arena.available();
        let client = world.connect("s1");
        let device = world.open(client, "/dev/ram0", AccessMode::ReadWrite).unwrap();
        assert_eq!((device.sectors, device.logical_block), (2048, 512));
        let data = pattern(3, 12 << 10);
        world.write(client, &user_io(Operation::Write, 9, 12 << 10), &data).unwrap();
        let back = world.read(client, &user_io(Operation::Read, 8, 12 << 10), 12 << 10).unwrap();
        assert_eq!(back[512..], data[..data.len() - 512]);
        assert_eq!(back[..512], [0; 512]);
        world.read(client, &user_io(Operation::Flush, u64::MAX, 0), 0).unwrap();
        world.write(client, &user_io(Operation::WriteZeroes, 9, 512), &[]).unwrap();
        let back = world.read(client, &user_io(Operation::Read, 9, 1024), 1024).unwrap();
        assert_eq!(back, [[0; 512].as_slice(), &data[512..1024]].concat());
        let close = Close { device: device.device }.emit();
        world.write(client, &close, &[]).unwrap();
        let again = user_io(Operation::Read, 8, 512);
        assert_eq!(world.read(client, &again, 512), Err(Errno::ENOTCONN));
        let stats = world.server.transport().paths().next().unwrap().stats;
        assert_eq!((stats.errors, stats.write_bytes), (1, 12 << 10));
        world.clients[client].disconnect(PathId(0), context!(world, host));
        world.run();
        assert_eq!(world.server.transport().sessions().count(), 0);
        assert_eq!(world.arena.available(), memory, "all memory is released");
    }
}

#[test]
pub fn reads_take_the_fewest_messages_that_the_mode_allows() {
    for (always_invalidate, expected) in [(true, (1, 1, 1)), (false, (0, 0, 2))] {
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
        let before = (world.wire.sends, world.wire.writes, world.wire.immediates);
        world.read(client, &user_io(Operation::Read, 0, 4096), 4096).unwrap();
        let counts = (
            world.wire.sends - before.0,
            world.wire.writes - before.1,
            // The request itself is a WRITE with immediate.
            world.wire.immediates - before.2,
        );
        assert_eq!(counts, expected);
    }
}

#[test]
pub fn many_requests_at_once_on_every_chunk() {
    for always_invalidate in [true, false] {
        netsim::label!(always_invalidate);
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        for round in 0..50u64 {
            let writes: Vec<_> = (0..8u64)
                .map(|n| {
                    let data = pattern((round * 8 + n) as u8, 4096);
                    let user = user_io(Operation::Write, n * 8, 4096);
                    world.start_write(client, &user, &data)
                })
                .collect();
            world.run();
            for permit in writes {
                assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
                world.clients[client].put_permit(permit);
            }
            for n in 0..8u64 {
                let user = user_io(Operation::Read, n * 8, 4096);
                let expected = pattern((round * 8 + n) as u8, 4096);
                assert_eq!(world.read(client, &user, 4096), Ok(expected));
            }
        }
    }
}

/// The gateway requests a completion for every fourth part of its send queue, not for each response.
#[test]
fn few_responses_request_a_completion() {
    let mut world = World::new(World::small(false), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let completions = |world: &World| {
        world.server.transport().paths().map(|path| path.stats.completions).sum::<u64>()
    };
    let before = completions(&world);
    for _ in 0..64 {
        world.read(client, &user_io(Operation::Read, 0, 512), 512).unwrap();
    }
    // 64 requests; of 18 sends every fourth.
    assert_eq!(completions(&world) - before, 64 + 64 / 4);
}

#[test]
pub fn responses_wait_for_room_in_the_send_queue() {
    let config = World::small(true);
    let mut world =
        World::new(rtrs::server::Config { queue_depth: 512, chunk_size: 8192, ..config }, 8 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let reads: Vec<_> = (0..512)
        .map(|n| world.start_read(client, &user_io(Operation::Read, n % 64, 512), 512))
        .collect();
    world.run();
    for permit in reads {
        assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    }
    let stats = world.server.transport().paths().next().unwrap().stats;
    assert!(stats.parked > 0 && stats.reads >= 512);
}

#[test]
pub fn access_modes_follow_the_rules_of_the_kernel() {
    use AccessMode::{Migration, ReadOnly, ReadWrite};
    let mut world = World::new(World::small(true), 1 << 20);
    let clients: Vec<usize> = ["a", "b", "c"].map(|name| world.connect(name)).to_vec();
    let open = |world: &mut World, n: usize, mode| {
        world.open(clients[n], "ram0", mode).map(|device| device.device)
    };
    assert_eq!(open(&mut world, 0, ReadWrite), Ok(0));
    assert_eq!(open(&mut world, 0, ReadWrite), Ok(0), "the same device again");
    assert_eq!(open(&mut world, 1, ReadWrite), Err(Errno::EPERM));
    assert_eq!(open(&mut world, 1, Migration), Ok(0));
    assert_eq!(open(&mut world, 2, Migration), Err(Errno::EPERM));
    assert_eq!(open(&mut world, 2, ReadOnly), Ok(0));
    let write = user_io(Operation::Write, 0, 512);
    assert_eq!(world.write(clients[2], &write, &[1; 512]), Err(Errno::EROFS));
    assert_eq!(world.open(clients[2], "nothing", ReadOnly).err(), Some(Errno::ENOENT));
    assert_eq!(world.open(clients[2], "../ram0", ReadOnly).err(), Some(Errno::EINVAL));
    let mut bad = Open { mode: Err(7), name: Name::new("ram0").unwrap() }.emit();
    bad[4] = 7;
    assert_eq!(world.read(clients[1], &bad, 56), Err(Errno::EINVAL));
    // The first writer closes the device, so another one may open it.
    world.write(clients[0], &Close { device: 0 }.emit(), &[]).unwrap();
    world.clients[clients[1]].disconnect(PathId(0), context!(world, host));
    world.run();
    world.write(clients[2], &Close { device: 0 }.emit(), &[]).unwrap();
    assert!(open(&mut world, 2, ReadWrite).is_ok());
}

#[test]
pub fn force_close_ends_io_until_the_device_is_opened_again() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let device = world.server.devices().next().unwrap();
    assert!(world.server.force_close(device.session, device.id));
    assert!(!world.server.force_close(device.session, device.id));
    let user = user_io(Operation::Read, 0, 512);
    assert_eq!(world.read(client, &user, 512), Err(Errno::ENOTCONN));
    let again = world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_ne!(again.device, device.id);
}

/// A host over NVMe has reserved the volume. Clients of RNBD are never registered.
#[test]
fn reservation_excludes_open_devices_until_it_is_released() {
    for kind in Kind::ALL {
        let mut world = World::new(World::small(false), 1 << 20);
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let id = world.volumes.find("ram0").unwrap();
        let mut held = Reservations::default();
        for command in [Command::Register { key: 1 }, Command::Acquire { current: 1, kind }] {
            held = held.apply(&[1; 16], command).unwrap().next;
        }
        assert_eq!(world.volumes.change_reservations(id, held), Stored::Done);
        let reads = match kind.excludes_readers() {
            true => Err(Errno::EBADE),
            false => Ok(std::vec![0; 512]),
        };
        assert_eq!(world.read(client, &user_io(Operation::Read, 0, 512), 512), reads, "{kind:?}");
        let write = user_io(Operation::Write, 0, 512);
        assert_eq!(world.write(client, &write, &[7; 512]), Err(Errno::EBADE));
        for operation in [Operation::WriteZeroes, Operation::Discard] {
            let user = user_io(operation, 0, 512);
            assert_eq!(world.write(client, &user, &[]), Err(Errno::EBADE), "{operation:?}");
        }
        let flush = user_io(Operation::Flush, 0, 0);
        assert_eq!(world.read(client, &flush, 0), Err(Errno::EBADE));
        let none = Reservations::default();
        assert_eq!(world.volumes.change_reservations(id, none), Stored::Done);
        world.write(client, &write, &[7; 512]).unwrap();
    }
}
