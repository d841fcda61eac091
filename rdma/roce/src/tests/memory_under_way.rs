//! Memory is free for reuse when no send queue refers to it, and a peer cannot hold it for long.

use super::transport::request;
use crate::testing::Pair;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{
    Access, MemoryVerbs, PathMtu, Payload, Provider, QpState, ReadyToSend, RemoteAddress,
    SendOperation, SendWith, Status,
};

/// Posts a WRITE at node 0.
fn write(pair: &mut Pair, id: u64) {
    let b = &mut pair.nodes[1];
    let memory = b.arena.alloc(4096, 4096).unwrap();
    let mut rng = crate::testing::Rng::new(id);
    let region = b.roce.register(b.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    let a = &mut pair.nodes[0];
    let from = a.arena.alloc(4096, 4096).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    let payload = Payload::Windows(&[from]);
    let write = SendOperation::Write { payload, to, immediate: None };
    a.roce.post_send(a.qp, &request(id, write)).unwrap();
}

#[test]
fn requests_under_way_are_done_when_acknowledged() {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let mut nothing = pair.nodes[0].roce.under_way();
    assert!(pair.nodes[0].roce.is_done(&mut nothing));
    write(&mut pair, 1);
    write(&mut pair, 2);
    let mut first = pair.nodes[0].roce.under_way();
    assert!(first.queue_pairs().eq([pair.nodes[0].qp]));
    pair.network.mute(1, true);
    pair.run(Duration::from_millis(100), |_| false);
    // Sent, and perhaps to be retransmitted.
    assert!(!pair.nodes[0].roce.is_done(&mut first));
    pair.network.mute(1, false);
    pair.run(Duration::from_secs(1), |_| false);
    // Requests posted later do not count.
    write(&mut pair, 3);
    assert!(pair.nodes[0].roce.is_done(&mut first));
    let mut second = pair.nodes[0].roce.under_way();
    assert!(!pair.nodes[0].roce.is_done(&mut second));
    let qp = pair.nodes[0].qp;
    pair.nodes[0].roce.fail_qp(qp).unwrap();
    assert!(pair.nodes[0].roce.is_done(&mut second));
}

#[test]
fn destroyed_queue_pair_has_no_requests_under_way() {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    write(&mut pair, 1);
    let mut under_way = pair.nodes[0].roce.under_way();
    let qp = pair.nodes[0].qp;
    pair.nodes[0].roce.destroy_qp(qp).unwrap();
    assert!(pair.nodes[0].roce.is_done(&mut under_way));
}

/// A peer that answers and never posts a receive: RNR NAKs do not prolong a request for ever.
#[test]
fn endless_rnr_naks_fail_the_queue_pair() {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, ReadyToSend { rnr_retry: 7, ..Pair::LINUX });
    let a = &mut pair.nodes[0];
    let from = a.arena.alloc(4096, 4096).unwrap();
    let payload = Payload::Windows(&[from]);
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    a.roce.post_send(a.qp, &request(1, send)).unwrap();
    let mut under_way = pair.nodes[0].roce.under_way();
    let failed = |pair: &mut Pair| {
        let node = &pair.nodes[0];
        node.roce.qp_state(node.qp) == Ok(QpState::Error)
    };
    assert!(pair.run(Duration::from_secs(120), failed));
    let after = pair.network.now.since(Instant::ZERO);
    assert!((60..70).contains(&after.as_secs()), "{after:?}");
    assert_eq!(pair.nodes[0].completions()[0].status, Status::RnrRetryExceeded);
    assert!(pair.nodes[0].roce.is_done(&mut under_way));
}
