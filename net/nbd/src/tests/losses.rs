//! Loss of connections: replay, acknowledged writes that were not flushed, time limits, and changed exports.

use super::server::{ALL, Server};
use super::*;
use crate::wire::flag;
use crate::{Losses, State};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn requests_without_a_reply_are_sent_again_in_order() {
    let mut world = World::open(Settings::default(), Server::silent());
    for tag in 0..5 {
        world.write(tag, 512 * u64::from(tag), tag as u8);
    }
    world.settle();
    // The third is answered before the loss.
    let third = world.server(0).received[2].clone();
    world.server(0).answer(&third, 0);
    world.settle();
    assert_eq!(world.done(), [(2, Ok(()))]);
    world.cut(0);
    world.write(5, 2560, 5);
    world.pass(SECOND);
    assert_eq!(world.done(), [], "no request completes without a reply");
    let offsets: Vec<u64> = world.server(0).received.iter().map(|one| one.offset).collect();
    assert_eq!(offsets, [0, 512, 1536, 2048, 2560]);
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.done().len(), 5);
    assert_eq!(world.client.status().stats.replays, 4);
}

#[test]
fn flush_fails_once_after_acknowledged_writes_were_lost() {
    let mut world = World::open(Settings::default(), Server::new());
    world.write(1, 0, 1);
    world.settle();
    world.cut(0);
    world.write(2, 0, 2);
    world.flush(3);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(())), (3, Err(Error::Io))]);
    assert!(world.notices.contains(&Notice::WritesLost));
    world.flush(4);
    world.settle();
    assert_eq!(world.done(), [(4, Ok(()))], "the loss was reported");
    world.cut(0);
    world.flush(5);
    world.pass(2 * SECOND);
    assert_eq!(world.done(), [(5, Ok(()))], "all writes were flushed before");
}

#[test]
fn flush_in_flight_at_the_loss_fails_over_the_next_connection() {
    let mut world = World::open(Settings::default(), Server::silent());
    world.write(1, 0, 1);
    world.settle();
    world.server(0).answer_all();
    world.settle();
    world.flush(2);
    world.settle();
    world.cut(0);
    world.pass(SECOND);
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.done(), [(1, Ok(())), (2, Err(Error::Io))]);
}

#[test]
fn all_requests_report_the_loss_to_a_user_with_another_copy() {
    let mut world = World::open(Settings::default(), Server::new());
    world.client.report_losses(Losses::ToAll);
    world.write(1, 0, 1);
    world.settle();
    world.cut(0);
    world.write(2, 0, 2);
    let data = world.window(512, 0);
    world.submit(3, Operation::Read, 0, data);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Err(Error::Lost)), (3, Err(Error::Lost))]);
    world.write(4, 0, 2);
    world.settle();
    assert_eq!(world.done(), [(4, Ok(()))]);
}

#[test]
fn nothing_is_lost_while_a_connection_lives_that_saw_the_writes() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let like = Server { flags: ALL | flag::MULTI_CONN, ..Server::new() };
    let mut world = World::open(settings, like);
    world.write(1, 0, 1);
    world.settle();
    world.cut(0);
    world.flush(2);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
    // Connection 0 is the younger one now: a flush over it does not cover what only 1 has seen.
    world.write(3, 0, 1);
    world.settle();
    world.cut(0);
    world.pass(2 * SECOND);
    assert_eq!(world.client.status().ready, 2);
    world.cut(1);
    world.flush(4);
    world.pass(2 * SECOND);
    assert_eq!(world.done(), [(3, Ok(())), (4, Err(Error::Io))]);
}

#[test]
fn further_connections_go_to_the_address_of_the_first() {
    let settings = Settings { connections: 3, paths: 2, ..Settings::default() };
    let like = Server { flags: ALL | flag::MULTI_CONN, ..Server::new() };
    let world = World::open(settings, like);
    assert_eq!(world.paths, [0, 0, 0]);
    assert_eq!(world.beside, [None, Some(0), Some(0)]);
    // The first ends at once, while the handshake of the second, at the same server, runs.
    let mut world = World::new(settings, world.like.clone());
    while world.beside.len() < 2 {
        world.step();
    }
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(world.client.status().ready, 3);
    assert_eq!(world.client.status().path, 0);
    assert!(world.paths.iter().all(|path| *path == 0), "{:?}", world.paths);
    assert!(world.notices.ends_with(&[Notice::Up { path: 0 }]), "{:?}", world.notices);
}

#[test]
fn further_connection_neither_grows_the_export_nor_does_without_the_common_flush() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let like = Server { flags: ALL | flag::MULTI_CONN, ..Server::new() };
    let mut world = World::open(settings, like);
    world.like.size = 2 * MIB;
    world.cut(1);
    world.pass(2 * SECOND);
    assert_eq!(world.client.status().ready, 2);
    assert_eq!(world.client.geometry().sectors, 2048, "connection 0 may know the old size");
    world.like.flags = ALL;
    world.cut(1);
    world.pass(2 * SECOND);
    assert_eq!(world.client.status().ready, 1);
    assert!(matches!(world.failures().last(), Some(Failure::Changed(_))));
    world.cut(0);
    world.pass(10 * SECOND);
    assert_eq!(world.client.geometry().sectors, 4096);
}

#[test]
fn write_through_never_loses_a_write_and_needs_fua() {
    let settings = Settings { write_through: true, ..Settings::default() };
    let mut world = World::open(settings, Server::new());
    world.write(1, 0, 1);
    world.settle();
    world.cut(0);
    world.flush(2);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
    let mut world = World::new(settings, Server { flags: ALL & !flag::FUA, ..Server::new() });
    world.settle();
    assert_eq!(world.client.status().state, State::Refused);
}

#[test]
fn requests_fail_after_the_time_limit_without_a_connection() {
    let settings = Settings { give_up: 10 * SECOND, ..Settings::default() };
    let mut world = World::open(settings, Server::silent());
    world.write(1, 0, 1);
    world.settle();
    world.accepts = false;
    world.cut(0);
    for _ in 0..9 {
        world.pass(SECOND);
    }
    assert_eq!(world.done(), []);
    world.write(2, 0, 1);
    world.pass(SECOND);
    assert_eq!(world.done(), [(1, Err(Error::Io))]);
    world.pass(10 * SECOND);
    assert_eq!(world.done(), [(2, Err(Error::Io))]);
    world.accepts = true;
    world.pass(8 * SECOND);
    assert_eq!(world.client.status().state, State::Open);
}

#[test]
fn request_that_ends_each_connection_is_given_up() {
    let settings = Settings { give_up: 5 * SECOND, ..Settings::default() };
    let mut world = World::open(settings, Server::silent());
    world.write(1, 0, 1);
    for _ in 0..100 {
        world.pass(SECOND);
        if world.servers[0].as_ref().is_some_and(|server| !server.received.is_empty()) {
            world.cut(0);
        }
    }
    assert_eq!(world.done(), [(1, Err(Error::Io))]);
    assert!(world.client.status().stats.replays < 8);
}

#[test]
fn silent_server_ends_its_connection_also_if_it_drips() {
    let settings = Settings { keepalive: 3 * SECOND, ..Settings::default() };
    let mut world = World::open(settings, Server::silent());
    let data = world.window(4096, 0);
    world.submit(1, Operation::Read, 0, data);
    world.settle();
    let cookie = world.server(0).received[0].cookie;
    for n in 0..3u64 {
        let drip = super::server::data_chunk(cookie, false, n * 8, &[1; 8]);
        world.server(0).send(&drip);
        assert_eq!(world.failures(), []);
        world.pass(SECOND);
    }
    assert_eq!(world.failures(), [Failure::Silent]);
    world.settle();
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.done(), [(1, Ok(()))]);
}

#[test]
fn addresses_are_tried_in_turn_with_growing_delays() {
    let settings = Settings { paths: 2, ..Settings::default() };
    let mut world = World::new(settings, Server::new());
    world.accepts = false;
    let mut times = Vec::new();
    for _ in 0..300 {
        let before = world.paths.len();
        world.pass(SECOND / 10);
        times.extend((before..world.paths.len()).map(|_| world.now.as_nanos() / 100_000_000));
    }
    assert_eq!(&world.paths[..6], [0, 1, 0, 1, 0, 1]);
    assert_eq!(&times[..10], [1, 1, 11, 11, 31, 31, 71, 71, 151, 151]);
    assert_eq!(&times[10..12], [231, 231]);
}

#[test]
fn server_that_ends_connections_at_once_is_not_asked_again_at_once() {
    let mut world = World::open(Settings::default(), Server::new());
    for _ in 0..100 {
        if world.servers[0].is_some() {
            world.cut(0);
        }
        world.pass(SECOND / 10);
    }
    assert!(world.paths.len() <= 5, "{}", world.paths.len());
}

#[test]
fn smaller_export_is_refused_and_a_grown_one_is_visible() {
    let mut world = World::open(Settings::default(), Server::new());
    world.like.size = 2 * MIB;
    world.pass(2 * SECOND);
    world.client.remap(world.now);
    world.settle();
    assert_eq!(world.client.geometry().sectors, 4096);
    assert!(world.notices.contains(&Notice::Grown { before: MIB, now: 2 * MIB }));
    world.like.size = MIB;
    world.pass(2 * SECOND);
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(world.failures().last(), Some(&Failure::Smaller(2 * MIB, MIB)));
    assert_eq!(world.client.status().state, State::Refused);
    assert_eq!(world.client.geometry().sectors, 4096);
    world.like.size = 2 * MIB;
    world.pass(10 * SECOND);
    assert_eq!(world.client.status().state, State::Open);
}

#[test]
fn remap_waits_for_replies_and_flushes_first() {
    let mut world = World::open(Settings::default(), Server::silent());
    world.write(1, 0, 1);
    world.settle();
    world.pass(2 * SECOND);
    world.client.remap(world.now);
    world.write(2, 0, 2);
    world.settle();
    assert_eq!(world.server(0).received.len(), 1, "new requests wait");
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.server(0).received.len(), 1, "its own flush");
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.client.status().stats.connects, 2);
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(world.client.status().stats.losses, 0);
}

#[test]
fn given_up_requests_end_and_their_memory_is_not_written() {
    let mut world = World::open(Settings::default(), Server::silent());
    let data = world.window(512, 0xee);
    world.submit(1, Operation::Read, 0, data);
    world.settle();
    let request = world.server(0).received[0].clone();
    let mut old = world.servers[0].take().unwrap();
    world.client.give_up();
    assert!(!world.client.is_idle());
    world.client.poll(world.now);
    assert_eq!(world.done(), [(1, Err(Error::Io))]);
    assert!(!world.client.is_idle(), "the server may still execute it");
    old.answer(&request, 0);
    world.client.receive(0, &old.take(), world.now);
    world.pass(SECOND);
    assert_eq!(world.client.status().state, State::Open);
    assert!(!world.client.is_idle(), "a new connection does not tell that the server forgot it");
    world.pass(30 * SECOND);
    assert!(world.client.is_idle());
    let mut bytes = [0; 512];
    data.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xee; 512]);
}
