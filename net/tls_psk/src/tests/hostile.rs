//! Messages of hostile and of other clients, and the alert for each.

use super::{IDENTITY, NOW, carry, client, psk, server};
use crate::codec::{extension, message, nested};
use crate::hash::Hash;
use crate::hello::{
    COOKIE, EARLY_DATA, KEY_SHARE, PRE_SHARED_KEY, PSK_MODES, SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};
use crate::{Alert, Config, Failure, Session};
use std::string::String;
use std::vec::Vec;

/// A ClientHello, part by part.
#[derive(Clone)]
struct Hello {
    session_id: Vec<u8>,
    suites: Vec<u8>,
    compression: Vec<u8>,
    extensions: Vec<(u16, Vec<u8>)>,
    tail: Vec<u8>,
}

fn identities(of: &[&[u8]]) -> Vec<u8> {
    let mut into = Vec::new();
    nested(&mut into, 2, |into| {
        for identity in of {
            nested(into, 2, |into| into.extend(*identity));
            into.extend([0; 4]);
        }
    });
    into
}

fn binders(lens: &[usize]) -> Vec<u8> {
    let mut into = Vec::new();
    nested(&mut into, 2, |into| {
        lens.iter().for_each(|len| nested(into, 1, |into| into.resize(into.len() + len, 5)));
    });
    into
}

fn shares(of: &[(u16, usize)]) -> Vec<u8> {
    let mut into = Vec::new();
    nested(&mut into, 2, |into| {
        for (group, len) in of {
            into.extend(group.to_be_bytes());
            nested(into, 2, |into| into.resize(into.len() + len, 9));
        }
    });
    into
}

impl Hello {
    fn new() -> Hello {
        let psk = [identities(&[IDENTITY]), binders(&[32])].concat();
        Hello {
            session_id: Vec::new(),
            suites: Vec::from([0x13, 1, 0x13, 2]),
            compression: Vec::from([0]),
            extensions: Vec::from([
                (SUPPORTED_GROUPS, Vec::from([0, 4, 0, 29, 0, 24])),
                (SUPPORTED_VERSIONS, Vec::from([2, 3, 4])),
                (PSK_MODES, Vec::from([1, 1])),
                (KEY_SHARE, shares(&[(29, 32)])),
                (PRE_SHARED_KEY, psk),
            ]),
            tail: Vec::new(),
        }
    }

    fn with(mut self, kind: u16, body: &[u8]) -> Hello {
        let place = self.extensions.iter_mut().find(|(other, _)| *other == kind);
        place.expect("it is there").1 = body.into();
        self
    }

    fn without(mut self, kind: u16) -> Hello {
        self.extensions.retain(|(other, _)| *other != kind);
        self
    }

    /// One more extension, before the last.
    fn and(mut self, kind: u16, body: &[u8]) -> Hello {
        self.extensions.insert(self.extensions.len() - 1, (kind, body.into()));
        self
    }

    fn message(&self) -> Vec<u8> {
        let mut all = Vec::new();
        message(&mut all, 1, |into| {
            into.extend([3, 3]);
            into.extend([6; 32]);
            nested(into, 1, |into| into.extend(&self.session_id));
            nested(into, 2, |into| into.extend(&self.suites));
            nested(into, 1, |into| into.extend(&self.compression));
            nested(into, 2, |into| {
                for (kind, body) in &self.extensions {
                    extension(into, *kind, |into| into.extend(body));
                }
            });
            into.extend(&self.tail);
        });
        all
    }
}

pub fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

fn alert(session: &Session) -> Option<Alert> {
    match session.failure() {
        Some(Failure::Violation { alert, .. }) => Some(*alert),
        _ => None,
    }
}

/// The alert that a server has for this record.
fn answer(bytes: &[u8]) -> Option<Alert> {
    let mut session = server(Config::default());
    session.receive(bytes, NOW);
    let alert = alert(&session);
    if let Some(Alert(code)) = alert {
        assert_eq!(session.outgoing(), [21, 3, 3, 0, 2, 2, code]);
    } else {
        assert!(session.wants_key());
    }
    alert
}

fn answer_to(hello: &Hello) -> Option<Alert> {
    answer(&record(22, &hello.message()))
}

#[test]
fn hello_gets_the_alert_of_what_it_lacks_or_violates() {
    let new = Hello::new;
    let many: Vec<(u16, Vec<u8>)> = (100..170).map(|kind| (kind, Vec::new())).collect();
    let mut crowded = new();
    crowded.extensions.splice(0..0, many);
    let two = [identities(&[IDENTITY, b"b"]), binders(&[32])].concat();
    let one = [identities(&[IDENTITY]), binders(&[32, 32])].concat();
    let short = [identities(&[IDENTITY]), binders(&[31])].concat();
    let none = [identities(&[]), binders(&[])].concat();
    let empty = [identities(&[b""]), binders(&[32])].concat();
    let mut last = new();
    last.extensions.rotate_right(1);
    let cases: Vec<(&str, Hello, Option<Alert>)> = Vec::from([
        ("as it should be", new(), None),
        ("with others' extensions", new().and(0, &[0, 0]).and(28, &[64, 1]).and(13, &[]), None),
        ("with GREASE", new().and(0x0a0a, &[1]), None),
        ("of TLS 1.2", new().with(SUPPORTED_VERSIONS, &[2, 3, 3]), Some(Alert::PROTOCOL_VERSION)),
        ("without versions", new().without(SUPPORTED_VERSIONS), Some(Alert::PROTOCOL_VERSION)),
        (
            "without extensions",
            Hello { extensions: Vec::new(), ..new() },
            Some(Alert::PROTOCOL_VERSION),
        ),
        ("without PSK", new().without(PRE_SHARED_KEY), Some(Alert::HANDSHAKE_FAILURE)),
        ("without modes", new().without(PSK_MODES), Some(Alert::MISSING_EXTENSION)),
        ("without groups", new().without(SUPPORTED_GROUPS), Some(Alert::MISSING_EXTENSION)),
        ("without shares", new().without(KEY_SHARE), Some(Alert::MISSING_EXTENSION)),
        ("psk_ke only", new().with(PSK_MODES, &[1, 0]), Some(Alert::HANDSHAKE_FAILURE)),
        ("early data", new().and(EARLY_DATA, &[]), Some(Alert::HANDSHAKE_FAILURE)),
        (
            "compression",
            Hello { compression: Vec::from([1, 0]), ..new() },
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("no suites", Hello { suites: Vec::new(), ..new() }, Some(Alert::DECODE_ERROR)),
        ("half a suite", Hello { suites: Vec::from([0x13]), ..new() }, Some(Alert::DECODE_ERROR)),
        (
            "long session id",
            Hello { session_id: Vec::from([0; 33]), ..new() },
            Some(Alert::DECODE_ERROR),
        ),
        ("a tail", Hello { tail: Vec::from([0]), ..new() }, Some(Alert::DECODE_ERROR)),
        ("PSK is not last", last, Some(Alert::ILLEGAL_PARAMETER)),
        ("twice the same", new().and(COOKIE, &[]).and(COOKIE, &[]), Some(Alert::ILLEGAL_PARAMETER)),
        ("70 extensions", crowded, Some(Alert::ILLEGAL_PARAMETER)),
        ("fewer binders", new().with(PRE_SHARED_KEY, &two), Some(Alert::ILLEGAL_PARAMETER)),
        ("more binders", new().with(PRE_SHARED_KEY, &one), Some(Alert::ILLEGAL_PARAMETER)),
        ("short binder", new().with(PRE_SHARED_KEY, &short), Some(Alert::DECODE_ERROR)),
        ("no identity", new().with(PRE_SHARED_KEY, &none), Some(Alert::DECODE_ERROR)),
        ("empty identity", new().with(PRE_SHARED_KEY, &empty), Some(Alert::DECODE_ERROR)),
        ("PSK of garbage", new().with(PRE_SHARED_KEY, &[0xff; 9]), Some(Alert::DECODE_ERROR)),
        ("no share, a retry", new().with(KEY_SHARE, &shares(&[])), None),
        (
            "share of no group",
            new().with(KEY_SHARE, &shares(&[(23, 65)])),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        (
            "share twice",
            new().with(KEY_SHARE, &shares(&[(29, 32), (29, 32)])),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        (
            "share twice, apart",
            new().with(KEY_SHARE, &shares(&[(29, 32), (24, 97), (29, 32)])),
            Some(Alert::ILLEGAL_PARAMETER),
        ),
        ("empty share", new().with(KEY_SHARE, &shares(&[(29, 0)])), Some(Alert::DECODE_ERROR)),
        ("odd groups", new().with(SUPPORTED_GROUPS, &[0, 3, 0, 29, 0]), Some(Alert::DECODE_ERROR)),
        ("a byte behind", new().with(PSK_MODES, &[1, 1, 1]), Some(Alert::DECODE_ERROR)),
    ]);
    for (name, hello, expected) in cases {
        assert_eq!(answer_to(&hello), expected, "{name}");
    }
}

#[test]
fn every_prefix_of_a_hello_is_rejected_or_awaited() {
    let whole = Hello::new().message();
    for len in 4..whole.len() {
        // The header claims a shorter message.
        let mut short = whole[..len].to_vec();
        short[1..4].copy_from_slice(&((len - 4) as u32).to_be_bytes()[1..]);
        assert!(answer(&record(22, &short)).is_some(), "{len}");
        // The rest of the message is awaited.
        let mut session = server(Config::default());
        session.receive(&record(22, &whole[..len]), NOW);
        assert!(session.failure().is_none() && !session.wants_key());
    }
}

#[test]
fn other_first_bytes_are_answered_with_unexpected_message_or_overflow() {
    let hello = Hello::new().message();
    let two = [&hello[..], &hello].concat();
    // ICReq of NVMe/TCP in clear, HTTP, SSH, records of a wrong kind, length, order, or with nothing in them.
    let mut ic_req = Vec::from([0, 0, 128, 0, 128, 0, 0, 0]);
    ic_req.resize(128, 0);
    let cases: &[(&[u8], Alert)] = &[
        (&ic_req, Alert::UNEXPECTED_MESSAGE),
        (b"GET / HTTP/1.1\r\n", Alert::UNEXPECTED_MESSAGE),
        (b"SSH-2.0-x\r\n", Alert::UNEXPECTED_MESSAGE),
        (&record(23, b"data"), Alert::UNEXPECTED_MESSAGE),
        (&record(22, b""), Alert::UNEXPECTED_MESSAGE),
        (&record(24, b"heartbeat"), Alert::UNEXPECTED_MESSAGE),
        (&[22, 3, 3, 0x40, 1], Alert::RECORD_OVERFLOW),
        (&record(22, &[20, 0, 0, 0]), Alert::UNEXPECTED_MESSAGE),
        (&record(22, &[2, 0, 0, 0]), Alert::UNEXPECTED_MESSAGE),
        (&record(22, &[1, 0, 0x20, 1]), Alert::ILLEGAL_PARAMETER),
        (&record(22, &two), Alert::UNEXPECTED_MESSAGE),
        (&record(20, &[2]), Alert::UNEXPECTED_MESSAGE),
        (&[&record(22, &hello[..20])[..], &record(20, &[1])].concat(), Alert::UNEXPECTED_MESSAGE),
    ];
    for (bytes, expected) in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(12)]).into_owned();
        assert_eq!(answer(bytes), Some(*expected), "{shown:?}");
    }
}

#[test]
fn change_cipher_spec_is_skipped_a_few_times() {
    let hello = record(22, &Hello::new().message());
    let change = record(20, &[1]);
    assert_eq!(answer(&[&change[..], &change, &hello].concat()), None);
    let flood = [change.repeat(5), hello].concat();
    assert_eq!(answer(&flood), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn server_echoes_the_session_id_and_changes_the_cipher_spec_for_it() {
    // The own client has no session id, so the answer to this one is only looked at.
    let mut hello = Hello::new();
    hello.session_id = Vec::from([3; 32]);
    let mut session = server(Config::default());
    session.receive(&record(22, &hello.message()), NOW);
    assert!(!session.try_key(0, &psk(Hash::Sha256)), "the binder is wrong");
    assert_eq!(session.offered().collect::<Vec<_>>(), [IDENTITY]);
}

#[test]
fn alert_in_clear_ends_a_handshake_and_not_an_open_session() {
    let (mut first, mut second) =
        (client(Config::default(), Hash::Sha256), server(Config::default()));
    carry(&mut first, &mut second, usize::MAX);
    assert!(second.try_key(0, &psk(Hash::Sha256)));
    second.receive(&record(21, &[2, 47]), NOW);
    assert_eq!(second.failure(), Some(&Failure::Alert(Alert::ILLEGAL_PARAMETER)));
    let (_, mut open) = super::open(Config::default(), Hash::Sha256);
    open.receive(&record(21, &[2, 47]), NOW);
    assert_eq!(alert(&open), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn nothing_is_taken_while_a_key_is_wanted_or_after_the_end() {
    let mut session = server(Config::default());
    let hello = record(22, &Hello::new().message());
    let more = [&hello[..], b"more"].concat();
    assert_eq!(session.receive(&more, NOW), hello.len());
    assert_eq!(session.receive(b"more", NOW), 0);
    session.refuse();
    session.refuse();
    assert_eq!(session.outgoing().len(), 7, "one alert");
    assert_eq!(session.receive(b"anything", NOW), 8, "discarded");
}
