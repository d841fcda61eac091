//! The connection manager: against itself over a lossy wire, and against captured messages of Linux.

use super::arbitrary::seal;
use super::transport::request;
use crate::testing::{Faults, Pair, Rng, contents, disconnect, frame, session};
use crate::wire::cm::{Brief, BriefKind, Message};
use crate::wire::frame::Frame;
use crate::wire::mad::{self, Mad};
use crate::{Limits, TxBuffer};
use core::time::Duration;
use proptest::prelude::*;
use std::net::SocketAddr;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, PathMtu, Payload,
    Provider, QpState, RecvRequest, RejectReason, SendOperation, SendWith, VerbsError,
};

pub(super) const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 2,
    initiator_depth: 3,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

pub(super) fn pair(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, 1500, seed % 2 == 1);
    pair.nodes[0].roce.listen(1234).unwrap();
    pair
}

/// Node 1 requests a connection from node 0.
pub(super) fn request_connection(pair: &mut Pair, port: u16, data: &[u8]) -> ConnectionId {
    let to = SocketAddr::new(pair.nodes[0].ip, port);
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    node.roce.connect(node.qp, node.ip, to, &PARAMETERS, data, now, &mut Rng::new(4)).unwrap()
}

/// Runs until node `n` has an event, and returns it.
pub(super) fn event(pair: &mut Pair, n: usize) -> Option<ConnectionEvent> {
    let mut found = None;
    pair.run(Duration::from_secs(200), |pair| {
        found = pair.nodes[n].roce.poll_connection_event();
        found.is_some()
    });
    found
}

/// Connects; returns the handles of the connection at both ends.
pub(super) fn connect(pair: &mut Pair) -> [ConnectionId; 2] {
    let requested = request_connection(pair, 1234, b"please");
    let Some(ConnectionEvent::Request { connection, from, parameters, private_data, .. }) =
        event(pair, 0)
    else {
        panic!("no request");
    };
    assert_eq!(from.ip(), pair.nodes[1].ip);
    assert!(from.port() > 0xc000, "{from}: the port must be ephemeral");
    assert_eq!(&private_data.as_slice()[..7], b"please\0");
    assert_eq!((parameters.responder_resources, parameters.initiator_depth), (3, 2));
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    node.roce.accept(connection, node.qp, &parameters, b"with pleasure", now).unwrap();
    let Some(ConnectionEvent::Established { connection: id, private_data }) = event(pair, 1) else {
        panic!("not accepted");
    };
    assert_eq!((id, &private_data.as_slice()[..14]), (requested, &b"with pleasure\0"[..]));
    assert!(matches!(event(pair, 0), Some(ConnectionEvent::Established { .. })));
    [connection, requested]
}

/// One SEND from node 1 to node 0.
fn exchange(pair: &mut Pair) {
    let [a, b] = &mut pair.nodes;
    let into = a.arena.alloc(64, 64).unwrap();
    a.roce.post_recv(a.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    let payload = Payload::Inline(b"hello");
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    b.roce.post_send(b.qp, &request(2, send)).unwrap();
    assert!(pair.run(Duration::from_secs(30), |pair| !pair.nodes[1].completions().is_empty()));
    assert_eq!(&contents(&into)[..5], b"hello");
}

#[test]
fn connect_use_disconnect() {
    let mut pair = pair(0);
    let [_, requested] = connect(&mut pair);
    exchange(&mut pair);
    let now = pair.network.now;
    pair.nodes[1].roce.disconnect(requested, now).unwrap();
    for n in 0..2 {
        assert!(matches!(event(&mut pair, n), Some(ConnectionEvent::Disconnected { .. })));
        let node = &pair.nodes[n];
        assert_eq!(node.roce.qp_state(node.qp), Ok(QpState::Error));
    }
    assert!(!pair.run(Duration::from_secs(10), |_| false), "the network must become idle");
    assert_eq!(pair.nodes.each_ref().map(|n| n.roce.connections()), [0, 0]);
}

#[test]
fn connections_survive_a_faulty_wire() {
    for seed in 0..30 {
        let mut pair = pair(seed);
        pair.network.set_faults(Faults {
            loss: 250,
            duplication: 100,
            reordering: 100,
            corruption: 50,
        });
        let [accepted, _] = connect(&mut pair);
        exchange(&mut pair);
        let now = pair.network.now;
        pair.nodes[0].roce.disconnect(accepted, now).unwrap();
        for n in 0..2 {
            let over = event(&mut pair, n);
            assert!(matches!(over, Some(ConnectionEvent::Disconnected { .. })), "seed {seed}");
        }
        pair.run(Duration::from_secs(200), |_| false);
        assert_eq!(pair.nodes.each_ref().map(|n| n.roce.connections()), [0, 0], "seed {seed}");
    }
}

#[test]
fn rejections_carry_their_reason() {
    let mut pair = pair(0);
    let requested = request_connection(&mut pair, 99, b"");
    let Some(ConnectionEvent::Rejected { connection, reason, .. }) = event(&mut pair, 1) else {
        panic!("not refused");
    };
    assert_eq!((connection, reason), (requested, RejectReason::INVALID_SERVICE_ID));

    request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Request { connection, .. }) = event(&mut pair, 0) else {
        panic!("no request");
    };
    pair.nodes[0].roce.reject(connection, RejectReason::CONSUMER, b"go away").unwrap();
    let Some(ConnectionEvent::Rejected { reason, private_data, .. }) = event(&mut pair, 1) else {
        panic!("not refused");
    };
    assert_eq!(reason, RejectReason::CONSUMER);
    assert_eq!(&private_data.as_slice()[..7], b"go away");
    assert_eq!(pair.nodes.each_ref().map(|n| n.roce.connections()), [0, 0]);
}

#[test]
fn unanswered_request_times_out() {
    let mut pair = pair(0);
    pair.network.mute(0, true);
    let start = pair.network.now;
    request_connection(&mut pair, 1234, b"");
    let gone = event(&mut pair, 1);
    assert!(matches!(gone, Some(ConnectionEvent::Rejected { reason: RejectReason::TIMEOUT, .. })));
    // Sixteen REQs, 4.608 s apart.
    assert_eq!(pair.network.now.since(start).as_millis(), 16 * 4608);
    let nobody = pair.nodes[0].ip;
    let far = SocketAddr::new("10.9.9.9".parse().unwrap(), 1);
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    assert_ne!(nobody, far.ip());
    let refused = node.roce.connect(node.qp, node.ip, far, &PARAMETERS, b"", now, &mut Rng::new(1));
    assert_eq!(refused, Err(VerbsError::Unreachable));
}

#[test]
fn dead_peer_is_disconnected() {
    let mut pair = pair(0);
    connect(&mut pair);
    pair.network.mute(0, true);
    let node = &mut pair.nodes[1];
    let payload = Payload::Inline(b"hello?");
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(2, send)).unwrap();
    let over = event(&mut pair, 1);
    assert!(matches!(over, Some(ConnectionEvent::Disconnected { .. })));
    let qp = pair.nodes[1].qp;
    pair.nodes[1].roce.destroy_qp(qp).unwrap();
    pair.run(Duration::from_secs(200), |_| false);
    assert_eq!(pair.nodes[1].roce.connections(), 0);
}

/// Frames of Linux's REQ, RTU and DREQ, with our IDs, are answered as Linux's server did.
#[test]
fn linux_is_served() {
    let frames = session();
    let mut pair = Pair::new(1, 1500, false);
    pair.nodes[0].roce.listen(1234).unwrap();
    pair.deliver(0, &frames[0]);
    let node = &mut pair.nodes[0];
    let Some(ConnectionEvent::Request {
        connection,
        port: 1234,
        from,
        path_mtu: PathMtu::Mtu1024,
        parameters,
        private_data,
        ..
    }) = node.roce.poll_connection_event()
    else {
        panic!("no request");
    };
    assert_eq!(from, "10.0.0.2:33199".parse().unwrap());
    assert_eq!((parameters.retry_count, parameters.rnr_retry_count), (7, 7));
    assert_eq!(private_data.as_slice().len(), 56);
    assert_eq!(private_data.as_slice()[..6], [0, 0, 0xbd, 0x1b, 0, 2]);
    let Message::Rep(linux) = message(&frames[1]) else { panic!("not a REP") };
    let now = pair.network.now;
    node.roce.accept(connection, node.qp, &parameters, &linux.private_data, now).unwrap();
    assert_eq!(node.roce.qp_state(node.qp), Ok(QpState::Rts));
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let reply = frame(&tx);
    let Message::Rep(ours) = message(&reply) else { panic!("not a REP") };
    assert_eq!(reply.len(), frames[1].len());
    let (local_id, qpn) = (ours.local_id, ours.qpn);
    assert_eq!(node.roce.qp_number(node.qp), Ok(qpn));
    let known = |rep: &crate::wire::cm::Rep| crate::wire::cm::Rep {
        local_id: 0,
        qpn: 0,
        starting_psn: 0,
        ..*rep
    };
    assert_eq!(known(&ours), known(&linux));

    // A repeated REQ is answered with the same REP.
    pair.deliver(0, &frames[0]);
    let node = &mut pair.nodes[0];
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    assert_eq!(message(&frame(&tx)), Message::Rep(ours));

    let with_our_id = |original: &[u8], qpn: Option<u32>| {
        let mut bytes = original.to_vec();
        let data = 42 + 12 + 8 + mad::HEADER_LEN;
        bytes[data + 4..data + 8].copy_from_slice(&local_id.to_be_bytes());
        if let Some(qpn) = qpn {
            bytes[data + 8..data + 11].copy_from_slice(&qpn.to_be_bytes()[1..]);
        }
        seal(&mut bytes);
        bytes
    };
    pair.deliver(0, &with_our_id(&frames[2], None));
    let established = pair.nodes[0].roce.poll_connection_event();
    assert!(matches!(established, Some(ConnectionEvent::Established { .. })));

    let end = &disconnect()[1..];
    let dreq = end
        .iter()
        .find(|bytes| {
            bytes[26..30] == [10, 0, 0, 2]
                && matches!(
                    message(bytes),
                    Message::Brief(Brief { kind: BriefKind::Dreq { .. }, .. })
                )
        })
        .unwrap();
    // The DREQ of that capture is from another connection, with another local ID.
    let mut dreq = with_our_id(dreq, Some(qpn));
    let data = 42 + 12 + 8 + mad::HEADER_LEN;
    dreq[data..data + 4].copy_from_slice(&linux.remote_id.to_be_bytes());
    seal(&mut dreq);
    pair.deliver(0, &dreq);
    let node = &mut pair.nodes[0];
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let drep = Brief { local_id, remote_id: linux.remote_id, kind: BriefKind::Drep };
    assert_eq!(message(&frame(&tx)), Message::Brief(drep));
    let over = node.roce.poll_connection_event();
    assert!(matches!(over, Some(ConnectionEvent::Disconnected { .. })));
    assert_eq!(node.roce.qp_state(node.qp), Ok(QpState::Error));
    // A DREQ for an unknown connection is answered, too.
    pair.deliver(0, &end[0]);
    assert!(pair.nodes[0].roce.poll_transmit(0, now, &mut tx));
    let unknown = message(&frame(&tx));
    assert!(matches!(unknown, Message::Brief(Brief { kind: BriefKind::Drep, .. })));
}

fn message(frame: &[u8]) -> Message {
    let parsed = Frame::parse(frame).unwrap();
    let (header, data) = Mad::parse(&parsed.transport()[20..]).unwrap();
    Message::parse(header.attribute, &data).unwrap()
}

/// Data that overtakes the RTU establishes the connection like the RTU.
#[test]
fn data_before_the_rtu_establishes_the_connection() {
    let mut pair = pair(0);
    request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Request { connection, parameters, .. }) = event(&mut pair, 0) else {
        panic!("no request");
    };
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    let into = node.arena.alloc(64, 64).unwrap();
    node.roce.post_recv(node.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    node.roce.accept(connection, node.qp, &parameters, b"", now).unwrap();
    assert!(matches!(event(&mut pair, 1), Some(ConnectionEvent::Established { .. })));
    let mut tx = TxBuffer::new();
    let node = &mut pair.nodes[1];
    assert!(node.roce.poll_transmit(0, now, &mut tx), "the RTU, which is lost");
    let payload = Payload::Inline(b"early");
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(2, send)).unwrap();
    assert!(matches!(event(&mut pair, 0), Some(ConnectionEvent::Established { .. })));
    assert_eq!(pair.nodes[0].completions().len(), 1);
}

#[test]
fn half_open_connections_are_bounded() {
    let limits = Limits { half_open: 16, connections: 64, ..Limits::default() };
    let mut pair = Pair::with_limits(1, 1500, false, limits);
    pair.nodes[0].roce.listen(1234).unwrap();
    let original = &session()[0];
    let mut tx = TxBuffer::new();
    let mut refused = 0;
    let mut reported = 0;
    for n in 0..10_000u32 {
        let mut req = original.clone();
        req[86..90].copy_from_slice(&(n + 1).to_be_bytes());
        req[118..121].copy_from_slice(&(n + 2).to_be_bytes()[1..]);
        seal(&mut req);
        pair.deliver(0, &req);
        while pair.nodes[0].roce.poll_transmit(0, pair.network.now, &mut tx) {
            let Message::Rej(rej) = message(&frame(&tx)) else { panic!("not refused") };
            assert_eq!(RejectReason(rej.reason), RejectReason::NO_RESOURCES);
            refused += 1;
        }
        if n % 7 == 0 && pair.nodes[0].roce.poll_connection_event().is_some() {
            reported += 1;
        }
        // One host has at most half of them.
        assert!(pair.nodes[0].roce.connections() <= 8);
    }
    assert_eq!(refused, 10_000 - 8);
    assert!(reported > 100);
}

#[test]
fn thousand_connections_leave_no_state() {
    let mut pair = pair(2);
    let mut rng = Rng::new(5);
    for n in 0..1000 {
        let [_, requested] = connect(&mut pair);
        let now = pair.network.now;
        pair.nodes[1].roce.disconnect(requested, now).unwrap();
        for node in 0..2 {
            let over = event(&mut pair, node);
            assert!(matches!(over, Some(ConnectionEvent::Disconnected { .. })), "{n}");
            let node = &mut pair.nodes[node];
            node.roce.destroy_qp(node.qp).unwrap();
            node.qp = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut rng).unwrap();
        }
        if n % 10 == 0 {
            pair.run(Duration::from_secs(5), |_| false);
            assert_eq!(pair.nodes.each_ref().map(|n| n.roce.connections()), [0, 0]);
        }
    }
    assert_eq!(pair.nodes[0].roce.queue_pairs(), 1);
}

proptest! {
    /// Messages of Linux with changed bytes: no panic, and no growth.
    #[test]
    fn mutated_messages_do_not_panic(
        which in prop_oneof![0..6usize],
        changes in proptest::collection::vec((0..256usize, any::<u8>()), 0..12),
        accept in any::<bool>(),
    ) {
        let mut pair = Pair::new(1, 1500, false);
        pair.nodes[0].roce.listen(1234).unwrap();
        let mut frames = std::vec![session()[0].clone(), session()[which].clone()];
        frames.extend(disconnect().split_off(1));
        for (n, bytes) in frames.iter_mut().enumerate() {
            if n > 0 {
                for &(at, value) in &changes {
                    bytes[42 + 20 + at] = value;
                }
                let ours = pair.nodes[0].mac;
                let theirs = pair.nodes[1].mac;
                // All frames go from node 1 to node 0.
                bytes[0..6].copy_from_slice(&ours);
                bytes[6..12].copy_from_slice(&theirs);
                bytes[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
                seal(bytes);
            }
            pair.deliver(0, bytes);
            while let Some(event) = pair.nodes[0].roce.poll_connection_event() {
                if let ConnectionEvent::Request { connection, parameters, .. } = event
                    && accept
                {
                    let now = pair.network.now;
                    let node = &mut pair.nodes[0];
                    let _ = node.roce.accept(connection, node.qp, &parameters, b"yes", now);
                }
            }
            pair.step();
        }
        pair.run(Duration::from_secs(400), |_| false);
        let states: Vec<usize> = pair.nodes.iter().map(|n| n.roce.connections()).collect();
        prop_assert!(states[0] <= 3 && states[1] == 0);
    }
}
