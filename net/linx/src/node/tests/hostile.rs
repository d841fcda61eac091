//! Protocol violations and floods by a peer.

use super::*;

fn expect_down(it: &mut ScriptedPeer, what: &str) {
    assert_eq!(it.machine.phase(), Phase::Down, "{what}");
    let status = it.machine.node.link(it.link).unwrap();
    assert!(matches!(status.why, Some(Down::Fault(_))), "{what}: {status:?}");
    it.connect();
    it.begin();
}

#[test]
fn protocol_violation_ends_the_link() {
    let mut it = ScriptedPeer::up(|_| ());
    let raw: [&[u8]; 4] = [b"\0\0\0\x03", b"\0\0\0\x02\0\0\0", b"", b"\0\0\0\x07\0\0\0\x01"];
    for bytes in raw {
        it.message(0, 0, bytes);
        expect_down(&mut it, &format!("{:?}", bytes.escape_ascii().to_string()));
    }
    let messages = [
        Message::Publish { address: 51, name: b"x" },
        Message::Publish { address: u32::MAX, name: b"x" },
        Message::QueryName { hunter: 51, name: b"x" },
        Message::Unpublish { address: 51 },
        Message::UnpublishAck { address: 51 },
        Message::PublishPeer { address: 51, peer: 1 },
        Message::PublishPeer { address: 1, peer: 51 },
    ];
    for message in messages {
        it.send(message);
        expect_down(&mut it, &message.to_string());
    }
    // Unknown types, possibly of a later version, are ignored.
    it.message(0, 0, b"\0\0\0\x09");
    assert_eq!((it.machine.phase(), it.machine.counters().ignored), (Phase::Up, 1));
}

#[test]
fn handshake_out_of_order_ends_the_link() {
    let mut it = ScriptedPeer::new(|_| ());
    for message in [
        Message::InitReply { status: 0, features: &[] },
        Message::Publish { address: 1, name: b"x" },
    ] {
        it.sent();
        it.send(message);
        assert_eq!(it.machine.phase(), Phase::Down, "{message}");
        it.connect();
    }
    it.sent();
    it.send(Message::Init { version: 2 });
    it.send(Message::Init { version: 2 });
    assert_eq!(it.machine.phase(), Phase::Down);
    it.connect();
    // Signals before the link is up are dropped.
    it.message(1, 1, b"\0\0\0\x01");
    assert_eq!(it.machine.counters().bad_signals, 1);
}

#[test]
fn invalid_signals_are_counted_and_dropped() {
    let mut it = ScriptedPeer::up(|config| config.max_unclaimed = 3);
    it.machine.open("server");
    it.send(Message::Publish { address: 1, name: b"x" });
    it.send(Message::QueryName { hunter: 1, name: b"server" });
    it.sent();
    for (source, destination, bytes) in [
        (0, 1, &b"\0\0\0\x01"[..]),
        (51, 1, b"\0\0\0\x01"),
        (1, 51, b"\0\0\0\x01"),
        (1, 1, b"\0\0\0"),
        (1, 1, b""),
    ] {
        it.message(source, destination, bytes);
    }
    it.message(1, 2, b"\0\0\0\x01");
    // Unpublished senders: three signals are stored, and delivered when the sender is published.
    (0..5).for_each(|n| it.message(2 + n % 2, 1, &[0, 0, 0, n as u8]));
    let counters = it.machine.counters();
    let numbers = (counters.bad_signals, counters.unknown_destination, counters.unknown_source);
    assert_eq!(numbers, (5, 1, 2));
    assert!(it.machine.received.is_empty());
    it.send(Message::Publish { address: 2, name: b"late" });
    let numbers: Vec<u32> = it.machine.received.iter().map(|it| it.1).collect();
    assert_eq!(numbers, [0, 2]);
    assert_eq!(it.machine.phase(), Phase::Up);
}

#[test]
fn floods_of_names_and_hunts_are_bounded() {
    let mut it = ScriptedPeer::up(|config| config.max_hunts = 10);
    // An unpublished hunter.
    it.send(Message::QueryName { hunter: 7, name: b"x" });
    assert_eq!(it.machine.counters().hunts_refused, 1);
    for address in 1..=50 {
        it.send(Message::Publish { address, name: format!("peer-{address}").as_bytes() });
    }
    for n in 0..1000 {
        it.send(Message::QueryName { hunter: 1 + n % 50, name: format!("wanted-{n}").as_bytes() });
        it.send(Message::QueryName { hunter: 1, name: b"wanted-0" });
    }
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.hunts, status.counters.hunts_refused, status.addresses.1), (10, 991, 50));
    // Names come and go, and the peer reads no answers.
    for n in 0..100_000u32 {
        let address = 1 + n % 50;
        match n % 3 {
            0 => it.send(Message::Unpublish { address }),
            1 => it.send(Message::PublishPeer { address, peer: 1 + n % 7 }),
            _ => it.send(Message::Publish { address, name: format!("{n}").as_bytes() }),
        }
        if n % 5 == 0 {
            it.send(Message::Init { version: 2 });
            it.send(Message::InitReply { status: 0, features: &[] });
        }
        let link = it.machine.node.links[0].as_ref().unwrap();
        assert!(link.control.len() <= 51 && link.remotes.count() <= 50, "{n}");
    }
    assert_eq!(it.machine.phase(), Phase::Up);
}

/// Signals to a full inbox are dropped and reported; other inboxes are not affected.
#[test]
fn full_inbox_drops_signals_and_affects_no_other() {
    let mut it = ScriptedPeer::up(|_| ());
    let names = ["slow", "fast"].map(|name| it.machine.open(name));
    it.send(Message::Publish { address: 1, name: b"x" });
    for name in ["slow", "fast"] {
        it.send(Message::QueryName { hunter: 1, name: name.as_bytes() });
    }
    it.sent();
    it.machine.take_log();
    it.machine.reads = false;
    for _ in 0..300 {
        it.message(1, 1, &[1; 1024]);
        it.message(1, 2, &[2; 1024]);
        it.machine.take(names[1]);
    }
    assert_eq!(it.machine.received.len(), 300);
    assert_eq!(it.machine.counters().inbox_full, 44);
    assert!(it.machine.take_log().contains(&"dropped".into()));
    it.machine.take(names[0]);
    assert_eq!(it.machine.received.len(), 556);
    it.message(1, 1, &[1; 1024]);
    it.machine.take(names[0]);
    assert_eq!(it.machine.received.len(), 557);
}
