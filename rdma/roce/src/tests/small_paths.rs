//! Paths for smaller packets than the port's, as found by path MTU discovery.

use super::connections::{connect, event, pair, request_connection};
use super::transport::request;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{
    ConnectionEvent, ConnectionManager, Payload, Provider, RecvRequest, RejectReason,
    SendOperation, SendWith,
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
