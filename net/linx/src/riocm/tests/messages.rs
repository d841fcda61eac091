//! Messages of all sizes, whole and in parts.

use super::*;

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + (n >> 8) * 3 + seed * 31) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_with_both_fragmentations() {
    for how in [Fragmentation::Simple, Fragmentation::Patch] {
        for mtu in [65, 72, 100, 256, 1001, 4088, 4096] {
            netsim::label!(how, mtu);
            let configs = [0, 1].map(|n| ConnectionConfig { fragmentation: how, ..config(n) });
            let mut sides = connected(configs, [mtu; 2]);
            let step = usize::from(mtu);
            let mut sizes: Vec<usize> = (0..150).collect();
            sizes.extend((1..5).flat_map(|n| (n * step - 40)..(n * step + 40)));
            sizes.extend([65536, 65537, 200_001, 1 << 20]);
            for size in sizes {
                let message = bytes(size, size);
                sides[0].send(&message);
                run(&mut sides, 10);
                let received = sides[1].received.pop().unwrap_or_else(|| {
                    panic!("{how:?} mtu {mtu} size {size}: {:?} {:?}", sides[0].log, sides[1].log)
                });
                assert_eq!(received.0, 1);
                assert_eq!(received.2.len(), size);
                assert!(received.2 == message, "{how:?} mtu {mtu} size {size}");
                assert!(sides[1].received.is_empty());
            }
            for side in &sides {
                assert_eq!(
                    side.pool.room(crate::pool::Chain::new(account(side)).account()),
                    2 << 20
                );
            }
        }
    }
}

fn account(side: &Side) -> crate::pool::AccountId {
    side.riocm.connections[1].as_ref().unwrap().receive_account
}

#[test]
fn windows_are_sent_without_a_copy() {
    for how in [Fragmentation::Simple, Fragmentation::Patch] {
        let configs = [0, 1].map(|n| ConnectionConfig { fragmentation: how, ..config(n) });
        let mut sides = connected(configs, [1000; 2]);
        for (first, second) in [(0, 0), (4, 60), (4, 0), (4, 5000), (3000, 3001), (4, 65532)] {
            netsim::label!(how, first, second);
            let whole = bytes(3, first + second);
            let windows = [&whole[..first], &whole[first..]].map(|part| {
                let window = memory(part.len() + 8).slice(0, part.len()).unwrap();
                window.write(0, part).unwrap();
                window
            });
            let side = &mut sides[0];
            side.riocm.send_windows(&mut side.pool, side.id, (1, 2), windows, 42).unwrap();
            run(&mut sides, 10);
            assert_eq!(sides[1].received.pop().unwrap().2, whole);
            assert_eq!(sides[0].take_log(), ["sent 42 true"]);
        }
        let side = &mut sides[0];
        let window = [memory(8), Window::empty()];
        side.riocm.send_windows(&mut side.pool, side.id, (1, 2), window, 43).unwrap();
        side.send(b"copied");
        side.riocm.disconnect(&mut side.pool, side.id);
        side.events();
        assert_eq!(side.take_log(), ["sent 43 false", "disconnected Asked 2"]);
    }
}

#[test]
fn send_reports_full_and_room_again() {
    let mut sides = connected([config(0), config(1)], [4096; 2]);
    let side = &mut sides[0];
    let long = std::vec![1; 300_000];
    let mut count = 0;
    while side.riocm.send(&mut side.pool, side.id, (1, 2), &[], &[&long[..], b"x"].concat()).is_ok()
    {
        count += 1;
    }
    assert_eq!(count, 3);
    let too_long = std::vec![1; (1 << 20) + 1];
    let refused = side.riocm.send(&mut side.pool, side.id, (1, 2), &[], &too_long);
    assert_eq!(refused, Err(SendError::TooLong));
    run(&mut sides, 20);
    assert!(sides[0].take_log().contains(&"room".into()));
    assert_eq!(sides[1].received.len(), 3);
    // The configured number of messages.
    let side = &mut sides[0];
    (0..128).for_each(|_| side.send(b"x"));
    assert_eq!(side.riocm.send(&mut side.pool, side.id, (1, 2), &[], b"x"), Err(SendError::Full));
    run(&mut sides, 20);
    assert_eq!(sides[1].received.len(), 131);
    assert_eq!(sides[0].take_log(), ["room"]);
}

/// A fault, and the IDs, headers and payloads of packets that have it.
type Case = (Fault, Vec<(u8, Part, Vec<u8>)>);

/// Faults in the parts of a message.
fn inconsistent_parts() -> Vec<Case> {
    let start = |size| Part::Start(message_of(size));
    let patch_start = |size, fragments, patches| Part::PatchStart {
        message: message_of(size),
        fragments,
        patches,
    };
    let zeros = |n: usize| std::vec![0; n];
    // MTU 100: 72 bytes in SINGLE and FRAG_START, 84 in FRAG and PATCH, 68 in PATCH_START.
    std::vec![
        (Fault::Part, std::vec![(1, Part::Single(message_of(9)), zeros(8))]),
        (
            Fault::TooLong(1 << 20 | 1),
            std::vec![(1, Part::Single(message_of(1 << 20 | 1)), zeros(8))]
        ),
        (Fault::TooLong(u32::MAX), std::vec![(1, start(u32::MAX), zeros(72))]),
        (Fault::Part, std::vec![(1, start(72), zeros(72))]),
        (Fault::Part, std::vec![(1, start(0), zeros(72))]),
        (Fault::Part, std::vec![(1, start(100), zeros(71))]),
        (Fault::Begun, std::vec![(1, start(100), zeros(72)), (1, start(100), zeros(72))]),
        (Fault::NoMessage, std::vec![(1, start(100), zeros(72)), (2, Part::Fragment, zeros(28))]),
        (Fault::Part, std::vec![(1, start(100), zeros(72)), (1, Part::Fragment, zeros(27))]),
        (Fault::Part, std::vec![(1, start(200), zeros(72)), (1, Part::Fragment, zeros(83))]),
        (Fault::Patches, std::vec![(1, start(200), zeros(72)), (1, Part::Patch, zeros(83))]),
        (Fault::NoMessage, std::vec![(1, Part::Patch, zeros(32))]),
        (Fault::Patches, std::vec![(1, patch_start(100, 0, 0), zeros(68))]),
        (Fault::Patches, std::vec![(1, patch_start(31, 0, 1), zeros(0))]),
        (Fault::Patches, std::vec![(1, patch_start(100, 5, 1), zeros(68))]),
        (
            Fault::Part,
            std::vec![
                (1, patch_start(200, 1, 1), zeros(68)),
                (1, Part::Fragment, zeros(84)),
                (1, Part::Fragment, zeros(84))
            ]
        ),
        // A patch too short for the head; one patch missing; remaining bytes with an unpatched fragment.
        (
            Fault::Patches,
            std::vec![(1, patch_start(100, 0, 1), zeros(68)), (1, Part::Patch, zeros(31))]
        ),
        (
            Fault::Patches,
            std::vec![
                (1, patch_start(200, 1, 1), zeros(68)),
                (1, Part::Fragment, zeros(84)),
                (1, Part::Patch, zeros(32))
            ]
        ),
        (
            Fault::Patches,
            std::vec![
                (1, patch_start(300, 1, 2), zeros(68)),
                (1, Part::Fragment, zeros(84)),
                (1, Part::Patch, zeros(40))
            ]
        ),
        (
            Fault::Patches,
            std::vec![(1, patch_start(200, 1, 1), zeros(68)), (1, Part::Patch, zeros(48))]
        ),
        // Too few bytes in total.
        (
            Fault::Patches,
            std::vec![
                (1, patch_start(300, 1, 1), zeros(68)),
                (1, Part::Fragment, zeros(84)),
                (1, Part::Patch, zeros(48))
            ]
        ),
        (Fault::TooMany, (1..34).map(|id| (id, start(100), zeros(72))).collect()),
    ]
}

/// A fault in the parts of a message ends the connection, and frees all memory.
#[test]
fn inconsistent_parts_end_the_connection() {
    for early in [false, true] {
        netsim::label!(early);
        for (fault, packets) in &inconsistent_parts() {
            let mut it = ScriptedPeer::new(100);
            it.connect();
            let count = packets.len() as u16;
            for n in 0..count {
                // In order, or with the first packet last.
                let n = if early { (n + 1) % count } else { n };
                let (id, part, payload) = &packets[usize::from(n)];
                it.data_at(n, *id, *part, payload);
            }
            assert_eq!(it.side.take_log(), [format!("disconnected {:?} 0", Down::Fault(*fault))]);
            assert!(it.side.lines()[0].starts_with("CONN_RESET"));
            assert!(it.side.received.is_empty());
            let account = account(&it.side);
            assert_eq!(it.side.pool.held(account), 0, "{fault:?}");
        }
    }
}

/// A peer that floods a connection with unread messages or unfinished parts loses the connection, and occupies no more
/// than the reserved memory.
#[test]
fn floods_are_bounded() {
    let mut it = ScriptedPeer::new(4096);
    it.connect();
    let account = account(&it.side);
    let cid = it.side.id.cid().into();
    // Empty messages that the user does not read.
    for n in 0..10_000u16 {
        let part = Part::Single(message_of(0));
        let bytes = it.packet(Header::Data { id: 0, sequence: n, cid, part }, &[]);
        it.side.riocm.receive(&mut it.side.pool, it.side.port, IDS[1], &bytes, it.side.now);
        assert!(it.side.pool.held(account) <= 2 << 20);
    }
    assert!(it.side.riocm.events.len() <= 2049);
    it.side.events();
    assert_eq!(it.side.take_log(), ["disconnected Fault(NoRoom) 0"]);
    assert_eq!(it.side.received.len(), 2048);
    assert_eq!(it.side.pool.held(account), 0);
    // Unfinished messages.
    it.side.riocm.connect(it.side.id);
    it.connect();
    for id in 0..32 {
        it.data_at(id.into(), id, Part::Start(message_of(1 << 20)), &[0; 4068]);
    }
    assert_eq!(it.side.pool.held(account), 32 * 4096);
    for n in 32..1000 {
        it.data_at(n, (n % 32) as u8, Part::Fragment, &[0; 4080]);
    }
    assert_eq!(it.side.take_log(), ["disconnected Fault(NoRoom) 0"]);
    assert_eq!(it.side.pool.held(account), 0);
}
