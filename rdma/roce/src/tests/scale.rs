//! Cost follows work: the cost of a packet or timer does not grow with the number of idle queue pairs and connections.

use super::transport::request;
use crate::Limits;
use crate::testing::{Pair, Rng};
use core::time::Duration;
use verbs::{
    PathMtu, Payload, Provider, ReadyToReceive, ReadyToSend, RecvRequest, SendOperation, SendWith,
};

/// Number of queue pairs that timers of both ends checked, during `rounds` messages on one queue pair beside `others`
/// connected queue pairs that were used once.
fn timers_checked(others: usize, rounds: u64) -> u64 {
    let limits = Limits { qps: 2048, regions: 16, ..Limits::default() };
    let mut pair = Pair::with_limits(3, 1500, false, limits);
    let mut rng = Rng::new(9);
    let send = |pair: &mut Pair, qps: [verbs::QpId; 2], id: u64| {
        let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
        pair.nodes[1].roce.post_recv(qps[1], &RecvRequest { id, into: &[into] }).unwrap();
        let send = SendOperation::Send { payload: Payload::Inline(b"hi"), with: SendWith::Nothing };
        pair.nodes[0].roce.post_send(qps[0], &request(id, send)).unwrap();
    };
    for n in 0..others {
        let qps = [0, 1].map(|at| {
            let node = &mut pair.nodes[at];
            node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut rng).unwrap()
        });
        for at in 0..2 {
            let peer = ReadyToReceive {
                remote_qpn: pair.nodes[1 - at].roce.qp_number(qps[1 - at]).unwrap(),
                rq_psn: 0,
                path_mtu: PathMtu::Mtu1024,
                address: pair.address(at),
                max_dest_rd_atomic: 0,
                min_rnr_timer: 12,
            };
            let node = &mut pair.nodes[at];
            node.roce.ready_to_receive(qps[at], &peer).unwrap();
            node.roce.ready_to_send(qps[at], &ReadyToSend { sq_psn: 0, ..Pair::LINUX }).unwrap();
        }
        send(&mut pair, qps, n as u64);
        pair.run(Duration::from_millis(20), |_| false);
    }
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    // All timers of the others have expired.
    pair.run(Duration::from_secs(5), |_| false);
    for node in &mut pair.nodes {
        node.completions();
    }
    let taken = |pair: &Pair| pair.nodes.iter().map(|node| node.roce.timers.taken).sum::<u64>();
    let before = taken(&pair);
    let qps = [pair.nodes[0].qp, pair.nodes[1].qp];
    for n in 0..rounds {
        send(&mut pair, qps, n);
        let came = |pair: &mut Pair| !pair.nodes[1].completions().is_empty();
        assert!(pair.run(Duration::from_secs(1), came));
        pair.run(Duration::from_millis(5), |_| false);
    }
    taken(&pair) - before
}

#[test]
fn timer_cost_does_not_depend_on_idle_queue_pairs() {
    let alone = timers_checked(0, 200);
    let crowded = timers_checked(1000, 200);
    assert_eq!(alone, crowded);
    // At both ends: a postponed timer is checked now and then, not with each message.
    assert!(alone < 400, "{alone} for 200 messages");
}

/// Under load the entry of an acknowledged packet stays, for the next packet, until a halt would end by it. In an idle
/// loop the halt after the ACK removes it.
#[test]
fn outdated_timer_is_removed_when_it_would_end_a_halt() {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let entry = |pair: &mut Pair, id: u64| {
        let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
        let qp = pair.nodes[1].qp;
        pair.nodes[1].roce.post_recv(qp, &RecvRequest { id, into: &[into] }).unwrap();
        let send = SendOperation::Send { payload: Payload::Inline(b"hi"), with: SendWith::Nothing };
        let qp = pair.nodes[0].qp;
        pair.nodes[0].roce.post_send(qp, &request(id, send)).unwrap();
        let done = |pair: &mut Pair| !pair.nodes[0].completions().is_empty();
        assert!(pair.run(Duration::from_millis(5), done));
        pair.nodes[0].roce.timers.first().expect("the timer of the packet")
    };
    // A halt before the ACK, and one after it.
    entry(&mut pair, 0);
    let (now, roce) = (pair.network.now, &mut pair.nodes[0].roce);
    roce.set_timers_right_before(now);
    assert_eq!(roce.timers.first(), None);
    roce.set_timers_right_before(now);
    // Load.
    let at = entry(&mut pair, 1);
    let (now, roce) = (pair.network.now, &mut pair.nodes[0].roce);
    for _ in 0..1000 {
        roce.set_timers_right_before(now);
        assert_eq!(roce.timers.first(), Some(at));
    }
    // Still under load, when the entry is nearly due.
    let before = |micros| now + (at.since(now) - Duration::from_micros(micros));
    roce.halts_since = before(2000);
    roce.set_timers_right_before(before(1001));
    assert_eq!(roce.timers.first(), Some(at));
    roce.set_timers_right_before(before(1000));
    assert_eq!(roce.timers.first(), None);
}
