//! What LINX for Linux takes, and may do.

use super::*;
use crate::wire::rlnh::MAX_NAME;

#[test]
fn names_longer_than_ours_do_not_end_the_link() {
    for length in [255, 256, 300, MAX_NAME, MAX_NAME + 1, 5000, 60_000] {
        let mut it = Against::up(|_| ());
        let name = std::vec![b'n'; length];
        let raw =
            |kind: u8, address: u8| [&[0, 0, 0, kind, 0, 0, 0, address], &name[..], b"\0"].concat();
        let server = it.machine.open("server");
        it.message(0, 0, &raw(2, 1));
        it.message(0, 0, &raw(1, 1));
        it.tell(Message::QueryName { hunter: 1, name: b"server" });
        assert_eq!(it.said(), ["PUBLISH 1 server"], "{length}");
        // Its signals arrive, and are answered.
        it.message(1, 1, b"\0\0\0\x05hello");
        let Origin::Peer(from) = it.machine.came[0].0 else { panic!() };
        let now = it.machine.now;
        it.machine.node.send(Sender::Endpoint(server), from, 1, b"", now).unwrap();
        let fits = length <= MAX_NAME;
        assert_eq!(it.machine.node.peer_name(from), fits.then_some(&name[..]));
        let counters = it.machine.counters();
        assert_eq!(
            (counters.unnamed, counters.hunts_refused),
            (u64::from(!fits), u64::from(!fits))
        );
        it.tell(Message::Unpublish { address: 1 });
        it.machine.events();
        assert!(it.said().contains(&"UNPUBLISH_ACK 1".into()));
        assert_eq!(it.machine.phase(), Phase::Up);
    }
}

/// Both ways, over RIOCM in several packets.
#[test]
fn a_name_of_1024_bytes_is_found() {
    let name = "n".repeat(MAX_NAME);
    let mut pair = Pair::up();
    pair.machines[1].open(&name);
    let client = pair.machines[0].open("client");
    pair.machines[0].hunt(client, &name);
    pair.run(10);
    assert_eq!(pair.machines[0].take_log(), [format!("found {name}")]);
    assert!(pair.machines[0].node.open(&std::vec![b'n'; MAX_NAME + 1], Instant::ZERO).is_err());
}

/// Names are longer than the longest signal; the limit of signals holds all the same.
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
    assert_eq!(pair.machines[1].came[0].2, [1; 60]);
}

#[test]
fn a_signal_longer_than_the_longest_ends_the_link() {
    let mut it = Against::up(|config| {
        if let Transport::Tcp(connection) = &mut config.transport {
            connection.max_message = 64;
        }
    });
    it.machine.open("server");
    it.tell(Message::Publish { address: 1, name: b"x" });
    it.tell(Message::QueryName { hunter: 1, name: b"server" });
    it.said();
    it.message(1, 1, &[1; 64]);
    assert_eq!((it.machine.came.len(), it.machine.phase()), (1, Phase::Up));
    it.message(1, 1, &[1; 65]);
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::TooLong(65))));
}

/// A stock node says UNPUBLISH for address 0 when two of its threads published one endpoint at once.
#[test]
fn messages_of_address_0_are_ignored() {
    let mut it = Against::up(|_| ());
    it.machine.open("server");
    for message in [
        Message::Publish { address: 0, name: b"x" },
        Message::QueryName { hunter: 0, name: b"server" },
        Message::Unpublish { address: 0 },
        Message::UnpublishAck { address: 0 },
        Message::PublishPeer { address: 0, peer: 1 },
    ] {
        it.tell(message);
        assert_eq!(it.machine.phase(), Phase::Up, "{message}");
    }
    it.tell(Message::PublishPeer { address: 1, peer: 0 });
    assert_eq!((it.machine.phase(), it.machine.counters().ignored), (Phase::Up, 6));
    assert!(it.said().is_empty());
}

#[test]
fn init_of_version_0_is_answered() {
    let mut it = Against::new(|_| ());
    it.said();
    it.tell(Message::Init { version: 0 });
    assert_eq!(it.said(), ["INIT_REPLY status 0 features \"\""]);
    it.tell(Message::InitReply { status: 7, features: b"a:1,b:2" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.version), (Phase::Up, 0));
}

#[test]
fn a_second_init_is_answered_and_init_reply_has_to_follow() {
    let mut it = Against::up(|_| ());
    it.machine.open("server");
    it.tell(Message::Publish { address: 1, name: b"x" });
    it.tell(Message::Init { version: 1 });
    assert_eq!(it.said(), ["INIT_REPLY status 0 features \"\""]);
    // Signals are not RLNH's.
    it.message(1, 1, b"\0\0\0\x05early");
    it.tell(Message::InitReply { status: 0, features: b"" });
    // Another one is nothing.
    it.tell(Message::InitReply { status: 0, features: b"" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.version, status.addresses), (Phase::Up, 1, (0, 1)));
    it.tell(Message::QueryName { hunter: 1, name: b"server" });
    assert_eq!(it.said(), ["PUBLISH 1 server"]);
    it.tell(Message::Init { version: 2 });
    it.tell(Message::Publish { address: 2, name: b"y" });
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Link)));
}

/// LINX for Linux takes it silently, and reuses addresses that it gave out by PUBLISH_PEER without an UNPUBLISH.
#[test]
fn publish_of_an_address_in_use_replaces_its_endpoint() {
    let mut it = Against::up(|_| ());
    let server = it.machine.open("server");
    it.tell(Message::Publish { address: 1, name: b"old" });
    it.tell(Message::QueryName { hunter: 1, name: b"server" });
    it.tell(Message::QueryName { hunter: 1, name: b"late" });
    it.message(1, 1, b"\0\0\0\x01");
    it.machine.take_log();
    let Origin::Peer(old) = it.machine.came[0].0 else { panic!() };
    // The same name is nothing.
    it.tell(Message::Publish { address: 1, name: b"old" });
    assert!(it.machine.take_log().is_empty());
    it.tell(Message::Publish { address: 1, name: b"new" });
    assert_eq!(it.machine.take_log(), ["gone"]);
    let now = it.machine.now;
    let refused = it.machine.node.send(Sender::Endpoint(server), old, 1, b"", now);
    assert_eq!(refused, Err(SendError::NotConnected));
    it.said();
    // The hunts were the old one's.
    it.machine.open("late");
    assert!(it.said().is_empty());
    it.message(1, 1, b"\0\0\0\x02");
    let Origin::Peer(new) = it.machine.came[1].0 else { panic!() };
    assert_eq!(it.machine.node.peer_name(new), Some(&b"new"[..]));
    assert_eq!(it.machine.node.peer_name(old), None);
    // One of ours, in whose name the peer passes signals on; and a name again.
    it.tell(Message::PublishPeer { address: 1, peer: 1 });
    assert_eq!(it.machine.take_log(), ["gone"]);
    it.message(1, 1, b"\0\0\0\x03");
    assert_eq!(it.machine.came[2].0, Origin::Own(server));
    it.tell(Message::Publish { address: 1, name: b"third" });
    it.message(1, 1, b"\0\0\0\x04");
    assert!(matches!(it.machine.came[3].0, Origin::Peer(_)));
    // One that was not given back yet.
    it.tell(Message::Unpublish { address: 1 });
    it.tell(Message::Publish { address: 1, name: b"fourth" });
    it.machine.events();
    assert_eq!(it.machine.take_log(), ["gone"]);
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.addresses), (Phase::Up, (1, 1)));
}

/// All addresses that LINX for Linux can be configured for.
#[test]
fn addresses_of_the_peer_up_to_65536_are_taken() {
    let mut it = Against::up(|config| config.max_peer_addresses = MOST_ADDRESSES);
    it.machine.open("server");
    for address in 1..=MOST_ADDRESSES {
        it.tell(Message::Publish { address, name: format!("name-{address}").as_bytes() });
    }
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!((status.phase, status.addresses.1), (Phase::Up, MOST_ADDRESSES as usize));
    it.tell(Message::QueryName { hunter: MOST_ADDRESSES, name: b"server" });
    it.message(MOST_ADDRESSES, 1, b"\0\0\0\x01");
    assert_eq!(it.machine.came.len(), 1);
    it.tell(Message::Publish { address: MOST_ADDRESSES + 1, name: b"x" });
    assert_eq!(it.machine.phase(), Phase::Down);
}
