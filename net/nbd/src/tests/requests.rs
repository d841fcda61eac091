//! Requests over connections that work, and what a server offers.

use super::server::{ALL, Server, chunk_of, data_chunk};
use super::*;
use crate::wire::{COMMAND_FUA, Command, chunk, errno, flag};
use std::vec;

#[test]
fn requests_of_all_kinds_complete_over_simple_and_structured_replies() {
    for structured in [true, false] {
        let mut world = World::open(Settings::default(), Server { structured, ..Server::new() });
        let geometry = world.client.geometry();
        assert_eq!((geometry.sectors, geometry.logical_block), (2048, 512));
        let data = world.window(4096, 0);
        world.submit(1, Operation::Read, 8192, data);
        let written = world.window(1024, 9);
        world.submit(2, Operation::Write { durable: false }, 512, written);
        world.submit(3, Operation::Discard(65536), 0, Window::empty());
        world.submit(4, Operation::WriteZeroes(4096), 4096, Window::empty());
        world.flush(5);
        world.settle();
        assert_eq!(world.done(), [1, 2, 3, 4, 5].map(|tag| (tag, Ok(()))));
        let mut bytes = [0; 4096];
        data.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        let received = &world.server(0).received;
        let commands: Vec<u16> = received.iter().map(|one| one.command).collect();
        assert_eq!(commands, [0, 1, 4, 6, 3]);
        assert_eq!((received[1].offset, &received[1].data), (512, &vec![9; 1024]));
        assert!(world.client.is_idle());
    }
}

#[test]
fn chunks_and_holes_in_any_order_fill_a_read() {
    let mut world = World::open(Settings::default(), Server::silent());
    let data = world.window(4096, 0xee);
    world.submit(1, Operation::Read, 8192, data);
    world.settle();
    let cookie = world.server(0).received[0].cookie;
    let hole = [&9216u64.to_be_bytes()[..], &1024u32.to_be_bytes()].concat();
    let replies = [
        data_chunk(cookie, false, 10240, &[3; 2048]),
        chunk_of(cookie, 0, chunk::HOLE, &hole),
        data_chunk(cookie, false, 8192, &[1; 1024]),
        chunk_of(cookie, chunk::DONE, chunk::NONE, &[]),
    ];
    world.server(0).send(&replies.concat());
    world.settle();
    assert_eq!(world.done(), [(1, Ok(()))]);
    let mut bytes = [9; 4096];
    data.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, *[[1; 1024], [0; 1024], [3; 1024], [3; 1024]].concat());
}

#[test]
fn request_beyond_the_servers_largest_payload_is_split() {
    let blocks = Some([512, 512, 1024]);
    let mut world = World::open(Settings::default(), Server { blocks, ..Server::new() });
    let data = world.window(2560, 0);
    world.submit(1, Operation::Read, 0, data);
    world.settle();
    assert_eq!(world.done(), [(1, Ok(()))]);
    let lengths: Vec<_> =
        world.server(0).received.iter().map(|one| (one.offset, one.length)).collect();
    assert_eq!(lengths, [(0, 1024), (1024, 1024), (2048, 512)]);
}

#[test]
fn errors_of_the_server_are_mapped() {
    for (number, error) in [
        (errno::EPERM, Error::ReadOnly),
        (5, Error::Io),
        (28, Error::Io),
        (errno::EINVAL, Error::Invalid),
        (errno::ENOTSUP, Error::Unsupported),
        (0xffff, Error::Io),
    ] {
        for structured in [true, false] {
            let like = Server { structured, ..Server::silent() };
            let mut world = World::open(Settings::default(), like);
            world.write(1, 0, 1);
            world.settle();
            let request = world.server(0).received[0].clone();
            world.server(0).answer(&request, number);
            world.settle();
            assert_eq!(world.done(), [(1, Err(error))]);
            assert_eq!(world.client.status().stats.errors, 1);
            assert!(world.notices.contains(&Notice::Failed(number)));
        }
    }
}

#[test]
fn server_without_flush_gets_fua_on_every_write_or_no_promise() {
    let flags = flag::HAS_FLAGS | flag::FUA;
    let mut world = World::open(Settings::default(), Server { flags, ..Server::new() });
    world.write(1, 0, 1);
    world.flush(2);
    world.settle();
    assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(world.server(0).received[0].flags, COMMAND_FUA);
    let like = Server { flags: flag::HAS_FLAGS, ..Server::new() };
    let mut world = World::open(Settings::default(), like);
    for operation in [
        Operation::Flush,
        Operation::Write { durable: true },
        Operation::Discard(512),
        Operation::WriteZeroes(512),
    ] {
        let data = Window::empty();
        let request = Request { tag: 1, operation, offset: 0, data };
        assert_eq!(world.client.submit(&request), Err(Error::Unsupported), "{operation:?}");
    }
}

#[test]
fn durable_write_carries_fua_and_flushes_earlier_writes() {
    for (flags, expected) in [
        (ALL, [(Command::Write, COMMAND_FUA), (Command::Flush, 0)]),
        (ALL & !flag::FUA, [(Command::Write, 0), (Command::Flush, 0)]),
    ] {
        let mut world = World::open(Settings::default(), Server { flags, ..Server::new() });
        world.write(1, 0, 1);
        world.settle();
        let data = world.window(512, 1);
        world.submit(2, Operation::Write { durable: true }, 512, data);
        world.settle();
        assert_eq!(world.done(), [(1, Ok(())), (2, Ok(()))]);
        let seen: Vec<_> =
            world.server(0).received[1..].iter().map(|one| (one.command, one.flags)).collect();
        assert_eq!(seen, expected.map(|(command, flags)| (command as u16, flags)));
    }
}

#[test]
fn several_connections_are_used_only_if_the_server_allows_them() {
    let settings = Settings { connections: 3, ..Settings::default() };
    let world = World::open(settings, Server::new());
    assert_eq!(world.client.status().ready, 1);
    let like = Server { flags: ALL | flag::MULTI_CONN, ..Server::silent() };
    let mut world = World::open(settings, like);
    assert_eq!(world.client.status().ready, 3);
    for tag in 0..60 {
        world.write(tag, 0, 1);
    }
    world.settle();
    let counts: Vec<usize> = (0..3).map(|n| world.server(n).received.len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 60);
    assert!(counts.iter().all(|count| *count >= 12), "{counts:?}");
    (0..3).for_each(|n| world.server(n).answer_all());
    world.settle();
    world.flush(60);
    world.settle();
    (0..3).for_each(|n| world.server(n).answer_all());
    world.settle();
    assert_eq!(world.done().len(), 61);
}

#[test]
fn user_has_no_more_requests_than_the_depth() {
    let mut world = World::open(Settings { depth: 2, ..Settings::default() }, Server::silent());
    world.write(1, 0, 1);
    world.write(2, 0, 1);
    let request = Request { tag: 3, operation: Operation::Flush, offset: 0, data: Window::empty() };
    assert_eq!(world.client.submit(&request), Err(Error::Busy));
    world.settle();
    world.server(0).answer_all();
    world.settle();
    assert_eq!(world.client.submit(&request), Err(Error::Busy), "completions hold their places");
    assert_eq!(world.done().len(), 2);
    assert_eq!(world.client.submit(&request), Ok(()));
}

#[test]
fn end_flushes_and_disconnects() {
    let mut world = World::open(Settings::default(), Server::new());
    world.write(1, 0, 1);
    world.settle();
    world.client.end(world.now);
    let mut last = Vec::new();
    for _ in 0..10 {
        if let Some(server) = &world.servers[0] {
            last = server.received.clone();
        }
        world.step();
    }
    assert!(world.client.is_over());
    let commands: Vec<u16> = last.iter().map(|one| one.command).collect();
    assert_eq!(
        commands,
        [Command::Write, Command::Flush, Command::Disconnect].map(|one| one as u16)
    );
    assert_eq!(world.client.status().stats.losses, 0);
}
