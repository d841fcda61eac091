//! Records and messages of an authenticated peer that violates the protocol, and limits of the record layer.

use super::{NOW, carry, client, open, psk, server};
use crate::hash::Hash;
use crate::record::{ALERT, APPLICATION_DATA, HANDSHAKE};
use crate::{Alert, Config, Failure, Session};
use std::vec::Vec;

/// Sends a record with this content from `from`, and returns the failure of `to`.
fn inject(from: &mut Session, to: &mut Session, kind: u8, content: &[u8]) -> Option<Alert> {
    push(from, kind, content);
    carry(from, to, usize::MAX);
    match to.failure() {
        Some(Failure::Violation { alert, .. }) => Some(*alert),
        _ => None,
    }
}

fn push(from: &mut Session, kind: u8, content: &[u8]) {
    let connection = from.connection_mut();
    let fill = |into: &mut [u8]| into.copy_from_slice(content);
    connection.outgoing.push(kind, connection.write.as_mut(), content.len(), fill).unwrap();
}

#[test]
fn content_of_an_open_session_gets_the_alert_of_its_violation() {
    let too_long = [0; (1 << 14) + 1];
    let cases: &[(u8, &[u8], Option<Alert>)] = &[
        (HANDSHAKE, &[24, 0, 0, 1, 0], None),
        (HANDSHAKE, &[24, 0, 0, 1, 1], None),
        (HANDSHAKE, &[24, 0, 0, 1, 2], Some(Alert::ILLEGAL_PARAMETER)),
        (HANDSHAKE, &[24, 0, 0, 2, 0, 0], Some(Alert::ILLEGAL_PARAMETER)),
        (HANDSHAKE, &[24, 0, 0, 1, 0, 24], Some(Alert::UNEXPECTED_MESSAGE)),
        // NewSessionTicket of a client, a second ClientHello, CertificateRequest.
        (HANDSHAKE, &[4, 0, 0, 1, 0], Some(Alert::UNEXPECTED_MESSAGE)),
        (HANDSHAKE, &[1, 0, 0, 1, 0], Some(Alert::UNEXPECTED_MESSAGE)),
        (HANDSHAKE, &[13, 0, 0, 1, 0], Some(Alert::UNEXPECTED_MESSAGE)),
        (HANDSHAKE, &[20, 0xff, 0, 0], Some(Alert::ILLEGAL_PARAMETER)),
        (HANDSHAKE, &[], Some(Alert::UNEXPECTED_MESSAGE)),
        (ALERT, &[], Some(Alert::UNEXPECTED_MESSAGE)),
        (ALERT, &[1], Some(Alert::DECODE_ERROR)),
        (ALERT, &[1, 90, 0], Some(Alert::DECODE_ERROR)),
        (ALERT, &[1, 90], None),
        (APPLICATION_DATA, &[], None),
        (APPLICATION_DATA, &too_long, Some(Alert::RECORD_OVERFLOW)),
        (APPLICATION_DATA, &too_long[1..], None),
        (20, &[1], Some(Alert::UNEXPECTED_MESSAGE)),
        (99, &[1], Some(Alert::UNEXPECTED_MESSAGE)),
        (0, &[0, 0], Some(Alert::UNEXPECTED_MESSAGE)),
    ];
    for (kind, content, expected) in cases {
        let (mut client, mut server) = open(Config::default(), Hash::Sha256);
        let alert = inject(&mut client, &mut server, *kind, content);
        // A record of handshake or alert without content is padding alone.
        let shown = content.get(..8.min(content.len()));
        assert_eq!(alert, *expected, "{kind} {shown:?}: {:?}", server.failure());
        if let Some(alert) = alert {
            carry(&mut server, &mut client, usize::MAX);
            assert_eq!(client.failure(), Some(&Failure::Alert(alert)), "{kind} {shown:?}");
        }
    }
}

#[test]
fn any_other_alert_of_the_peer_is_fatal_whatever_its_level() {
    for code in [10, 20, 40, 80, 112, 255] {
        for level in [0, 1, 2, 200] {
            let (mut client, mut server) = open(Config::default(), Hash::Sha256);
            inject(&mut client, &mut server, ALERT, &[level, code]);
            assert_eq!(server.failure(), Some(&Failure::Alert(Alert(code))));
            assert_eq!(server.room(), 0);
        }
    }
}

#[test]
fn updated_keys_are_used_by_both_ends() {
    let (mut client, mut server) = open(Config::default(), Hash::Sha384);
    push(&mut client, HANDSHAKE, &[24, 0, 0, 1, 1]);
    client.connection_mut().write.as_mut().unwrap().update().unwrap();
    client.write(b"with the new key");
    assert_eq!(carry(&mut client, &mut server, usize::MAX), b"with the new key");
    // The server owes an update of its own.
    assert!(!server.outgoing().is_empty());
    server.write(b"also");
    assert_eq!(carry(&mut server, &mut client, usize::MAX), b"also");
    assert_eq!(client.failure(), None);
}

#[test]
fn records_without_data_are_limited_in_a_row() {
    for (kind, content) in
        [(APPLICATION_DATA, &[][..]), (ALERT, &[1, 90]), (HANDSHAKE, &[24, 0, 0, 1, 0])]
    {
        let (mut client, mut server) = open(Config::default(), Hash::Sha256);
        for n in 0..100 {
            let alert = inject(&mut client, &mut server, kind, content);
            if kind == HANDSHAKE {
                client.connection_mut().write.as_mut().unwrap().update().unwrap();
            }
            let expected = (n >= 32).then_some(Alert::UNEXPECTED_MESSAGE);
            assert_eq!(alert, expected, "{kind} {n}: {:?}", server.failure());
        }
    }
    let (mut client, mut server) = open(Config::default(), Hash::Sha256);
    for _ in 0..100 {
        assert_eq!(inject(&mut client, &mut server, APPLICATION_DATA, &[]), None);
        client.write(b"data");
        carry(&mut client, &mut server, usize::MAX);
    }
}

#[test]
fn requested_updates_are_answered_once_while_the_peer_takes_nothing() {
    let (mut client, mut server) = open(Config::default(), Hash::Sha256);
    for _ in 0..30 {
        push(&mut client, HANDSHAKE, &[24, 0, 0, 1, 1]);
        client.connection_mut().write.as_mut().unwrap().update().unwrap();
        let bytes = client.outgoing().to_vec();
        server.receive(&bytes, NOW);
        client.consume(bytes.len());
    }
    assert_eq!(server.failure(), None);
    let waiting = server.outgoing().len();
    assert!(waiting <= Config::default().outgoing + 128, "{waiting} bytes wait");
}

#[test]
fn changed_record_fails_with_bad_record_mac() {
    let (mut client, server) = open(Config::default(), Hash::Sha256);
    client.write(b"text");
    let record = client.outgoing().to_vec();
    drop(server);
    for at in 5..record.len() {
        let (_, mut server) = open(Config::default(), Hash::Sha256);
        let mut changed = record.clone();
        changed[at] ^= 1;
        server.receive(&changed, NOW);
        let failure = server.failure().copied();
        assert!(
            matches!(failure, Some(Failure::Violation { alert: Alert::BAD_RECORD_MAC, .. })),
            "{at}: {failure:?}"
        );
        assert!(server.text().is_empty());
    }
}

#[test]
fn last_sequence_number_is_used_and_none_after_it() {
    let (mut client, mut server) = open(Config::default(), Hash::Sha256);
    client.connection_mut().write.as_mut().unwrap().set_sequence(u64::MAX);
    server.connection_mut().read.as_mut().unwrap().set_sequence(u64::MAX);
    assert_eq!(client.write(b"last"), 4);
    assert_eq!(carry(&mut client, &mut server, usize::MAX), b"last");
    assert_eq!(client.write(b"more"), 0);
    assert!(matches!(
        client.failure(),
        Some(Failure::Violation { alert: Alert::INTERNAL_ERROR, .. })
    ));
    assert!(client.outgoing().is_empty(), "not even an alert can be sent");
}

#[test]
fn session_under_way_takes_no_application_data() {
    let (mut client, mut server) =
        (client(Config::default(), Hash::Sha256), server(Config::default()));
    carry(&mut client, &mut server, usize::MAX);
    assert!(server.try_key(0, &psk(Hash::Sha256)));
    let flight = server.outgoing().to_vec();
    // The client has its keys, and sends data before its Finished.
    client.receive(&flight, NOW);
    assert!(client.is_open());
    client.consume(usize::MAX / 2);
    assert_eq!(client.write(b"early"), 5);
    carry(&mut client, &mut server, usize::MAX);
    assert!(!server.is_open() && server.failure().is_some(), "{:?}", server.failure());
}

#[test]
fn every_byte_of_the_servers_flight_matters() {
    let (mut first, mut server) =
        (client(Config::default(), Hash::Sha256), server(Config::default()));
    carry(&mut first, &mut server, usize::MAX);
    assert!(server.try_key(0, &psk(Hash::Sha256)));
    let flight = server.outgoing().to_vec();
    for at in 0..flight.len() {
        let mut client = client(Config::default(), Hash::Sha256);
        let mut changed: Vec<u8> = flight.clone();
        changed[at] ^= 0x10;
        client.receive(&changed, NOW);
        // The minor version of a record is ignored (RFC 8446 section 5.1), where it is not authenticated.
        let ignored = at == 2;
        assert_eq!(client.is_open(), ignored, "{at}: {:?}", client.failure());
    }
}
