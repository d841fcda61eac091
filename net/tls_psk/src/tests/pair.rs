//! Server against client.

use super::{NOW, carry, client, offered, open, psk, random, server, shake};
use crate::hash::{Hash, Secret};
use crate::{Alert, Config, Failure, Group, OfferedPsk, Psk, Session};
use std::time::Duration;
use std::vec::Vec;

const HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

#[test]
fn handshake_succeeds_with_every_suite_group_and_split() {
    let choices: [&'static [Group]; 3] =
        [&[Group::X25519], &[Group::Secp256r1], &[Group::Secp384r1]];
    for hash in HASHES {
        for groups in choices {
            for step in [1, 7, 100, usize::MAX] {
                let config = Config { groups, ..Config::default() };
                let (mut client, mut server) = (client(config, hash), server(config));
                shake(&mut client, &mut server, &psk(hash), step);
                assert!(client.is_open() && server.is_open(), "{hash:?} {groups:?} {step}");
                assert_eq!((client.accepted(), server.accepted()), (Some(0), Some(0)));
                client.write(b"from the client");
                server.write(b"from the server");
                assert_eq!(carry(&mut client, &mut server, step), b"from the client");
                assert_eq!(carry(&mut server, &mut client, step), b"from the server");
            }
        }
    }
}

#[test]
fn server_without_the_clients_share_requests_another() {
    let ours = Config { groups: &[Group::X25519, Group::Secp384r1], ..Config::default() };
    let theirs = Config { groups: &[Group::Secp384r1], ..Config::default() };
    for hash in HASHES {
        for step in [1, usize::MAX] {
            let (mut client, mut server) = (client(ours, hash), server(theirs));
            shake(&mut client, &mut server, &psk(hash), step);
            assert!(client.is_open() && server.is_open(), "{:?}", client.failure());
            client.write(b"text");
            assert_eq!(carry(&mut client, &mut server, step), b"text");
        }
    }
}

#[test]
fn ends_without_a_common_group_fail_with_handshake_failure() {
    let ours = Config { groups: &[Group::X25519], ..Config::default() };
    let theirs = Config { groups: &[Group::Secp384r1], ..Config::default() };
    let (mut client, mut server) = (client(ours, Hash::Sha256), server(theirs));
    carry(&mut client, &mut server, usize::MAX);
    assert!(!server.try_key(0, &psk(Hash::Sha256)));
    carry(&mut server, &mut client, usize::MAX);
    assert_eq!(client.failure(), Some(&Failure::Alert(Alert::HANDSHAKE_FAILURE)));
}

#[test]
fn wrong_key_is_not_accepted_and_refusal_is_a_decrypt_error() {
    let (mut client, mut server) =
        (client(Config::default(), Hash::Sha256), server(Config::default()));
    carry(&mut client, &mut server, usize::MAX);
    assert!(server.wants_key());
    assert_eq!(server.offered().collect::<Vec<_>>(), [super::IDENTITY]);
    let wrong = Psk { hash: Hash::Sha256, key: Secret::new(&[8; 32]).unwrap() };
    assert!(!server.try_key(0, &wrong));
    assert!(!server.try_key(0, &psk(Hash::Sha384)), "the client has no such suite");
    assert!(!server.try_key(1, &psk(Hash::Sha256)), "there is no such identity");
    assert!(server.outgoing().is_empty() && server.wants_key());
    server.refuse();
    carry(&mut server, &mut client, usize::MAX);
    assert_eq!(client.failure(), Some(&Failure::Alert(Alert::DECRYPT_ERROR)));
    assert!(!server.is_open() && !server.wants_key());
    assert!(!server.try_key(0, &psk(Hash::Sha256)), "after its end");
}

#[test]
fn second_of_two_keys_is_accepted_also_after_a_retry() {
    for groups in [&[Group::X25519][..], &[Group::Secp384r1]] {
        let other = OfferedPsk { identity: b"other".into(), ..offered(Hash::Sha384) };
        let psks = Vec::from([other, offered(Hash::Sha256)]);
        let mut client = Session::client(Config::default(), psks, &mut random(3), NOW);
        // A slice of a constant, as `Config` wants.
        let groups =
            if groups[0] == Group::X25519 { &[Group::X25519][..] } else { &[Group::Secp384r1] };
        let mut server = server(Config { groups, ..Config::default() });
        carry(&mut client, &mut server, usize::MAX);
        assert_eq!(server.offered().count(), 2);
        assert!(server.try_key(1, &psk(Hash::Sha256)));
        for _ in 0..3 {
            carry(&mut server, &mut client, usize::MAX);
            carry(&mut client, &mut server, usize::MAX);
        }
        assert!(client.is_open() && server.is_open(), "{:?}", server.failure());
        assert_eq!((client.accepted(), server.accepted()), (Some(1), Some(1)));
    }
}

#[test]
fn handshake_fails_at_its_deadline_and_not_before() {
    let config = Config::default();
    let (mut client, mut server) = (client(config, Hash::Sha256), server(config));
    let deadline = NOW + config.handshake;
    assert_eq!(client.poll_timeout(), Some(deadline));
    server.poll(NOW + Duration::from_millis(9_999));
    assert_eq!(server.failure(), None);
    for session in [&mut client, &mut server] {
        session.poll(deadline);
        assert_eq!(session.failure(), Some(&Failure::Slow));
        assert_eq!(session.poll_timeout(), None);
    }
    let (mut client, _) = open(config, Hash::Sha256);
    client.poll(NOW + Duration::from_secs(3600));
    assert_eq!((client.failure(), client.poll_timeout()), (None, None));
}

#[test]
fn long_text_arrives_whole_in_records_of_16_kib() {
    for outgoing in [0, 4096, 100_000] {
        let config = Config { outgoing, ..Config::default() };
        let (mut client, mut server) = open(config, Hash::Sha384);
        let text: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let (mut written, mut read) = (0, Vec::new());
        while written < text.len() {
            let count = client.write(&text[written..]);
            assert!(count <= 1 << 14 && client.outgoing().len() <= outgoing.max(2048));
            written += count;
            if count == 0 {
                read.extend(carry(&mut client, &mut server, 1000));
            }
        }
        read.extend(carry(&mut client, &mut server, 1000));
        assert_eq!(read, text);
    }
}

#[test]
fn text_that_is_not_consumed_holds_the_next_record_back() {
    let (mut client, mut server) = open(Config::default(), Hash::Sha256);
    client.write(b"first");
    client.write(b"second");
    let all = client.outgoing().to_vec();
    let taken = server.receive(&all, NOW);
    assert!(taken < all.len());
    assert_eq!(server.receive(&all[taken..], NOW), 0);
    assert_eq!(server.text(), b"first");
    server.consume_text(2);
    assert_eq!(server.text(), b"rst");
    assert_eq!(server.receive(&all[taken..], NOW), 0);
    server.consume_text(3);
    assert_eq!(server.receive(&all[taken..], NOW), all.len() - taken);
    assert_eq!(server.text(), b"second");
}

#[test]
fn close_ends_one_direction_and_leaves_the_other() {
    let (mut client, mut server) = open(Config::default(), Hash::Sha256);
    client.write(b"last");
    client.close();
    assert_eq!(client.room(), 0);
    assert_eq!(client.write(b"more"), 0);
    assert_eq!(carry(&mut client, &mut server, usize::MAX), b"last");
    assert!(server.is_ended() && server.failure().is_none());
    server.write(b"answer");
    assert_eq!(carry(&mut server, &mut client, usize::MAX), b"answer");
    assert!(!client.is_ended());
}

#[test]
fn close_before_the_end_of_the_handshake_cancels_it() {
    let (mut client, mut server) =
        (client(Config::default(), Hash::Sha256), server(Config::default()));
    carry(&mut client, &mut server, usize::MAX);
    client.close();
    assert_eq!(client.failure(), Some(&Failure::Canceled));
    assert_eq!(client.poll_timeout(), None);
    assert!(server.try_key(0, &psk(Hash::Sha256)));
    carry(&mut client, &mut server, usize::MAX);
    assert_eq!(server.failure(), Some(&Failure::Alert(Alert::CLOSE_NOTIFY)));
}

#[test]
fn sent_bytes_make_room_for_further_text() {
    let (mut client, mut server) =
        open(Config { outgoing: 2048, ..Config::default() }, Hash::Sha256);
    assert!(client.write(&[1; 5000]) > 2000 && client.room() == 0);
    let (mut read, mut written) = (0, 0);
    while written < 20_000 {
        let piece = client.outgoing()[..client.outgoing().len().min(700)].to_vec();
        client.consume(server.receive(&piece, NOW));
        read += server.text().len();
        server.consume_text(server.text().len());
        written += client.write(&[2; 300]);
    }
    read += carry(&mut client, &mut server, 700).len();
    assert!(read > 20_000 && client.failure().is_none() && server.failure().is_none());
}

#[test]
fn keys_are_updated_after_their_blocks_and_on_request() {
    let config = Config { key_updates: true, blocks_per_key: 100, ..Config::default() };
    let (mut client, mut server) = open(config, Hash::Sha256);
    let mut sent = 0;
    for _ in 0..200 {
        client.write(&[1; 200]);
        sent += carry(&mut client, &mut server, usize::MAX).len();
        server.write(b"echo");
        carry(&mut server, &mut client, usize::MAX);
    }
    assert_eq!(sent, 40_000);
    assert!(client.failure().is_none() && server.failure().is_none());
    let used = |session: &mut Session| session.connection_mut().write.as_ref().unwrap().blocks();
    assert!(used(&mut client) < 150, "the key was replaced");
    let (mut client, _) = open(Config { key_updates: false, ..config }, Hash::Sha256);
    (0..20).for_each(|_| {
        client.write(&[1; 200]);
        client.consume(usize::MAX / 2);
    });
    assert_eq!(used(&mut client), 20 * 14, "the peer takes no update");
}

#[test]
fn client_without_key_or_with_too_many_has_failed_at_once() {
    for psks in [
        Vec::new(),
        std::vec![offered(Hash::Sha256); 5],
        Vec::from([offered(Hash::Sha512)]),
        Vec::from([OfferedPsk { identity: Vec::new(), ..offered(Hash::Sha256) }]),
    ] {
        let client = Session::client(Config::default(), psks, &mut random(4), NOW);
        assert!(client.failure().is_some() && client.outgoing().is_empty());
        assert_eq!(client.poll_timeout(), None);
    }
}
