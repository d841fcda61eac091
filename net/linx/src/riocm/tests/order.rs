//! Packets that come in another order than they were sent, twice, or not at all; and those of others.

use super::*;

#[test]
fn any_order_within_64() {
    let mut it = Against::new(4096);
    it.connect();
    // Across the wrap of the sequence number.
    for n in 0..65_500u32 {
        it.data(n as u8, Part::Single(told(0)), &[]);
    }
    it.side.came.clear();
    let mut order: Vec<u16> = (0..64).rev().collect();
    for seed in 0..200usize {
        let base = it.sequence;
        for &n in &order {
            let payload = (u32::from(n)).to_be_bytes();
            it.data_at(base.wrapping_add(n), n as u8, Part::Single(told(4)), &payload);
        }
        let came: Vec<u32> =
            it.side.came.drain(..).map(|it| u32::from_be_bytes(it.2.try_into().unwrap())).collect();
        assert_eq!(came, (0..64).collect::<Vec<u32>>());
        it.sequence = base.wrapping_add(64);
        order.swap(seed % 64, (seed * 37 + 11) % 64);
    }
    assert_eq!(it.side.state(), State::Connected);
    assert!(it.side.counters().reordered > 10_000);
}

#[test]
fn what_is_64_ahead_ends_it() {
    let mut it = Against::new(4096);
    it.connect();
    it.data_at(63, 1, Part::Single(told(0)), &[]);
    assert_eq!(it.side.state(), State::Connected);
    it.data_at(64, 1, Part::Single(told(0)), &[]);
    assert_eq!(it.side.take_log(), ["disconnected Fault(Beyond) 0"]);
    assert_eq!(
        it.side.pool.held(it.side.riocm.connections[1].as_ref().unwrap().receive_account),
        0
    );
}

/// A late CONN_REQ can make LINX for Linux begin anew without a word: its next packet has sequence number 0.
#[test]
fn data_of_an_old_sequence_number_resets_the_connection_as_restarted() {
    for sequences in [&[0, 1, 2, 0][..], &[0, 1, 1], &[0, 2, 2], &[0, 1, 0xffff], &[0, 3, 0]] {
        let mut it = Against::new(4096);
        it.connect();
        let (&last, first) = sequences.split_last().unwrap();
        for &n in first {
            it.data_at(n, 1, Part::Single(told(1)), &[n as u8]);
        }
        assert_eq!(it.side.state(), State::Connected, "{sequences:?}");
        let came = it.side.came.len();
        it.data_at(last, 1, Part::Single(told(1)), b"x");
        assert_eq!(it.side.take_log(), ["disconnected Restarted 0"], "{sequences:?}");
        assert_eq!((it.side.came.len(), it.side.counters().duplicates), (came, 1));
        // The peer takes itself for connected, so it has to hear of the end.
        let lines = it.side.lines();
        assert!(lines.len() == 1 && lines[0].starts_with("CONN_RESET"), "{lines:?}");
        it.side.riocm.connect(it.side.id);
        it.connect();
        it.data_at(0, 1, Part::Single(told(1)), b"y");
        assert_eq!(it.side.came.last().unwrap().2, b"y");
    }
}

#[test]
fn one_that_does_not_come_ends_it() {
    let mut it = Against::new(4096);
    it.connect();
    it.data_at(1, 1, Part::Single(told(0)), &[]);
    let start = it.side.now;
    while it.side.state() == State::Connected {
        it.side.wait(100);
        it.say(Header::Heartbeat { cid: 1 });
        it.side.sent();
        assert!(it.side.now.since(start) < Duration::from_secs(4));
    }
    assert_eq!(it.side.take_log(), ["disconnected Fault(Missing) 0"]);
}

#[test]
fn strangers_are_counted_and_nothing_else() {
    let mut it = Against::new(4096);
    it.connect();
    let before = it.side.counters();
    let cid = it.side.id.cid().into();
    let part = Part::Single(told(1));
    let good = it.packet(Header::Data { id: 1, sequence: 0, cid, part }, b"x");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    // Protocol, type, destination id, sender, source port, and what RapidIO says of the sender.
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
    assert!(it.side.came.is_empty());
    it.side.receive(IDS[1], &good);
    assert_eq!(it.side.came.len(), 1);
}
