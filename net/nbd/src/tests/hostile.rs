//! Servers that lie: in the handshake, and in replies.

use super::server::{
    ALL, Server, chunk_of, data_chunk, export_info, greeting, option_reply, simple,
};
use super::*;
use crate::wire::{chunk, flag, option, reply};
use proptest::prelude::*;

fn refused(script: Vec<u8>) -> Failure {
    let mut world =
        World::new(Settings::default(), Server { script: Some(script), ..Server::new() });
    world.step();
    world.step();
    let failures = world.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures[0]
}

#[test]
fn invalid_handshake_ends_the_connection() {
    let go = |kind, data: &[u8]| {
        let first = option_reply(option::STRUCTURED_REPLY, reply::ACK, &[]);
        [greeting(), first, option_reply(option::GO, kind, data)].concat()
    };
    assert_eq!(refused(b"SSH-2.0-OpenSSH_9.2p1 Debian".to_vec()), Failure::NotNbd);
    let mut old = greeting();
    old[17] = 2;
    assert_eq!(refused(old), Failure::OldStyle);
    let export = export_info(MIB, ALL);
    let tls = option_reply(option::STRUCTURED_REPLY, reply::TLS_REQUIRED, b"no");
    assert_eq!(refused([greeting(), tls].concat()), Failure::WantsTls);
    assert_eq!(refused(go(reply::UNKNOWN_EXPORT, &[])), Failure::NoExport);
    let text = refused(go(reply::UNKNOWN_EXPORT, b"export '\x1b[2J' not present")).to_string();
    assert_eq!(text, "no such export: export '?[2J' not present");
    assert_eq!(refused(go(reply::UNSUPPORTED, &[])), Failure::OldStyle);
    for script in [
        go(reply::ACK, &[]),
        go(2, &[]),
        go(reply::INFO, &[0]),
        go(reply::INFO, &export[..11]),
        go(reply::INFO, &[&export[..], &[0]].concat()),
        [greeting(), option_reply(option::GO, reply::ACK, &[])].concat(),
        [greeting(), std::vec![0; 20]].concat(),
    ] {
        assert!(matches!(refused(script.clone()), Failure::Handshake(_)), "{script:?}");
    }
    let mut long = go(reply::INFO, &[]);
    let end = long.len();
    long[end - 4..].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(refused(long), Failure::Handshake("a reply is longer than 64 KiB"));
    let endless: Vec<u8> = (0..70).flat_map(|_| go(reply::INFO, &export)[38..].to_vec()).collect();
    let endless = [go(reply::INFO, &export), endless].concat();
    assert_eq!(refused(endless), Failure::Handshake("too many replies"));
    let silly = Server { blocks: Some([3, 3, 3]), ..Server::new() };
    let mut world = World::new(Settings::default(), silly);
    world.settle();
    assert!(matches!(world.failures()[0], Failure::Export(_)));
}

#[test]
fn handshake_that_never_ends_is_ended() {
    let script = Some(greeting());
    let mut world = World::new(Settings::default(), Server { script, ..Server::new() });
    world.settle();
    world.pass(Duration::from_secs(9));
    assert_eq!(world.failures(), []);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.failures(), [Failure::SlowHandshake]);
}

/// The connection's end after these bytes in reply to a read of 4096 bytes at 8192.
fn ended(structured: bool, reply: impl FnOnce(u64) -> Vec<u8>) -> Failure {
    let like = Server { structured, ..Server::silent() };
    let mut world = World::open(Settings::default(), like);
    let data = world.window(4096, 0);
    world.submit(1, Operation::Read, 8192, data);
    world.settle();
    let cookie = world.server(0).received[0].cookie;
    let reply = reply(cookie);
    world.server(0).send(&reply);
    world.settle();
    assert_eq!(world.done(), [], "a liar's reply completes nothing");
    let failures = world.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures[0]
}

#[test]
fn invalid_reply_ends_the_connection() {
    let hole =
        |offset: u64, length: u32| [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat();
    let error =
        |number: u32, text: u16| [&number.to_be_bytes()[..], &text.to_be_bytes(), b"abc"].concat();
    let none = |c| chunk_of(c, chunk::DONE, chunk::NONE, &[]);
    type Case<'a> = (bool, &'a dyn Fn(u64) -> Vec<u8>);
    let cases: [Case<'_>; 24] = [
        (true, &|_| std::vec![0; 20]),
        (false, &|c| none(c)),
        (true, &|c| simple(c, 0, &[0; 4096])),
        (false, &|c| simple(c ^ 1 << 40, 0, &[0; 4096])),
        (false, &|c| simple(c ^ 1, 0, &[0; 4096])),
        (true, &|c| none(c ^ 1 << 63)),
        (true, &|c| none(c)),
        (true, &|c| data_chunk(c, true, 8192, &[0; 4095])),
        (true, &|c| data_chunk(c, true, 8192, &[0; 4097])),
        (true, &|c| data_chunk(c, true, 8191, &[0; 4096])),
        (true, &|c| data_chunk(c, false, 8193, &[0; 4096])),
        (true, &|c| data_chunk(c, false, u64::MAX, &[0; 4096])),
        (true, &|c| data_chunk(c, false, 8192, &[])),
        (true, &|c| {
            [data_chunk(c, false, 8192, &[0; 9]), data_chunk(c, false, 8200, &[0; 9])].concat()
        }),
        (true, &|c| chunk_of(c, 0, chunk::HOLE, &hole(8192, 4097))),
        (true, &|c| chunk_of(c, 0, chunk::HOLE, &hole(8192, 0))),
        (true, &|c| chunk_of(c, 0, chunk::HOLE, &hole(0, 4096))),
        (true, &|c| chunk_of(c, 0, chunk::HOLE, &[0; 13])),
        (true, &|c| chunk_of(c, 0, chunk::NONE, &[])),
        (true, &|c| chunk_of(c, 1, chunk::NONE, &[1])),
        (true, &|c| chunk_of(c, 1, 5, &[0; 12])),
        (true, &|c| chunk_of(c, 1, chunk::ERROR | 1, &error(0, 3))),
        (true, &|c| chunk_of(c, 1, chunk::ERROR | 1, &error(5, 4))),
        (true, &|c| chunk_of(c, 1, chunk::ERROR | 1, &std::vec![1; 5000])),
    ];
    for (number, (structured, reply)) in cases.into_iter().enumerate() {
        let failure = ended(structured, reply);
        assert!(matches!(failure, Failure::Reply(_)), "case {number}: {failure:?}");
    }
}

#[test]
fn reply_that_never_ends_is_ended() {
    let pieces = ended(true, |cookie| {
        (0..20).flat_map(|n| data_chunk(cookie, false, 8192 + 2 * n, &[0])).collect()
    });
    assert!(matches!(pieces, Failure::Reply(_)));
    let errors = ended(true, |cookie| {
        let error = [&5u32.to_be_bytes()[..], &0u16.to_be_bytes()].concat();
        (0..5000).flat_map(|_| chunk_of(cookie, 0, chunk::ERROR | 1, &error)).collect()
    });
    assert_eq!(errors, Failure::Reply("it has too many chunks"));
}

#[test]
fn shutdown_of_the_server_is_not_an_error_of_the_request() {
    for structured in [true, false] {
        let failure = ended(structured, |cookie| match structured {
            true => {
                let error = [&108u32.to_be_bytes()[..], &0u16.to_be_bytes()].concat();
                chunk_of(cookie, 1, chunk::ERROR | 1, &error)
            }
            false => simple(cookie, 108, &[]),
        });
        assert_eq!(failure, Failure::ShuttingDown);
    }
}

#[test]
fn cookie_of_another_connection_ends_the_liar_only() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let like = Server { flags: ALL | flag::MULTI_CONN, ..Server::silent() };
    let mut world = World::open(settings, like);
    for tag in 0..20 {
        world.write(tag, 0, 1);
    }
    world.settle();
    let cookie = world.server(1).received[0].cookie;
    world.server(0).send(&chunk_of(cookie, chunk::DONE, chunk::NONE, &[]));
    world.settle();
    assert!(matches!(world.failures()[..], [Failure::Reply(_)]));
    assert_eq!(world.done(), []);
}

#[test]
fn reply_before_the_whole_write_was_sent_ends_the_connection() {
    let mut world = World::open(Settings::default(), Server::silent());
    let data = world.window(4096, 1);
    world.submit(1, Operation::Write { durable: false }, 0, data);
    let mut space = [0; 64];
    assert_eq!(world.client.transmit(0, &mut space, world.now), 64);
    let cookie = crate::wire::u64_at(&space, 8);
    let reply = chunk_of(cookie, chunk::DONE, chunk::NONE, &[]);
    world.client.receive(0, &reply, world.now);
    world.step();
    assert!(matches!(world.failures()[..], [Failure::Reply(_)]));
}

#[test]
fn stale_reply_of_an_earlier_connection_ends_the_new_one() {
    let mut world = World::open(Settings::default(), Server::silent());
    world.write(1, 0, 1);
    world.settle();
    let old = world.server(0).received[0].cookie;
    world.cut(0);
    world.pass(Duration::from_secs(1));
    assert_ne!(world.server(0).received[0].cookie, old);
    world.server(0).send(&chunk_of(old, chunk::DONE, chunk::NONE, &[]));
    world.settle();
    assert!(matches!(world.failures()[..], [Failure::Closed, Failure::Reply(_)]));
    assert_eq!(world.done(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn arbitrary_bytes_never_complete_a_request_or_break_the_tables(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        structured: bool,
        flips in prop::collection::vec((0usize..200, any::<u8>()), 0..4),
    ) {
        let mut world = World::open(Settings::default(), Server { structured, ..Server::silent() });
        let data = world.window(512, 0);
        world.submit(1, Operation::Read, 0, data);
        world.write(2, 512, 1);
        world.settle();
        let request = world.server(0).received[0].clone();
        world.server(0).answer(&request, 0);
        let mut reply = world.server(0).take();
        for (at, value) in flips {
            let length = reply.len();
            reply[at % length] = value;
        }
        world.client.receive(0, &reply, world.now);
        world.client.receive(0, &bytes, world.now);
        world.client.check();
        world.settle();
        prop_assert!(world.done().iter().all(|(tag, _)| *tag == 1));
    }
}
