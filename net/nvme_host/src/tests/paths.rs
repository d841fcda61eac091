//! Several paths: their choice, their loss, and what is sent again.

use super::{SECOND, World};
use crate::{Access, Error, Losses, Notice, Operation, Settings};
use core::time::Duration;
use std::vec;

const TWO: fn() -> Settings =
    || Settings { paths: 2, keepalive: Duration::from_secs(5), ..Settings::default() };

#[test]
fn requests_go_to_optimized_paths_and_their_queues_in_turn() {
    let settings = Settings { connections: 2, ..TWO() };
    let mut world = World::open(settings, |it| it.access = vec![2, 1]);
    assert_eq!(world.status().ready, 2);
    let data = world.memory(512, 0);
    (0..40).for_each(|tag| world.submit(tag, Operation::Read, 0, data));
    world.run();
    assert_eq!(world.take_done().len(), 40);
    assert!(world.subsystem.seen.iter().all(|seen| seen.0 == 1), "the optimized path");
    let queue = |queue| world.subsystem.seen.iter().filter(|seen| seen.1 == queue).count();
    assert!(queue(1) > 10 && queue(2) > 10);
    // The controller grants fewer queues.
    let settings = Settings { connections: 4, ..Settings::default() };
    let world = World::open(settings, |it| it.granted = 2);
    assert_eq!((world.status().paths[0].queues, world.links.len()), (2, 3));
}

#[test]
fn path_that_becomes_inaccessible_is_left_and_taken_back() {
    let mut world = World::open(TWO(), |it| it.access = vec![1, 2]);
    let data = world.memory(512, 0);
    // Without an event, the status tells.
    world.subsystem.access = vec![3, 1];
    world.submit(1, Operation::Read, 0, data);
    world.pass(SECOND);
    assert_eq!(world.take_done(), [(1, Ok(()))]);
    let seen: vec::Vec<_> = world.subsystem.seen.drain(..).map(|seen| seen.0).collect();
    assert_eq!(seen, [0, 1]);
    assert!(world.notices.contains(&Notice::Access { path: 0, access: Access::Inaccessible }));
    world.subsystem.access = vec![1, 3];
    let admin = world.connection(1, 0);
    // The event of one path, and the periodic look of the other.
    assert!(world.links.get_mut(&admin).unwrap().announce(0x000c_0302));
    world.pass(6 * SECOND);
    world.submit(2, Operation::Read, 0, data);
    world.run();
    assert_eq!((world.take_done(), world.subsystem.seen[0].0), (vec![(2, Ok(()))], 0));
    assert_eq!(world.failure(), None);
}

#[test]
fn requests_wait_while_no_path_is_accessible_and_then_fail() {
    let settings = Settings { give_up: 3 * SECOND, ..TWO() };
    let mut world = World::open(settings, |_| ());
    world.subsystem.access = vec![3, 15];
    let data = world.memory(512, 0);
    world.submit(1, Operation::Read, 0, data);
    world.pass(2 * SECOND);
    assert_eq!((world.take_done(), world.status().state.as_str()), (vec![], "reconnecting"));
    world.pass(2 * SECOND);
    assert_eq!(world.take_done(), [(1, Err(Error::Io))]);
}

#[test]
fn read_of_a_lost_path_is_sent_again_at_once_and_a_write_after_the_keep_alive_timeout() {
    let mut world = World::open(TWO(), |it| {
        it.access = vec![1, 2];
        it.is_stuck = true;
    });
    let data = world.memory(512, 0x77);
    world.submit(1, Operation::Read, 8, data);
    world.write(2, 16, data);
    world.run();
    assert_eq!(world.subsystem.seen.len(), 2);
    world.subsystem.is_stuck = false;
    world.closed[0] = true;
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(world.take_done(), [(1, Ok(()))]);
    world.pass(3 * SECOND);
    assert_eq!(world.take_done(), [], "the old controller may execute the write");
    world.pass(2 * SECOND);
    assert_eq!(world.take_done(), [(2, Ok(()))]);
    assert_eq!(world.subsystem.seen.last().map(|seen| (seen.0, seen.2)), Some((1, 1)));
    assert_eq!(world.status().stats.replays, 2);
}

#[test]
fn write_is_sent_again_as_soon_as_its_path_is_back() {
    let mut world = World::open(TWO(), |it| {
        it.access = vec![1, 2];
        it.is_stuck = true;
    });
    let data = world.memory(512, 0x77);
    world.write(1, 16, data);
    world.run();
    world.subsystem.is_stuck = false;
    world.cut(0);
    world.pass(2 * SECOND);
    assert_eq!(world.take_done(), [(1, Ok(()))]);
    assert_eq!(world.subsystem.seen.last().map(|seen| (seen.0, seen.2)), Some((0, 1)));
}

#[test]
fn flush_goes_to_each_path_with_unflushed_writes() {
    let mut world = World::open(TWO(), |it| it.cache = true);
    let data = world.memory(512, 1);
    (0..20).for_each(|tag| world.write(tag, tag.into(), data));
    world.run();
    world.subsystem.seen.clear();
    world.flush(20);
    world.run();
    assert_eq!(world.take_done().len(), 21);
    let mut flushed: vec::Vec<_> =
        world.subsystem.seen.iter().map(|seen| (seen.0, seen.2)).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [(0, 0), (1, 0)]);
    // Nothing is unflushed: a loss loses nothing.
    world.cut(0);
    world.flush(21);
    world.pass(SECOND);
    assert_eq!(world.take_done(), [(21, Ok(()))]);
    assert_eq!(world.status().stats.losses, 0);
}

#[test]
fn flush_after_a_lost_path_with_unflushed_writes_fails_once() {
    let mut world = World::open(Settings::default(), |it| it.cache = true);
    let data = world.memory(512, 1);
    world.write(1, 0, data);
    world.run();
    world.cut(0);
    world.flush(2);
    world.submit(3, Operation::Read, 0, data);
    world.pass(2 * SECOND);
    assert_eq!(world.take_done(), [(1, Ok(())), (2, Err(Error::Io)), (3, Ok(()))]);
    assert!(world.notices.contains(&Notice::WritesLost));
    world.flush(4);
    world.run();
    assert_eq!(world.take_done(), [(4, Ok(()))]);
    // A mirror learns of it with every request.
    world.client.report_losses(Losses::ToAll);
    world.write(5, 0, data);
    world.run();
    world.cut(0);
    world.submit(6, Operation::Read, 0, data);
    world.pass(2 * SECOND);
    assert_eq!(world.take_done(), [(5, Ok(())), (6, Err(Error::Lost))]);
}

#[test]
fn flush_in_flight_on_a_lost_path_fails() {
    let mut world = World::open(Settings::default(), |it| it.cache = true);
    let data = world.memory(512, 1);
    world.write(1, 0, data);
    world.run();
    world.subsystem.is_stuck = true;
    world.flush(2);
    world.run();
    world.subsystem.is_stuck = false;
    world.cut(0);
    world.pass(3 * SECOND);
    assert_eq!(world.take_done(), [(1, Ok(())), (2, Err(Error::Io))]);
}

#[test]
fn unflushed_writes_move_with_the_namespace() {
    let mut world = World::open(TWO(), |it| {
        it.cache = true;
        it.access = vec![1, 2];
    });
    let data = world.memory(512, 1);
    world.write(1, 0, data);
    world.run();
    world.subsystem.access = vec![3, 1];
    world.flush(2);
    world.pass(SECOND);
    assert_eq!(world.take_done(), [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(world.subsystem.seen.last().map(|seen| (seen.0, seen.2)), Some((1, 0)));
}

#[test]
fn path_to_another_namespace_is_refused() {
    let mut world = World::open(TWO(), |_| ());
    world.subsystem.uuid = 9;
    world.cut(1);
    world.pass(2 * SECOND);
    let status = world.status();
    assert_eq!((status.state.as_str(), status.ready), ("open", 1));
    let failure = status.paths[1].last_failure.unwrap();
    assert!(failure.is_refusal(), "{failure}");
}

#[test]
fn silent_controller_is_left_and_a_refusing_one_is_asked_ever_more_rarely() {
    let settings = Settings { keepalive: 2 * SECOND, ..Settings::default() };
    let mut world = World::open(settings, |it| it.is_stuck = true);
    let data = world.memory(512, 1);
    world.submit(1, Operation::Read, 0, data);
    world.closed[0] = true;
    world.pass(Duration::from_millis(2500));
    assert_eq!(world.status().stats.failures, 2, "{:?}", world.notices);
    world.pass(60 * SECOND);
    let failures = world.status().stats.failures;
    assert!((8..14).contains(&failures), "{failures}");
    assert_eq!(world.take_done(), [(1, Err(Error::Io))]);
}

#[test]
fn given_up_requests_fail_at_once() {
    let mut world = World::open(TWO(), |it| it.is_stuck = true);
    let data = world.memory(512, 1);
    world.submit(1, Operation::Read, 0, data);
    world.write(2, 0, data);
    world.run();
    world.client.give_up();
    world.run();
    assert_eq!(world.take_done(), [(1, Err(Error::Io)), (2, Err(Error::Io))]);
    assert!(!world.client.is_idle(), "the controllers may still execute them");
    world.pass(6 * SECOND);
    assert!(world.client.is_idle());
}
