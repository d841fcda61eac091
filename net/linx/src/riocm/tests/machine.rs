//! The state machine of a connection: each event in each state.

use super::*;

#[test]
fn connection_negotiates_mtu_and_heartbeat() {
    let mut configs = [config(0), config(1)];
    (configs[0].mtu, configs[0].heartbeat) = (2000, 3);
    (configs[1].mtu, configs[1].heartbeat) = (0, 20);
    let sides = connected(configs, [4096, 1000]);
    for side in &sides {
        let status = side.riocm.status(side.id).unwrap();
        assert_eq!(status.agreed, Agreed { mtu: 1000, heartbeat: 20 });
        assert_eq!(status.cids, (1, 1));
        assert_eq!(status.counters.num_connects, 1);
    }
    let [a, b] = sides.map(|side| side.riocm.status(side.id).unwrap().generations);
    assert_eq!(a, (b.1, b.0));
}

/// If both ends connect, one CONN_REQ and three CONN_ACKs suffice.
#[test]
fn one_request_and_acks_establish_a_connection() {
    let mut sides = [0, 1].map(|n| Side::new(n, &config(n), 4096));
    sides.iter_mut().for_each(|side| assert!(side.riocm.connect(side.id)));
    sides[0].wait(400);
    let mut packets = sides[0].sent();
    assert_eq!(packets.len(), 1);
    let mut count = 1;
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        packets.iter().for_each(|packet| sides[to].receive(IDS[from], packet));
        packets = sides[to].sent();
        count += packets.len();
        assert_eq!(packets.len(), 1);
        let (packet, _) = Packet::parse(&packets[0]).unwrap();
        assert!(matches!(packet.header, Header::Ack { .. }), "{packet}");
    }
    assert_eq!(count, 4);
    assert!(sides.iter().all(|side| side.state() == State::Connected));
}

#[test]
fn disconnected_ignores_packets_until_connect() {
    let mut it = ScriptedPeer::new(4096);
    let id = it.side.id;
    it.side.riocm.disconnect(&mut it.side.pool, id);
    assert_eq!(it.side.state(), State::Disconnected);
    it.side.events();
    assert_eq!(it.side.take_log(), ["disconnected Asked 0"]);
    it.request();
    it.ack();
    it.send_header(Header::Reset { generation: 1 });
    it.send_header(Header::Heartbeat { cid: 1 });
    it.data(1, Part::Single(message_of(0)), &[]);
    it.side.wait(10_000);
    assert!(it.side.lines().is_empty());
    assert!(it.side.take_log().is_empty() && it.side.received.is_empty());
    assert_eq!(it.side.state(), State::Disconnected);
    assert!(it.side.riocm.connect(id));
    assert!(!it.side.riocm.connect(id));
}

#[test]
fn connecting_handles_each_event() {
    let mut it = ScriptedPeer::new(4096);
    let id = it.side.id;
    // Requests, about 200 ms apart.
    let mut times = Vec::new();
    for millis in 0..20_000u64 {
        it.side.wait(1);
        if !it.side.sent().is_empty() {
            times.push(millis);
        }
    }
    assert!(times.windows(2).all(|pair| (72..=328).contains(&(pair[1] - pair[0]))), "{times:?}");
    assert!((60..140).contains(&times.len()), "{}", times.len());
    // A request is acknowledged, with the smaller MTU and the longer interval.
    it.send_header(Header::Request { generation: 9, mtu: 1234, heartbeat: 7 });
    let line = it.side.lines().remove(0);
    assert!(
        line.starts_with("CONN_ACK") && line.contains("ack 9 mtu 1234 heartbeat 7 cid 1"),
        "{line}"
    );
    // A request with an invalid MTU is ignored.
    it.send_header(Header::Request { generation: 9, mtu: 64, heartbeat: 7 });
    assert!(it.side.lines().is_empty());
    assert_eq!(it.side.counters().ignored, 1);
    // An ACK that is wrong in any way counts as a request.
    let status = it.side.riocm.status(id).unwrap();
    let ours = status.generations.0;
    for (mtu, acknowledged, heartbeat) in [(1233, ours, 7), (1234, ours ^ 1, 7), (1233, ours, 8)] {
        it.send_header(Header::Ack { generation: 9, mtu, acknowledged, heartbeat, cid: 5 });
        assert_eq!(it.side.state(), State::Connecting);
        let lines = it.side.lines();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("CONN_ACK"), "{lines:?}");
    }
    // CONN_RESET is ignored; the user ends it.
    it.send_header(Header::Reset { generation: 9 });
    assert_eq!(it.side.state(), State::Connecting);
    assert!(it.side.take_log().is_empty() && it.side.lines().is_empty());
    it.side.riocm.disconnect(&mut it.side.pool, id);
    assert!(it.side.lines().is_empty(), "no CONN_RESET is sent while connecting");
    // The right ACK.
    it.side.take_log();
    it.side.riocm.connect(id);
    // During the pause it ignores packets, and can be disconnected.
    it.request();
    it.ack();
    assert_eq!((it.side.state(), it.side.lines()), (State::Disconnected, Vec::new()));
    assert!(!it.side.riocm.connect(id));
    it.side.riocm.disconnect(&mut it.side.pool, id);
    it.side.events();
    assert_eq!(it.side.take_log(), ["disconnected Asked 0"]);
    it.side.riocm.connect(id);
    it.until_connecting();
    it.side.sent();
    it.ack();
    assert_eq!(it.side.take_log(), ["connected"]);
    assert!(it.side.lines()[0].starts_with("CONN_ACK"));
}

#[test]
fn connected_ends_by_each_event() {
    let expect = |it: &mut ScriptedPeer, log: &[&str], lines: &[&str]| {
        let sent = it.side.lines();
        assert_eq!(it.side.take_log(), log);
        let sent: Vec<&str> = sent.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(sent, lines);
        assert_eq!(it.side.state(), State::Disconnected);
        assert!(it.side.riocm.connect(it.side.id));
    };
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    // A second, right ACK is ignored.
    it.ack();
    assert!(it.side.lines().is_empty());
    assert_eq!(it.side.state(), State::Connected);
    it.send_header(Header::Reset { generation: 0 });
    expect(&mut it, &["disconnected Reset 0"], &[]);
    it.connect();
    it.request();
    expect(&mut it, &["disconnected Restarted 0"], &[]);
    it.connect();
    it.send_header(Header::Ack { generation: 1, mtu: 100, acknowledged: 0, heartbeat: 5, cid: 2 });
    expect(&mut it, &["disconnected Restarted 0"], &[]);
    it.connect();
    let id = it.side.id;
    it.side.riocm.disconnect(&mut it.side.pool, id);
    expect(&mut it, &["disconnected Asked 0"], &["CONN_RESET"]);
    it.connect();
    // Two heartbeats are sent; at the third interval the peer is considered dead.
    let mut lines = Vec::new();
    for _ in 0..300 {
        it.side.wait(10);
        lines.extend(it.side.lines());
        if it.side.state() == State::Disconnected {
            break;
        }
    }
    assert_eq!(lines, ["HEARTBEAT cid 77", "HEARTBEAT cid 77", &lines[2]]);
    assert!(lines[2].starts_with("CONN_RESET"));
    expect(&mut it, &["disconnected Silent 0"], &[]);
    it.connect();
    // Heartbeats and data keep it alive.
    for n in 0..40 {
        it.side.wait(400);
        it.side.sent();
        match n % 2 {
            0 => it.send_header(Header::Heartbeat { cid: 1 }),
            _ => it.data(n, Part::Single(message_of(0)), &[]),
        }
    }
    assert_eq!(it.side.state(), State::Connected);
    assert_eq!(it.side.received.len(), 20);
}

/// LINX for Linux 2.6.9 keeps INIT and INIT_REPLY the same way.
#[test]
fn two_early_messages_wait_for_the_ack_in_any_order() {
    for order in [[0, 1], [1, 0]] {
        let mut it = ScriptedPeer::new(4096);
        it.request();
        order.iter().for_each(|&n| it.data_at(n, 1, Part::Single(message_of(1)), &[n as u8]));
        it.ack();
        let received: Vec<u8> = it.side.received.iter().map(|it| it.2[0]).collect();
        assert_eq!(received, [0, 1]);
        it.data_at(2, 1, Part::Single(message_of(1)), b"d");
        assert_eq!(it.side.received.len(), 3);
    }
    // Only the second: the first is still missing.
    let mut it = ScriptedPeer::new(4096);
    it.request();
    it.data_at(1, 1, Part::Single(message_of(1)), b"b");
    it.ack();
    assert!(it.side.received.is_empty());
    it.data_at(0, 1, Part::Single(message_of(1)), b"a");
    assert_eq!(it.side.received.len(), 2);
}

#[test]
fn early_message_waits_for_the_ack() {
    let mut it = ScriptedPeer::new(4096);
    it.request();
    // Other packets are from an earlier connection.
    it.data_at(2, 1, Part::Single(message_of(1)), b"x");
    it.data_at(0, 1, Part::Fragment, b"x");
    it.data_at(0, 1, Part::Single(message_of(3)), b"abc-padding");
    it.data_at(0, 1, Part::Single(message_of(3)), b"xyz");
    assert!(it.side.received.is_empty());
    it.ack();
    assert_eq!(it.side.take_log(), ["connected"]);
    assert_eq!(it.side.received, [(2, 1, b"abc".to_vec())]);
    it.data_at(1, 2, Part::Single(message_of(1)), b"d");
    assert_eq!(it.side.received.len(), 2);
    assert_eq!(it.side.counters().outside, 3);
}

/// The peer restarts within 30 ms, and assigns our connection id to another board's connection. Packets for the old
/// connection must not reach the new one.
#[test]
fn reused_connection_id_receives_no_stale_packets() {
    let mut sides = connected([config(0), config(1)], [4096; 2]);
    let [a, b] = &mut sides;
    a.send(b"for the old life");
    let stale = a.sent();
    // The restarted peer: the id that A uses belongs to board C's connection.
    let other = ConnectionConfig { peer_id: 0x0303, ..config(1) };
    let mut again = Side::new(1, &other, 4096);
    let for_a = again.riocm.create(&mut again.pool, &config(1), again.now).unwrap();
    assert_eq!((again.id.cid(), for_a.cid()), (1, 2));
    again.riocm.connect(again.id);
    again.riocm.connect(for_a);
    for packet in &stale {
        again.receive(IDS[0], packet);
    }
    assert_eq!(again.riocm.strays().stale, 1);
    assert!(again.received.is_empty());
    *b = again;
    // The peer's request shows A that it has restarted. A reconnects.
    for n in 0..200 {
        for packet in sides[0].sent() {
            sides[1].receive(IDS[0], &packet);
        }
        for packet in sides[1].sent() {
            let to = Packet::parse(&packet).unwrap();
            sides[0].receive(to.0.ends.sender, &packet);
        }
        if n % 10 == 0 && sides[0].state() == State::Disconnected {
            let id = sides[0].id;
            sides[0].riocm.connect(id);
        }
        sides.iter_mut().for_each(|side| side.wait(10));
    }
    let [a, b] = &mut sides;
    assert_eq!(a.take_log(), ["disconnected Restarted 0", "connected"]);
    assert_eq!(b.riocm.status(for_a).unwrap().state, State::Connected);
    assert_eq!(a.riocm.status(a.id).unwrap().cids, (1, 2));
    a.send(b"for the new one");
    a.sent().iter().for_each(|packet| b.receive(IDS[0], packet));
    assert_eq!(b.received, [(1, 2, b"for the new one".to_vec())]);
}

#[test]
fn connection_survives_removal_of_its_port() {
    let mut sides = connected([config(0), config(1)], [4096; 2]);
    let [a, _] = &mut sides;
    a.send(b"in flight");
    a.riocm.remove_port(&mut a.pool, a.port);
    a.events();
    assert_eq!(a.take_log(), ["disconnected PortGone 1"]);
    a.riocm.connect(a.id);
    for _ in 0..100 {
        a.wait(10);
        assert!(a.sent().is_empty(), "a connection without a port sends nothing");
    }
    assert!(!a.riocm.status(a.id).unwrap().has_port);
    // A port of another name is not used.
    a.riocm.add_port("rio7", 9, 4096).unwrap();
    assert!(!a.riocm.status(a.id).unwrap().has_port);
    a.port = a.riocm.add_port("rio0", IDS[0], 512).unwrap();
    assert!(a.riocm.add_port("rio0", IDS[0], 512).is_err());
    run(&mut sides, 3000);
    let id = sides[1].id;
    sides[1].riocm.connect(id);
    run(&mut sides, 3000);
    for side in &sides {
        assert_eq!(side.state(), State::Connected);
        assert_eq!(side.riocm.status(side.id).unwrap().agreed.mtu, 512);
    }
}

#[test]
fn bad_configurations_are_refused() {
    let mut side = Side::new(0, &config(0), 4096);
    let (now, good) = (side.now, ConnectionConfig { my_port: 99, ..config(0) });
    let mut refuse =
        |config: ConnectionConfig<'_>| side.riocm.create(&mut side.pool, &config, now).unwrap_err();
    assert_eq!(refuse(config(0)), BadConfig::Exists);
    assert_eq!(refuse(ConnectionConfig { mtu: 64, ..good.clone() }), BadConfig::Mtu(64));
    assert_eq!(refuse(ConnectionConfig { mtu: 4097, ..good.clone() }), BadConfig::Mtu(4097));
    assert_eq!(refuse(ConnectionConfig { peer_mailbox: 4, ..good.clone() }), BadConfig::Mailbox(4));
    let little = ConnectionConfig { receive_bytes: 100_000, ..good.clone() };
    assert_eq!(refuse(little), BadConfig::TooLittle);
    let huge = ConnectionConfig { receive_bytes: 64 << 20, ..good.clone() };
    assert!(matches!(refuse(huge), BadConfig::Memory { .. }));
    // All ids, and one more.
    let small = ConnectionConfig { max_message: 500, receive_bytes: 1000, send_bytes: 500, ..good };
    let mut pool = Pool::new(memory(1 << 20), 1000);
    let mut riocm = Riocm::new(Config::default(), &pool, 1);
    for port in 0..MOST_CONNECTIONS as u16 {
        let config = ConnectionConfig { my_port: port, ..small.clone() };
        let id = riocm.create(&mut pool, &config, now).unwrap();
        assert_eq!(u16::from(id.cid()), port + 1);
    }
    let config = ConnectionConfig { my_port: 1000, ..small.clone() };
    assert_eq!(riocm.create(&mut pool, &config, now), Err(BadConfig::Full));
}
