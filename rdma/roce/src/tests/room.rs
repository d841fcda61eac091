//! Room for connections: the limit of a host, and eviction when the table is full.

use super::claims::{
    DATA, HOST, OTHER, accept, brief, established, event, long_timeouts, message_from,
    next_request, pair, refused, req, sent_messages,
};
use crate::Limits;
use crate::testing::{Pair, Rng};
use crate::wire::cm::BriefKind;
use std::vec::Vec;
use verbs::{ConnectionEvent, ConnectionManager, Provider, QpState, RejectReason};

#[test]
fn one_host_cannot_exhaust_the_connections() {
    let limits =
        Limits { connections: 16, connections_per_host: 6, half_open: 16, ..Limits::default() };
    let mut pair = pair(limits);
    let all: Vec<_> = (0..6).map(|n| established(&mut pair, HOST, 10 + n)).collect();
    // The host is at its limit; established connections stay.
    pair.deliver(0, &req(HOST, 30, |_| ()));
    assert_eq!(refused(&mut pair), Some(RejectReason::NO_RESOURCES));
    assert_eq!(pair.nodes[0].roce.counters().refused_of_host, 1);
    let refusal = pair.nodes[0].roce.refusals().pop().unwrap();
    assert_eq!((refusal.what, refusal.reason), ("rdma_connection", "connections_per_host"));
    // Other hosts can connect.
    for n in 0..6 {
        established(&mut pair, OTHER, 10 + n);
    }
    // Ending a connection makes room at once, though the peer has not confirmed it.
    let now = pair.network.now;
    pair.nodes[0].roce.disconnect(all[0].0, now).unwrap();
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Disconnected { .. })));
    pair.deliver(0, &req(HOST, 30, |_| ()));
    assert!(next_request(&mut pair).is_some());
    for (_, qp, _) in &all[1..] {
        assert_eq!(pair.nodes[0].roce.qp_state(*qp), Ok(QpState::Rts));
    }
}

/// Half of the table is for other hosts, however high the limit of a host is.
#[test]
fn one_host_has_half_of_the_table_at_most() {
    let mut pair = pair(Limits { connections: 8, connections_per_host: 100, ..Limits::default() });
    for n in 0..4 {
        established(&mut pair, HOST, 10 + n);
    }
    pair.deliver(0, &req(HOST, 30, |_| ()));
    assert_eq!(refused(&mut pair), Some(RejectReason::NO_RESOURCES));
    for n in 0..4 {
        established(&mut pair, OTHER, 10 + n);
    }
}

/// Requests of many addresses that never answer, with the longest timeouts.
#[test]
fn unanswered_connections_are_evicted() {
    let limits =
        Limits { connections: 32, connections_per_host: 16, half_open: 32, ..Limits::default() };
    let mut pair = pair(limits);
    let (_, standing, _) = established(&mut pair, HOST, 1);
    for n in 0..200u32 {
        let host = 10 + (n % 200) as u8;
        pair.deliver(0, &req(host, n, long_timeouts));
        while let Some(event) = event(&mut pair) {
            match event {
                ConnectionEvent::Request { connection, parameters, .. } if n % 2 == 0 => {
                    let now = pair.network.now;
                    let node = &mut pair.nodes[0];
                    let init = Pair::init(node.pd, node.cq);
                    let qp = node.roce.create_qp(&init, &mut Rng::new(n.into())).unwrap();
                    let _ = node.roce.accept(connection, qp, &parameters, b"", now);
                }
                ConnectionEvent::Request { .. } | ConnectionEvent::Disconnected { .. } => (),
                other => panic!("{other:?}"),
            }
        }
        let _ = sent_messages(&mut pair);
        assert!(pair.nodes[0].roce.connections() <= 32);
    }
    // A client that answers can connect, whatever is evicted for it, and the earlier connection stays.
    pair.deliver(0, &req(OTHER, 2, |_| ()));
    let request = core::iter::from_fn(|| event(&mut pair)).find_map(|event| match event {
        ConnectionEvent::Request { connection, parameters, .. } => Some((connection, parameters)),
        _ => None,
    });
    let (id, parameters) = request.expect("a request");
    let (_, wire_id) = accept(&mut pair, id, &parameters);
    pair.deliver(0, &message_from(OTHER, &brief(2, wire_id, BriefKind::Rtu)));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Established { .. })));
    assert_eq!(pair.nodes[0].roce.qp_state(standing), Ok(QpState::Rts));
    assert!(pair.nodes[0].roce.counters().gave_way > 100);
}

/// An established connection no longer counts as half open, for its host or in total.
#[test]
fn established_connections_do_not_count_as_half_open() {
    let mut pair = pair(Limits { half_open: 4, ..Limits::default() });
    for host in [HOST, OTHER] {
        for n in 0..4 {
            established(&mut pair, host, 10 + n);
        }
    }
    for (host, n) in [(HOST, 30), (HOST, 31), (OTHER, 30), (OTHER, 31)] {
        netsim::label!(host, n);
        pair.deliver(0, &req(host, n, |_| ()));
        assert_eq!(next_request(&mut pair).map(|(.., from)| from), Some(host));
    }
    let counts = |pair: &Pair| {
        let roce = &pair.nodes[0].roce;
        (roce.connections(), roce.counters().gave_way)
    };
    assert_eq!(counts(&pair), (12, 0));
    pair.deliver(0, &req(HOST, 32, |_| ()));
    assert_eq!(counts(&pair), (12, 1), "the oldest of the same host");
}

/// Evicting an accepted connection also fails its queue pair.
#[test]
fn evicted_connection_fails_its_queue_pair() {
    let limits =
        Limits { connections: 4, connections_per_host: 2, half_open: 2, ..Limits::default() };
    let mut pair = pair(limits);
    pair.deliver(0, &req(HOST, 1, |_| ()));
    let (id, parameters, _) = next_request(&mut pair).unwrap();
    let (qp, _) = accept(&mut pair, id, &parameters);
    for host in 10..14 {
        pair.deliver(0, &req(host, 1, |_| ()));
        let requests = core::iter::from_fn(|| event(&mut pair)).filter_map(|event| match event {
            ConnectionEvent::Request { connection, parameters, .. } => {
                Some((connection, parameters))
            }
            _ => None,
        });
        let (id, parameters) = requests.last().expect("a request");
        accept(&mut pair, id, &parameters);
    }
    assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Error));
    // The limit of half-open connections holds for all hosts together.
    assert_eq!(pair.nodes[0].roce.connections(), 2);
}

/// A message from an address that we no longer have is dropped.
#[test]
fn message_from_a_removed_address_is_dropped() {
    let mut pair = pair(Limits::default());
    for n in 0..3 {
        pair.deliver(0, &req(HOST, n + 1, |bytes| bytes[DATA + 15] ^= 1));
    }
    assert!(pair.nodes[0].roce.cm.has_messages());
    pair.nodes[0].roce.set_addresses(0, ["10.0.0.9".parse().unwrap()].into());
    assert!(sent_messages(&mut pair).is_empty());
    assert!(!pair.nodes[0].roce.cm.has_messages());
    pair.nodes[0].roce.set_addresses(0, ["10.0.0.1".parse().unwrap()].into());
    assert!(sent_messages(&mut pair).is_empty(), "the message must not be kept");
}

/// Endless requests queue a limited number of messages and events.
#[test]
fn queued_messages_and_events_are_bounded() {
    let mut pair = pair(Limits { connections: 8, half_open: 4, ..Limits::default() });
    for n in 0..1000 {
        pair.deliver(0, &req(HOST, n + 1, |bytes| bytes[DATA + 15] ^= 1));
    }
    assert_eq!(sent_messages(&mut pair).len(), 128, "refusals");
    for _ in 0..1000 {
        pair.deliver(0, &req(HOST, 1, |_| ()));
    }
    assert_eq!(sent_messages(&mut pair).len(), 256, "answers to a repeated request");
    while pair.nodes[0].roce.refusals().pop().is_some() {}
    // The user does not take the events.
    for n in 0..1000u32 {
        pair.deliver(0, &req(10 + (n % 200) as u8, 1000 + n, |_| ()));
        let _ = sent_messages(&mut pair);
    }
    assert_eq!(
        pair.nodes[0].roce.refusals().pop().map(|refusal| refusal.reason),
        Some("connections")
    );
}
