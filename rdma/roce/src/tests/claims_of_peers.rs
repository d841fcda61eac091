//! Messages that other hosts send in the name of a connection's peer: answers to our own request, and all of it over
//! IPv6.

use super::claims::{
    DATA, HOST, OTHER, PARAMETERS, TRANSACTION, accept, brief, event, finish, message_from, pair,
    parse, refused, run_alone, sent_messages,
};
use crate::testing::{Pair, Rng, frame};
use crate::wire::cm::{About, BriefKind, Message, REP_PRIVATE_DATA, Rep};
use crate::wire::frame::Network;
use crate::wire::icrc::Icrc;
use crate::wire::mad;
use crate::{Limits, TxBuffer};
use core::time::Duration;
use std::vec::Vec;
use verbs::{ConnectionEvent, ConnectionManager, Provider, QpState, RejectReason};

/// Node 0 requests a connection from node 1; returns the frame of its request.
fn pending_request() -> (Pair, Vec<u8>) {
    let mut pair = pair(Limits::default());
    let ip = pair.nodes[1].ip;
    let node = &mut pair.nodes[0];
    let to = core::net::SocketAddr::new(ip, 1);
    let now = pair.network.now;
    node.roce.connect(node.qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    (pair, frame(&tx))
}

fn local_id_of(sent_req: &[u8]) -> u32 {
    let Message::Req(ours) = parse(sent_req) else { panic!("no REQ") };
    ours.local_id
}

/// An answer with the transaction ID of the request, from 10.0.0.`host`.
fn answer(host: u8, message: &Message, sent_req: &[u8]) -> Vec<u8> {
    let mut bytes = message_from(host, message);
    bytes[TRANSACTION..TRANSACTION + 8].copy_from_slice(&sent_req[TRANSACTION..TRANSACTION + 8]);
    finish(bytes)
}

/// An answer repeats the transaction ID of its request: no two requests of ours have the same.
#[test]
fn requests_have_distinct_transaction_ids() {
    let (mut pair, first) = pending_request();
    let to = core::net::SocketAddr::new(pair.nodes[1].ip, 1);
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    let qp = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut Rng::new(5)).unwrap();
    node.roce.connect(qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let second = frame(&tx);
    assert_ne!(first[TRANSACTION..TRANSACTION + 8], second[TRANSACTION..TRANSACTION + 8]);
    assert_ne!(local_id_of(&first), local_id_of(&second));
}

#[test]
fn rep_from_another_host_is_ignored() {
    let (mut pair, sent_req) = pending_request();
    let rep = Message::Rep(Rep {
        local_id: 9,
        remote_id: local_id_of(&sent_req),
        qpn: 77,
        starting_psn: 5,
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: 15,
        rnr_retry_count: 7,
        ca_guid: 1,
        private_data: [0; REP_PRIVATE_DATA],
    });
    pair.deliver(0, &answer(OTHER, &rep, &sent_req));
    assert_eq!(pair.nodes[0].roce.counters().dropped.wrong_peer, 1);
    assert!(event(&mut pair).is_none() && sent_messages(&mut pair).is_empty());
    assert_eq!(pair.nodes[0].roce.qp_state(pair.nodes[0].qp), Ok(QpState::Init));
    pair.deliver(0, &answer(HOST, &rep, &sent_req));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Established { .. })));
    assert_eq!(pair.nodes[0].roce.qp_state(pair.nodes[0].qp), Ok(QpState::Rts));
}

/// An MRA of another host is ignored: the request is retransmitted as without it.
#[test]
fn mra_from_another_host_is_ignored() {
    for (host, repeats) in [(OTHER, true), (HOST, false)] {
        let (mut pair, sent_req) = pending_request();
        let deadline = pair.nodes[0].roce.poll_timeout().expect("it waits for an answer");
        let mra = BriefKind::Mra { about: About::Req, service_timeout: 22 };
        let mra = brief(9, local_id_of(&sent_req), mra);
        pair.deliver(0, &answer(host, &mra, &sent_req));
        assert_eq!(pair.nodes[0].roce.counters().dropped.wrong_peer, u64::from(host == OTHER));
        pair.network.now = deadline;
        pair.nodes[0].roce.handle_timeout(deadline);
        let sent_messages = sent_messages(&mut pair);
        assert_eq!(
            matches!(sent_messages.as_slice(), [Message::Req(_)]),
            repeats,
            "{host}: {sent_messages:?}"
        );
        if !repeats {
            // In time, 16.4 s later than otherwise.
            let all = run_alone(&mut pair, Duration::from_secs(20));
            let first = all.first().map(|(at, message)| (at.as_millis(), message));
            assert!(matches!(first, Some((16_384, Message::Req(_)))), "{all:?}");
        }
    }
}

/// Over IPv6: the GID and the private data of a request, and the senders of messages about its connection.
#[test]
fn ipv6_request_with_an_address_other_than_its_frames_is_refused() {
    // Offsets behind a header that is 20 bytes longer: the last bytes of the frame's source, the GID and the address.
    const DATA6: usize = DATA + 20;
    const SOURCE: usize = 14 + 8 + 15;
    const PLACES: [(&str, usize); 3] =
        [("the frame", SOURCE), ("the GID", DATA6 + 71), ("the address", DATA6 + 140 + 19)];
    let mut pair = Pair::with_limits(1, 1500, true, Limits::default());
    pair.nodes[0].roce.listen(1234).unwrap();
    for host in [OTHER, HOST ^ 0x40] {
        let mac = pair.nodes[1].mac;
        let ip = core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into());
        pair.nodes[0].roce.pin_neighbour(0, ip.into(), mac);
    }
    let ip = pair.nodes[0].ip;
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let to = core::net::SocketAddr::new(ip, 1234);
    node.roce.connect(node.qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let good = frame(&tx);
    let Message::Req(req) = parse(&good) else { panic!("no REQ") };
    let sealed = |mut bytes: Vec<u8>| {
        // Without a UDP checksum.
        bytes[14 + 40 + 6..14 + 40 + 8].fill(0);
        let end = bytes.len() - 4;
        let icrc = Icrc::new().compute(Network::Ipv6, &bytes[14..end], &[], 0);
        bytes[end..].copy_from_slice(&icrc);
        bytes
    };
    // One or two of the three addresses differ.
    for lie in 1..7 {
        let mut bytes = good.clone();
        for (n, (_, at)) in PLACES.iter().enumerate() {
            bytes[*at] ^= if lie >> n & 1 == 1 { 0x40 } else { 0 };
        }
        pair.deliver(0, &sealed(bytes));
        assert_eq!(
            refused(&mut pair),
            Some(RejectReason::INVALID_GID),
            "{PLACES:?}, lie {lie:03b}"
        );
        assert!(event(&mut pair).is_none());
        assert_eq!(pair.nodes[0].roce.refusals().pop().unwrap().reason, "wrong_address");
    }
    pair.deliver(0, &sealed(good.clone()));
    let Some(ConnectionEvent::Request { connection, parameters, from, .. }) = event(&mut pair)
    else {
        panic!("no request");
    };
    assert_eq!(from.ip(), pair.nodes[1].ip);
    let (qp, wire_id) = accept(&mut pair, connection, &parameters);
    let message_by = |host: u8, message: &Message| {
        let mut bytes = good.clone();
        bytes[SOURCE] = host;
        let mut data = [0; mad::DATA_LEN];
        let attribute = message.emit(&mut data);
        bytes[DATA6 - 8..DATA6 - 6].copy_from_slice(&attribute.to_be_bytes());
        bytes[DATA6..DATA6 + mad::DATA_LEN].copy_from_slice(&data);
        sealed(bytes)
    };
    let remote_qpn = pair.nodes[0].roce.qp_number(qp).unwrap();
    let rtu = brief(req.local_id, wire_id, BriefKind::Rtu);
    let dreq = brief(req.local_id, wire_id, BriefKind::Dreq { remote_qpn });
    for (n, message) in [rtu, dreq].iter().enumerate() {
        pair.deliver(0, &message_by(OTHER, message));
        assert_eq!(pair.nodes[0].roce.counters().dropped.wrong_peer, n as u64 + 1);
        assert!(event(&mut pair).is_none(), "{message}");
        assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Rts), "{message}");
    }
    pair.deliver(0, &message_by(HOST, &rtu));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Established { .. })));
    pair.deliver(0, &message_by(HOST, &dreq));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Disconnected { .. })));
}
