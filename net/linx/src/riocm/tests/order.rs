//! Reordered, duplicate, missing and foreign packets.

use super::*;

#[test]
fn packets_within_64_are_reordered() {
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    // The sequence number wraps.
    for n in 0..65_500u32 {
        it.data(n as u8, Part::Single(message_of(0)), &[]);
    }
    it.side.received.clear();
    let mut order: Vec<u16> = (0..64).rev().collect();
    for seed in 0..200usize {
        let base = it.sequence;
        for &n in &order {
            let payload = (u32::from(n)).to_be_bytes();
            it.data_at(base.wrapping_add(n), n as u8, Part::Single(message_of(4)), &payload);
        }
        let received: Vec<u32> = it
            .side
            .received
            .drain(..)
            .map(|it| u32::from_be_bytes(it.2.try_into().unwrap()))
            .collect();
        assert_eq!(received, (0..64).collect::<Vec<u32>>());
        it.sequence = base.wrapping_add(64);
        order.swap(seed % 64, (seed * 37 + 11) % 64);
    }
    assert_eq!(it.side.state(), State::Connected);
    assert!(it.side.counters().reordered > 10_000);
}

#[test]
fn packet_64_ahead_ends_the_connection() {
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    it.data_at(63, 1, Part::Single(message_of(0)), &[]);
    assert_eq!(it.side.state(), State::Connected);
    it.data_at(64, 1, Part::Single(message_of(0)), &[]);
    assert_eq!(it.side.take_log(), ["disconnected Fault(Beyond) 0"]);
    assert_eq!(
        it.side.pool.held(it.side.riocm.connections[1].as_ref().unwrap().receive_account),
        0
    );
}

/// A late CONN_REQ can make LINX for Linux restart silently: its next packet has sequence number 0.
#[test]
fn data_with_an_old_sequence_number_ends_the_connection_as_restarted() {
    for sequences in [&[0, 1, 2, 0][..], &[0, 1, 1], &[0, 2, 2], &[0, 1, 0xffff], &[0, 3, 0]] {
        let mut it = ScriptedPeer::new(4096);
        it.connect();
        let (&last, first) = sequences.split_last().unwrap();
        for &n in first {
            it.data_at(n, 1, Part::Single(message_of(1)), &[n as u8]);
        }
        assert_eq!(it.side.state(), State::Connected, "{sequences:?}");
        let received = it.side.received.len();
        it.data_at(last, 1, Part::Single(message_of(1)), b"x");
        assert_eq!(it.side.take_log(), ["disconnected Restarted 0"], "{sequences:?}");
        assert_eq!((it.side.received.len(), it.side.counters().duplicates), (received, 1));
        // The peer considers the connection established, so it must get a CONN_RESET.
        let lines = it.side.lines();
        assert!(lines.len() == 1 && lines[0].starts_with("CONN_RESET"), "{lines:?}");
        it.side.riocm.connect(it.side.id);
        it.connect();
        it.data_at(0, 1, Part::Single(message_of(1)), b"y");
        assert_eq!(it.side.received.last().unwrap().2, b"y");
    }
}

#[test]
fn missing_packet_ends_the_connection() {
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    it.data_at(1, 1, Part::Single(message_of(0)), &[]);
    let start = it.side.now;
    while it.side.state() == State::Connected {
        it.side.wait(100);
        it.send_header(Header::Heartbeat { cid: 1 });
        it.side.sent();
        assert!(it.side.now.since(start) < Duration::from_secs(4));
    }
    assert_eq!(it.side.take_log(), ["disconnected Fault(Missing) 0"]);
}

#[test]
fn foreign_packets_are_counted_and_dropped() {
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    let before = it.side.counters();
    let cid = it.side.id.cid().into();
    let part = Part::Single(message_of(1));
    let good = it.packet(Header::Data { id: 1, sequence: 0, cid, part }, b"x");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    // Changed: protocol, type, destination id (two bytes), source port.
    for (at, value) in [(0, 0), (4, 9), (10, 1), (11, 9), (15, 9)] {
        it.side.receive(IDS[1], &changed(at, value));
    }
    it.side.receive(IDS[1], &good[..20]);
    it.side.receive(0x0909, &good);
    it.side.receive(0x0902, &changed(12, 9));
    let reset = it.packet(Header::Reset { generation: 0 }, &[]);
    for at in [9, 15] {
        let mut bytes = reset.clone();
        bytes[at] ^= 1;
        it.side.receive(IDS[1], &bytes);
    }
    let strays = it.side.riocm.strays();
    let expected =
        StrayCounters { malformed: 3, forged: 1, unknown_peer: 2, unknown_cid: 2, stale: 2 };
    assert_eq!(strays, expected);
    assert_eq!((it.side.counters(), it.side.state()), (before, State::Connected));
    assert!(it.side.received.is_empty());
    it.side.receive(IDS[1], &good);
    assert_eq!(it.side.received.len(), 1);
}
