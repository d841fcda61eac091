//! Claims of peers in messages to the connection manager: addresses, timeouts, and unlimited numbers of requests.

use super::arbitrary::seal;
use super::transport::request;
use crate::testing::{Pair, Rng, frame, session};
use crate::wire::bth;
use crate::wire::cm::{About, Brief, BriefKind, Message, REJ_PRIVATE_DATA, Rej};
use crate::wire::frame::Frame;
use crate::wire::mad::{self, Mad};
use crate::{Limits, PortConfig, TxBuffer};
use core::time::Duration;
use drivers::hal::Instant;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Payload, Provider,
    QpId, QpState, RejectReason, SendOperation, SendWith, VerbsError,
};

/// Offset of the data of a MAD in a frame over IPv4.
pub(super) const DATA: usize = 42 + bth::LEN + 8 + mad::HEADER_LEN;
/// Offset of the private data of a REQ.
const PRIVATE: usize = DATA + 140;

/// Offset of the transaction ID of a MAD.
pub(super) const TRANSACTION: usize = DATA - mad::HEADER_LEN + 8;

pub(super) const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 0,
    initiator_depth: 0,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

/// The host of the captured REQ, and another host.
pub(super) const HOST: u8 = 2;
pub(super) const OTHER: u8 = 3;

/// Linux's REQ for port 1234 from 10.0.0.`host`, with `n` as connection and queue pair number; `change` forges it.
pub(super) fn req(host: u8, n: u32, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = session()[0].clone();
    for at in [29, DATA + 71, PRIVATE + 19] {
        bytes[at] = host;
    }
    bytes[DATA..DATA + 4].copy_from_slice(&n.to_be_bytes());
    bytes[DATA + 32..DATA + 35].copy_from_slice(&n.to_be_bytes()[1..]);
    change(&mut bytes);
    finish(bytes)
}

/// Sets checksums and ICRC.
pub(super) fn finish(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[24..26].fill(0);
    let mut sum: u32 =
        bytes[14..34].chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
    seal(&mut bytes);
    bytes
}

/// Any message from 10.0.0.`host`.
pub(super) fn message_from(host: u8, message: &Message) -> Vec<u8> {
    let mut bytes = session()[0].clone();
    bytes[29] = host;
    let mut data = [0; mad::DATA_LEN];
    let attribute = message.emit(&mut data);
    bytes[DATA - 8..DATA - 6].copy_from_slice(&attribute.to_be_bytes());
    bytes[DATA..DATA + mad::DATA_LEN].copy_from_slice(&data);
    finish(bytes)
}

pub(super) fn parse(frame: &[u8]) -> Message {
    let parsed = Frame::parse(frame).unwrap();
    let (header, data) = Mad::parse(&parsed.transport()[20..]).unwrap();
    Message::parse(header.attribute, &data).unwrap()
}

pub(super) fn pair(limits: Limits) -> Pair {
    let mut pair = Pair::with_limits(1, 1500, false, limits);
    pair.nodes[0].roce.listen(1234).unwrap();
    let mac = session()[0][6..12].try_into().unwrap();
    for host in 2..200 {
        pair.nodes[0].roce.pin_neighbour(0, [10, 0, 0, host].into(), mac);
    }
    pair
}

/// Takes all messages that node 0 sends now.
pub(super) fn sent_messages(pair: &mut Pair) -> Vec<Message> {
    let now = pair.network.now;
    let mut tx = TxBuffer::new();
    let mut all = Vec::new();
    while pair.nodes[0].roce.poll_transmit(0, now, &mut tx) {
        all.push(parse(&frame(&tx)));
    }
    all
}

/// The reason if node 0 sends exactly one message, a REJ.
pub(super) fn refused(pair: &mut Pair) -> Option<RejectReason> {
    match sent_messages(pair).as_slice() {
        [Message::Rej(rej)] => Some(RejectReason(rej.reason)),
        _ => None,
    }
}

pub(super) fn event(pair: &mut Pair) -> Option<ConnectionEvent> {
    pair.nodes[0].roce.poll_connection_event()
}

/// The next request, if any, with the last byte of its sender's address.
pub(super) fn next_request(pair: &mut Pair) -> Option<(ConnectionId, ConnectionParameters, u8)> {
    match event(pair)? {
        ConnectionEvent::Request { connection, parameters, from, .. } => match from.ip() {
            core::net::IpAddr::V4(ip) => Some((connection, parameters, ip.octets()[3])),
            core::net::IpAddr::V6(_) => None,
        },
        other => panic!("{other:?}"),
    }
}

/// Accepts a request; returns the queue pair and our local communication ID.
pub(super) fn accept(
    pair: &mut Pair,
    id: ConnectionId,
    parameters: &ConnectionParameters,
) -> (QpId, u32) {
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    let qp = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut Rng::new(5)).unwrap();
    node.roce.accept(id, qp, parameters, b"", now).unwrap();
    let sent_messages = sent_messages(pair);
    let Some(Message::Rep(rep)) = sent_messages.last() else {
        panic!("no REP in {sent_messages:?}")
    };
    (qp, rep.local_id)
}

/// Establishes a connection of a host, up to its RTU.
pub(super) fn established(pair: &mut Pair, host: u8, n: u32) -> (ConnectionId, QpId, u32) {
    pair.deliver(0, &req(host, n, |_| ()));
    let (id, parameters, from) = next_request(pair).expect("a request");
    assert_eq!(from, host);
    let (qp, wire_id) = accept(pair, id, &parameters);
    pair.deliver(0, &message_from(host, &brief(n, wire_id, BriefKind::Rtu)));
    assert!(matches!(event(pair), Some(ConnectionEvent::Established { .. })));
    (id, qp, wire_id)
}

pub(super) fn brief(local_id: u32, remote_id: u32, kind: BriefKind) -> Message {
    Message::Brief(Brief { local_id, remote_id, kind })
}

#[test]
fn request_with_an_address_other_than_its_frames_is_refused() {
    let mut pair = pair(Limits::default());
    // A host with another address in its private data.
    pair.deliver(0, &req(HOST, 7, |bytes| bytes[PRIVATE + 19] = 77));
    assert_eq!(refused(&mut pair), Some(RejectReason::INVALID_GID));
    // Another address in its GID.
    pair.deliver(0, &req(HOST, 7, |bytes| bytes[DATA + 71] = 77));
    assert_eq!(refused(&mut pair), Some(RejectReason::INVALID_GID));
    assert!(event(&mut pair).is_none());
    assert!(pair.nodes[0].roce.cm.has_refused());
    let refusal = pair.nodes[0].roce.refusals().pop().unwrap();
    while pair.nodes[0].roce.refusals().pop().is_some() {}
    assert!(!pair.nodes[0].roce.cm.has_refused());
    assert_eq!((refusal.reason, refusal.who), ("wrong_address", Some("10.0.0.2".parse().unwrap())));
    // Our own address as source.
    pair.deliver(0, &req(1, 7, |_| ()));
    assert!(sent_messages(&mut pair).is_empty() && event(&mut pair).is_none());
    pair.deliver(0, &req(HOST, 7, |_| ()));
    assert_eq!(next_request(&mut pair).unwrap().2, HOST);
}

#[test]
fn request_does_not_end_an_established_connection() {
    let mut pair = pair(Limits::default());
    let (_, qp, _) = established(&mut pair, HOST, 7);
    let is_connected = |pair: &Pair| pair.nodes[0].roce.qp_state(qp) == Ok(QpState::Rts);
    // The same adapter and queue pair from another address: two hosts may use the same numbers.
    let again = |host, change: fn(&mut [u8])| {
        req(host, 7, |bytes| {
            bytes[DATA] = 1;
            change(bytes);
        })
    };
    pair.deliver(0, &again(OTHER, |_| ()));
    assert_eq!(next_request(&mut pair).unwrap().2, OTHER);
    assert!(is_connected(&pair));
    // Requests of the same address that are refused: another service, another address, another MTU.
    let bad: [fn(&mut [u8]); 3] =
        [|b| b[DATA + 15] ^= 1, |b| b[PRIVATE + 19] = 9, |b| b[DATA + 50] = 0x70];
    for change in bad {
        pair.deliver(0, &again(HOST, change));
        let reason = refused(&mut pair).expect("refused");
        assert_ne!(reason, RejectReason::STALE_CONNECTION);
        assert!(is_connected(&pair) && event(&mut pair).is_none());
    }
    // A request of a host that lost its connection: the connection stays until the host completes the new one.
    pair.deliver(0, &again(HOST, |_| ()));
    assert_eq!(next_request(&mut pair).unwrap().2, HOST);
    assert!(is_connected(&pair) && event(&mut pair).is_none());
}

/// All messages that change a connection, with correct IDs, from other senders: another address, or the same address on
/// another network.
#[test]
fn a_message_counts_only_from_the_connections_peer() {
    let mut pair = pair(Limits::default());
    let second = PortConfig {
        mac: [0x52, 0x54, 0, 0, 1, 1],
        addresses: std::vec!["10.0.0.1".parse().unwrap()],
        mtu: 1500,
    };
    let mac = second.mac;
    pair.nodes[0].roce.add_port(second);
    pair.deliver(0, &req(HOST, 7, |_| ()));
    let (id, parameters, _) = next_request(&mut pair).unwrap();
    let (qp, wire_id) = accept(&mut pair, id, &parameters);
    let (_, standing, standing_id) = established(&mut pair, HOST, 8);
    let qpn = |pair: &Pair, qp| pair.nodes[0].roce.qp_number(qp).unwrap();
    let rej = |local_id, remote_id| {
        let private_data = [0; REJ_PRIVATE_DATA];
        Message::Rej(Rej { local_id, remote_id, about: About::Other, reason: 28, private_data })
    };
    let mut messages = std::vec![];
    for (local, wire, qp) in [(7, wire_id, qp), (8, standing_id, standing)] {
        let dreq = BriefKind::Dreq { remote_qpn: qpn(&pair, qp) };
        messages.push(brief(local, wire, BriefKind::Rtu));
        messages.push(brief(local, wire, dreq));
        messages.push(brief(local, wire, BriefKind::Drep));
        messages.push(rej(local, wire));
        messages.push(rej(local, 0));
    }
    for message in &messages {
        pair.deliver(0, &message_from(OTHER, message));
        let mut elsewhere = message_from(HOST, message);
        elsewhere[..6].copy_from_slice(&mac);
        let now = pair.network.now;
        pair.nodes[0].roce.handle_frame(1, &elsewhere, now);
        assert!(event(&mut pair).is_none(), "{message}");
        for qp in [qp, standing] {
            assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Rts), "{message}");
        }
    }
    let _ = sent_messages(&mut pair);
    // From the peer the messages take effect.
    pair.deliver(0, &message_from(HOST, &messages[0]));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Established { .. })));
    pair.deliver(0, &message_from(HOST, &messages[6]));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Disconnected { .. })));
}

/// Only the host to which we sent our request may answer it.
#[test]
fn rej_from_another_host_is_ignored() {
    let mut pair = pair(Limits::default());
    let ip = pair.nodes[1].ip;
    let node = &mut pair.nodes[0];
    let to = core::net::SocketAddr::new(ip, 1);
    let now = pair.network.now;
    node.roce.connect(node.qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    let Some(Message::Req(ours)) = sent_messages(&mut pair).first().copied() else {
        panic!("no REQ")
    };
    let (about, private_data) = (About::Req, [0; REJ_PRIVATE_DATA]);
    let rej = Message::Rej(Rej {
        local_id: 1,
        remote_id: ours.local_id,
        about,
        reason: 28,
        private_data,
    });
    pair.deliver(0, &message_from(OTHER, &rej));
    assert!(event(&mut pair).is_none());
    pair.deliver(0, &message_from(HOST, &rej));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Rejected { .. })));
}

/// Runs node 0 alone for `limit`; returns its messages and when it sent them.
pub(super) fn run_alone(pair: &mut Pair, limit: Duration) -> Vec<(Duration, Message)> {
    let start = pair.network.now;
    let mut all = Vec::new();
    loop {
        let now = pair.network.now;
        all.extend(sent_messages(pair).into_iter().map(|message| (now.since(start), message)));
        match pair.nodes[0].roce.poll_timeout() {
            Some(at) if at.since(start) <= limit => pair.network.now = at.max(now),
            _ => return all,
        }
        let now = pair.network.now;
        pair.nodes[0].roce.handle_timeout(now);
    }
}

/// Sets the largest timeouts, of hours, and the largest retry counts.
pub(super) fn long_timeouts(bytes: &mut [u8]) {
    bytes[DATA + 47] |= 31 << 3;
    bytes[DATA + 51] |= 15 << 4;
    bytes[DATA + 95] |= 31 << 3;
}

#[test]
fn client_that_never_answers_gets_few_messages_and_is_dropped() {
    for zero_timeout in [false, true] {
        let mut pair = pair(Limits::default());
        pair.deliver(
            0,
            &req(HOST, 7, |bytes| {
                long_timeouts(bytes);
                if zero_timeout {
                    bytes[DATA + 47] &= 7;
                }
            }),
        );
        let (id, parameters, _) = next_request(&mut pair).unwrap();
        accept(&mut pair, id, &parameters);
        let all = run_alone(&mut pair, Duration::from_secs(3600));
        let reps = all.iter().filter(|(_, message)| matches!(message, Message::Rep(_))).count();
        assert!(reps <= 5 && all.len() <= 6, "{all:?}");
        assert!(all.iter().all(|(at, _)| *at < Duration::from_secs(30)), "{all:?}");
        assert!(all.windows(2).all(|w| w[1].0 - w[0].0 >= Duration::from_millis(256)), "{all:?}");
        assert!(matches!(event(&mut pair), Some(ConnectionEvent::Disconnected { .. })));
        assert_eq!(pair.nodes[0].roce.connections(), 0);
    }
}

#[test]
fn unanswered_disconnect_ends_soon() {
    for proven in [false, true] {
        let mut pair = pair(Limits::default());
        pair.deliver(0, &req(HOST, 7, long_timeouts));
        let (id, parameters, _) = next_request(&mut pair).unwrap();
        let (qp, wire_id) = accept(&mut pair, id, &parameters);
        if proven {
            pair.deliver(0, &message_from(HOST, &brief(7, wire_id, BriefKind::Rtu)));
        }
        pair.nodes[0].roce.destroy_qp(qp).unwrap();
        let all = run_alone(&mut pair, Duration::from_secs(3600));
        assert_eq!(all.len(), if proven { 8 } else { 1 }, "{all:?}");
        assert_eq!(pair.nodes[0].roce.connections(), 0);
        assert!(pair.network.now < Instant::ZERO + Duration::from_secs(20));
    }
}

#[test]
fn mra_extends_the_timeout_once() {
    let mut pair = pair(Limits::default());
    pair.deliver(0, &req(HOST, 7, long_timeouts));
    let (id, parameters, _) = next_request(&mut pair).unwrap();
    let (_, wire_id) = accept(&mut pair, id, &parameters);
    let start = pair.network.now;
    let mra = BriefKind::Mra { about: About::Rep, service_timeout: 31 };
    while pair.nodes[0].roce.connections() > 0 {
        pair.deliver(0, &message_from(HOST, &brief(7, wire_id, mra)));
        let Some(at) = pair.nodes[0].roce.poll_timeout() else { break };
        pair.network.now = at.max(pair.network.now);
        let now = pair.network.now;
        pair.nodes[0].roce.handle_timeout(now);
        let _ = sent_messages(&mut pair);
    }
    assert!(pair.network.now.since(start) < Duration::from_secs(120));
}

/// A peer that does not receive our answers cannot know the next PSN, so its packets do not replace an RTU.
#[test]
fn out_of_order_packet_does_not_establish_the_connection() {
    let mut pair = Pair::new(1, 1500, false);
    let ip = pair.nodes[0].ip;
    pair.nodes[0].roce.listen(1234).unwrap();
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let to = core::net::SocketAddr::new(ip, 1234);
    node.roce.connect(node.qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    pair.run(Duration::from_secs(1), |pair| pair.nodes[0].roce.cm.has_events());
    let Some((id, parameters, _)) = next_request(&mut pair) else { panic!("no request") };
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    node.roce.accept(id, node.qp, &parameters, b"", now).unwrap();
    // Our REP arrives; the other side's messages do not.
    pair.run(Duration::from_secs(1), |pair| pair.nodes[1].roce.cm.has_events());
    pair.network.mute(1, true);
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let send = SendOperation::Send { payload: Payload::Inline(b"x"), with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(1, send)).unwrap();
    let mut tx = TxBuffer::new();
    let mut last = None;
    while node.roce.poll_transmit(0, now, &mut tx) {
        last = Some(frame(&tx));
    }
    let good = last.unwrap();
    let mut wrong = good.clone();
    wrong[42 + 10] ^= 0x10;
    seal(&mut wrong);
    pair.deliver(0, &wrong);
    assert!(event(&mut pair).is_none());
    let into = pair.nodes[0].arena.alloc(64, 64).unwrap();
    let node = &mut pair.nodes[0];
    node.roce.post_recv(node.qp, &verbs::RecvRequest { id: 1, into: &[into] }).unwrap();
    pair.deliver(0, &good);
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Established { .. })));
}

#[test]
fn local_ids_are_unpredictable() {
    let mut pair = pair(Limits::default());
    let mut ids: Vec<u32> = (0..64).map(|n| established(&mut pair, HOST, 10 + n).2).collect();
    // The bits above the table index are random.
    let upper = |id: u32| id >> 20;
    ids.sort_unstable_by_key(|&id| upper(id));
    ids.dedup_by_key(|id| upper(*id));
    assert!(ids.len() > 56, "{} of 64 differ", ids.len());
}

#[test]
fn request_adds_no_neighbour() {
    let mut pair = pair(Limits::default());
    // The neighbour table has not resolved this host.
    pair.deliver(0, &req(200, 7, |_| ()));
    let to = "10.0.0.200:1".parse().unwrap();
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    let made = node.roce.connect(node.qp, node.ip, to, &PARAMETERS, b"", now, &mut Rng::new(1));
    assert_eq!(made, Err(VerbsError::Unreachable));
}

#[test]
fn offered_depths_are_limited_to_our_own() {
    let mut pair = pair(Limits::default());
    pair.deliver(
        0,
        &req(HOST, 7, |bytes| {
            bytes[DATA + 35] = 255;
            bytes[DATA + 39] = 255;
        }),
    );
    let (id, parameters, _) = next_request(&mut pair).unwrap();
    assert_eq!((parameters.responder_resources, parameters.initiator_depth), (16, 16));
    accept(&mut pair, id, &parameters);
}

/// The fields of a request must match its frame, and this port.
#[test]
fn inconsistent_request_is_refused() {
    let mut pair = pair(Limits::default());
    let (transport, mtu) = (RejectReason(9), RejectReason(26));
    let lies: [(&str, fn(&mut [u8]), RejectReason); 6] = [
        ("the requested GID", |b| b[DATA + 87] = 9, RejectReason::INVALID_GID),
        ("the requested address", |b| b[PRIVATE + 35] = 9, RejectReason::INVALID_GID),
        ("another transport", |b| b[DATA + 43] ^= 2, transport),
        ("another partition", |b| b[DATA + 48] ^= 1, transport),
        ("a path MTU of 4096", |b| b[DATA + 50] = b[DATA + 50] & 0xf | 0x50, mtu),
        ("no path MTU", |b| b[DATA + 50] = b[DATA + 50] & 0xf | 0x70, mtu),
    ];
    for (lie, change, reason) in lies {
        pair.deliver(0, &req(HOST, 7, change));
        assert_eq!(refused(&mut pair), Some(reason), "{lie}");
        assert!(event(&mut pair).is_none(), "{lie}");
    }
    // From addresses that no host may have.
    for address in [[255; 4], [224, 0, 0, 5], [0; 4]] {
        let bytes = req(HOST, 7, |bytes| {
            for at in [26, DATA + 68, PRIVATE + 16] {
                netsim::label!(address, at);
                bytes[at..at + 4].copy_from_slice(&address);
            }
        });
        pair.deliver(0, &bytes);
        assert!(sent_messages(&mut pair).is_empty() && event(&mut pair).is_none(), "{address:?}");
    }
    pair.deliver(0, &req(HOST, 7, |_| ()));
    assert!(next_request(&mut pair).is_some());
}

/// A message about a connection needs both communication IDs, the peer's queue pair, and the connection's address.
#[test]
fn a_message_counts_only_for_the_connection_that_it_names() {
    let mut pair = pair(Limits::default());
    let (_, qp, wire_id) = established(&mut pair, HOST, 8);
    let number = pair.nodes[0].roce.qp_number(qp).unwrap();
    let both = ["10.0.0.1", "10.0.0.11"].map(|ip| ip.parse().unwrap());
    pair.nodes[0].roce.set_addresses(0, both.to_vec());
    let rej = |local_id, remote_id| {
        let private_data = [0; REJ_PRIVATE_DATA];
        Message::Rej(Rej { local_id, remote_id, about: About::Other, reason: 28, private_data })
    };
    let dreq = |local_id, remote_qpn| brief(local_id, wire_id, BriefKind::Dreq { remote_qpn });
    let mut wrong = std::vec![
        message_from(HOST, &rej(9, wire_id)),
        message_from(HOST, &rej(8, 0)),
        message_from(HOST, &dreq(9, number)),
        message_from(HOST, &dreq(8, number ^ 1)),
    ];
    // To another address of ours.
    let mut elsewhere = message_from(HOST, &dreq(8, number));
    elsewhere[33] = 11;
    wrong.push(finish(elsewhere));
    for (n, message) in wrong.iter().enumerate() {
        pair.deliver(0, message);
        assert!(event(&mut pair).is_none(), "message {n}");
        assert_eq!(pair.nodes[0].roce.qp_state(qp), Ok(QpState::Rts), "message {n}");
    }
    pair.deliver(0, &message_from(HOST, &dreq(8, number)));
    assert!(matches!(event(&mut pair), Some(ConnectionEvent::Disconnected { .. })));
    // An ended connection no longer holds the peer's queue pair.
    let again = req(HOST, 8, |bytes| bytes[DATA] = 1);
    let _ = sent_messages(&mut pair);
    pair.deliver(0, &again);
    assert!(next_request(&mut pair).is_some());
}

/// Packets for a connected queue pair must come from its peer, on its port, with its partition.
#[test]
fn a_packet_counts_only_from_the_peer() {
    let mut pair = Pair::new(5, 1500, false);
    let second = PortConfig { mac: [2, 0, 0, 0, 1, 1], addresses: Vec::new(), mtu: 1500 };
    let mac = second.mac;
    pair.nodes[0].roce.add_port(second);
    pair.connect(verbs::PathMtu::Mtu1024, Pair::LINUX);
    let send = SendOperation::Send { payload: Payload::Inline(b"hi"), with: SendWith::Nothing };
    let node = &mut pair.nodes[1];
    node.roce.post_send(node.qp, &request(1, send)).unwrap();
    let now = pair.network.now;
    let mut tx = TxBuffer::new();
    assert!(pair.nodes[1].roce.poll_transmit(0, now, &mut tx));
    let honest = frame(&tx);
    let into = pair.nodes[0].arena.alloc(64, 64).unwrap();
    let node = &mut pair.nodes[0];
    node.roce.post_recv(node.qp, &verbs::RecvRequest { id: 1, into: &[into] }).unwrap();
    // The forged field, the port, and the change.
    let lies: [(&str, usize, fn(&mut [u8])); 5] = [
        ("another source", 0, |b| b[29] = 9),
        ("another partition", 0, |b| b[45] ^= 1),
        ("another number of the queue pair", 0, |b| b[47] ^= 0x80),
        ("another destination MAC", 0, |b| b[5] ^= 1),
        ("another port", 1, |_| ()),
    ];
    for (lie, port, change) in lies {
        let mut bytes = honest.clone();
        change(&mut bytes);
        if port == 1 {
            bytes[..6].copy_from_slice(&mac);
        }
        let bytes = finish(bytes);
        pair.nodes[0].roce.handle_frame(port, &bytes, now);
        assert!(pair.nodes[0].completions().is_empty(), "{lie}");
    }
    pair.nodes[0].roce.handle_frame(0, &honest, now);
    assert_eq!(pair.nodes[0].completions().len(), 1);
    // A queue pair in error drops packets.
    let node = &mut pair.nodes[0];
    node.roce.fail_qp(node.qp).unwrap();
    let before = node.roce.counters().dropped.wrong_state;
    node.roce.handle_frame(0, &honest, now);
    assert_eq!(node.roce.counters().dropped.wrong_state, before + 1);
}

/// Messages of the connection manager need its Q_Key, its partition, a datagram opcode, and an address of the port.
#[test]
fn malformed_management_datagram_is_dropped() {
    let mut pair = pair(Limits::default());
    let lies: [(&str, fn(&mut [u8])); 4] = [
        ("another Q_Key", |b| b[42 + bth::LEN] ^= 1),
        ("another partition", |b| b[45] ^= 1),
        ("an opcode of RC", |b| b[42] = 0x04),
        ("another address", |b| b[33] = 99),
    ];
    for (lie, change) in lies {
        pair.deliver(0, &req(HOST, 7, change));
        assert!(sent_messages(&mut pair).is_empty() && event(&mut pair).is_none(), "{lie}");
    }
    assert_eq!(pair.nodes[0].roce.counters().received.connection_manager, 0);
    pair.deliver(0, &req(HOST, 7, |_| ()));
    assert!(next_request(&mut pair).is_some());
}
