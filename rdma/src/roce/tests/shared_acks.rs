//! Requests that nobody waits for share an ACK where their user wants it, and what is lost of them is found
//! out nevertheless.

use super::transport::request;
use crate::roce::testing::Pair;
use crate::verbs::{
    Access, PathMtu, Payload, Provider, RecvRequest, RemoteAddress, SendOperation, SendRequest,
    SendWith,
};
use core::time::Duration;

/// Sends `id` from node 0 without asking for a completion, and waits a moment.
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
    node.roce.share_acks(node.qp);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let node = &mut pair.nodes[1];
    for id in 0..8 {
        let into = node.arena.alloc(64, 64).unwrap();
        node.roce.post_recv(node.qp, &RecvRequest { id, into: &[into] }).unwrap();
    }
    pair
}

#[test]
fn one_ack_for_several_is_asked_for_when_nothing_follows() {
    let mut pair = connected();
    for id in 0..3 {
        send(&mut pair, id);
    }
    assert_eq!((pair.nodes[1].completions().len(), acks(&pair)), (3, 0));
    wait(&mut pair, Duration::from_secs(2));
    assert_eq!(acks(&pair), 1);
    let counters = pair.nodes[0].roce.counters();
    assert_eq!((counters.sent.sends, counters.retries, counters.timeouts), (4, 0, 0));
    assert_eq!(pair.nodes[1].completions().len(), 0, "the repetition is not taken for another");
    // After a while of quiet it is asked for at once.
    send(&mut pair, 3);
    assert_eq!(acks(&pair), 2);
}

#[test]
fn one_that_somebody_waits_for_is_acknowledged_at_once_with_those_before() {
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
fn the_last_of_them_may_be_lost() {
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
fn so_may_all_of_them() {
    let mut pair = connected();
    pair.network.mute(0, true);
    for id in 0..3 {
        send(&mut pair, id);
    }
    pair.network.mute(0, false);
    wait(&mut pair, Duration::from_millis(40));
    assert_eq!(pair.nodes[1].completions().len(), 3);
}

/// Posts a WRITE of 8 bytes from node 1 to memory of node 0.
fn write_back(pair: &mut Pair, to: RemoteAddress) {
    let payload = Payload::Inline(&[7; 8]);
    let operation = SendOperation::Write { payload, to, immediate: None };
    let node = &mut pair.nodes[1];
    node.roce.post_send(node.qp, &request(0, operation)).unwrap();
}

/// Posts a SEND from node 1.
fn send_back(pair: &mut Pair, id: u64) {
    let payload = Payload::Inline(&[1]);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let node = &mut pair.nodes[1];
    node.roce.post_send(node.qp, &request(id, operation)).unwrap();
}

/// Memory of node 0 that node 1 may write, and receives there.
fn exposed(pair: &mut Pair) -> RemoteAddress {
    let node = &mut pair.nodes[0];
    for id in 0..8 {
        let into = node.arena.alloc(64, 64).unwrap();
        node.roce.post_recv(node.qp, &RecvRequest { id, into: &[into] }).unwrap();
    }
    let memory = node.arena.alloc(64, 64).unwrap();
    let mut rng = fabric::Rng::new(5);
    let region = node.roce.register(node.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    RemoteAddress { address: region.address, rkey: region.rkey }
}

fn acks_back(pair: &Pair) -> u64 {
    pair.nodes[1].roce.counters().received.acknowledges
}

#[test]
fn that_to_a_write_waits_for_the_message_that_tells_of_it() {
    let mut pair = connected();
    let to = exposed(&mut pair);
    wait(&mut pair, Duration::from_secs(1));
    write_back(&mut pair, to);
    wait(&mut pair, Duration::from_millis(1));
    assert_eq!(acks_back(&pair), 0);
    send_back(&mut pair, 1);
    wait(&mut pair, Duration::from_millis(1));
    assert_eq!((acks_back(&pair), pair.nodes[1].completions().len()), (1, 2));
    // One that nobody tells of is acknowledged after a while.
    write_back(&mut pair, to);
    wait(&mut pair, Duration::from_millis(31));
    assert_eq!(acks_back(&pair), 1);
    wait(&mut pair, Duration::from_millis(2));
    assert_eq!((acks_back(&pair), pair.nodes[1].completions().len()), (2, 1));
}

#[test]
fn those_to_messages_that_come_closely_wait_for_each_other() {
    let mut pair = connected();
    exposed(&mut pair);
    wait(&mut pair, Duration::from_secs(1));
    for id in 0..6 {
        send_back(&mut pair, id);
        wait(&mut pair, Duration::from_micros(500));
    }
    assert_eq!(acks_back(&pair), 2, "for the first, which came after a pause, and for four more");
    wait(&mut pair, Duration::from_millis(9));
    assert_eq!((acks_back(&pair), pair.nodes[1].completions().len()), (3, 6));
    // With a queue pair that goes, it does not wait.
    send_back(&mut pair, 6);
    wait(&mut pair, Duration::from_micros(500));
    send_back(&mut pair, 7);
    wait(&mut pair, Duration::from_micros(500));
    assert_eq!(acks_back(&pair), 4);
    let node = &mut pair.nodes[0];
    node.roce.destroy_qp(node.qp).unwrap();
    wait(&mut pair, Duration::from_micros(500));
    assert_eq!((acks_back(&pair), pair.nodes[1].completions().len()), (5, 2));
}
