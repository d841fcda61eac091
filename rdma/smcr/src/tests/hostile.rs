//! Malicious peers: forged CLC, LLC and CDC messages.

use crate::engine::{Config, Ready, Role, SocketId};
use crate::testing::{World, config, ip, pattern};
use crate::wire::cdc::{Cdc, Cursor, End, Producer};
use crate::wire::llc::{AddLink, Body, DeleteReason, LinkEnd, Llc, Order, Token};
use crate::wire::vectors::vector;
use crate::wire::{Decline, Reason};
use core::net::Ipv4Addr;
use core::time::Duration;
use netsim::Node as _;
use proptest::prelude::*;
use std::vec::Vec;
use verbs::{
    Payload, Provider, QpState, RegionsOnDemand, RemoteAddress, SendOperation, SendRequest,
    SendWith,
};

const SECOND: Duration = Duration::from_secs(1);

/// Sends `bytes` from host 1 on its link.
pub(super) fn forge(w: &mut World, bytes: &[u8]) {
    post(w, SendOperation::Send { payload: Payload::Inline(bytes), with: SendWith::Nothing });
    w.wait(SECOND / 1000);
}

/// Sends `bytes` from host 1 if its link is still up.
pub(super) fn forge_if_alive(w: &mut World, bytes: &[u8]) {
    let host = &w.hosts[1];
    let qp = host.engine.queue_pair(0, 0);
    if qp.is_some_and(|qp| host.roce.qp_state(qp) == Ok(QpState::Rts)) {
        forge(w, bytes);
    }
}

fn request(operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id: 0,
        operation,
        signaled: true,
        solicited: true,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

fn post(w: &mut World, operation: SendOperation<'_>) {
    let qp = w.hosts[1].engine.queue_pair(0, 0).unwrap();
    w.hosts[1].roce.post_send(qp, &request(operation)).unwrap();
}

/// Writes from host 1 to the beginning of the peer's buffer of a socket, without a CDC message.
pub(super) fn write(w: &mut World, client: SocketId, bytes: &[u8]) {
    let (_, to) = w.hosts[1].engine.peer_of(client);
    post(w, SendOperation::Write { payload: Payload::Inline(bytes), to, immediate: None });
    w.wait(SECOND / 1000);
}

/// A CDC message of host 1 about its socket.
pub(super) fn cdc(w: &World, client: SocketId, seqno: u16) -> Cdc {
    let token = w.hosts[1].engine.peer_of(client).0;
    Cdc {
        seqno,
        token,
        produced: Cursor::default(),
        consumed: Cursor::default(),
        producer: Producer::empty(),
        end: End::empty(),
    }
}

#[test]
fn impossible_cursors_end_the_link_group() {
    let cursor = |wrap, count| Cursor { wrap, count };
    for (produced, consumed) in [
        (cursor(0, 16 << 10), cursor(0, 0)), // outside of the ring
        (cursor(1, 1), cursor(0, 0)),        // more than there is room
        (cursor(0x7000, 0), cursor(0, 0)),
        (cursor(0, 0), cursor(0, 1)), // more than was sent
        (cursor(0, 0), cursor(0, u32::MAX)),
    ] {
        let mut w = World::new(1);
        let [server, client] = w.established();
        let lie = Cdc { produced, consumed, ..cdc(&w, client, 1) };
        forge(&mut w, &lie.emit());
        assert_eq!(w.hosts[0].engine.counters().violations, 1, "{lie}");
        assert!(w.has_event(0, server, Ready::ABORTED), "{lie}");
        w.wait(SECOND);
        assert_eq!(w.hosts[0].engine.groups().count(), 0);
        // The peer may connect again.
        w.established();
    }
}

#[test]
fn unwritten_bytes_read_as_zero() {
    let mut w = World::new(2);
    let [server, client] = w.established();
    let (_, to) = w.hosts[1].engine.peer_of(client);
    post(&mut w, SendOperation::Write { payload: Payload::Inline(b"!"), to, immediate: None });
    let lie = Cdc { produced: Cursor { wrap: 0, count: 100 }, ..cdc(&w, client, 1) };
    forge(&mut w, &lie.emit());
    let received = w.recv(0, server);
    assert_eq!((received[0], &received[1..]), (b'!', &[0; 99][..]));
}

#[test]
fn cursor_without_any_write_ends_the_group() {
    let mut w = World::new(2);
    let [server, client] = w.established();
    let lie = Cdc { produced: Cursor { wrap: 0, count: 1 }, ..cdc(&w, client, 1) };
    forge(&mut w, &lie.emit());
    assert_eq!(w.hosts[0].engine.counters().violations, 1);
    assert!(w.has_event(0, server, Ready::ABORTED));
}

#[test]
fn stale_malformed_and_stray_messages_are_ignored() {
    let mut w = World::new(3);
    let ids = w.established();
    let back = Cursor { wrap: 0xffff, count: 0x3000 };
    let of = cdc(&w, ids[1], 1);
    let mut short = of.emit();
    short[1] = 43;
    for bytes in [
        Cdc { produced: back, ..of }.emit(),
        Cdc { token: 0xdead_beef, ..of }.emit(),
        Cdc { token: 0, ..of }.emit(),
        // Half of all sequence numbers are old.
        Cdc { seqno: 0x9001, produced: Cursor { wrap: 0, count: 5 }, ..of }.emit(),
        short,
        [0x2f; 44],
        [0xff; 44],
        [0; 44],
    ] {
        forge(&mut w, &bytes);
    }
    forge(&mut w, &[1, 2, 3]);
    let long = [0x22; 90];
    forge(&mut w, &long);
    assert_eq!(w.hosts[0].engine.counters().violations, 0);
    // The real sequence numbers have not changed meanwhile.
    let bytes = pattern(5000, 1);
    w.transfer(0, ids, &bytes, 100);
}

#[test]
fn write_out_of_bounds_or_with_stale_key_ends_only_the_group() {
    for stale in [false, true] {
        let mut w = World::new(4);
        let ids = w.established();
        let (_, at) = w.hosts[1].engine.peer_of(ids[1]);
        if stale {
            w.close(0, ids[0]);
            w.close(1, ids[1]);
            w.wait(SECOND);
        }
        let to = RemoteAddress { address: at.address + if stale { 0 } else { 16380 }, ..at };
        let payload = Payload::Inline(b"12345678");
        post(&mut w, SendOperation::Write { payload, to, immediate: None });
        w.wait(40 * SECOND);
        for host in &w.hosts {
            assert_eq!(host.engine.groups().count(), 0);
        }
        w.established();
    }
}

/// The peer announces an address on its second link from which the buffer would exceed the address space.
#[test]
fn buffer_beyond_the_address_space_is_not_written_to() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::with_ports(14, [two(), two()], [2, 2]);
    let ids = w.established();
    assert!(w.run(SECOND, |w| w.hosts[0].engine.links().filter(|link| link.active).count() == 2));
    w.transfer(0, ids, &pattern(1000, 0), 500);
    let (_, at) = w.hosts[0].engine.peer_of(ids[0]);
    let token = Token { rkey: at.rkey, address: at.address };
    let beyond = Token { rkey: at.rkey, address: u64::MAX - 100 };
    let others = std::vec![(2, beyond)];
    let body = Body::ConfirmKey { token, others, negative: false, retry: false };
    forge(&mut w, &Llc { version: 2, response: false, order: Order::Big, body }.emit());
    w.network.set_up(netsim::Place { node: 0, port: 0 }, false);
    w.send(0, ids[0], &pattern(4000, 1));
    assert!(w.run(40 * SECOND, |w| w.has_event(0, ids[0], Ready::ABORTED)));
}

#[test]
fn llc_flood_does_not_stop_the_link() {
    let mut w = World::new(5);
    let ids = w.established();
    let test = |n: u8| {
        let body = Body::TestLink { data: [n; 16] };
        Llc { version: 2, response: false, order: Order::Big, body }.emit()
    };
    for round in 0..50 {
        for n in 0..16 {
            let bytes = test(n);
            post(
                &mut w,
                SendOperation::Send { payload: Payload::Inline(&bytes), with: SendWith::Nothing },
            );
        }
        w.transfer(0, ids, &pattern(100, round), 100);
    }
    let counters = w.hosts[0].engine.counters();
    assert_eq!((counters.violations, counters.links_failed), (0, 0));
}

/// A client requests a second link without a second port: the response is its own message, and no offer.
#[test]
fn request_for_impossible_link_is_answered() {
    let mut w = World::new(16);
    w.established();
    w.wait(SECOND / 10);
    let sent = w.hosts[0].engine.counters().llc_sent;
    let gids = std::vec![Ipv4Addr::new(10, 0, 1, 2).to_ipv6_mapped()];
    let body = Body::RequestAddLink { gids };
    forge(&mut w, &Llc { version: 2, response: false, order: Order::Big, body }.emit());
    assert_eq!(w.hosts[0].engine.counters().llc_sent, sent + 1);
    assert_eq!(w.hosts[0].engine.links().count(), 1);
}

#[test]
fn late_add_link_response_is_ignored() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::with_ports(13, [two(), two()], [2, 2]);
    w.connect_from(1);
    assert!(w.run(SECOND, |w| w.hosts[0].engine.links().count() == 2));
    let end = LinkEnd { mac: [2; 6], gid: Ipv4Addr::new(10, 0, 1, 2).to_ipv6_mapped(), qpn: 99 };
    let late = AddLink { end, link: 77, path_mtu: 3, psn: 1, rejected: None, v2: None };
    let body = Body::AddLink(late);
    let bytes = Llc { version: 2, response: true, order: Order::Big, body }.emit();
    let payload = Payload::Inline(&bytes);
    post(&mut w, SendOperation::Send { payload, with: SendWith::Nothing });
    let both = |w: &mut World| {
        w.hosts.iter().all(|host| host.engine.links().filter(|link| link.active).count() == 2)
    };
    assert!(w.run(SECOND, both), "{:?}", w.hosts[0].engine.links().collect::<Vec<_>>());
}

#[test]
fn stored_peer_keys_are_bounded() {
    let mut w = World::new(6);
    let ids = w.established();
    for n in 0..600u32 {
        let token = Token { rkey: n, address: u64::from(n) << 20 };
        let body = Body::ConfirmKey { token, others: Vec::new(), negative: false, retry: false };
        let bytes = Llc { version: 2, response: false, order: Order::Big, body }.emit();
        forge(&mut w, &bytes);
    }
    assert_eq!(w.hosts[0].engine.keys_of_peer(0), 255, "the oldest are evicted");
    w.transfer(0, ids, b"still here", 100);
}

#[test]
fn delete_link_for_all_links_by_client_ends_the_group() {
    let mut w = World::new(7);
    let [server, _] = w.established();
    let reason = DeleteReason::OPERATOR;
    let body = Body::DeleteLink { link: 0, all: true, orderly: false, reason };
    forge(&mut w, &Llc { version: 2, response: false, order: Order::Big, body }.emit());
    assert!(w.has_event(0, server, Ready::ABORTED));
    w.wait(SECOND);
    for host in &w.hosts {
        assert_eq!(host.engine.groups().count(), 0);
    }
}

/// A server socket that receives these pieces of CLC bytes.
pub(super) fn server_given(w: &mut World, pieces: &[&[u8]]) -> SocketId {
    let id = w.with_engine(0, |engine, ctx, _| {
        engine.open(Role::Server, [ip(0, 0), ip(1, 0)], 0, ctx).unwrap()
    });
    for piece in pieces {
        let mut given = 0;
        for _ in 0..10 {
            given += w.with_engine(0, |engine, ctx, neighbours| {
                engine.handle_clc_bytes(id, &piece[given..], ctx, neighbours)
            });
            w.wait(SECOND / 100);
        }
    }
    id
}

/// The Proposal of a Linux client, with the address of host 1.
pub(super) fn proposal() -> Vec<u8> {
    let mut bytes = vector("proposal");
    bytes[0x64..0x68].copy_from_slice(&[10, 0, 0, 2]);
    bytes
}

#[test]
fn half_handshakes_time_out_and_leave_nothing() {
    let mut w = World::new(8);
    // Receive buffers in the pool count as free.
    let free =
        |w: &World| w.hosts[0].arena.available() + w.hosts[0].roce.odp_pool(16 << 10) * (16 << 10);
    let before = free(&w);
    let proposal = proposal();
    let ids = [
        server_given(&mut w, &[]),
        server_given(&mut w, &[&proposal[..50]]),
        server_given(&mut w, &[&proposal]),
    ];
    assert_eq!(w.hosts[0].engine.groups().count(), 1);
    // The second Proposal is held meanwhile.
    let held = server_given(&mut w, &[&proposal]);
    w.wait(20 * SECOND);
    for id in ids {
        assert!(w.has_event(0, id, Ready::FAILED), "{id:?}");
        w.close(0, id);
    }
    assert!(w.has_event(0, held, Ready::FALLBACK), "before its client times out");
    w.close(0, held);
    assert_eq!(w.hosts[0].engine.groups().count(), 0);
    assert_eq!(free(&w), before);
}

#[test]
fn version_1_peer_gets_a_version_1_decline() {
    let mut w = World::new(12);
    let id = server_given(&mut w, &[&vector("proposal_v1")]);
    assert_eq!(w.hosts[0].engine.fallback(id), Some(Reason::NO_DEVICE));
    let mut buffer = [0; 100];
    let count = w.hosts[0].engine.poll_clc_bytes(id, &mut buffer);
    let decline = Decline::parse(&buffer[..count]).unwrap();
    assert_eq!((count, decline.version, decline.reason), (28, 1, Reason::NO_DEVICE));
}

#[test]
fn a_peer_id_from_another_address_gets_a_group_of_its_own() {
    let mut w = World::new(11);
    let [server, client] = w.established();
    let group = w.hosts[0].engine.groups().next().unwrap();
    // The Proposal of host 1, but from another address.
    let mut bytes = proposal();
    bytes[8..16].copy_from_slice(&group.peer_id.0);
    let id = w.with_engine(0, |engine, ctx, _| {
        let stranger = core::net::Ipv4Addr::new(10, 0, 0, 99).into();
        engine.open(Role::Server, [ip(0, 0), stranger], 0, ctx).unwrap()
    });
    let mut given = 0;
    for _ in 0..3 {
        let rest = &bytes[given..];
        given += w.with_engine(0, |engine, ctx, neighbours| {
            engine.handle_clc_bytes(id, rest, ctx, neighbours)
        });
        w.wait(SECOND / 100);
    }
    assert_eq!(w.hosts[0].engine.groups().count(), 2, "one of its own");
    w.with_engine(0, |engine, ctx, _| engine.close(id, ctx));
    w.transfer(1, [server, client], b"undisturbed", 100);
}

/// A frame of the peer's link with another source MAC address: that of a station with the same IP address (version 2), or
/// the same GID (version 1).
#[test]
fn link_takes_nothing_from_another_station_with_the_address_of_its_peer() {
    for version in [1, 2] {
        netsim::label!(version);
        let mut w = World::of_version(version, 13, [config(), config()], [1, 1]);
        let [server, client] = w.established();
        w.wait(SECOND);
        // Impossible cursors: the message ends the group, once it counts.
        let lie = Cdc { produced: Cursor { wrap: 0, count: 16 << 10 }, ..cdc(&w, client, 1) };
        let qp = w.hosts[1].engine.queue_pair(0, 0).unwrap();
        let bytes = lie.emit();
        let payload = Payload::Inline(&bytes);
        let send = SendOperation::Send { payload, with: SendWith::Nothing };
        w.hosts[1].roce.post_send(qp, &request(send)).unwrap();
        let now = w.network.now;
        let genuine = w.hosts[1].poll_transmit(0, now).expect("the message");
        let mut forged = genuine.clone();
        forged[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
        for (frame, violations) in [(forged, 0), (genuine, 1)] {
            w.hosts[0].handle_frame(0, &frame, now);
            w.hosts[0].work(now);
            assert_eq!(w.hosts[0].roce.counters().dropped.wrong_peer, 1);
            assert_eq!(w.hosts[0].engine.counters().violations, violations);
            assert_eq!(w.has_event(0, server, Ready::ABORTED), violations > 0);
        }
    }
}

#[test]
fn bytes_of_another_protocol_fail_the_handshake_at_once() {
    let mut w = World::new(9);
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], &[0xe2, 0xd4, 0xc3, 0xd9, 9, 0, 28, 0x20], b"\xe2\xd4X"]
    {
        let id = server_given(&mut w, &[bytes]);
        assert!(w.has_event(0, id, Ready::FAILED), "{bytes:?}");
        w.close(0, id);
    }
    assert_eq!(w.hosts[0].engine.sockets().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_message_confuses_a_link(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 1..10),
        kind in prop::sample::select(std::vec![0xfeu8, 0x21, 0x22, 0x24, 0x26, 0x27, 0x29, 2, 3, 6]),
        seed in 0u64..100,
    ) {
        let mut w = World::new(seed);
        let ids = w.established();
        let token = w.hosts[1].engine.peer_of(ids[1]).0;
        for mut bytes in messages {
            bytes.resize(bytes.len().max(44), 0);
            bytes[0] = kind;
            if kind == 0xfe {
                bytes.truncate(44);
                bytes[1] = 44;
                bytes[4..8].copy_from_slice(&token.to_be_bytes());
            }
            forge_if_alive(&mut w, &bytes);
            let _ = w.recv(0, ids[0]);
        }
        w.wait(3 * SECOND);
        // The host accepts the next connection in any case.
        w.reboot(1);
        w.clear_events();
        w.established();
    }

    #[test]
    fn no_bytes_confuse_a_handshake(
        at in 0usize..156, value: u8, cut in 0usize..156, garbage in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut w = World::new(10);
        let mut bytes = proposal();
        bytes[at] = value;
        let (first, second) = bytes.split_at(cut);
        let id = server_given(&mut w, &[first, second, &garbage]);
        w.close(0, id);
        w.wait(30 * SECOND);
        prop_assert_eq!(w.hosts[0].engine.sockets().count(), 0);
        prop_assert_eq!(w.hosts[0].engine.groups().count(), 0);
    }
}
