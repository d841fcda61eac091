//! A provider with two ports: each queue pair uses the port that has its address.

use crate::testing::{Node, Pair};
use crate::{PortConfig, TxBuffer, Verdict};
use core::time::Duration;
use netsim::{Place, Rng};
use std::net::IpAddr;
use std::vec::Vec;
use verbs::{
    AsyncEvent, ConnectionManager, ConnectionParameters, PathMtu, Payload, Provider, QpState,
    ReadyToReceive, RecvRequest, SendOperation, SendRequest, SendWith, Status, VerbsError,
};

const SECOND_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 1, 1];

fn bytes(tx: &TxBuffer) -> Vec<u8> {
    let packet = tx.packet();
    assert!(packet.payload.is_empty(), "an inline payload is in the header");
    [packet.header, packet.trailer].concat()
}

#[test]
fn a_queue_pair_uses_the_port_that_has_its_address() {
    let mut pair = Pair::new(7, 1500, false);
    let (peer_mac, peer_qp) = (pair.nodes[1].mac, pair.nodes[1].qp);
    let remote_qpn = pair.nodes[1].roce.qp_number(peer_qp).unwrap();
    let second: IpAddr = "10.0.0.9".parse().unwrap();
    let address = verbs::AddressVector { local: second, ..pair.address(0) };
    let peer = ReadyToReceive {
        remote_qpn,
        rq_psn: 5,
        path_mtu: PathMtu::Mtu1024,
        address,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    };
    let (now, node) = (pair.network.now, &mut pair.nodes[0]);
    let unknown = node.roce.ready_to_receive(node.qp, &peer);
    assert_eq!(unknown, Err(VerbsError::Invalid), "no port has this address");
    let config = PortConfig { mac: SECOND_MAC, addresses: std::vec![second], mtu: 1500 };
    assert_eq!(node.roce.add_port(config), 1);
    node.roce.ready_to_receive(node.qp, &peer).unwrap();
    node.roce.ready_to_send(node.qp, &Pair::LINUX).unwrap();
    assert_eq!(node.roce.qp_state(node.qp), Ok(QpState::Rts));
    let payload = Payload::Inline(b"hello!!!");
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let send = SendRequest {
        id: 1,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    node.roce.post_send(node.qp, &send).unwrap();
    let mut tx = TxBuffer::new();
    assert!(!node.roce.poll_transmit(0, now, &mut tx), "no packet for the first port");
    assert!(!node.roce.poll_transmit(2, now, &mut tx), "no third port");
    assert!(node.roce.poll_transmit(1, now, &mut tx));
    let frame = bytes(&tx);
    assert_eq!(frame[..6], peer_mac);
    assert_eq!(frame[6..12], SECOND_MAC);

    // The peer parses it, but only on its own port.
    let other = &mut pair.nodes[1].roce;
    assert_eq!(other.handle_frame(1, &frame, now), Verdict::Consumed);
    assert_eq!(other.counters().dropped.not_ours, 1, "the peer has no second port");
    assert_eq!(other.handle_frame(0, &frame, now), Verdict::Consumed);
    assert_eq!(other.counters().dropped.not_ours, 1);
    assert_eq!(other.counters().dropped.wrong_state, 1, "its queue pair is not connected");
}

/// A port that takes no frames (its peer has stopped the wire) delays its own answers, and no others.
#[test]
fn stuck_port_does_not_delay_other_ports() {
    let mut pair = Pair::new(9, 1500, false);
    let second: IpAddr = "10.0.1.1".parse().unwrap();
    let config = PortConfig { mac: SECOND_MAC, addresses: std::vec![second], mtu: 1500 };
    let parameters = ConnectionParameters {
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        min_rnr_timer: 12,
    };
    let (now, first, mac) = (pair.network.now, pair.nodes[0].ip, pair.nodes[0].mac);
    pair.nodes[0].roce.add_port(config);
    let (host, station) = (pair.nodes[1].ip, pair.nodes[1].mac);
    pair.nodes[0].roce.pin_neighbour(1, host, station);
    let (mut rng, mut tx) = (Rng::new(1), TxBuffer::new());
    // A request of node 1 to an address of node 0 without a listener, which will be refused.
    let mut request = |to: IpAddr, mac: [u8; 6]| {
        let Node { roce, pd, cq, ip, .. } = &mut pair.nodes[1];
        let qp = roce.create_qp(&Pair::init(*pd, *cq), &mut rng).unwrap();
        roce.pin_neighbour(0, to, mac);
        roce.connect(qp, *ip, (to, 9).into(), &parameters, &[], now, &mut rng).unwrap();
        assert!(roce.poll_transmit(0, now, &mut tx));
        bytes(&tx)
    };
    let (stuck, good) = (request(second, SECOND_MAC), request(first, mac));
    for _ in 0..1000 {
        pair.nodes[0].roce.handle_frame(1, &stuck, now);
    }
    let node = &mut pair.nodes[0];
    node.roce.handle_frame(0, &good, now);
    assert!(node.roce.poll_transmit(0, now, &mut tx), "the first port must send its answer");
    assert!(!node.roce.poll_transmit(0, now, &mut tx), "the first port has one answer");
    let waiting = core::iter::from_fn(|| node.roce.poll_transmit(1, now, &mut tx).then_some(()));
    assert!((1..=256).contains(&waiting.count()), "the second port's answers are bounded");
}

/// A link that goes down and comes back within the timers is reported, and has no other effect.
#[test]
fn link_flap_is_reported_and_loses_no_request() {
    let mut pair = Pair::new(8, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let into = pair.nodes[1].arena.alloc(64, 64).unwrap();
    let b = &mut pair.nodes[1];
    b.roce.post_recv(b.qp, &RecvRequest { id: 9, into: &[into] }).unwrap();
    let place = Place { node: 0, port: 0 };
    pair.network.set_up(place, false);
    let a = &mut pair.nodes[0];
    a.roce.set_link(0, true);
    assert_eq!(a.roce.poll_event(), None, "the link was up");
    a.roce.set_link(0, false);
    assert_eq!(a.roce.poll_event(), Some(AsyncEvent::PortError(0)));
    let payload = Payload::Inline(b"later");
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let send = SendRequest {
        id: 1,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    a.roce.post_send(a.qp, &send).unwrap();
    assert!(!pair.run(Duration::from_secs(3), |pair| !pair.nodes[0].completions().is_empty()));
    pair.network.set_up(place, true);
    let a = &mut pair.nodes[0];
    // Of several unread events only the last stays.
    a.roce.set_link(0, true);
    a.roce.set_link(0, false);
    a.roce.set_link(0, true);
    a.roce.set_link(7, true);
    assert_eq!(a.roce.poll_event(), Some(AsyncEvent::PortActive(0)));
    assert_eq!(a.roce.poll_event(), None);
    let mut ended = Vec::new();
    pair.run(Duration::from_secs(1), |pair| {
        ended.extend(pair.nodes[0].completions());
        !ended.is_empty()
    });
    assert_eq!(ended.iter().map(|c| c.status).collect::<Vec<_>>(), [Status::Success]);
}
