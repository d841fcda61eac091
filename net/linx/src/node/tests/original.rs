//! Compatibility with LINX for Linux: messages that it accepts, and messages that it sends.

use super::*;
use crate::wire::rlnh::MAX_NAME;

#[test]
fn names_longer_than_ours_do_not_end_the_link() {
    for length in [255, 256, 300, MAX_NAME, MAX_NAME + 1, 5000, 60_000] {
        let mut it = ScriptedPeer::up(|_| ());
        let name = std::vec![b'n'; length];
        let raw =
            |kind: u8, address: u8| [&[0, 0, 0, kind, 0, 0, 0, address], &name[..], b"\0"].concat();
        let server = it.machine.open("server");
        it.message(0, 0, &raw(2, 1));
        it.message(0, 0, &raw(1, 1));
        it.send(Message::QueryName { hunter: 1, name: b"server" });
        assert_eq!(it.sent(), ["PUBLISH 1 server"], "{length}");
        // Signals of the endpoint arrive, and can be answered.
        it.message(1, 1, b"\0\0\0\x05hello");
        let Origin::Peer(from) = it.machine.received[0].0 else { panic!() };
        let now = it.machine.now;
        it.machine.node.send(Sender::Endpoint(server), from, 1, b"", now).unwrap();
        let fits = length <= MAX_NAME;
        assert_eq!(it.machine.node.peer_name(from), fits.then_some(&name[..]));
        let counters = it.machine.counters();
        assert_eq!(
            (counters.unnamed, counters.hunts_refused),
            (u64::from(!fits), u64::from(!fits))
        );
        it.send(Message::Unpublish { address: 1 });
        it.machine.events();
        assert!(it.sent().contains(&"UNPUBLISH_ACK 1".into()));
        assert_eq!(it.machine.phase(), Phase::Up);
    }
}

/// Both ways, over RIOCM in several packets.
#[test]
fn name_of_1024_bytes_is_found() {
    let name = "n".repeat(MAX_NAME);
    let mut pair = Pair::up();
    pair.machines[1].open(&name);
    let client = pair.machines[0].open("client");
    pair.machines[0].hunt(client, &name);
    pair.run(10);
    assert_eq!(pair.machines[0].take_log(), [format!("found {name}")]);
    assert!(pair.machines[0].node.open(&std::vec![b'n'; MAX_NAME + 1], Instant::ZERO).is_err());
}

/// Names may be longer than the longest signal; the limit of signals still applies.
#[test]
fn names_longer_than_the_longest_signal_do_not_end_the_link() {
    let name = "n".repeat(300);
    let mut pair = Pair::with(|_, config| {
        if let Transport::Riocm(connection) = &mut config.transport {
            connection.max_message = 64;
        }
    });
    pair.run(1000);
    pair.machines.iter_mut().for_each(|it| assert_eq!(it.take_log(), ["link Up"]));
    pair.machines[1].open(&name);
    let client = pair.machines[0].open("client");
    pair.machines[0].hunt(client, &name);
    pair.run(10);
    let [a, _] = &mut pair.machines;
    assert_eq!(a.take_log(), [format!("found {name}")]);
    let to = a.found[0];
    a.node.send(Sender::Endpoint(client), to, 1, &[1; 60], a.now).unwrap();
    let long = a.node.send(Sender::Endpoint(client), to, 1, &[1; 61], a.now);
    assert_eq!(long, Err(SendError::TooLong));
    let window = memory(33);
    let long = a.node.send_windows(Sender::Endpoint(client), to, [window, window], 1, a.now);
    assert_eq!(long, Err(SendError::TooLong));
    pair.run(10);
    assert_eq!(pair.machines[1].received[0].2, [1; 60]);
}

#[test]
fn signal_above_the_maximum_length_ends_the_link() {
    let mut it = ScriptedPeer::up(|config| {
        if let Transport::Tcp(connection) = &mut config.transport {
            connection.max_message = 64;
        }
    });
    it.machine.open("server");
    it.send(Message::Publish { address: 1, name: b"x" });
    it.send(Message::QueryName { hunter: 1, name: b"server" });
    it.sent();
    it.message(1, 1, &[1; 64]);
    assert_eq!((it.machine.received.len(), it.machine.phase()), (1, Phase::Up));
    it.message(1, 1, &[1; 65]);
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::TooLong(65))));
}

/// A stock node sends UNPUBLISH for address 0 if two of its threads publish an endpoint at the same time.
#[test]
fn messages_of_address_0_are_ignored() {
    let mut it = ScriptedPeer::up(|_| ());
    it.machine.open("server");
    for message in [
        Message::Publish { address: 0, name: b"x" },
        Message::QueryName { hunter: 0, name: b"server" },
        Message::Unpublish { address: 0 },
        Message::UnpublishAck { address: 0 },
        Message::PublishPeer { address: 0, peer: 1 },
    ] {
        it.send(message);
        assert_eq!(it.machine.phase(), Phase::Up, "{message}");
    }
    it.send(Message::PublishPeer { address: 1, peer: 0 });
    assert_eq!((it.machine.phase(), it.machine.counters().ignored), (Phase::Up, 6));
    assert!(it.sent().is_empty());
}

#[test]
fn init_of_version_0_is_answered() {
    let mut it = ScriptedPeer::new(|_| ());
    it.sent();
    it.send(Message::Init { version: 0 });
    assert_eq!(it.sent(), ["INIT_REPLY status 0 features \"\""]);
    it.send(Message::InitReply { status: 7, features: b"a:1,b:2" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.version), (Phase::Up, 0));
}

#[test]
fn second_init_is_answered_and_must_be_followed_by_init_reply() {
    let mut it = ScriptedPeer::up(|_| ());
    it.machine.open("server");
    it.send(Message::Publish { address: 1, name: b"x" });
    it.send(Message::Init { version: 1 });
    assert_eq!(it.sent(), ["INIT_REPLY status 0 features \"\""]);
    // Signals are still delivered.
    it.message(1, 1, b"\0\0\0\x05early");
    it.send(Message::InitReply { status: 0, features: b"" });
    // A further INIT_REPLY is ignored.
    it.send(Message::InitReply { status: 0, features: b"" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.version, status.addresses), (Phase::Up, 1, (0, 1)));
    it.send(Message::QueryName { hunter: 1, name: b"server" });
    assert_eq!(it.sent(), ["PUBLISH 1 server"]);
    it.send(Message::Init { version: 2 });
    it.send(Message::Publish { address: 2, name: b"y" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Link)));
}

/// LINX for Linux accepts it silently, and reuses addresses of PUBLISH_PEER without an UNPUBLISH.
#[test]
fn publish_of_an_address_in_use_replaces_its_endpoint() {
    let mut it = ScriptedPeer::up(|_| ());
    let server = it.machine.open("server");
    it.send(Message::Publish { address: 1, name: b"old" });
    it.send(Message::QueryName { hunter: 1, name: b"server" });
    it.send(Message::QueryName { hunter: 1, name: b"late" });
    it.message(1, 1, b"\0\0\0\x01");
    it.machine.take_log();
    let Origin::Peer(old) = it.machine.received[0].0 else { panic!() };
    // The same name again is ignored.
    it.send(Message::Publish { address: 1, name: b"old" });
    assert!(it.machine.take_log().is_empty());
    it.send(Message::Publish { address: 1, name: b"new" });
    assert_eq!(it.machine.take_log(), ["gone"]);
    let now = it.machine.now;
    let refused = it.machine.node.send(Sender::Endpoint(server), old, 1, b"", now);
    assert_eq!(refused, Err(SendError::NotConnected));
    it.sent();
    // The hunts of the old endpoint ended with it.
    it.machine.open("late");
    assert!(it.sent().is_empty());
    it.message(1, 1, b"\0\0\0\x02");
    let Origin::Peer(new) = it.machine.received[1].0 else { panic!() };
    assert_eq!(it.machine.node.peer_name(new), Some(&b"new"[..]));
    assert_eq!(it.machine.node.peer_name(old), None);
    // Then a local endpoint whose signals the peer forwards, and a name again.
    it.send(Message::PublishPeer { address: 1, peer: 1 });
    assert_eq!(it.machine.take_log(), ["gone"]);
    it.message(1, 1, b"\0\0\0\x03");
    assert_eq!(it.machine.received[2].0, Origin::Own(server));
    it.send(Message::Publish { address: 1, name: b"third" });
    it.message(1, 1, b"\0\0\0\x04");
    assert!(matches!(it.machine.received[3].0, Origin::Peer(_)));
    // An address whose UNPUBLISH_ACK is pending.
    it.send(Message::Unpublish { address: 1 });
    it.send(Message::Publish { address: 1, name: b"fourth" });
    it.machine.events();
    assert_eq!(it.machine.take_log(), ["gone"]);
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.addresses), (Phase::Up, (1, 1)));
}

/// The highest limit that LINX for Linux can be configured for.
#[test]
fn peer_addresses_up_to_65536_are_accepted() {
    let mut it = ScriptedPeer::up(|config| config.max_peer_addresses = MOST_ADDRESSES);
    it.machine.open("server");
    for address in 1..=MOST_ADDRESSES {
        it.send(Message::Publish { address, name: format!("name-{address}").as_bytes() });
    }
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.addresses.1), (Phase::Up, MOST_ADDRESSES as usize));
    it.send(Message::QueryName { hunter: MOST_ADDRESSES, name: b"server" });
    it.message(MOST_ADDRESSES, 1, b"\0\0\0\x01");
    assert_eq!(it.machine.received.len(), 1);
    it.send(Message::Publish { address: MOST_ADDRESSES + 1, name: b"x" });
    assert_eq!(it.machine.phase(), Phase::Down);
}
