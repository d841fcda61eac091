//! Controllers that break the protocol, or say what cannot be.

use super::{SECOND, World, bytes};
use crate::{Failure, Operation, Settings};
use drivers::hal::{Arena, Instant, Window};
use nvme_tcp::wire::{Common, Data, Fatal, Fes, LAST, Parameters, SUCCESS};
use proptest::prelude::*;
use std::format;
use std::vec;
use std::vec::Vec;

fn pdu(kind: u8, flags: u8, hlen: u8, pdo: u8, rest: &[u8]) -> Vec<u8> {
    let plen = (8 + rest.len()) as u32;
    [&Common { kind, flags, hlen, pdo, plen }.emit()[..], rest].concat()
}

/// A C2HData of a command, with `length` bytes.
fn data(cid: u16, flags: u8, offset: u32, length: u32) -> Vec<u8> {
    let common = Common { kind: 7, flags, hlen: 24, pdo: 24, plen: 24 + length };
    let fields = Data { cid, ttag: 0, offset, length };
    [&fields.emit(&common)[..], &vec![0xbb; length as usize]].concat()
}

fn r2t(cid: u16, offset: u32, length: u32) -> Vec<u8> {
    let common = Common { kind: 9, flags: 0, hlen: 24, pdo: 0, plen: 24 };
    Data { cid, ttag: 5, offset, length }.emit(&common).to_vec()
}

fn response(cid: u16, status: u16) -> Vec<u8> {
    let mut rest = [0; 16];
    rest[12..14].copy_from_slice(&cid.to_le_bytes());
    rest[14..].copy_from_slice(&(status << 1).to_le_bytes());
    pdu(5, 0, 24, 0, &rest)
}

/// A world with a request of 4 KiB in flight, to which the test answers. Guards surround the memory.
fn waiting(operation: Operation) -> (World, Window, u16) {
    let mut world = World::open(Settings::default(), |it| it.in_capsule = 0);
    let memory = world.memory(3 * 4096, 0xc5);
    world.links.get_mut(&1).unwrap().is_manual = true;
    world.submit(1, operation, 8, memory.slice(4096, 4096).unwrap());
    world.run();
    let sqe = world.links[&1].commands[0];
    (world, memory, u16::from_le_bytes([sqe[2], sqe[3]]))
}

fn give(world: &mut World, bytes: &[u8]) {
    world.client.receive(1, bytes, world.now);
    world.client.check();
    world.notices.extend(core::iter::from_fn(|| world.client.next_notice()));
}

#[test]
fn invalid_data_of_a_read_ends_the_path_and_stays_inside_its_memory() {
    let range = Failure::Pdu(Fatal { status: Fes::Range, info: 12 });
    let unknown = Failure::Pdu(Fatal { status: Fes::Field, info: 8 });
    let short = Failure::Protocol("a command succeeds before all of its data was moved");
    type Make = fn(u16) -> Vec<u8>;
    let cases: [(Make, Failure); 9] = [
        (|cid| data(cid, LAST, 4096, 512), range),
        (|cid| data(cid, LAST, 0, 8192), range),
        (|cid| data(cid, LAST, 512, 512), range),
        (|cid| data(cid, LAST, 0, 0), range),
        (|cid| data(cid ^ 1, LAST, 0, 512), unknown),
        (|_| data(999, LAST, 0, 512), unknown),
        (|cid| r2t(cid, 0, 4096), unknown),
        (|cid| response(cid, 0), short),
        (|cid| data(cid, LAST | SUCCESS, 0, 512), short),
    ];
    for (number, (make, expected)) in cases.into_iter().enumerate() {
        let (mut world, memory, cid) = waiting(Operation::Read);
        give(&mut world, &make(cid));
        assert_eq!(world.failure(), Some(expected), "case {number}");
        let all = bytes(&memory);
        assert!(all[..4096].iter().chain(&all[8192..]).all(|byte| *byte == 0xc5));
        assert!(world.done.is_empty());
        // The request is sent again, to a controller that behaves.
        world.pass(2 * SECOND);
        assert_eq!(world.take_done(), [(1, Ok(()))], "case {number}");
    }
}

#[test]
fn invalid_requests_for_data_end_the_path() {
    let range = Failure::Pdu(Fatal { status: Fes::Range, info: 12 });
    let limit = Failure::Pdu(Fatal { status: Fes::Limit, info: 0 });
    let early = Failure::Pdu(Fatal::SEQUENCE);
    let cases: [(Vec<(u32, u32)>, bool, Failure); 6] = [
        (vec![(0, 8192)], false, range),
        (vec![(512, 512)], false, range),
        (vec![(0, 0)], false, range),
        (vec![(0, u32::MAX)], false, range),
        // A second one, and a completion, before the data was sent.
        (vec![(0, 512), (512, 512)], false, limit),
        (vec![(0, 4096)], true, early),
    ];
    for (number, (asked, completes, expected)) in cases.into_iter().enumerate() {
        let (mut world, _, cid) = waiting(Operation::Write { durable: false });
        for (offset, length) in asked {
            give(&mut world, &r2t(cid, offset, length));
        }
        if completes {
            give(&mut world, &response(cid, 0));
        }
        assert_eq!(world.failure(), Some(expected), "case {number}");
    }
}

#[test]
fn damaged_and_unexpected_pdus_end_the_path() {
    let field = |info| Failure::Pdu(Fatal { status: Fes::Field, info });
    let cases: [(Vec<u8>, Failure); 8] = [
        (pdu(4, 0, 72, 0, &[0; 64]), Failure::Pdu(Fatal::SEQUENCE)),
        (pdu(1, 0, 128, 0, &[0; 120]), Failure::Pdu(Fatal::SEQUENCE)),
        (pdu(8, 0, 24, 0, &[0; 16]), field(0)),
        (pdu(5, 0, 25, 0, &[0; 16]), field(2)),
        (pdu(5, 1, 24, 0, &[0; 16]), field(1)),
        (pdu(5, 0, 24, 0, &[0; 99]), field(4)),
        (pdu(5, 0, 24, 0, &[0xff; 16]), field(20)),
        (pdu(3, 0, 24, 0, &[2; 16]), Failure::Terminated(0x0202)),
    ];
    for (number, (bytes, expected)) in cases.into_iter().enumerate() {
        let (mut world, ..) = waiting(Operation::Read);
        give(&mut world, &bytes);
        assert_eq!(world.failure(), Some(expected), "case {number}");
    }
}

#[test]
fn impossible_descriptions_are_refused_with_the_reason() {
    type Change = fn(&mut [u8]);
    let cases: [(u8, Change, &str); 12] = [
        (0, |page| page[130] = 0, "neither 512"),
        (0, |page| page[130] = 63, "neither 512"),
        (0, |page| page[128] = 8, "metadata"),
        (0, |page| page[29] = 1, "protection information"),
        (0, |page| page[..8].fill(0), "does not exist"),
        (0, |page| page[..8].fill(0xff), "63 bits"),
        (1, |page| page[78] = 99, "another controller"),
        (1, |page| page[111] = 2, "not one for I/O"),
        (1, |page| page[768 + 8] = b'x', "another subsystem"),
        (1, |page| page[536] = 0, "SGLs"),
        (1, |page| page[1792..1796].fill(0), "capsules"),
        (3, |page| page[1] = 3, "wrong length"),
    ];
    for (cns, change, expected) in cases {
        let mut world = World::new(Settings::default());
        world.subsystem.change = Some((cns, change));
        world.pass(SECOND);
        let failure = format!("{}", world.failure().expect(expected));
        assert!(failure.contains(expected), "{failure}");
        assert_eq!(world.status().ready, 0);
    }
}

#[test]
fn controller_that_does_not_answer_is_left() {
    let mut world = World::new(Settings::default());
    world.is_manual = true;
    world.pass(11 * SECOND);
    assert_eq!(world.failure(), Some(Failure::Slow("Connect")));
}

#[test]
fn flood_of_events_is_slowed_down() {
    let mut world = World::open(Settings::default(), |_| ());
    let mut events = 0;
    for _ in 0..100 {
        world.run();
        events += usize::from(world.links.get_mut(&0).unwrap().announce(0x000c_0302));
        world.now = world.now + SECOND / 100;
    }
    assert!((5..=12).contains(&events), "{events}");
}

proptest! {
    #[test]
    fn any_bytes_leave_the_memory_around_requests_alone(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..8),
        queue in 0usize..2,
        is_open in any::<bool>(),
    ) {
        let mut arena = Arena::on_heap(1 << 20);
        let settings = Settings::default();
        let memory = arena.alloc(settings.memory(), 4096).unwrap();
        let world = World::new(settings);
        let identity = world.client.identity().clone();
        let mut client = crate::Client::<u32>::new(settings, identity, memory).unwrap();
        let now = Instant::ZERO;
        client.poll(&mut |bytes| bytes.fill(1), now);
        while client.next_action(now).is_some() {}
        client.connected(0);
        if is_open {
            let parameters = Parameters { version: 0, alignment: 0, digests: 0, limit: 4096 };
            client.receive(0, &parameters.emit(nvme_tcp::wire::Kind::IcResp), now);
        }
        for chunk in chunks {
            client.receive(queue, &chunk, now);
            client.poll(&mut |bytes| bytes.fill(1), now);
            while client.next_action(now).is_some() {}
            let mut space = [0; 512];
            client.transmit(queue, &mut space, now);
            client.check();
        }
    }
}
