//! Paths for smaller packets than the port's, as found by path MTU discovery.

use super::connections::{connect, event, pair, request_connection};
use super::transport::request;
use crate::testing::{Pair, Rng};
use core::time::Duration;
use drivers::hal::Instant;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionManager, PathMtu, Payload, Provider, ReadyToReceive, RecvRequest,
    RejectReason, SendOperation, SendWith, Status, VerbsError,
};

const INVALID_MTU: RejectReason = RejectReason::INVALID_MTU;

fn after(now: Instant, seconds: u64) -> Instant {
    now + Duration::from_secs(seconds)
}

#[test]
fn connection_over_a_small_path_sends_small_packets_in_both_directions() {
    // Packets of 1,500 bytes have room for 1,024 bytes of payload, those of 700 bytes for 512.
    for (small, packets) in [(false, 1), (true, 2)] {
        let mut pair = pair(0);
        if small {
            let until = after(pair.network.now, 600);
            let to = pair.nodes[0].ip;
            pair.nodes[1].roce.limit_path(to, 700, until);
        }
        connect(&mut pair);
        for n in 0..2 {
            pair.nodes[n].completions();
            let before = pair.nodes[n].roce.counters().sent.sends;
            let into = pair.nodes[1 - n].arena.alloc(1000, 64).unwrap();
            let from = pair.nodes[n].arena.alloc(1000, 64).unwrap();
            let other = &mut pair.nodes[1 - n];
            other.roce.post_recv(other.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
            let payload = Payload::Windows(&[from]);
            let send = SendOperation::Send { payload, with: SendWith::Nothing };
            let node = &mut pair.nodes[n];
            node.roce.post_send(node.qp, &request(2, send)).unwrap();
            let sent = |pair: &mut crate::testing::Pair| !pair.nodes[n].completions().is_empty();
            assert!(pair.run(Duration::from_secs(30), sent));
            assert_eq!(pair.nodes[n].roce.counters().sent.sends - before, packets, "node {n}");
        }
    }
}

#[test]
fn request_with_packets_that_do_not_pass_is_refused_while_that_is_known() {
    let mut pair = pair(0);
    let until = after(pair.network.now, 600);
    let client = pair.nodes[1].ip;
    pair.nodes[0].roce.limit_path(client, 700, until);
    let requested = request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Rejected { connection, reason, .. }) = event(&mut pair, 1) else {
        panic!("not refused");
    };
    assert_eq!((connection, reason), (requested, INVALID_MTU));
    let refusal = pair.nodes[0].roce.refusals().pop().unwrap();
    assert_eq!((refusal.reason, refusal.who), ("wrong_mtu", Some(client)));
    let advice = "the client requests packets of 1024 bytes, but the path to it passes only 512";
    assert!(refusal.advice.starts_with(advice), "{}", refusal.advice);
    pair.network.now = until;
    connect(&mut pair);
}

#[test]
fn path_that_takes_what_the_port_sends_limits_nothing() {
    let mut pair = pair(0);
    let until = after(pair.network.now, 600);
    let [server, client] = pair.nodes.each_ref().map(|node| node.ip);
    pair.nodes[0].roce.limit_path(client, 700, until);
    pair.nodes[0].roce.limit_path(client, 1400, until);
    pair.nodes[1].roce.limit_path(server, 1400, until);
    connect(&mut pair);
}

#[test]
fn client_with_a_larger_mtu_offers_less_after_a_rejection() {
    // Ports of 9,000 bytes; the path is found to pass 1,500 at the server only.
    let mut pair = crate::testing::Pair::new(0, 9000, false);
    pair.nodes[0].roce.listen(1234).unwrap();
    let until = after(pair.network.now, 600);
    let client = pair.nodes[1].ip;
    pair.nodes[0].roce.limit_path(client, 1500, until);
    request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Rejected { reason, .. }) = event(&mut pair, 1) else {
        panic!("not refused");
    };
    assert_eq!(reason, INVALID_MTU);
    connect(&mut pair);
}

/// The path MTU that node 1 offers node 0, which accepts; both queue pairs are made anew.
fn offered(pair: &mut Pair) -> PathMtu {
    let mut rng = Rng::new(pair.network.now.as_nanos());
    for node in &mut pair.nodes {
        node.roce.destroy_qp(node.qp).unwrap();
        node.qp = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut rng).unwrap();
        while node.roce.poll_connection_event().is_some() {}
    }
    request_connection(pair, 1234, b"");
    // Former connections may end meanwhile.
    let path_mtu = loop {
        let event = event(pair, 0).expect("a request");
        let ConnectionEvent::Request { connection, parameters, path_mtu, .. } = event else {
            continue;
        };
        let now = pair.network.now;
        let node = &mut pair.nodes[0];
        node.roce.accept(connection, node.qp, &parameters, b"", now).unwrap();
        break path_mtu;
    };
    for n in [1, 0] {
        while !matches!(event(pair, n).expect("success"), ConnectionEvent::Established { .. }) {}
    }
    path_mtu
}

/// Two nodes with cards of 9,000 bytes; node 0 listens.
fn large(v6: bool) -> Pair {
    let mut pair = Pair::new(2, 9000, v6);
    pair.nodes[0].roce.listen(1234).unwrap();
    pair
}

#[test]
fn mtu_of_the_network_limits_offers_of_its_family_until_it_is_raised() {
    for v6 in [false, true] {
        let mut pair = large(v6);
        assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
        let set = |pair: &mut Pair, own: usize, other: usize| {
            pair.nodes[1].roce.set_mtus(0, if v6 { [other, own] } else { [own, other] });
        };
        for (own, other, expected) in [
            (9000, 1500, PathMtu::Mtu4096),
            (1500, 9000, PathMtu::Mtu1024),
            (1280, 9000, PathMtu::Mtu1024),
            (576, 9000, PathMtu::Mtu256),
            (3000, 1500, PathMtu::Mtu2048),
            (9000, 1500, PathMtu::Mtu4096),
            (65_535, 1500, PathMtu::Mtu4096),
        ] {
            netsim::label!(v6, own, other);
            set(&mut pair, own, other);
            assert_eq!(offered(&mut pair), expected);
            let (node, to) = (&pair.nodes[1], pair.nodes[0].ip);
            assert_eq!(node.roce.path_mtu_to(node.ip, to, pair.network.now), expected);
        }
    }
}

#[test]
fn request_above_the_mtu_of_the_network_is_refused_with_the_reason() {
    let mut pair = large(false);
    pair.nodes[0].roce.set_mtus(0, [1500, 9000]);
    request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Rejected { reason, .. }) = event(&mut pair, 1) else {
        panic!("not refused");
    };
    assert_eq!(reason, INVALID_MTU);
    let refusal = pair.nodes[0].roce.refusals().pop().unwrap();
    let advice =
        "the client requests packets of 4096 bytes, but this port or its network passes only 1024";
    assert!(refusal.advice.starts_with(advice), "{}", refusal.advice);
    // Queue pairs that are connected by hand do not exceed it either.
    let (remote_qpn, address) = (1, pair.address(0));
    let peer = |path_mtu| ReadyToReceive {
        remote_qpn,
        rq_psn: 0,
        path_mtu,
        address,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    };
    let node = &mut pair.nodes[0];
    let too_large = node.roce.ready_to_receive(node.qp, &peer(PathMtu::Mtu2048));
    assert_eq!(too_large, Err(VerbsError::Invalid));
    node.roce.ready_to_receive(node.qp, &peer(PathMtu::Mtu1024)).unwrap();
    // The next request of the client offers less.
    pair.nodes[0].roce.set_mtus(0, [9000; 2]);
    assert_eq!(offered(&mut pair), PathMtu::Mtu1024);
}

/// Sends `length` bytes from node 1 to node 0, over a path that drops frames of more than 1,514 bytes. Returns the
/// statuses of the completions of node 1.
fn send_over_a_path_of_1500(pair: &mut Pair, length: usize) -> Vec<Status> {
    pair.nodes.iter_mut().for_each(|node| node.longest_frame = 1514);
    let into = pair.nodes[0].arena.alloc(length, 64).unwrap();
    let from = pair.nodes[1].arena.alloc(length, 64).unwrap();
    let other = &mut pair.nodes[0];
    other.roce.post_recv(other.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    let windows = [from];
    let payload = Payload::Windows(&windows);
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    let node = &mut pair.nodes[1];
    node.roce.post_send(node.qp, &request(2, send)).unwrap();
    let mut statuses = Vec::new();
    pair.run(Duration::from_secs(300), |pair| {
        statuses.extend(pair.nodes[1].completions().iter().map(|completion| completion.status));
        !statuses.is_empty()
    });
    statuses
}

/// Both ends believe in 9,000 bytes, the path passes 1,500: the first connection fails with its first large message, and
/// the next one works.
#[test]
fn connection_after_lost_large_packets_offers_less_and_the_log_says_so() {
    for v6 in [false, true] {
        let mut pair = large(v6);
        assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
        assert_eq!(send_over_a_path_of_1500(&mut pair, 100), [Status::Success]);
        assert_eq!(send_over_a_path_of_1500(&mut pair, 5000), [Status::RetryExceeded]);
        let (server, failed) = (pair.nodes[0].ip, pair.network.now);
        let refusal = pair.nodes[1].roce.refusals().pop().expect("reported");
        assert_eq!((refusal.who, refusal.reason), (Some(server), "large_packets_lost"));
        assert!(refusal.advice.contains("no packet of 4096 bytes"), "{}", refusal.advice);
        assert_eq!(offered(&mut pair), PathMtu::Mtu1024);
        assert_eq!(send_over_a_path_of_1500(&mut pair, 5000), [Status::Success]);
        assert!(pair.nodes[1].roce.refusals().pop().is_none());
        // A peer that requests 4096 is not refused for a suspicion: its host may only have been down.
        let later = &pair.nodes[1].roce;
        assert_eq!(later.path_mtu_to(pair.nodes[1].ip, server, failed), PathMtu::Mtu1024);
        pair.network.now = after(pair.network.now, 601);
        assert_eq!(offered(&mut pair), PathMtu::Mtu4096, "it expires");
    }
}

#[test]
fn host_that_is_suspected_may_request_large_packets() {
    let mut pair = large(false);
    assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
    let (now, client) = (pair.network.now, pair.nodes[1].ip);
    pair.nodes[0].roce.cm.large_packets_are_lost(client, PathMtu::Mtu4096, now);
    assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
    let node = &pair.nodes[0];
    assert_eq!(node.roce.path_mtu_to(node.ip, client, pair.network.now), PathMtu::Mtu1024);
}

/// A peer that is gone says nothing about the path, if the packet that it did not acknowledge passes any.
#[test]
fn small_packet_without_an_answer_limits_nothing() {
    let mut pair = large(false);
    assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
    pair.network.mute(0, true);
    assert_eq!(send_over_a_path_of_1500(&mut pair, 1024), [Status::RetryExceeded]);
    assert!(pair.nodes[1].roce.refusals().pop().is_none());
    pair.network.mute(0, false);
    assert_eq!(offered(&mut pair), PathMtu::Mtu4096);
}
