//! Requests that the user does not wait for share ACKs if the user allows it, and their loss is detected nevertheless.
//! WRITEs are acknowledged with the message that announces them.

use super::transport::request;
use crate::testing::{Pair, Rng};
use core::time::Duration;
use verbs::{
    Access, MemoryVerbs, PathMtu, Payload, Provider, RecvRequest, RemoteAddress, SendOperation,
    SendRequest, SendWith,
};

/// Sends `id` from node 0 without a completion, and waits a moment.
fn send(pair: &mut Pair, id: u8) {
    let payload = Payload::Inline(&[id]);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let node = &mut pair.nodes[0];
    let request = SendRequest { signaled: false, ..request(id.into(), operation) };
    node.roce.post_send(node.qp, &request).unwrap();
    wait(pair, Duration::from_millis(1));
}

fn wait(pair: &mut Pair, time: Duration) {
    let end = pair.network.now + time;
    while pair.network.step_until(&mut pair.nodes, Some(end)) {}
}

fn acks(pair: &Pair) -> u64 {
    pair.nodes[0].roce.counters().received.acknowledges
}

fn connected() -> Pair {
    let mut pair = Pair::new(11, 1500, false);
    let node = &mut pair.nodes[0];
    node.roce.coalesce_acks(node.qp);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let node = &mut pair.nodes[1];
    for id in 0..8 {
        let into = node.arena.alloc(64, 64).unwrap();
        node.roce.post_recv(node.qp, &RecvRequest { id, into: &[into] }).unwrap();
    }
    pair
}

#[test]
fn shared_ack_is_requested_when_nothing_follows() {
    let mut pair = connected();
    for id in 0..3 {
        send(&mut pair, id);
    }
    assert_eq!((pair.nodes[1].completions().len(), acks(&pair)), (3, 0));
    wait(&mut pair, Duration::from_secs(2));
    assert_eq!(acks(&pair), 1);
    let counters = pair.nodes[0].roce.counters();
    assert_eq!((counters.sent.sends, counters.retries, counters.timeouts), (4, 0, 0));
    assert_eq!(pair.nodes[1].completions().len(), 0, "the retransmission is a duplicate");
    // After a pause the ACK is requested at once.
    send(&mut pair, 3);
    assert_eq!(acks(&pair), 2);
}

#[test]
fn awaited_request_is_acknowledged_at_once_with_earlier_ones() {
    let mut pair = connected();
    send(&mut pair, 0);
    let node = &mut pair.nodes[0];
    let payload = Payload::Inline(&[1]);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(1, operation)).unwrap();
    wait(&mut pair, Duration::from_millis(1));
    assert_eq!((pair.nodes[0].completions().len(), acks(&pair)), (1, 1));
}

#[test]
fn lost_last_request_is_retransmitted() {
    let mut pair = connected();
    send(&mut pair, 0);
    pair.network.mute(0, true);
    send(&mut pair, 1);
    pair.network.mute(0, false);
    assert_eq!(pair.nodes[1].completions().len(), 1);
    wait(&mut pair, Duration::from_millis(20));
    assert_eq!((pair.nodes[1].completions().len(), acks(&pair)), (1, 1));
    assert_eq!(pair.nodes[0].roce.counters().retries, 0);
}

#[test]
fn lost_requests_are_all_retransmitted() {
    let mut pair = connected();
    pair.network.mute(0, true);
    for id in 0..3 {
        send(&mut pair, id);
    }
    pair.network.mute(0, false);
    wait(&mut pair, Duration::from_millis(40));
    assert_eq!(pair.nodes[1].completions().len(), 3);
}

/// A pair in which node 1 expects a message behind each WRITE, and a region of node 1.
fn announcing() -> (Pair, RemoteAddress) {
    let mut pair = Pair::new(11, 1500, false);
    let node = &mut pair.nodes[1];
    node.roce.writes_precede_send(node.qp);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let node = &mut pair.nodes[1];
    let (into, granted) = (node.arena.alloc(64, 64).unwrap(), node.arena.alloc(4096, 64).unwrap());
    node.roce.post_recv(node.qp, &RecvRequest { id: 0, into: &[into] }).unwrap();
    let mut rng = Rng::new(1);
    let region = node.roce.register(node.pd, granted, Access::REMOTE_WRITE, &mut rng).unwrap();
    (pair, RemoteAddress { address: region.address, rkey: region.rkey })
}

fn write(pair: &mut Pair, to: RemoteAddress, immediate: Option<u32>) {
    let node = &mut pair.nodes[0];
    let window = node.arena.alloc(3000, 64).unwrap();
    let payload = Payload::Windows(&[window]);
    let operation = SendOperation::Write { payload, to, immediate };
    node.roce.post_send(node.qp, &request(1, operation)).unwrap();
    wait(pair, Duration::from_millis(1));
}

#[test]
fn a_write_is_acknowledged_with_the_message_behind_it() {
    let (mut pair, to) = announcing();
    write(&mut pair, to, None);
    assert_eq!(acks(&pair), 0);
    let node = &mut pair.nodes[0];
    let payload = Payload::Inline(&[1]);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(2, operation)).unwrap();
    wait(&mut pair, Duration::from_millis(1));
    assert_eq!((pair.nodes[0].completions().len(), acks(&pair)), (2, 1));
}

#[test]
fn a_write_with_immediate_is_acknowledged_at_once() {
    let (mut pair, to) = announcing();
    write(&mut pair, to, Some(7));
    assert_eq!((pair.nodes[0].completions().len(), acks(&pair)), (1, 1));
}

#[test]
fn write_without_its_announcement_is_acknowledged_after_a_delay() {
    let (mut pair, to) = announcing();
    write(&mut pair, to, None);
    wait(&mut pair, Duration::from_millis(20));
    assert_eq!((pair.nodes[0].completions().len(), acks(&pair)), (1, 1));
    assert_eq!(pair.nodes[0].roce.counters().retries, 0);
}
