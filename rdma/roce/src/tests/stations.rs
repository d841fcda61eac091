//! Two stations with one address: each kind of message, RoCEv1, and IPv6 addresses that embed an IPv4 address.

use super::claims::{
    HOST, PARAMETERS, TRANSACTION, accept, brief, established, event, finish, message_from,
    next_request, pair, req, sent_messages,
};
use super::transport::request;
use crate::testing::{Pair, Rng, frame};
use crate::wire::bth::{Bth, DEFAULT_PKEY};
use crate::wire::cm::{About, BriefKind, Message, REJ_PRIVATE_DATA, REP_PRIVATE_DATA, Rej, Rep};
use crate::wire::extended::Deth;
use crate::wire::frame::Template;
use crate::wire::mad::{self, Mad};
use crate::wire::opcode::Opcode;
use crate::{Limits, TxBuffer};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use std::vec::Vec;
use verbs::{
    AddressVector, ConnectionEvent, ConnectionManager, GidType, PathMtu, Payload, Provider, QpId,
    QpState, ReadyToReceive, ReadyToSend, RecvRequest, SendOperation, SendWith,
};

const OTHER_MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];

fn wrong_peer(pair: &Pair) -> u64 {
    pair.nodes[0].roce.counters().dropped.wrong_peer
}

/// Delivers a message of the peer from another station, which changes nothing, then from its own station. Returns the
/// events of the latter.
fn from_both(
    pair: &mut Pair,
    bytes: &[u8],
    state: impl Fn(&Pair) -> State,
) -> Vec<ConnectionEvent> {
    let mut forged = bytes.to_vec();
    forged[6..12].copy_from_slice(&OTHER_MAC);
    let before = (wrong_peer(pair), state(pair));
    pair.deliver(0, &forged);
    assert_eq!((wrong_peer(pair), state(pair)), (before.0 + 1, before.1));
    assert!(event(pair).is_none() && sent_messages(pair).is_empty());
    pair.deliver(0, bytes);
    let events: Vec<_> = core::iter::from_fn(|| event(pair)).collect();
    assert!(state(pair) != before.1 || !events.is_empty(), "the message itself counts");
    events
}

/// What a message may change: the state of the queue pair, the number of connections, the next timer, and whether all
/// peers have answered.
type State = (Option<QpState>, usize, Option<Instant>, bool);

fn state(pair: &Pair, qp: QpId) -> State {
    let roce = &pair.nodes[0].roce;
    let qp = roce.qp_state(qp).ok();
    (qp, roce.connections(), roce.poll_timeout(), roce.is_disconnected())
}

fn rej(local_id: u32, remote_id: u32, about: About) -> Message {
    Message::Rej(Rej {
        local_id,
        remote_id,
        about,
        reason: 28,
        private_data: [0; REJ_PRIVATE_DATA],
    })
}

fn is_over(events: &[ConnectionEvent]) -> bool {
    matches!(events, [ConnectionEvent::Disconnected { .. }])
}

#[test]
fn messages_of_a_client_count_only_from_its_station() {
    // A REQ that is not answered yet is cancelled by a REJ without our communication ID.
    let mut world = pair(Limits::default());
    world.deliver(0, &req(HOST, 7, |_| ()));
    next_request(&mut world).expect("a request");
    let qp = world.nodes[0].qp;
    let cancel = message_from(HOST, &rej(7, 0, About::Req));
    assert!(is_over(&from_both(&mut world, &cancel, |pair| state(pair, qp))));
    // The answers to a REP.
    for kind in 0..3 {
        netsim::label!(kind);
        let mut world = pair(Limits::default());
        let (qp, wire_id) = half_open(&mut world);
        let remote_qpn = world.nodes[0].roce.qp_number(qp).unwrap();
        let message = match kind {
            0 => brief(7, wire_id, BriefKind::Rtu),
            1 => brief(7, wire_id, BriefKind::Dreq { remote_qpn }),
            _ => rej(7, wire_id, About::Rep),
        };
        let events = from_both(&mut world, &message_from(HOST, &message), |pair| state(pair, qp));
        match kind {
            0 => assert!(matches!(events[..], [ConnectionEvent::Established { .. }])),
            _ => assert!(is_over(&events)),
        }
    }
    // The end of a connection, by either side.
    for kind in 0..3 {
        netsim::label!(kind);
        let mut world = pair(Limits::default());
        let (id, qp, wire_id) = established(&mut world, HOST, 7);
        let remote_qpn = world.nodes[0].roce.qp_number(qp).unwrap();
        let message = match kind {
            0 => brief(7, wire_id, BriefKind::Dreq { remote_qpn }),
            1 => rej(7, wire_id, About::Other),
            _ => {
                let now = world.network.now;
                let roce = &mut world.nodes[0].roce;
                roce.disconnect(id, now).unwrap();
                roce.handle_timeout(now);
                sent_messages(&mut world);
                while event(&mut world).is_some() {}
                brief(7, wire_id, BriefKind::Drep)
            }
        };
        let events = from_both(&mut world, &message_from(HOST, &message), |pair| state(pair, qp));
        assert!(kind == 2 || is_over(&events), "{events:?}");
    }
}

/// Node 0 has accepted a request of the host with connection number 7; returns the queue pair, and our local
/// communication ID.
fn half_open(world: &mut Pair) -> (QpId, u32) {
    world.deliver(0, &req(HOST, 7, |_| ()));
    let (id, parameters, _) = next_request(world).expect("a request");
    accept(world, id, &parameters)
}

/// Node 0 requests a connection of the host; returns its local communication ID, and the transaction.
fn requested(world: &mut Pair) -> (u32, u64) {
    let to = SocketAddr::new([10, 0, 0, HOST].into(), 1);
    let now = world.network.now;
    let node = &mut world.nodes[0];
    let (qp, ip) = (node.qp, node.ip);
    node.roce.connect(qp, ip, to, &PARAMETERS, b"", now, &mut Rng::new(4)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let bytes = frame(&tx);
    let Message::Req(req) = super::claims::parse(&bytes) else { panic!("no REQ") };
    let transaction = u64::from_be_bytes(*bytes[TRANSACTION..].first_chunk().unwrap());
    (req.local_id, transaction)
}

#[test]
fn messages_of_a_server_count_only_from_its_station() {
    for is_rejected in [false, true] {
        netsim::label!(is_rejected);
        let mut world = pair(Limits::default());
        let (local_id, transaction) = requested(&mut world);
        let qp = world.nodes[0].qp;
        let rep = Message::Rep(Rep {
            local_id: 9,
            remote_id: local_id,
            qpn: 99,
            starting_psn: 1,
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: 15,
            rnr_retry_count: 7,
            ca_guid: 5,
            private_data: [0; REP_PRIVATE_DATA],
        });
        let message = if is_rejected { rej(9, local_id, About::Req) } else { rep };
        let mut bytes = message_from(HOST, &message);
        bytes[TRANSACTION..TRANSACTION + 8].copy_from_slice(&transaction.to_be_bytes());
        let events = from_both(&mut world, &finish(bytes), |pair| state(pair, qp));
        match events[..] {
            [ConnectionEvent::Established { .. }] => assert!(!is_rejected),
            [ConnectionEvent::Rejected { .. }] => assert!(is_rejected),
            _ => panic!("{events:?}"),
        }
    }
}

/// After an MRA the answer may take longer, and the request is not repeated meanwhile.
#[test]
fn message_that_asks_for_time_counts_only_from_its_station() {
    for is_server in [false, true] {
        for is_forged in [false, true] {
            netsim::label!(is_server, is_forged);
            let mut world = pair(Limits::default());
            let (local_id, remote_id, about) = if is_server {
                (9, requested(&mut world).0, About::Req)
            } else {
                (7, half_open(&mut world).1, About::Rep)
            };
            let mra = brief(local_id, remote_id, BriefKind::Mra { about, service_timeout: 20 });
            let mut bytes = message_from(HOST, &mra);
            if is_forged {
                bytes[6..12].copy_from_slice(&OTHER_MAC);
            }
            world.deliver(0, &bytes);
            assert_eq!(wrong_peer(&world), u64::from(is_forged));
            world.network.now = world.nodes[0].roce.poll_timeout().expect("a repetition");
            let now = world.network.now;
            world.nodes[0].roce.handle_timeout(now);
            assert_eq!(sent_messages(&mut world).is_empty(), !is_forged);
        }
    }
}

/// A message to queue pair 1 of node 0, along this path of node 1.
fn message_along(pair: &Pair, path: &AddressVector, message: &Message) -> Vec<u8> {
    let node = &pair.nodes[1];
    let mut data = [0; mad::DATA_LEN];
    let attribute = message.emit(&mut data);
    let mut bytes = [0; mad::LEN];
    Mad { transaction: 7, attribute }.emit(&data, &mut bytes);
    let mut deth = [0; Deth::LEN];
    Deth { qkey: mad::GSI_QKEY, source_qp: mad::GSI_QPN }.emit(&mut deth);
    let bth = Bth {
        opcode: Opcode::UdSendOnly,
        solicited: false,
        pad: 0,
        pkey: DEFAULT_PKEY,
        destination_qp: mad::GSI_QPN,
        ack_request: false,
        psn: 0,
    };
    let (template, mut tx) = (Template::new(node.mac, path), TxBuffer::new());
    tx.begin(&template);
    tx.extend(deth);
    tx.copy(&bytes);
    node.roce.emitter.emit(&mut tx, &template, bth);
    frame(&tx)
}

/// A DREQ about no connection, which is answered by a DREP.
fn dreq() -> Message {
    brief(7, 8, BriefKind::Dreq { remote_qpn: 9 })
}

/// Two nodes that reach each other by RoCEv1, with the GIDs of their MAC addresses.
fn version1() -> (Pair, [AddressVector; 2]) {
    let mut pair = Pair::new(4, 1500, true);
    let gids = [0, 1].map(|n| IpAddr::from(net::link_local(pair.nodes[n].mac)));
    for (node, gid) in pair.nodes.iter_mut().zip(gids) {
        node.roce.set_addresses(0, [gid].into());
    }
    let paths = [0, 1].map(|n| AddressVector {
        local: gids[n],
        remote: gids[1 - n],
        gid_type: GidType::RoceV1,
        ..pair.address(n)
    });
    (pair, paths)
}

#[test]
fn message_over_roce_v1_counts_only_from_the_station_of_its_gid() {
    let (mut pair, paths) = version1();
    let genuine = message_along(&pair, &paths[1], &dreq());
    let mut forged = genuine.clone();
    forged[6..12].copy_from_slice(&OTHER_MAC);
    pair.deliver(0, &forged);
    assert_eq!((wrong_peer(&pair), pair.nodes[0].roce.next_stranger()), (1, None));
    assert!(!pair.nodes[0].roce.wants_transmit());
    let refusal = pair.nodes[0].roce.refusals().pop().expect("reported");
    assert_eq!((refusal.who, refusal.reason), (Some(paths[1].local), "wrong_mac"));
    // An answer of the neighbour table, which that station may have sent, changes nothing.
    pair.nodes[0].roce.learn_neighbour(0, paths[1].local, OTHER_MAC, false);
    pair.deliver(0, &forged);
    assert_eq!(wrong_peer(&pair), 2);
    assert!(!pair.nodes[0].roce.wants_transmit());
    pair.deliver(0, &genuine);
    assert!(pair.nodes[0].roce.wants_transmit());
    assert_eq!(wrong_peer(&pair), 2);
}

#[test]
fn packet_of_a_roce_v1_queue_pair_counts_only_from_the_station_of_its_gid() {
    let (mut pair, paths) = version1();
    for (n, &address) in paths.iter().enumerate() {
        let remote_qpn = pair.nodes[1 - n].roce.qp_number(pair.nodes[1 - n].qp).unwrap();
        let to = ReadyToReceive {
            remote_qpn,
            rq_psn: 5,
            path_mtu: PathMtu::Mtu1024,
            address,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        let node = &mut pair.nodes[n];
        node.roce.ready_to_receive(node.qp, &to).unwrap();
        node.roce.ready_to_send(node.qp, &ReadyToSend { sq_psn: 5, ..Pair::LINUX }).unwrap();
    }
    let node = &mut pair.nodes[0];
    let into = node.arena.alloc(64, 64).unwrap();
    node.roce.post_recv(node.qp, &RecvRequest { id: 1, into: &[into] }).unwrap();
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    let send = SendOperation::Send { payload: Payload::Inline(b"hello"), with: SendWith::Nothing };
    node.roce.post_send(node.qp, &request(1, send)).unwrap();
    let mut tx = TxBuffer::new();
    assert!(node.roce.poll_transmit(0, now, &mut tx));
    let genuine = frame(&tx);
    let mut forged = genuine.clone();
    forged[6..12].copy_from_slice(&OTHER_MAC);
    pair.deliver(0, &forged);
    assert_eq!(wrong_peer(&pair), 1);
    assert_eq!(pair.nodes[0].roce.next_stranger(), None, "the GID has the MAC address");
    let refusal = pair.nodes[0].roce.refusals().pop().expect("reported");
    let label = (refusal.who, refusal.what, refusal.reason);
    assert_eq!(label, (Some(paths[1].local), "rdma_packet", "wrong_mac"));
    // The neighbour table is not asked, and does not move the queue pair.
    pair.nodes[0].roce.learn_neighbour(0, paths[1].local, OTHER_MAC, false);
    pair.deliver(0, &forged);
    assert_eq!(wrong_peer(&pair), 2);
    assert!(pair.nodes[0].completions().is_empty());
    pair.deliver(0, &genuine);
    assert_eq!(pair.nodes[0].completions().len(), 1);
}

/// Addresses that embed an IPv4 address: each would be compared as one host and denote another.
#[test]
fn message_from_an_address_that_embeds_ipv4_is_dropped() {
    let mut pair = Pair::new(4, 1500, true);
    for (n, text) in [
        "::ffff:10.0.0.2",
        "::10.0.0.2",
        "::",
        "::1",
        "::ffff:0:10.0.0.2",
        "64:ff9b::10.0.0.2",
        "64:ff9b:1::10.0.0.2",
        "ff02::1",
        // Our own.
        "fd00::1",
    ]
    .into_iter()
    .enumerate()
    {
        let local = IpAddr::V6(text.parse().unwrap());
        let path = AddressVector { local, ..pair.address(1) };
        let bytes = message_along(&pair, &path, &dreq());
        assert_eq!(bytes[12..14], [0x86, 0xdd], "{text}");
        pair.deliver(0, &bytes);
        assert_eq!(wrong_peer(&pair), n as u64 + 1, "{text}");
        assert_eq!(pair.nodes[0].roce.next_stranger(), None, "{text}");
        assert!(!pair.nodes[0].roce.wants_transmit(), "{text}");
    }
    let bytes = message_along(&pair, &pair.address(1), &dreq());
    pair.deliver(0, &bytes);
    assert!(pair.nodes[0].roce.wants_transmit(), "a host is answered");
    // Other hosts wait for the neighbour table.
    let path = AddressVector { local: IpAddr::V6("fd00::9".parse().unwrap()), ..pair.address(1) };
    let bytes = message_along(&pair, &path, &dreq());
    pair.deliver(0, &bytes);
    assert_eq!(pair.nodes[0].roce.next_stranger(), Some((0, path.local)));
}
