//! Whose bells were rung is found by the notices, however far the peer is ahead.

use super::verbs::request;
use crate::testing::{Node, Pair, SMALL, Way};
use crate::{Layout, layout};
use drivers::ntb::Ntb;
use std::vec::Vec;
use verbs::{Payload, Provider, RecvRequest, SendOperation, SendWith};

fn poll(pair: &mut Pair, n: usize) {
    let Node { ntrdma, bridge, .. } = &mut pair.nodes[n];
    ntrdma.poll(bridge, pair.now);
}

/// Lets all that node 0 has written arrive.
fn arrive(pair: &mut Pair) {
    while pair.nodes[0].bridge.free() > 0 {
        pair.nodes[0].bridge.deliver_one(0);
    }
}

/// Two queue pairs of node 0 with counterparts in node 1: those of the pair, and others.
fn two_queue_pairs(layout: Layout) -> (Pair, [[verbs::QpId; 2]; 2]) {
    let mut pair = Pair::new(1, layout, Way::Posted);
    pair.connect();
    let first = [0, 1].map(|n| pair.nodes[n].qp);
    for node in &mut pair.nodes {
        let init = Pair::init(node.pd, node.cq);
        node.qp = node.ntrdma.create_qp(&init, &mut pair.rng).unwrap();
    }
    pair.connect();
    let second = [0, 1].map(|n| pair.nodes[n].qp);
    (pair, [first, second])
}

fn send(pair: &mut Pair, qp: verbs::QpId, id: u64) {
    let operation = SendOperation::Send { payload: Payload::Inline(&[]), with: SendWith::Nothing };
    pair.nodes[0].ntrdma.post_send(qp, &request(id, operation)).unwrap();
    poll(pair, 0);
}

/// One message of the second queue pair, then so many of the first that their notices are written over its own
/// before node 1 looks.
#[test]
fn a_peer_that_is_far_ahead_is_heard_on_every_queue_pair() {
    for ahead in [0, 1, 3, 4, 5, 7, 8, 9, 20, 63] {
        let (mut pair, [first, second]) = two_queue_pairs(Layout { qps: 2, ring: 64, ..SMALL });
        let receiver = &mut pair.nodes[1];
        receiver.ntrdma.post_recv(second[1], &RecvRequest { id: 1000, into: &[] }).unwrap();
        for id in 0..ahead {
            receiver.ntrdma.post_recv(first[1], &RecvRequest { id, into: &[] }).unwrap();
        }
        arrive(&mut pair);
        poll(&mut pair, 1);
        send(&mut pair, second[0], 1000);
        for id in 0..ahead {
            send(&mut pair, first[0], id);
        }
        arrive(&mut pair);
        poll(&mut pair, 1);
        let mut ids: Vec<u64> = pair.nodes[1].completions().iter().map(|c| c.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..ahead).chain([1000]).collect::<Vec<_>>());
    }
}

/// Notices that name queue pairs which are not there, and a batch from nowhere, cost nobody anything.
#[test]
fn notices_that_lie_are_passed_over() {
    let layout = Layout { qps: 2, ring: 64, ..SMALL };
    let (mut pair, [first, _]) = two_queue_pairs(layout);
    pair.nodes[1].ntrdma.post_recv(first[1], &RecvRequest { id: 1, into: &[] }).unwrap();
    let exposed = pair.nodes[1].bridge.exposed();
    for index in 0..layout.notices() {
        exposed.store32(layout.notice(index), u32::MAX - index);
    }
    let batch = exposed.load32(layout::BATCH);
    for lie in [batch.wrapping_add(3), batch.wrapping_sub(3), batch] {
        exposed.store32(layout::BATCH, lie);
        poll(&mut pair, 1);
    }
    send(&mut pair, first[0], 1);
    arrive(&mut pair);
    poll(&mut pair, 1);
    assert_eq!(pair.nodes[1].completions().len(), 1);
    assert_eq!(pair.nodes[1].ntrdma.counters().violations, 0);
}
