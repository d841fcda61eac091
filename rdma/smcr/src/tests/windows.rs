//! Windows and cursors: window updates, blocked writers, urgent data, and checks of the peer's cursors.

use super::hostile::{cdc, forge};
use crate::engine::{Config, Ready, SocketId};
use crate::testing::{World, config, pattern};
use crate::wire::AcceptConfirm;
use crate::wire::cdc::{Cdc, Cursor, Producer};
use core::time::Duration;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
const SIZE: u64 = 16 << 10;

/// A connection between hosts with receive buffers of 16 KiB << `rmb_size`.
fn world(rmb_size: u8) -> (World, [SocketId; 2]) {
    let settings = || Config { rmb_size, send_buffer: 128 << 10, ..config() };
    let mut w = World::with(111, [settings(), settings()]);
    let ids = w.established();
    w.wait(SECOND / 10);
    (w, ids)
}

/// Sends `count` bytes from host 1.
fn send(w: &mut World, id: SocketId, count: usize) {
    assert_eq!(w.send(1, id, &pattern(count, 1)), count);
    w.wait(SECOND / 10);
}

/// As much is on the way as the peer's receive buffer holds, if the send buffer is as long.
#[test]
fn whole_receive_buffer_of_the_peer_is_filled() {
    const MIB: usize = 1 << 20;
    for send_buffer in [MIB as u32, 64 << 10] {
        netsim::label!(send_buffer);
        let settings = [Config { rmb_size: 6, ..config() }, Config { send_buffer, ..config() }];
        let mut w = World::with(112, settings);
        let ids = w.established();
        let (bytes, mut accepted) = (pattern(MIB, 3), 0);
        // The receiver does not read.
        let is_full = |w: &mut World| {
            accepted += w.send(1, ids[1], &bytes[accepted..]);
            w.hosts[0].engine.readable(ids[0]) == MIB as u64
        };
        assert!(w.run(10 * SECOND, is_full));
        w.wait(SECOND);
        assert_eq!(w.send(1, ids[1], b"more"), 4, "its send buffer is free");
        w.wait(SECOND);
        assert_eq!(w.hosts[1].engine.socket_status(ids[1]).unwrap().queued.1, 4, "no window");
        assert!(w.hosts[1].engine.counters().tx.full_at_peer > 0);
        assert!(w.hosts[0].engine.counters().rx.full > 0);
        let mut received = Vec::new();
        let is_read = |w: &mut World| {
            received.extend(w.recv(0, ids[0]));
            received.len() == MIB + 4
        };
        assert!(w.run(10 * SECOND, is_read));
        assert_eq!(received[..MIB], bytes);
    }
}

/// An update is sent if more than a tenth of the buffer was read, and the peer's window is half of it at most.
#[test]
fn window_update_is_sent_past_the_threshold() {
    for (what, rmb_size, sent, read, told) in [
        ("no more than is worth it", 0, 10_000, 2304, 0),
        ("a byte more", 0, 10_000, 2305, 1),
        ("half is left", 0, 8192, 2305, 1),
        ("more than half is left", 0, 8191, 8191, 0),
        ("a tenth of a larger buffer", 2, 40_000, 6553, 0),
        ("a byte more of it", 2, 40_000, 6554, 1),
        ("all of little", 2, 30_000, 30_000, 0),
    ] {
        let (mut w, [server, client]) = world(rmb_size);
        send(&mut w, client, sent);
        w.record_frames();
        let mut buffer = std::vec![0; read];
        assert_eq!(w.hosts[0].engine.recv(server, &mut buffer), Ok(read), "{what}");
        w.wait(SECOND / 10);
        let said = w.recorded_cdc(0);
        let size = 16 << 10 << rmb_size;
        let expected = std::vec![Cursor::at(read as u64, size); told];
        assert_eq!(said.iter().map(|cdc| cdc.consumed).collect::<Vec<_>>(), expected, "{what}");
        assert_eq!(w.hosts[0].engine.counters().updates_sent, told as u64, "{what}");
    }
}

/// A blocked writer gets an update earlier.
#[test]
fn blocked_writer_gets_an_early_window_update() {
    for (blocked, told) in [(false, 0), (true, 1)] {
        netsim::label!(blocked);
        let (mut w, [server, client]) = world(0);
        send(&mut w, client, 4000);
        let mut says = cdc(&w, client, 1);
        says.produced = Cursor::at(4000, 16 << 10);
        says.producer.set(Producer::WRITE_BLOCKED, blocked);
        forge(&mut w, &says.emit());
        w.record_frames();
        assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 2305]), Ok(2305));
        w.wait(SECOND / 10);
        assert_eq!(w.recorded_cdc(0).len(), told);
    }
    // A closed peer gets no update.
    let (mut w, [server, client]) = world(0);
    send(&mut w, client, 16_000);
    w.close(1, client);
    w.wait(SECOND / 10);
    w.record_frames();
    assert_eq!(w.recv(0, server).len(), 16_000);
    w.wait(SECOND / 10);
    assert_eq!(w.recorded_cdc(0), []);
}

/// Number of CDC messages for some data, and their WRITE_BLOCKED flags.
#[test]
fn full_window_sets_write_blocked() {
    let blocked = Producer::WRITE_BLOCKED;
    let none = Producer::empty();
    for (what, rmb_size, count, said) in [
        ("room is left", 0, SIZE - 1, &[(SIZE - 1, none)][..]),
        ("none is left", 0, SIZE, &[(SIZE, blocked)]),
        ("more than there is room", 0, SIZE + 1, &[(SIZE, blocked)]),
        ("two messages", 2, 40_000, &[(32 << 10, none), (40_000, none)]),
        ("two messages, and more", 2, 70_000, &[(32 << 10, blocked), (64 << 10, blocked)]),
    ] {
        let (mut w, ids) = world(rmb_size);
        w.record_frames();
        send(&mut w, ids[1], count as usize);
        let size = 16 << 10 << rmb_size;
        let heard: Vec<_> =
            w.recorded_cdc(1).iter().map(|cdc| (cdc.produced, cdc.producer)).collect();
        let expected: Vec<_> =
            said.iter().map(|(sent, producer)| (Cursor::at(*sent, size), *producer)).collect();
        assert_eq!(heard, expected, "{what}");
        // A sender without more data is not blocked, even with a full window.
        if count == SIZE {
            w.send(0, ids[0], b"a word");
            w.wait(SECOND / 10);
            w.record_frames();
            w.clear_events();
            assert_eq!(w.recv(1, ids[1]), b"a word");
            w.with_engine(1, |engine, ctx, _| engine.shutdown(ids[1], ctx));
            w.wait(SECOND / 10);
            assert_eq!(w.recorded_cdc(1)[0].producer, none);
        }
    }
}

/// URGENT_PENDING is sent at once and answered, and a cursor stops behind the urgent byte.
#[test]
fn urgent_data_is_announced() {
    let (mut w, [server, client]) = world(0);
    let bytes = pattern(20_000, 4);
    w.record_frames();
    let sent = w.with_engine(1, |engine, ctx, _| engine.send_urgent(client, &bytes, ctx));
    assert_eq!(sent, Ok(20_000));
    w.send(1, client, b"behind it");
    w.wait(SECOND / 10);
    assert_eq!(w.hosts[0].engine.urgent_mark(server), None);
    let pending = Producer::URGENT_PENDING;
    assert_eq!(w.hosts[0].engine.counters().cdc_sent, 1, "the answer");
    assert_eq!(w.recv(0, server), &bytes[..SIZE as usize]);
    w.wait(SECOND / 10);
    assert_eq!(w.hosts[0].engine.urgent_mark(server), Some(20_000 - SIZE));
    assert_eq!(w.hosts[0].engine.recv(server, &mut [0; 100]), Ok(100));
    assert_eq!(w.hosts[0].engine.urgent_mark(server), Some(20_000 - SIZE - 100));
    let heard = w.recorded_cdc(1);
    let heard: Vec<_> = heard.iter().map(|cdc| (cdc.produced, cdc.producer)).collect();
    let at = |sent| Cursor::at(sent, SIZE as u32);
    let expected = [
        (at(SIZE), pending | Producer::WRITE_BLOCKED),
        (at(20_000), pending | Producer::URGENT_PRESENT),
        (at(20_009), Producer::empty()),
    ];
    assert_eq!(heard, expected);
    // Reading the urgent byte triggers an update.
    w.record_frames();
    let rest = w.recv(0, server);
    assert_eq!(rest[rest.len() - 9..], *b"behind it");
    w.wait(SECOND / 10);
    assert_eq!(w.recorded_cdc(0).len(), 1);
    // One update is sent, even if another reason for one exists.
    let sent = w.with_engine(1, |engine, ctx, _| engine.send_urgent(client, &bytes[..12_000], ctx));
    assert_eq!(sent, Ok(12_000));
    w.wait(SECOND / 10);
    w.record_frames();
    assert_eq!(w.recv(0, server).len(), 12_000);
    w.wait(SECOND / 10);
    assert_eq!(w.recorded_cdc(0).len(), 1);
    // URGENT_PRESENT without new data is ignored.
    let says = Cdc {
        produced: at(32_009),
        producer: Producer::URGENT_PRESENT,
        consumed: Cursor::default(),
        ..cdc(&w, client, 9)
    };
    forge(&mut w, &says.emit());
    assert_eq!(w.hosts[0].engine.urgent_mark(server), None);
}

/// Cursors are accepted up to the window, and up to the bytes sent.
#[test]
fn cursors_are_checked_to_the_byte() {
    let size = SIZE as u32;
    for (what, produced, consumed, lies) in [
        ("as before", 10_000, 0, false),
        ("all that there is room for", SIZE, 0, false),
        ("a byte more", SIZE + 1, 0, true),
        ("all was read", 10_000, 1000, false),
        ("more than was sent", 10_000, 1001, true),
    ] {
        let (mut w, ids) = world(0);
        send(&mut w, ids[1], 10_000);
        w.send(0, ids[0], &pattern(1000, 2));
        w.wait(SECOND / 10);
        let (produced, consumed) = (Cursor::at(produced, size), Cursor::at(consumed, size));
        let says = Cdc { produced, consumed, ..cdc(&w, ids[1], 2) };
        forge(&mut w, &says.emit());
        assert_eq!(w.hosts[0].engine.counters().violations, u64::from(lies), "{what}");
        if !lies && consumed.count > 0 {
            let more = Cursor::at(1001, size);
            forge(&mut w, &Cdc { consumed: more, seqno: 3, ..says }.emit());
            assert_eq!(w.hosts[0].engine.counters().violations, 1, "more than was sent");
        }
    }
}

/// WRITABLE is reported only after a send or `room` found no room.
#[test]
fn writable_is_reported_only_after_lack_of_room() {
    for (asks, told) in [(false, false), (true, true)] {
        netsim::label!(asks);
        let mut w = World::new(112);
        let [server, client] = w.established();
        for _ in 0..2 {
            // Exactly what there is room for.
            assert_eq!(w.send(1, client, &pattern(SIZE as usize, 1)), SIZE as usize);
            w.wait(SECOND / 10);
        }
        if asks {
            assert_eq!(w.hosts[1].engine.room(client), 0);
        }
        w.clear_events();
        assert_eq!(w.recv(0, server).len(), SIZE as usize);
        w.wait(SECOND / 10);
        assert_eq!(w.has_event(1, client, Ready::WRITABLE), told);
        assert_eq!(w.hosts[1].engine.room(client), SIZE as usize);
    }
}

/// A peer's buffer may be one of several elements of a region.
#[test]
fn element_offset_in_a_region_is_used() {
    for index in 1..=3 {
        let mut w = World::new(113);
        let (ids, accept) = w.accept_by_hand(1);
        w.feed_clc(1, ids[1], &accept);
        let mut confirm = AcceptConfirm::parse(&w.take_clc(1, ids[1])).unwrap();
        confirm.rmbe_index = index;
        confirm.address -= u64::from(index - 1) * SIZE;
        w.feed_clc(0, ids[0], &confirm.emit());
        assert!(w.has_event(0, ids[0], Ready::ESTABLISHED), "{index}");
        w.transfer(0, ids, &pattern(50_000, 1), 5000);
        w.transfer(1, ids, &pattern(50_000, 1), 5000);
    }
    // A buffer beyond the address space is refused.
    for (address, index, good) in
        [(u64::MAX - SIZE, 1, true), (u64::MAX - SIZE + 1, 1, false), (u64::MAX - SIZE, 2, false)]
    {
        netsim::label!(address, index);
        let mut w = World::new(114);
        let (ids, accept) = w.accept_by_hand(1);
        w.feed_clc(1, ids[1], &accept);
        let mut confirm = AcceptConfirm::parse(&w.take_clc(1, ids[1])).unwrap();
        (confirm.address, confirm.rmbe_index) = (address, index);
        w.feed_clc(0, ids[0], &confirm.emit());
        assert_eq!(w.has_event(0, ids[0], Ready::ESTABLISHED), good);
        assert_eq!(w.has_event(0, ids[0], Ready::FAILED), !good);
    }
}

/// After a failover the region has another address, and the element the same offset.
#[test]
fn element_offset_is_kept_on_another_link() {
    let two = || Config { max_links: 2, ..config() };
    let mut w = World::with_ports(115, [two(), two()], [2, 2]);
    let (ids, accept) = w.accept_by_hand(1);
    w.feed_clc(1, ids[1], &accept);
    let mut confirm = AcceptConfirm::parse(&w.take_clc(1, ids[1])).unwrap();
    let there = confirm.address;
    confirm.rmbe_index = 3;
    confirm.address -= 2 * SIZE;
    w.feed_clc(0, ids[0], &confirm.emit());
    assert!(w.run(SECOND, |w| w.hosts[0].engine.links().filter(|link| link.active).count() == 2));
    assert_eq!(w.hosts[0].engine.peer_of(ids[0]).1.address, there);
    // The client has announced a region at this address on the second link.
    w.network.set_up(netsim::Place { node: 0, port: 0 }, false);
    w.send(0, ids[0], b"moves");
    assert!(w.run(40 * SECOND, |w| w.hosts[0].engine.counters().failovers == 1));
    assert_eq!(w.hosts[0].engine.peer_of(ids[0]).1.address, there + 2 * SIZE);
}
