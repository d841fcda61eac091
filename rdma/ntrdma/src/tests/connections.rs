//! Tests of the connection manager: connections are made, refused, withdrawn and ended, and no state
//! of them remains.

use super::verbs::request;
use crate::testing::{Pair, SMALL, Way};
use core::net::SocketAddr;
use core::time::Duration;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, MemoryVerbs, Payload,
    Provider, QpId, QpState, RecvRequest, RejectReason, SendOperation, SendWith, Status,
    VerbsError,
};

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 1234;

pub const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 3,
    initiator_depth: 4,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 8,
};

fn events(pair: &mut Pair, node: usize) -> Vec<ConnectionEvent> {
    let ntrdma = &mut pair.nodes[node].ntrdma;
    core::iter::from_fn(|| ntrdma.poll_connection_event()).collect()
}

/// The next event of a node.
fn event(pair: &mut Pair, node: usize) -> ConnectionEvent {
    for _ in 0..20_000 {
        if let Some(event) = pair.nodes[node].ntrdma.poll_connection_event() {
            return event;
        }
        pair.step();
    }
    panic!("node {node} has no event");
}

/// Node 1 requests a connection from node 0, which listens.
fn ask(pair: &mut Pair, port: u16, private_data: &[u8]) -> ConnectionId {
    let now = pair.now;
    let a = &mut pair.nodes[1];
    let to = SocketAddr::new(Pair::address(1), port);
    let from = Pair::address(2);
    a.ntrdma.connect(a.qp, from, to, &PARAMETERS, private_data, now, &mut pair.rng).unwrap()
}

fn new_pair(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, SMALL, Way::ALL[seed as usize % Way::ALL.len()]);
    pair.bring_up();
    pair.nodes[0].ntrdma.listen(PORT).unwrap();
    pair
}

fn request_at(pair: &mut Pair) -> ConnectionId {
    match event(pair, 0) {
        ConnectionEvent::Request { connection, .. } => connection,
        other => panic!("{other:?}"),
    }
}

/// Establishes a connection from node 1 to node 0; returns its ids at both.
fn connect(pair: &mut Pair) -> [ConnectionId; 2] {
    let active = ask(pair, PORT, b"who");
    let ConnectionEvent::Request { connection, port, parameters, private_data, .. } =
        event(pair, 0)
    else {
        panic!("no request")
    };
    assert_eq!((port, private_data.as_slice()), (PORT, &b"who"[..]));
    assert_eq!((parameters.responder_resources, parameters.initiator_depth), (4, 3));
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    node.ntrdma.accept(connection, node.qp, &PARAMETERS, b"me", now).unwrap();
    let ConnectionEvent::Established { private_data, .. } = event(pair, 1) else {
        panic!("not established")
    };
    assert_eq!(private_data.as_slice(), b"me");
    assert!(matches!(event(pair, 0), ConnectionEvent::Established { .. }));
    [connection, active]
}

/// Destroys all queue pairs, and checks that no state remains on both sides.
fn assert_nothing_left(pair: &mut Pair) {
    let qps: Vec<QpId> = pair.nodes.iter().map(|node| node.qp).collect();
    for (node, qp) in pair.nodes.iter_mut().zip(qps) {
        let _ = node.ntrdma.destroy_qp(qp);
    }
    let all = SMALL.qps as usize;
    let free = pair
        .run(SECOND, |pair| pair.nodes.iter().all(|node| node.ntrdma.queue_pairs() == (0, all)));
    assert!(free, "{:?}", pair.nodes.each_ref().map(|node| node.ntrdma.queue_pairs()));
    for node in &mut pair.nodes {
        assert_eq!(node.ntrdma.connections(), 0);
        assert_eq!(node.ntrdma.destroy_cq(node.cq), Ok(()));
        assert_eq!(node.ntrdma.dealloc_pd(node.pd), Ok(()));
        assert_eq!(node.ntrdma.counters().violations, 0);
    }
}

#[test]
fn connection_is_established_and_ends() {
    for seed in 0..20 {
        let mut pair = new_pair(seed);
        let ids = connect(&mut pair);
        let into = pair.memory(0, 64);
        let node = &mut pair.nodes[0];
        node.ntrdma.post_recv(node.qp, &RecvRequest { id: 7, into: &[into] }).unwrap();
        node.ntrdma.post_recv(node.qp, &RecvRequest { id: 8, into: &[into] }).unwrap();
        let node = &mut pair.nodes[1];
        let payload = Payload::Inline(b"hello");
        let send = SendOperation::Send { payload, with: SendWith::Nothing };
        node.ntrdma.post_send(node.qp, &request(1, send)).unwrap();
        assert!(pair.run(SECOND, |pair| pair.nodes[0].completions().len() == 1));
        let side = seed as usize % 2;
        let now = pair.now;
        pair.nodes[side].ntrdma.disconnect(ids[side], now).unwrap();
        for node in [0, 1] {
            let ConnectionEvent::Disconnected { connection } = event(&mut pair, node) else {
                panic!("not disconnected")
            };
            assert_eq!(connection, ids[node]);
            let node = &mut pair.nodes[node];
            assert_eq!(node.ntrdma.qp_state(node.qp), Ok(QpState::Error));
        }
        // The unused receive is flushed.
        let flushed = pair.nodes[0].completions();
        assert_eq!((flushed[0].id, flushed[0].status), (8, Status::Flushed));
        assert_nothing_left(&mut pair);
    }
}

#[test]
fn requests_are_refused() {
    let mut pair = new_pair(1);
    ask(&mut pair, 99, &[]);
    let ConnectionEvent::Rejected { reason, .. } = event(&mut pair, 1) else { panic!() };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
    ask(&mut pair, PORT, &[]);
    let offered = request_at(&mut pair);
    pair.nodes[0].ntrdma.reject(offered, RejectReason::CONSUMER, b"no").unwrap();
    let ConnectionEvent::Rejected { reason, private_data, .. } = event(&mut pair, 1) else {
        panic!()
    };
    assert_eq!((reason, private_data.as_slice()), (RejectReason::CONSUMER, &b"no"[..]));
    // The queue pair can be used for the next connection.
    connect(&mut pair);
    assert_nothing_left(&mut pair);
}

#[test]
fn unanswered_request_ends_after_a_minute() {
    let mut pair = new_pair(1);
    ask(&mut pair, PORT, &[]);
    request_at(&mut pair);
    pair.run(Duration::from_secs(61), |_| false);
    let [ConnectionEvent::Rejected { reason: RejectReason::TIMEOUT, .. }] =
        events(&mut pair, 1)[..]
    else {
        panic!()
    };
    // The user gets an event that the request was withdrawn.
    assert!(matches!(event(&mut pair, 0), ConnectionEvent::Disconnected { .. }));
    assert_nothing_left(&mut pair);
}

/// A request is withdrawn in any of its states.
#[test]
fn a_request_is_withdrawn_at_any_moment() {
    for seed in 0..60 {
        netsim::label!(seed);
        let mut pair = new_pair(seed);
        ask(&mut pair, PORT, &[]);
        for _ in 0..seed % 6 {
            pair.step();
        }
        let qp = pair.nodes[1].qp;
        pair.nodes[1].ntrdma.destroy_qp(qp).unwrap();
        for _ in 0..200 {
            pair.step();
            let (now, node) = (pair.now, &mut pair.nodes[0]);
            if let Some(ConnectionEvent::Request { connection, .. }) =
                node.ntrdma.poll_connection_event()
            {
                node.ntrdma.accept(connection, node.qp, &PARAMETERS, &[], now).unwrap();
            }
        }
        assert_nothing_left(&mut pair);
    }
}

#[test]
fn link_loss_ends_all_connections_and_requests() {
    for seed in 0..20 {
        netsim::label!(seed);
        let mut pair = new_pair(seed);
        connect(&mut pair);
        let node = &mut pair.nodes[1];
        let payload = Payload::Inline(b"hello");
        for id in 0..3 {
            let send = SendOperation::Send { payload, with: SendWith::Nothing };
            node.ntrdma.post_send(node.qp, &request(id, send)).unwrap();
        }
        // No receive is posted, so the SENDs wait.
        pair.run(SECOND / 20, |_| false);
        pair.nodes.iter_mut().for_each(|node| node.bridge.set_link(false));
        for node in [0, 1] {
            let end = event(&mut pair, node);
            assert!(matches!(end, ConnectionEvent::Disconnected { .. }), "{end:?}");
        }
        let ended: Vec<Status> =
            pair.nodes[1].completions().iter().map(|completion| completion.status).collect();
        assert_eq!(ended, [Status::RetryExceeded, Status::Flushed, Status::Flushed]);
        let to = SocketAddr::new(Pair::address(1), PORT);
        let (now, node) = (pair.now, &mut pair.nodes[1]);
        node.ntrdma.destroy_qp(node.qp).unwrap();
        node.qp = node.ntrdma.create_qp(&Pair::init(node.pd, node.cq), &mut pair.rng).unwrap();
        let from = Pair::address(2);
        let again = node.ntrdma.connect(node.qp, from, to, &PARAMETERS, &[], now, &mut pair.rng);
        assert_eq!(again, Err(VerbsError::Unreachable));
        pair.nodes.iter_mut().for_each(|node| node.bridge.set_link(true));
        pair.bring_up();
        let node = &mut pair.nodes[0];
        node.ntrdma.destroy_qp(node.qp).unwrap();
        node.qp = node.ntrdma.create_qp(&Pair::init(node.pd, node.cq), &mut pair.rng).unwrap();
        connect(&mut pair);
        assert_nothing_left(&mut pair);
    }
}
