//! Requests that wait for the limits of their export.

use super::ends::Slow;
use crate::limits::{Limits, Rate};
use crate::rnbd::server::Export;
use crate::rnbd::wire::{AccessMode, Io, IoFlags, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::{OpenError, VolumeId};
use alloc::sync::Arc;
use core::net::Ipv4Addr;
use core::time::Duration;
use rtrs::client::{Outcome, PathId, Permit};
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::vec::Vec;

/// 100 requests in a second, so 10 at once and one more.
const HUNDRED: Limits = Limits {
    reads: Rate { requests: None, bytes: None },
    writes: Rate { requests: None, bytes: None },
    all: Rate { requests: Some(100), bytes: None },
};

/// A world whose client has `ram0` open, under these limits, and has used what is admitted at once.
fn limited() -> (World, usize) {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.server.exports()[0].limiter.set(&HUNDRED);
    for _ in 0..11 {
        assert!(world.read(client, &user_io(Operation::Read, 0, 512), 512).is_ok());
    }
    (world, client)
}

fn wait(world: &mut World, millis: u64) {
    world.now = world.now + Duration::from_millis(millis);
    world.run();
}

/// Starts writes that have to wait.
fn waiting(world: &mut World, client: usize, count: u64) -> Vec<Permit> {
    let write = |world: &mut World, n: u64| {
        let user = user_io(Operation::Write, n, 512);
        world.start_write(client, &user, &[n as u8 + 1; 512])
    };
    let permits = (0..count).map(|n| write(world, n)).collect();
    world.run();
    permits
}

fn put_all(world: &mut World, client: usize, permits: Vec<Permit>) {
    for permit in permits {
        world.clients[client].put_permit(permit);
    }
}

/// The outcomes so far.
fn ended(world: &mut World, client: usize, permits: &[Permit]) -> Vec<Option<Outcome>> {
    permits.iter().map(|&permit| world.outcome(client, permit)).collect()
}

#[test]
fn requests_beyond_the_limit_wait_and_are_executed_in_order() {
    let (mut world, client) = limited();
    let permits = waiting(&mut world, client, 8);
    assert!(ended(&mut world, client, &permits).iter().all(Option::is_none));
    assert_eq!(world.volumes.open_counts(VolumeId(0)).unwrap().count(), 1);
    let mut order = Vec::new();
    for _ in 0..85 {
        wait(&mut world, 1);
        let outcomes = ended(&mut world, client, &permits);
        let done = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_some());
        order.extend(done.map(|(n, outcome)| (n, outcome.unwrap())));
    }
    let wanted: Vec<_> = (0..8).map(|n| (n, Outcome::Answered(Ok(())))).collect();
    assert_eq!(order, wanted);
    put_all(&mut world, client, permits);
    world.server.exports()[0].limiter.set(&Limits::default());
    for n in 0..8 {
        let read = world.read(client, &user_io(Operation::Read, n, 512), 512).unwrap();
        assert_eq!(read, [n as u8 + 1; 512]);
    }
    let (delayed, time) = world.server.exports()[0].limiter.delays();
    assert!(delayed == 8 && time >= Duration::from_millis(70), "{delayed} {time:?}");
    assert_eq!(world.server.poll_timeout().map(|at| at > world.now), Some(true));
}

#[test]
fn limit_that_is_lifted_lets_requests_continue_and_flushes_never_wait() {
    let (mut world, client) = limited();
    let permits = waiting(&mut world, client, 6);
    let flush = user_io(Operation::Flush, 0, 0);
    assert_eq!(world.write(client, &flush, &[]), Ok(()));
    world.server.exports()[0].limiter.set(&Limits::default());
    wait(&mut world, 10);
    assert!(ended(&mut world, client, &permits).iter().all(Option::is_some));
}

#[test]
fn other_exports_and_sessions_are_not_held_up() {
    let (mut world, client) = limited();
    let export = world.server.exports()[0].clone();
    let free = Export { name: Name::new("free").unwrap(), limiter: Arc::default(), ..export };
    world.server.add_export(free, &world.volumes).unwrap();
    let other = world.connect("s2");
    world.open(other, "free", AccessMode::ReadOnly).unwrap();
    let second = world.open(client, "free", AccessMode::ReadOnly).unwrap().device;
    let permits = waiting(&mut world, client, 7);
    let read = user_io(Operation::Read, 0, 512);
    for _ in 0..20 {
        assert!(world.read(other, &read, 512).is_ok());
        let of_second = Io {
            device: second,
            sector: 0,
            operation: Operation::Read,
            flags: IoFlags::SYNC,
            size: 512,
            priority: 0,
        };
        assert!(world.read(client, &of_second.emit(), 512).is_ok());
    }
    assert!(ended(&mut world, client, &permits).iter().all(Option::is_none));
}

#[test]
fn sessions_take_turns_at_the_limit_of_an_export() {
    let (mut world, greedy) = limited();
    let modest = world.connect("s2");
    world.open(modest, "ram0", AccessMode::ReadOnly).unwrap();
    waiting(&mut world, greedy, 8);
    let permit = world.start_read(modest, &user_io(Operation::Read, 0, 512), 512);
    world.run();
    assert!(world.outcome(modest, permit).is_none());
    wait(&mut world, 25);
    assert!(world.outcome(modest, permit).is_some(), "the second of the first two");
}

#[test]
fn device_that_is_closed_while_requests_wait_answers_them_and_frees_its_volume() {
    let (mut world, client) = limited();
    let permits = waiting(&mut world, client, 8);
    let device = world.server.devices().next().unwrap();
    assert!(world.server.force_close(device.session, device.id));
    world.run();
    let wanted = Some(Outcome::Answered(Err(Errno::ENOTCONN)));
    assert!(ended(&mut world, client, &permits).into_iter().all(|outcome| outcome == wanted));
    let counts = world.volumes.open_counts(VolumeId(0)).unwrap().clone();
    assert_eq!((counts.count(), counts.retire()), (0, Ok(())));
    assert_eq!(counts.open(None).err(), Some(OpenError::Retired));
    counts.keep();
    // The limit is that of the export, whatever device uses it.
    put_all(&mut world, client, permits);
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(world.server.exports()[0].limiter.limits(), HUNDRED);
}

#[test]
fn session_that_ends_while_requests_wait_is_gone_at_once() {
    let (mut world, client) = limited();
    waiting(&mut world, client, 8);
    let memory = world.arena.available();
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.server.transport().sessions().count(), 0);
    assert_eq!(world.server.devices().count(), 0);
    assert!(world.arena.available() > memory, "its chunks are free");
    let counts = world.volumes.open_counts(VolumeId(0)).unwrap();
    assert_eq!((counts.count(), counts.retire()), (0, Ok(())));
}

#[test]
fn silent_client_with_waiting_requests_leaves_when_its_time_is_over() {
    let (mut world, client) = limited();
    world.server.exports()[0]
        .limiter
        .set(&Limits { writes: Rate { requests: None, bytes: Some(1) }, ..Limits::default() });
    // The first write is admitted, and takes 512 s.
    waiting(&mut world, client, 8);
    world.wire.cut.push(World::address(client));
    world.pass(60);
    assert_eq!(world.server.transport().sessions().count(), 0);
    assert_eq!(world.server.devices().count(), 0);
}

#[test]
fn path_that_ends_takes_its_waiting_requests_and_no_others() {
    let (mut world, client) = limited();
    world.add_path(client, Ipv4Addr::new(10, 0, 0, 77).into());
    assert_eq!(world.server.transport().paths().count(), 2);
    let permits = waiting(&mut world, client, 8);
    let of = |world: &World, from: Ipv4Addr| {
        let mut paths = world.server.transport().paths();
        let path = paths.find(|path| path.from == core::net::IpAddr::V4(from));
        path.map_or(0, |path| path.in_flight)
    };
    let [first, second] = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 77)];
    let (left, kept) = (of(&world, first), of(&world, second));
    assert!(left > 0 && kept > 0 && left + kept == 8, "{left} {kept}");
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.server.transport().paths().count(), 1, "it waits for nothing");
    // The client sends them again over the other path.
    assert!(of(&world, second) >= kept);
    wait(&mut world, 200);
    let answered = ended(&mut world, client, &permits).into_iter().flatten();
    let answered = answered.filter(|outcome| *outcome == Outcome::Answered(Ok(()))).count();
    assert!(answered as u32 >= kept, "{answered}");
}

/// A busy volume and a limit at once: nothing is charged twice, and nothing is lost.
#[test]
fn request_that_found_its_volume_busy_is_charged_once() {
    let slow = Slow::new(2);
    let mut world = World::with_volume(World::small(true), 1 << 20, Box::new(slow.clone()));
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.server.exports()[0].limiter.set(&HUNDRED);
    let mut done = 0;
    for _ in 0..2 {
        let permits = waiting(&mut world, client, 5);
        for _ in 0..5 {
            slow.work();
            world.run();
        }
        done += ended(&mut world, client, &permits).into_iter().flatten().count();
        put_all(&mut world, client, permits);
    }
    assert_eq!(done, 10, "ten are admitted at once");
    assert_eq!(world.server.exports()[0].limiter.delays().0, 0);
}

#[test]
fn exports_of_other_loops_have_the_same_limits() {
    let (world, _) = limited();
    let listed = world.server.exports().to_vec();
    assert!(Arc::ptr_eq(&listed[0].limiter, &world.server.exports()[0].limiter));
    let changed = Export { limiter: Arc::default(), ..listed[0].clone() };
    assert_eq!(changed, listed[0], "limits do not make another export");
}
