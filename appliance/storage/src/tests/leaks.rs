//! Clients must not see bytes of other clients.

use super::ends::Slow;
use super::over_roce::RocePair;
use crate::rnbd::wire::{AccessMode, Close, Open, OpenResponse, Operation, SessionInfo};
use crate::testing::{Forgery, SOIL, Wire, World, context, user_io};
use crate::volume::RamVolume;
use drivers::hal::Arena;
use rtrs::client::{Outcome, PathId};
use rtrs::server::{Config, RequestKind};
use rtrs::wire::IoHeader;
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::vec::Vec;
use verbs::ChunksOnDemand;

const OWN: u8 = 0xa5;
const ROOM: u32 = 8192;

/// Sends `user` as an RTRS READ with a buffer of `ROOM` bytes; returns the result and the contents of the buffer.
fn ask<W: Wire>(world: &mut World<W>, client: usize, user: &[u8]) -> (Result<(), Errno>, Vec<u8>) {
    let permit = world.clients[client].get_permit().unwrap();
    let data = world.data(client, permit);
    data.fill(OWN);
    world.submit(client, permit, RequestKind::Read, user, ROOM).unwrap();
    world.run();
    let Some(Outcome::Answered(result)) = world.outcome(client, permit) else {
        panic!("no response")
    };
    assert!(world.clients[client].put_permit(permit));
    let mut bytes = std::vec![0; ROOM as usize];
    data.read(0, &mut bytes).unwrap();
    (result, bytes)
}

fn operations_without_data<W: Wire>(world: &mut World<W>) {
    let client = world.connect("s1");
    let device = world.open(client, "ram0", AccessMode::ReadWrite).unwrap().device;
    let nothing = std::vec![OWN; ROOM as usize];
    use Operation::{Discard, Flush, SecureErase, Write, WriteZeroes};
    for operation in [Flush, Discard, SecureErase, WriteZeroes] {
        for size in [0, 512, ROOM] {
            netsim::label!(operation, size);
            let (result, bytes) = ask(world, client, &user_io(operation, 0, size));
            assert_eq!(result, Ok(()), "{operation:?} of {size}");
            assert!(bytes == nothing, "{operation:?} of {size} sent {:02x?}", &bytes[..16]);
        }
    }
    let (result, bytes) = ask(world, client, &user_io(Write, 0, ROOM));
    assert_eq!((result, bytes == nothing), (Err(Errno::EINVAL), true), "a write sent as READ");
    let read = user_io(Operation::Read, 0, ROOM);
    assert_eq!(world.write(client, &read, &[OWN; ROOM as usize]), Err(Errno::EINVAL));
    let past = user_io(Operation::Read, 2048, ROOM);
    let (result, bytes) = ask(world, client, &past);
    assert_eq!((result, bytes == nothing), (Err(Errno::EIO), true), "past the end");
    let (result, bytes) = ask(world, client, &Close { device: 77 }.emit());
    assert_eq!((result, bytes == nothing), (Ok(()), true), "CLOSE sent as READ");
    // A response that is staged in the chunk has only the length of the message.
    for (message, length) in [
        (SessionInfo { version: 2 }.emit().to_vec(), SessionInfo::SIZE),
        (
            Open { mode: Ok(AccessMode::ReadWrite), name: Name::new("ram0").unwrap() }
                .emit()
                .to_vec(),
            OpenResponse::SIZE,
        ),
    ] {
        let (result, bytes) = ask(world, client, &message);
        assert!(result == Ok(()) && bytes[length..] == nothing[length..]);
        assert!(!bytes[..length].contains(&SOIL));
        assert_eq!(world.write(client, &message, &[0; 512]), Err(Errno::EINVAL), "sent as WRITE");
    }
    let (result, bytes) = ask(world, client, &user_io(Operation::Read, 0, ROOM));
    assert_eq!((result, bytes), (Ok(()), std::vec![0; ROOM as usize]));
    assert_eq!(device, 0);
}

#[test]
pub fn only_a_read_returns_data() {
    for always_invalidate in [true, false] {
        let mut world = World::new(World::small(always_invalidate), 1 << 20);
        world.soil();
        operations_without_data(&mut world);
    }
}

/// A gateway over RoCE whose sessions share a pool with data of other users.
fn on_demand(always_invalidate: bool) -> World<RocePair> {
    let config = Config { oversubscribe: 8, ..World::small(always_invalidate) };
    let ram = Arena::on_heap((1 << 20) + 4096).alloc(1 << 20, 4096).unwrap();
    let mut pair = RocePair::new(40, 1500);
    let pool = Arena::on_heap((512 << 10) + 4096).alloc(512 << 10, 4096).unwrap();
    pool.fill(SOIL);
    pair.0.nodes[0].roce.give_memory(pool, 16 << 10).unwrap();
    World::over(pair, config, 64 << 10, Box::new(RamVolume::new(ram, false)))
}

#[test]
pub fn only_a_read_returns_data_on_demand() {
    for always_invalidate in [true, false] {
        operations_without_data(&mut on_demand(always_invalidate));
    }
}

#[test]
pub fn volume_that_fills_data_late_or_never_leaks_nothing() {
    for fail in [false, true] {
        let slow = Slow::new(8);
        slow.0.borrow_mut().fail = fail;
        let mut world = World::with_volume(World::small(false), 1 << 20, Box::new(slow.clone()));
        world.soil();
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        for operation in [Operation::Flush, Operation::Read] {
            let permit = world.clients[client].get_permit().unwrap();
            let data = world.data(client, permit);
            data.fill(OWN);
            let user = user_io(operation, 0, ROOM);
            world.submit(client, permit, RequestKind::Read, &user, ROOM).unwrap();
            world.run();
            slow.work();
            world.run();
            let expected = if fail { Err(Errno::EIO) } else { Ok(()) };
            assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(expected)));
            let mut bytes = [0; ROOM as usize];
            data.read(0, &mut bytes).unwrap();
            let delivered = if fail || operation == Operation::Flush { OWN } else { 0 };
            assert!(bytes == [delivered; ROOM as usize], "{operation:?}: {:02x?}", &bytes[..16]);
            world.clients[client].put_permit(permit);
        }
    }
}

/// An RTRS write whose data was never sent, although its header says that the data precedes it in the chunk.
#[test]
pub fn a_write_whose_data_was_never_sent_stores_nothing_of_others() {
    let mut world = World::new(World::small(true), 1 << 20);
    world.soil();
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.write(client, &user_io(Operation::Write, 0, ROOM), &[OWN; ROOM as usize]).unwrap();
    // The eighth chunk, which was not used before.
    let mut permits: Vec<_> = core::iter::from_fn(|| world.clients[client].get_permit()).collect();
    let permit = permits.pop().unwrap();
    permits.into_iter().for_each(|permit| assert!(world.clients[client].put_permit(permit)));
    let (header, length) = IoHeader::Write { user_len: 32 }.emit();
    let mut bytes = header[..length].to_vec();
    // The header of a READ is longer, and bytes after the header are ignored.
    bytes.resize(24, 0);
    world.wire.forgery = Some(Forgery { bytes: Some(bytes), ..Forgery::default() });
    let user = user_io(Operation::Write, 0, ROOM);
    world.submit(client, permit, RequestKind::Read, &user, ROOM).unwrap();
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    world.clients[client].put_permit(permit);
    let back = world.read(client, &user_io(Operation::Read, 0, ROOM), ROOM).unwrap();
    assert!(back == [0; ROOM as usize], "{:02x?}", &back[..16]);
}

#[test]
pub fn data_of_an_ended_session_is_hidden_from_the_next() {
    for always_invalidate in [true, false] {
        netsim::label!(always_invalidate);
        // Memory for one session.
        let mut world = World::new(World::small(always_invalidate), 200 << 10);
        let first = world.connect("first");
        world.open(first, "ram0", AccessMode::ReadWrite).unwrap();
        for n in 0..8 {
            let permit = world.clients[first].get_permit().unwrap();
            world.data(first, permit).fill(SOIL);
            let user = user_io(Operation::Write, 16 * n, ROOM);
            world.submit(first, permit, RequestKind::Write, &user, ROOM).unwrap();
        }
        world.run();
        world.clients[first].disconnect(PathId(0), context!(world, host));
        world.run();
        let second = world.connect("second");
        world.open(second, "ram0", AccessMode::ReadWrite).unwrap();
        let mut seen = std::vec![0; 12 << 10];
        for (_, chunks) in world.server.transport().chunks() {
            for n in 0..8 {
                chunks.slice(n * (16 << 10), 12 << 10).unwrap().read(0, &mut seen).unwrap();
                assert!(!seen.contains(&SOIL), "chunk {n}");
            }
        }
    }
}
