//! Messages of hostile and of other servers, and the client's alert for each.

use super::hostile::record;
use super::{NOW, client};
use crate::codec::{extension, message, nested};
use crate::hash::Hash;
use crate::hello::{
    COOKIE, KEY_SHARE, PRE_SHARED_KEY, RETRY, SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};
use crate::{Alert, Config, Failure};
use std::vec::Vec;

/// A ServerHello.
#[derive(Clone)]
struct Hello {
    legacy: [u8; 2],
    random: [u8; 32],
    session_id: Vec<u8>,
    suite: [u8; 2],
    compression: u8,
    extensions: Vec<(u16, Vec<u8>)>,
}

/// A valid X25519 share is any that is not of low order.
fn share() -> Vec<u8> {
    let mut share = Vec::from([0, 29, 0, 32]);
    share.extend([9; 32]);
    share
}

impl Hello {
    fn new() -> Hello {
        Hello {
            legacy: [3, 3],
            random: [1; 32],
            session_id: Vec::new(),
            suite: [0x13, 1],
            compression: 0,
            extensions: Vec::from([
                (SUPPORTED_VERSIONS, Vec::from([3, 4])),
                (KEY_SHARE, share()),
                (PRE_SHARED_KEY, Vec::from([0, 0])),
            ]),
        }
    }

    fn retry(group: u16) -> Hello {
        Hello {
            random: RETRY,
            extensions: Vec::from([
                (SUPPORTED_VERSIONS, Vec::from([3, 4])),
                (KEY_SHARE, group.to_be_bytes().into()),
            ]),
            ..Hello::new()
        }
    }

    fn with(mut self, kind: u16, body: &[u8]) -> Hello {
        self.extensions.retain(|(other, _)| *other != kind);
        self.extensions.push((kind, body.into()));
        self
    }

    fn without(mut self, kind: u16) -> Hello {
        self.extensions.retain(|(other, _)| *other != kind);
        self
    }

    fn record(&self) -> Vec<u8> {
        let mut all = Vec::new();
        message(&mut all, 2, |into| {
            into.extend(self.legacy);
            into.extend(self.random);
            nested(into, 1, |into| into.extend(&self.session_id));
            into.extend(self.suite);
            into.push(self.compression);
            nested(into, 2, |into| {
                for (kind, body) in &self.extensions {
                    extension(into, *kind, |into| into.extend(body));
                }
            });
        });
        record(22, &all)
    }
}

/// The alert that a client has for these records.
fn answer(records: &[Vec<u8>]) -> Option<Alert> {
    let mut session = client(Config::default(), Hash::Sha256);
    session.consume(usize::MAX / 2);
    session.receive(&records.concat(), NOW);
    match session.failure() {
        Some(Failure::Violation { alert, .. }) => Some(*alert),
        _ => None,
    }
}

#[test]
fn hello_gets_the_alert_of_what_it_lacks_or_violates() {
    let new = Hello::new;
    let mut low = Vec::from([0, 29, 0, 32]);
    low.extend([0; 32]);
    let cases: &[(&str, Hello, Option<Alert>)] = &[
        ("as it should be", new(), None),
        ("of TLS 1.2", new().without(SUPPORTED_VERSIONS), Some(Alert::PROTOCOL_VERSION)),
        ("of TLS 1.1", Hello { legacy: [3, 2], ..new() }, Some(Alert::PROTOCOL_VERSION)),
        (
            "version 1.2 chosen",
            new().with(SUPPORTED_VERSIONS, &[3, 3]),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("other suite", Hello { suite: [0x13, 2], ..new() }, Some(Alert::ILLEGAL_PARAMETER)),
        ("unknown suite", Hello { suite: [0x13, 3], ..new() }, Some(Alert::ILLEGAL_PARAMETER)),
        (
            "session id",
            Hello { session_id: Vec::from([1]), ..new() },
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("compression", Hello { compression: 1, ..new() }, Some(Alert::ILLEGAL_PARAMETER)),
        ("no PSK", new().without(PRE_SHARED_KEY), Some(Alert::HANDSHAKE_FAILURE)),
        ("PSK not offered", new().with(PRE_SHARED_KEY, &[0, 1]), Some(Alert::ILLEGAL_PARAMETER)),
        ("psk_ke", new().without(KEY_SHARE), Some(Alert::MISSING_EXTENSION)),
        (
            "share of another group",
            new().with(KEY_SHARE, &[0, 24, 0, 1, 0]),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("share of low order", new().with(KEY_SHARE, &low), Some(Alert::ILLEGAL_PARAMETER)),
        ("short share", new().with(KEY_SHARE, &[0, 29, 0, 1, 9]), Some(Alert::ILLEGAL_PARAMETER)),
        ("bad share", new().with(KEY_SHARE, &[0, 29, 0, 9, 9]), Some(Alert::DECODE_ERROR)),
        ("groups", new().with(SUPPORTED_GROUPS, &[0, 0]), Some(Alert::ILLEGAL_PARAMETER)),
        ("cookie", new().with(COOKIE, &[0, 1, 0]), Some(Alert::UNSUPPORTED_EXTENSION)),
        ("ALPN", new().with(16, &[]), Some(Alert::UNSUPPORTED_EXTENSION)),
        ("a retry", Hello::retry(24), None),
        ("a retry by cookie", Hello::retry(24).without(KEY_SHARE).with(COOKIE, &[0, 1, 7]), None),
        (
            "a retry without change",
            Hello::retry(24).without(KEY_SHARE),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("a retry for the same", Hello::retry(29), Some(Alert::ILLEGAL_PARAMETER)),
        ("a retry for none", Hello::retry(30), Some(Alert::ILLEGAL_PARAMETER)),
        (
            "a retry with a PSK",
            Hello::retry(24).with(PRE_SHARED_KEY, &[0, 0]),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        (
            "a retry with a share",
            Hello::retry(24).with(KEY_SHARE, &[0, 24, 0, 1, 4]),
            Some(Alert::DECODE_ERROR),
        ),
    ];
    for (name, hello, expected) in cases {
        assert_eq!(answer(&[hello.record()]), *expected, "{name}");
    }
}

#[test]
fn second_retry_and_a_change_after_a_retry_are_rejected() {
    let retry = Hello::retry(24).record();
    assert_eq!(answer(&[retry.clone(), retry.clone()]), Some(Alert::UNEXPECTED_MESSAGE));
    let other = Hello { suite: [0x13, 2], ..Hello::new() };
    assert_eq!(answer(&[retry.clone(), other.record()]), Some(Alert::ILLEGAL_PARAMETER));
    // The share is of the group of the first hello.
    assert_eq!(answer(&[retry, Hello::new().record()]), Some(Alert::ILLEGAL_PARAMETER));
}

#[test]
fn messages_in_a_wrong_order_are_unexpected() {
    let hello = Hello::new().record();
    for kind in [1, 4, 8, 11, 13, 20, 24] {
        let first = record(22, &[kind, 0, 0, 1, 0]);
        assert_eq!(answer(&[first]), Some(Alert::UNEXPECTED_MESSAGE), "{kind}");
    }
    // After ServerHello everything is encrypted.
    let clear = record(22, &[8, 0, 0, 2, 0, 0]);
    assert_eq!(answer(&[hello.clone(), clear]), Some(Alert::UNEXPECTED_MESSAGE));
    let garbage = record(23, &[0; 40]);
    assert_eq!(answer(&[hello.clone(), garbage]), Some(Alert::BAD_RECORD_MAC));
    let mut joined = hello.clone();
    joined.extend([8, 0]);
    let len = (joined.len() - 5) as u16;
    joined[3..5].copy_from_slice(&len.to_be_bytes());
    assert_eq!(answer(&[joined]), Some(Alert::UNEXPECTED_MESSAGE));
}
