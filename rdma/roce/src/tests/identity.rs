//! Two stations with one IP address: the neighbour table decides which packets of theirs are accepted.

use super::claims::{
    HOST, OTHER, accept, brief, established, event, finish, message_from, next_request, pair,
    parse, req, sent_messages,
};
use super::transport::request;
use crate::testing::{Pair, frame};
use crate::wire::cm::{BriefKind, Message};
use crate::{Limits, TxBuffer};
use core::net::IpAddr;
use core::time::Duration;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionManager, PathMtu, Payload, Provider, QpState, SendOperation,
    SendWith,
};

/// A host that no test adds to its neighbour table.
const UNRESOLVED_HOST: u8 = 200;
const OTHER_MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];

fn ip(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

/// The same frame from another MAC address.
fn from(mac: [u8; 6], frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[6..12].copy_from_slice(&mac);
    frame
}

fn mac_of(frame: &[u8]) -> [u8; 6] {
    frame[6..12].try_into().unwrap()
}

/// The neighbour table of node 0 answers; waiting messages are handled.
fn resolve(pair: &mut Pair, host: u8, mac: [u8; 6], routed: bool) {
    let now = pair.network.now;
    let roce = &mut pair.nodes[0].roce;
    roce.learn_neighbour(0, ip(host), mac, routed);
    roce.handle_timeout(now);
}

fn wrong_peer(pair: &Pair) -> u64 {
    pair.nodes[0].roce.counters().dropped.wrong_peer
}

#[test]
fn request_waits_for_the_neighbour_table() {
    let mut pair = pair(Limits::default());
    let req_frame = req(UNRESOLVED_HOST, 7, |_| ());
    pair.deliver(0, &req_frame);
    assert!(event(&mut pair).is_none() && sent_messages(&mut pair).is_empty());
    assert_eq!(pair.nodes[0].roce.next_stranger(), Some((0, ip(UNRESOLVED_HOST))));
    assert_eq!(pair.nodes[0].roce.next_stranger(), None);
    resolve(&mut pair, UNRESOLVED_HOST, mac_of(&req_frame), false);
    let (id, parameters, host) = next_request(&mut pair).expect("the request");
    assert_eq!(host, UNRESOLVED_HOST);
    accept(&mut pair, id, &parameters);
}

#[test]
fn request_of_another_station_is_dropped_counted_and_reported_once_a_minute() {
    let mut pair = pair(Limits::default());
    let req_frame = req(UNRESOLVED_HOST, 7, |_| ());
    pair.deliver(0, &req_frame);
    resolve(&mut pair, UNRESOLVED_HOST, OTHER_MAC, false);
    assert!(event(&mut pair).is_none() && sent_messages(&mut pair).is_empty());
    assert_eq!(wrong_peer(&pair), 1);
    let refusal = pair.nodes[0].roce.refusals().pop().expect("reported");
    assert_eq!((refusal.who, refusal.reason), (Some(ip(UNRESOLVED_HOST)), "wrong_mac"));
    assert!(refusal.advice.contains("02:09:09:09:09:09"), "{}", refusal.advice);
    let [a, b, c, d, e, f] = mac_of(&req_frame);
    let own = std::format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    assert!(refusal.advice.contains(&own), "{}", refusal.advice);
    for _ in 0..5 {
        pair.deliver(0, &req_frame);
    }
    assert_eq!(wrong_peer(&pair), 6);
    let roce = &mut pair.nodes[0].roce;
    assert!(roce.refusals().pop().is_none());
    assert!(roce.refusals().take_more().eq([("rdma_connection", "wrong_mac", 5)]));
    // The station that the table has for the address is accepted.
    pair.deliver(0, &from(OTHER_MAC, &req_frame));
    assert!(next_request(&mut pair).is_some());
}

#[test]
fn answer_to_a_host_behind_a_router_goes_to_the_router() {
    let mut pair = pair(Limits::default());
    let req_frame = req(UNRESOLVED_HOST, 7, |_| ());
    pair.deliver(0, &req_frame);
    resolve(&mut pair, UNRESOLVED_HOST, OTHER_MAC, true);
    let (id, parameters, _) = next_request(&mut pair).expect("the request");
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    node.roce.accept(id, node.qp, &parameters, b"", now).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    assert_eq!(frame(&tx)[..6], OTHER_MAC);
}

#[test]
fn host_without_a_way_back_is_dropped() {
    let mut pair = pair(Limits::default());
    pair.deliver(0, &req(UNRESOLVED_HOST, 7, |_| ()));
    let now = pair.network.now;
    let roce = &mut pair.nodes[0].roce;
    roce.lose_neighbour(0, ip(UNRESOLVED_HOST), now);
    roce.learn_neighbour(0, ip(UNRESOLVED_HOST), OTHER_MAC, true);
    roce.handle_timeout(now);
    assert_eq!(roce.counters().dropped.no_way_back, 1);
    assert_eq!(roce.refusals().pop().map(|refusal| refusal.reason), Some("no_way_back"));
    assert!(event(&mut pair).is_none());
}

/// A REQ with the IDs of a host's connection: an attacker may forge it with the host's MAC address, too.
#[test]
fn request_in_the_name_of_a_connected_queue_pair_ends_it_only_when_it_is_completed() {
    let mut pair = pair(Limits::default());
    let (_, qp, _) = established(&mut pair, HOST, 7);
    // The same queue pair under another communication ID.
    let again = req(HOST, 7, |bytes| bytes[super::claims::DATA] = 1);
    pair.deliver(0, &from(OTHER_MAC, &again));
    assert!(event(&mut pair).is_none(), "another station");
    pair.deliver(0, &again);
    let (id, parameters, _) = next_request(&mut pair).expect("the request");
    let (new, wire_id) = accept(&mut pair, id, &parameters);
    let state = |pair: &Pair, qp| pair.nodes[0].roce.qp_state(qp);
    assert_eq!(state(&pair, qp), Ok(QpState::Rts));
    // The client does not complete it: the new connection times out, and the old one stays.
    for _ in 0..60 {
        pair.network.now = pair.network.now + Duration::from_secs(1);
        let now = pair.network.now;
        pair.nodes[0].roce.handle_timeout(now);
        sent_messages(&mut pair);
    }
    assert_eq!(state(&pair, new), Ok(QpState::Error));
    assert_eq!(state(&pair, qp), Ok(QpState::Rts));
    while event(&mut pair).is_some() {}
    let _ = wire_id;
    // The host completes it.
    let again = req(HOST, 7, |bytes| bytes[super::claims::DATA] = 2);
    pair.deliver(0, &again);
    let (id, parameters, _) = next_request(&mut pair).expect("the request");
    let (new, wire_id) = accept(&mut pair, id, &parameters);
    let name = u32::from_be_bytes([2, 0, 0, 7]);
    pair.deliver(0, &message_from(HOST, &brief(name, wire_id, BriefKind::Rtu)));
    let now = pair.network.now;
    pair.nodes[0].roce.handle_timeout(now);
    assert_eq!(state(&pair, new), Ok(QpState::Rts));
    assert_eq!(state(&pair, qp), Ok(QpState::Error));
    let events: Vec<_> = core::iter::from_fn(|| event(&mut pair)).collect();
    let over = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Disconnected { .. });
    assert_eq!(events.iter().filter(|event| over(event)).count(), 1, "{events:?}");
}

#[test]
fn message_about_a_connection_counts_only_from_its_station() {
    let mut pair = pair(Limits::default());
    let (_, qp, wire_id) = established(&mut pair, HOST, 7);
    let number = pair.nodes[0].roce.qp_number(qp).unwrap();
    let dreq = message_from(HOST, &brief(7, wire_id, BriefKind::Dreq { remote_qpn: number }));
    pair.deliver(0, &from(OTHER_MAC, &dreq));
    assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Rts));
    pair.deliver(0, &dreq);
    assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Error));
}

/// Posts a SEND at node 1; returns its packet.
fn sent(pair: &mut Pair) -> Vec<u8> {
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let send = SendOperation::Send { payload: Payload::Inline(b"hello"), with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(1, send)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    frame(&tx)
}

fn answer(pair: &mut Pair) -> Option<Vec<u8>> {
    let now = pair.network.now;
    let mut tx = TxBuffer::new();
    pair.nodes[0].roce.poll_transmit(0, now, &mut tx).then(|| frame(&tx))
}

fn connected(v6: bool) -> Pair {
    let mut pair = Pair::new(3, 1500, v6);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let node = &mut pair.nodes[0];
    for id in 0..4 {
        let into = node.arena.alloc(64, 64).unwrap();
        node.roce.post_recv(node.qp, &verbs::RecvRequest { id, into: &[into] }).unwrap();
    }
    pair
}

#[test]
fn packet_of_a_queue_pair_counts_only_from_its_peers_station() {
    for v6 in [false, true] {
        let mut pair = connected(v6);
        let (host, own) = (pair.nodes[1].ip, pair.nodes[1].mac);
        let packet = sent(&mut pair);
        pair.deliver(0, &from(OTHER_MAC, &packet));
        assert_eq!((wrong_peer(&pair), answer(&mut pair)), (1, None));
        assert!(pair.nodes[0].completions().is_empty());
        assert_eq!(pair.nodes[0].roce.next_stranger(), Some((0, host)));
        assert!(pair.nodes[0].roce.refusals().pop().is_none(), "the peer may have moved");
        // The table still has the old address.
        pair.nodes[0].roce.learn_neighbour(0, host, own, false);
        let refusal = pair.nodes[0].roce.refusals().pop().expect("reported");
        let label = (refusal.who, refusal.what, refusal.reason);
        assert_eq!(label, (Some(host), "rdma_packet", "wrong_mac"));
        assert!(refusal.advice.contains("02:09:09:09:09:09"), "{}", refusal.advice);
        // Another report follows after a minute.
        for (seconds, reports) in [(1, 0), (58, 0), (1, 1)] {
            pair.network.now = pair.network.now + Duration::from_secs(seconds);
            pair.deliver(0, &from(OTHER_MAC, &packet));
            let roce = &mut pair.nodes[0].roce;
            assert_eq!(roce.next_stranger(), Some((0, host)));
            roce.learn_neighbour(0, host, own, false);
            let refusals = core::iter::from_fn(|| roce.refusals().pop());
            assert_eq!(refusals.count(), reports, "{seconds}");
        }
        let more = pair.nodes[0].roce.refusals().take_more();
        assert!(more.eq([("rdma_packet", "wrong_mac", 2)]));
        assert_eq!(wrong_peer(&pair), 4);
        pair.deliver(0, &packet);
        assert_eq!(answer(&mut pair).unwrap()[..6], own);
        assert_eq!(pair.nodes[0].completions().len(), 1);
    }
}

#[test]
fn queue_pair_follows_its_peer_to_another_station() {
    for v6 in [false, true] {
        let mut pair = connected(v6);
        let (host, own) = (pair.nodes[1].ip, pair.nodes[1].mac);
        let packet = sent(&mut pair);
        pair.deliver(0, &from(OTHER_MAC, &packet));
        pair.nodes[0].roce.learn_neighbour(0, host, OTHER_MAC, false);
        assert!(pair.nodes[0].roce.refusals().pop().is_none());
        pair.deliver(0, &from(OTHER_MAC, &packet));
        assert_eq!(answer(&mut pair).unwrap()[..6], OTHER_MAC);
        assert_eq!(pair.nodes[0].completions().len(), 1);
        let next = sent(&mut pair);
        pair.deliver(0, &from(own, &next));
        assert_eq!(answer(&mut pair), None, "the old station is ignored");
    }
}

#[test]
fn peer_behind_routers_may_send_through_any() {
    for v6 in [false, true] {
        let mut pair = connected(v6);
        let (host, own) = (pair.nodes[1].ip, pair.nodes[1].mac);
        let first = sent(&mut pair);
        pair.deliver(0, &from(OTHER_MAC, &first));
        pair.nodes[0].roce.learn_neighbour(0, host, own, true);
        for mac in [OTHER_MAC, OTHER_MAC, own, [2, 8, 8, 8, 8, 8]] {
            let packet = if mac == OTHER_MAC { first.clone() } else { sent(&mut pair) };
            pair.deliver(0, &from(mac, &packet));
            assert_eq!(answer(&mut pair).unwrap()[..6], own);
        }
        assert_eq!((pair.nodes[0].completions().len(), wrong_peer(&pair)), (3, 1));
    }
}

/// A connection of the connection manager follows its peer, and so do its messages.
#[test]
fn connection_follows_its_peer_to_another_station() {
    let mut pair = pair(Limits::default());
    let (_, qp, wire_id) = established(&mut pair, HOST, 7);
    resolve(&mut pair, HOST, OTHER_MAC, false);
    let number = pair.nodes[0].roce.qp_number(qp).unwrap();
    let dreq = message_from(HOST, &brief(7, wire_id, BriefKind::Dreq { remote_qpn: number }));
    pair.deliver(0, &dreq);
    assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Rts), "from the old station");
    pair.deliver(0, &from(OTHER_MAC, &dreq));
    let now = pair.network.now;
    let mut tx = TxBuffer::new();
    assert!(pair.nodes[0].roce.poll_transmit(0, now, &mut tx));
    let drep = frame(&tx);
    assert_eq!(drep[..6], OTHER_MAC);
    assert!(matches!(parse(&drep), Message::Brief(b) if b.kind == BriefKind::Drep));
}

/// Addresses that no host may have: each would be compared as one host and be another.
#[test]
fn request_from_a_special_address_is_dropped() {
    let mut pair = pair(Limits::default());
    for first in [0u8, 127, 224, 255] {
        let mut bytes = req(OTHER, 7, |_| ());
        bytes[26] = first;
        pair.deliver(0, &finish(bytes));
        assert_eq!(pair.nodes[0].roce.next_stranger(), None, "{first}");
        assert!(event(&mut pair).is_none() && sent_messages(&mut pair).is_empty());
    }
    assert_eq!(wrong_peer(&pair), 4);
}
