//! Hunts, publishing and unpublishing of names, and signals between endpoints.

use super::*;

#[test]
fn hunt_finds_a_name_and_signals_go_both_ways() {
    let mut pair = Pair::up();
    let [a, b] = &mut pair.machines;
    let (server, client) = (b.open("server"), a.open("client"));
    a.hunt(client, "server");
    pair.run(10);
    let [a, _] = &mut pair.machines;
    assert_eq!(a.take_log(), ["found server"]);
    let peer = a.found[0];
    for (number, body) in [(7, &b"hello"[..]), (8, &[]), (9, &[5; 60_000])] {
        a.node.send(Sender::Endpoint(client), peer, number, body, a.now).unwrap();
    }
    pair.run(10);
    let [_, b] = &mut pair.machines;
    let sizes: Vec<(u32, usize)> = b.received.iter().map(|it| (it.1, it.2.len())).collect();
    assert_eq!(sizes, [(7, 5), (8, 0), (9, 60_000)]);
    let Origin::Peer(back) = b.received[0].0 else { panic!() };
    assert_eq!(b.node.peer_name(back), Some(&b"client"[..]));
    b.node.send(Sender::Endpoint(server), back, 70, b"answer", b.now).unwrap();
    pair.run(10);
    let [a, _] = &mut pair.machines;
    assert_eq!(a.received, [(Origin::Peer(peer), 70, b"answer".to_vec())]);
    // The client closes: the server is notified, and the address is freed.
    a.node.close(client, a.now);
    pair.run(10);
    let [a, b] = &mut pair.machines;
    assert_eq!(b.take_log(), ["gone"]);
    assert_eq!(a.node.link(a.links[0]).unwrap().addresses, (0, 1));
    assert!(b.node.send(Sender::Endpoint(server), back, 1, &[], b.now).is_err());
    assert!(a.node.send(Sender::Endpoint(client), peer, 1, &[], a.now).is_err());
}

#[test]
fn hunt_waits_for_its_name_across_link_restarts() {
    let mut pair = Pair::new();
    let client = pair.machines[0].open("client");
    pair.machines[0].hunt(client, "late");
    pair.run(1000);
    assert_eq!(pair.machines[1].node.link(pair.machines[1].links[0]).unwrap().hunts, 1);
    let link = pair.machines[1].links[0];
    let now = pair.machines[1].now;
    pair.machines[1].node.restart_link(link, now);
    pair.run(2000);
    pair.machines[1].open("late");
    pair.run(10);
    assert_eq!(pair.machines[0].take_log(), ["link Up", "link Down", "link Up", "found late"]);
    let status = pair.machines[1].node.link(link).unwrap();
    assert_eq!((status.hunts, status.why), (0, Some(Down::Asked)));
    // A hunt for a known name completes at once.
    pair.machines[0].hunt(client, "late");
    pair.machines[0].events();
    assert_eq!(pair.machines[0].take_log(), ["found late"]);
    // An ended hunt finds nothing.
    let hunt = pair.machines[0].hunt(client, "never");
    pair.machines[0].node.end_hunt(hunt);
    pair.machines[1].open("never");
    pair.run(10);
    assert!(pair.machines[0].take_log().is_empty());
}

#[test]
fn link_down_ends_all_names_of_the_peer() {
    let mut pair = Pair::up();
    let [a, b] = &mut pair.machines;
    let client = a.open("client");
    b.open("one");
    b.open("two");
    a.hunt(client, "one");
    a.hunt(client, "two");
    pair.run(10);
    let [a, b] = &mut pair.machines;
    assert_eq!(a.take_log(), ["found one", "found two"]);
    b.node.remove_link(b.links[0], b.now);
    pair.run(100);
    let [a, b] = &mut pair.machines;
    assert_eq!(a.take_log(), ["gone", "gone", "link Down"]);
    let status = a.node.link(a.links[0]).unwrap();
    assert_eq!((status.addresses, status.why), ((0, 0), Some(Down::Reset)));
    assert!(b.node.link(b.links[0]).is_none());
    // The link comes back, and old peer ids are invalid.
    let config = LinkConfig::new("again", Transport::Riocm(riocm(1, 5)));
    b.links[0] = b.node.add_link(&config, b.now).unwrap();
    let old = a.found[0];
    a.hunt(client, "one");
    pair.run(2000);
    let [a, _] = &mut pair.machines;
    assert_eq!(a.take_log(), ["link Up", "found one"]);
    let refused = a.node.send(Sender::Endpoint(client), old, 1, &[], a.now);
    assert_eq!(refused, Err(SendError::NotConnected));
    a.node.send(Sender::Endpoint(client), a.found[2], 1, &[], a.now).unwrap();
}

/// An address is not reused before the peer's UNPUBLISH_ACK.
#[test]
fn addresses_are_reused_after_the_ack() {
    let mut it = ScriptedPeer::up(|config| config.max_addresses = 2);
    let names = ["a", "b"].map(|name| it.machine.open(name));
    it.send(Message::Publish { address: 1, name: b"hunter" });
    it.send(Message::QueryName { hunter: 1, name: b"b" });
    it.send(Message::QueryName { hunter: 1, name: b"a" });
    it.send(Message::QueryName { hunter: 1, name: b"a" });
    assert_eq!(it.sent(), ["PUBLISH 1 b", "PUBLISH 2 a"]);
    it.machine.node.close(names[1], it.machine.now);
    assert_eq!(it.sent(), ["UNPUBLISH 1"]);
    it.message(1, 1, b"\0\0\0\x05for nobody");
    it.machine.open("c");
    it.send(Message::QueryName { hunter: 1, name: b"c" });
    assert!(it.sent().is_empty());
    // An unsolicited UNPUBLISH_ACK frees nothing.
    it.send(Message::UnpublishAck { address: 2 });
    it.send(Message::QueryName { hunter: 1, name: b"c" });
    assert!(it.sent().is_empty());
    let counters = it.machine.counters();
    assert_eq!((counters.no_address, counters.ignored, counters.unknown_destination), (2, 1, 1));
    it.send(Message::UnpublishAck { address: 1 });
    it.send(Message::UnpublishAck { address: 1 });
    it.send(Message::QueryName { hunter: 1, name: b"c" });
    assert_eq!(it.sent(), ["PUBLISH 1 c"]);
}

/// UNPUBLISH_ACK is sent when the user has received the end of the endpoint.
#[test]
fn unpublish_ack_waits_for_the_user() {
    let mut it = ScriptedPeer::up(|_| ());
    let server = it.machine.open("server");
    it.send(Message::Publish { address: 9, name: b"quiet" });
    it.send(Message::Unpublish { address: 9 });
    assert_eq!(it.sent(), ["UNPUBLISH_ACK 9"]);
    it.send(Message::Unpublish { address: 9 });
    assert!(it.sent().is_empty());
    it.send(Message::Publish { address: 9, name: b"talker" });
    it.send(Message::QueryName { hunter: 9, name: b"server" });
    assert_eq!(it.sent(), ["PUBLISH 1 server"]);
    it.message(9, 1, b"\0\0\0\x05hello");
    assert_eq!(it.machine.received.len(), 1);
    let mut bytes = [0; LONGEST];
    let length = Message::Unpublish { address: 9 }.emit(&mut bytes);
    let header = crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Data, 0, 0, length as u32);
    let whole = [&header.emit()[..], &bytes[..length]].concat();
    it.machine.node.stream_receive(it.link, it.stream, &whole, it.machine.now);
    let mut out = [0; 100];
    let now = it.machine.now;
    assert_eq!(it.machine.node.stream_transmit(it.link, it.stream, &mut out, now), 0);
    it.machine.events();
    assert_eq!(it.machine.take_log(), ["link Up", "gone"]);
    assert_eq!(it.sent(), ["UNPUBLISH_ACK 9"]);
    let _ = server;
}

/// Local signals forwarded by a peer, and signals of a peer that we forward.
#[test]
fn signals_are_forwarded_by_publish_peer() {
    let mut pair = Pair::up();
    let [a, b] = &mut pair.machines;
    let (one, _, relay) = (a.open("one"), a.open("two"), b.open("relay"));
    a.hunt(one, "relay");
    b.hunt(relay, "two");
    pair.run(10);
    let [a, _] = &mut pair.machines;
    let to_relay = a.found[0];
    a.node.send(Sender::Endpoint(one), to_relay, 3, b"pass it on", a.now).unwrap();
    pair.run(10);
    let [_, b] = &mut pair.machines;
    let (Origin::Peer(from), two) = (b.received[0].0, b.found[0]) else { panic!() };
    b.node.send(Sender::Peer(from), two, 4, b"passed on", b.now).unwrap();
    pair.run(10);
    let [a, b] = &mut pair.machines;
    assert_eq!(a.received, [(Origin::Own(one), 4, b"passed on".to_vec())]);
    assert_eq!(b.node.link(b.links[0]).unwrap().addresses.0, 2);
    a.node.close(one, a.now);
    pair.run(10);
    let [a, b] = &mut pair.machines;
    assert_eq!(b.node.link(b.links[0]).unwrap().addresses, (1, 1));
    assert_eq!(a.node.link(a.links[0]).unwrap().addresses, (1, 1));
}

#[test]
fn lower_version_of_both_ends_is_used() {
    for (ours, theirs, status, spoken) in [(2, 1, 0, 1), (1, 2, 1, 1), (2, 7, 1, 2), (1, 1, 0, 1)] {
        let mut it = ScriptedPeer::new(|config| config.version = ours);
        assert_eq!(it.sent(), [format!("INIT version {ours}")]);
        it.send(Message::Init { version: theirs });
        assert_eq!(it.sent(), [format!("INIT_REPLY status {status} features \"\"")]);
        it.message(0, 0, b"\0\0\0\x06\0\0\0\0");
        let status = it.machine.node.link(it.link).unwrap();
        assert_eq!((status.phase, status.version), (Phase::Up, spoken));
    }
}

/// Many names on a link do not affect signals. The benchmark measures that they cost nothing.
#[test]
fn thousand_names_are_found_and_ended() {
    let mut pair = Pair::up();
    let client = pair.machines[0].open("client");
    for n in 0..1000 {
        pair.machines[1].open(&format!("name-{n}"));
    }
    for n in 0..1000 {
        pair.machines[0].hunt(client, &format!("name-{n}"));
        pair.run(1);
    }
    assert_eq!(pair.machines[0].found.len(), 1000);
    let [a, _] = &mut pair.machines;
    for (n, peer) in a.found.clone().into_iter().enumerate() {
        let sent = a.node.send(Sender::Endpoint(client), peer, n as u32, &[], a.now);
        if sent.is_err() {
            break;
        }
    }
    pair.run(10);
    assert_eq!(pair.machines[1].received.len(), 128);
    pair.machines[1].node.remove_port(0, Instant::from_nanos(1 << 40));
    pair.run(10_000);
    let log = pair.machines[0].take_log();
    assert_eq!(log.iter().filter(|line| *line == "gone").count(), 1000);
}
