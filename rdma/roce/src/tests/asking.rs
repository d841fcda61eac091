//! Connection requests by our own user, and their refusals.

use super::connections::{PARAMETERS, connect, event, pair, request_connection};
use crate::testing::{Pair, Rng};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Provider, RejectReason,
    VerbsError,
};

/// Requests a connection from node 1 to node 0, from the address `from`.
fn request_from(
    pair: &mut Pair,
    from: IpAddr,
    parameters: ConnectionParameters,
    data: &[u8],
) -> Result<ConnectionId, VerbsError> {
    let to = SocketAddr::new(pair.nodes[0].ip, 1234);
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    node.roce.connect(node.qp, from, to, &parameters, data, now, &mut Rng::new(4))
}

/// Fields of a REQ are three or five bits wide, and READ depths are at most 16.
#[test]
fn parameters_have_to_fit_their_fields() {
    let good = [
        ConnectionParameters { retry_count: 7, rnr_retry_count: 7, ..PARAMETERS },
        ConnectionParameters { min_rnr_timer: 31, ..PARAMETERS },
        ConnectionParameters { responder_resources: 16, initiator_depth: 16, ..PARAMETERS },
    ];
    let bad = [
        ConnectionParameters { retry_count: 8, ..PARAMETERS },
        ConnectionParameters { rnr_retry_count: 8, ..PARAMETERS },
        ConnectionParameters { min_rnr_timer: 32, ..PARAMETERS },
        ConnectionParameters { responder_resources: 17, ..PARAMETERS },
        ConnectionParameters { initiator_depth: 17, ..PARAMETERS },
    ];
    for parameters in good {
        let mut pair = pair(0);
        let from = pair.nodes[1].ip;
        assert!(request_from(&mut pair, from, parameters, b"").is_ok(), "{parameters:?}");
    }
    for parameters in bad {
        let mut pair = pair(0);
        let from = pair.nodes[1].ip;
        let refused = request_from(&mut pair, from, parameters, b"");
        assert_eq!(refused, Err(VerbsError::Invalid), "{parameters:?}");
        assert_eq!(pair.nodes[1].roce.connections(), 0);
    }
}

#[test]
fn connect_checks_source_address_and_private_data_length() {
    let mut pair = pair(0);
    let own = pair.nodes[1].ip;
    for from in ["10.0.0.77", "fd00::2"] {
        let refused = request_from(&mut pair, from.parse().unwrap(), PARAMETERS, b"");
        assert_eq!(refused, Err(VerbsError::Invalid), "{from}");
    }
    // A REQ has 92 bytes, of which the IP addresses take 36.
    let refused = request_from(&mut pair, own, PARAMETERS, &[1; 57]);
    assert_eq!(refused, Err(VerbsError::Invalid));
    let id = request_from(&mut pair, own, PARAMETERS, &[1; 56]).unwrap();
    let again = request_from(&mut pair, own, PARAMETERS, b"");
    assert_eq!(again, Err(VerbsError::WrongState), "a queue pair has one connection");
    let Some(ConnectionEvent::Request { private_data, .. }) = event(&mut pair, 0) else {
        panic!("no request");
    };
    assert_eq!(private_data.as_slice(), [1; 56]);
    let now = pair.network.now;
    let node = &mut pair.nodes[1];
    node.roce.disconnect(id, now).unwrap();
    node.roce.destroy_qp(node.qp).unwrap();
    let gone = request_from(&mut pair, own, PARAMETERS, b"");
    assert_eq!(gone, Err(VerbsError::NoSuchObject));
}

/// A request is answered once.
#[test]
fn a_request_is_accepted_or_rejected_once() {
    let mut pair = pair(0);
    request_connection(&mut pair, 1234, b"");
    let Some(ConnectionEvent::Request { connection, parameters, .. }) = event(&mut pair, 0) else {
        panic!("no request");
    };
    let now = pair.network.now;
    let node = &mut pair.nodes[0];
    for parameters in [
        ConnectionParameters { responder_resources: 17, ..parameters },
        ConnectionParameters { min_rnr_timer: 32, ..parameters },
    ] {
        let refused = node.roce.accept(connection, node.qp, &parameters, b"", now);
        assert_eq!(refused, Err(VerbsError::Invalid), "{parameters:?}");
    }
    let most = ConnectionParameters { responder_resources: 16, min_rnr_timer: 31, ..parameters };
    node.roce.accept(connection, node.qp, &most, b"", now).unwrap();
    let other = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut Rng::new(5)).unwrap();
    let again = node.roce.accept(connection, other, &parameters, b"", now);
    assert_eq!(again, Err(VerbsError::WrongState));
    let late = node.roce.reject(connection, RejectReason::CONSUMER, b"");
    assert_eq!(late, Err(VerbsError::WrongState));
    assert!(matches!(event(&mut pair, 1), Some(ConnectionEvent::Established { .. })));
    // Another request, of another queue pair.
    let node = &mut pair.nodes[1];
    node.qp = node.roce.create_qp(&Pair::init(node.pd, node.cq), &mut Rng::new(6)).unwrap();
    request_connection(&mut pair, 1234, b"");
    let request = loop {
        match event(&mut pair, 0) {
            Some(ConnectionEvent::Request { connection, .. }) => break connection,
            Some(ConnectionEvent::Established { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    let node = &mut pair.nodes[0];
    node.roce.reject(request, RejectReason::CONSUMER, b"").unwrap();
    let again = node.roce.reject(request, RejectReason::CONSUMER, b"");
    assert_eq!(again, Err(VerbsError::NoSuchObject));
    let late = node.roce.accept(request, other, &parameters, b"", now);
    assert_eq!(late, Err(VerbsError::NoSuchObject));
}

/// Both ends know the peer's identifier of an established connection.
#[test]
fn peer_id_is_known_while_the_connection_is_established() {
    let mut pair = pair(0);
    let requested = request_connection(&mut pair, 1234, b"");
    assert_eq!(pair.nodes[1].roce.peer_id(requested), None, "the peer has not answered");
    pair.nodes[1].roce.disconnect(requested, pair.network.now).unwrap();
    let mut pair = self::pair(2);
    let [accepted, requested] = connect(&mut pair);
    let [first, second] =
        [(0, accepted), (1, requested)].map(|(n, id)| pair.nodes[n].roce.peer_id(id));
    assert!(first.is_some() && second.is_some());
    let now = pair.network.now;
    pair.nodes[1].roce.disconnect(requested, now).unwrap();
    assert_eq!(pair.nodes[1].roce.peer_id(requested), None);
}

/// Before the machine halts, every peer is sent a DREQ and has answered it.
#[test]
fn disconnect_all_waits_for_the_answers() {
    let mut pair = pair(0);
    assert!(pair.nodes[0].roce.is_disconnected(), "no connection to end");
    connect(&mut pair);
    assert!(!pair.nodes[0].roce.is_disconnected());
    let now = pair.network.now;
    pair.network.mute(1, true);
    pair.nodes[0].roce.disconnect_all(now);
    assert!(!pair.run(Duration::from_secs(1), |pair| pair.nodes[0].roce.is_disconnected()));
    pair.network.heal();
    assert!(pair.run(Duration::from_secs(10), |pair| pair.nodes[0].roce.is_disconnected()));
    assert!(matches!(event(&mut pair, 1), Some(ConnectionEvent::Disconnected { .. })));
}
