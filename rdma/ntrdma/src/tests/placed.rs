//! Tests of placed WRITEs, which go directly to their destination in lent memory.

use super::verbs::{fill, request, wait};
use crate::testing::{Pair, SMALL, Way};
use drivers::hal::{Arena, Window};
use netsim::contents;
use std::vec::Vec;
use verbs::{
    Access, CompletedOperation, Lending, MemoryVerbs, Payload, Provider, RecvRequest,
    RemoteAddress, SendOperation, Status,
};

const WAYS: [Way; 2] = [Way::Posted, Way::Engine];

/// A connected pair, and memory that node 1 lends, with the remote address of its region.
fn lent(seed: u64, way: Way, len: usize) -> (Pair, Window, RemoteAddress) {
    let mut pair = Pair::new(seed, SMALL, way);
    pair.connect();
    let b = &mut pair.nodes[1];
    let into = Arena::new(b.ntrdma.lent()).alloc(len, 64).unwrap().slice(0, len).unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = b.ntrdma.register(b.pd, into, access, &mut pair.rng).unwrap();
    (pair, into, RemoteAddress { address: region.address, rkey: region.rkey })
}

#[test]
fn write_to_lent_memory_is_placed_without_a_copy() {
    for (seed, len) in [65, 300, 4096, 8193, 40_001, 300_000, 2_000_000].into_iter().enumerate() {
        for way in WAYS {
            let (mut pair, into, to) = lent(seed as u64, way, len + 128);
            into.fill(0xee);
            let from = pair.memory(0, len);
            let sent = fill(&from, &mut pair.rng);
            let part = |at, len| from.slice(at, len).unwrap();
            let halves = [part(0, len / 3), part(len / 3, len - len / 3)];
            let payload = Payload::Windows(&halves);
            let to = RemoteAddress { address: to.address + 64, ..to };
            let [a, b] = &mut pair.nodes;
            b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &[] }).unwrap();
            let write = SendOperation::Write { payload, to, immediate: Some(7) };
            a.ntrdma.post_send(a.qp, &request(1, write)).unwrap();
            assert_eq!(wait(&mut pair, 1), [(1, Status::Success)]);
            let got = pair.nodes[1].completions();
            let operation =
                CompletedOperation::RecvWriteImmediate { length: len as u32, immediate: 7 };
            assert_eq!((got.len(), got[0].operation), (1, operation));
            let found = contents(&into);
            assert!(found[64..64 + len] == sent, "{len} bytes, {way:?}");
            assert!(found[..64] == [0xee; 64] && found[64 + len..] == [0xee; 64]);
            let counters = pair.nodes[0].ntrdma.counters();
            assert_eq!((counters.bytes_placed, counters.bytes_staged), (len as u64, 0));
            let counters = pair.nodes[1].ntrdma.counters();
            assert_eq!((counters.bytes_copied, counters.violations), (0, 0));
        }
    }
}

#[test]
fn lent_memory_is_allocated_and_returned() {
    let mut pair = Pair::new(1, SMALL, Way::Posted);
    let elsewhere = pair.memory(1, 64);
    let b = &mut pair.nodes[1].ntrdma;
    let (local, stranger) = (b.local(), b.remote());
    // Lent memory need not begin at a page boundary.
    let half = (b.lent().len() / 2 - 4096) / 4096 * 4096;
    assert!(half > 3 * 4096);
    let first = b.lend(local, half).unwrap();
    let second = b.lend(local, half).unwrap();
    assert!(b.lent().contains(&first) && b.lent().contains(&second));
    assert!(b.lend(local, half).is_none() && b.lend(stranger, 64).is_none());
    assert!(!b.take_back(elsewhere), "it was not lent");
    let part = first.slice(0, 4096).unwrap();
    assert!(!b.take_back(part), "a part cannot be returned");
    assert!(b.take_back(first) && !b.take_back(first));
    assert!(b.lend(local, half + 1).is_none() && b.lend(local, half).is_some());
}

/// Requests that the peer executes, and placed WRITEs, take effect in the order of posting.
#[test]
fn writes_do_not_overtake_each_other() {
    const LEN: u64 = 4096;
    for seed in 0..40 {
        let way = WAYS[seed as usize % 2];
        let (mut pair, into, to) = lent(seed, way, LEN as usize);
        into.fill(0);
        let mut wanted = [0u8; LEN as usize];
        let (mut memory, mut read) = (Vec::new(), Vec::new());
        for id in 0..60u8 {
            let (length, at) = (pair.rng.pick(&[8, 64, 65, 700, 2000]), pair.rng.within(0..2000));
            let from = pair.memory(0, length as usize);
            let payload = [from];
            let place = RemoteAddress { address: to.address + at, ..to };
            let part = at as usize..(at + length) as usize;
            let operation = if pair.rng.within(0..5) == 0 {
                read.push((from, wanted[part].to_vec()));
                SendOperation::Read { into: &payload, from: place }
            } else {
                from.fill(id);
                wanted[part].fill(id);
                let payload = Payload::Windows(&payload);
                SendOperation::Write { payload, to: place, immediate: None }
            };
            let a = &mut pair.nodes[0];
            a.ntrdma.post_send(a.qp, &request(id.into(), operation)).unwrap();
            memory.push(from);
        }
        wait(&mut pair, 60).iter().for_each(|ended| assert_eq!(ended.1, Status::Success));
        assert!(contents(&into) == wanted, "seed {seed}");
        // An engine may read later than later WRITEs are executed: only a fence of the user orders these.
        for (into, wanted) in read.into_iter().filter(|_| way == Way::Posted) {
            assert!(contents(&into) == wanted, "seed {seed}: data of a READ");
        }
        let counters = pair.nodes[0].ntrdma.counters();
        assert!(counters.bytes_placed > 0 && counters.bytes_staged > 0, "{counters:?}");
    }
}

#[test]
fn revoked_key_grants_no_access() {
    for way in WAYS {
        let (mut pair, _, to) = lent(1, way, 4096);
        let from = pair.memory(0, 4096);
        let [a, b] = &mut pair.nodes;
        let payload = Payload::Windows(core::slice::from_ref(&from));
        let to = RemoteAddress { rkey: to.rkey ^ 1, ..to };
        b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &[] }).unwrap();
        let write = SendOperation::Write { payload, to, immediate: Some(7) };
        a.ntrdma.post_send(a.qp, &request(1, write)).unwrap();
        assert_eq!(wait(&mut pair, 1), [(1, Status::RemoteAccess)]);
        let got = pair.nodes[1].completions();
        assert_eq!(got[0].status, Status::Flushed, "the write is not reported");
    }
}

/// The peer claims that payload is placed, but its location is not the destination.
#[test]
fn placed_payload_at_a_wrong_location_is_refused() {
    for way in WAYS {
        let (mut pair, other, _) = lent(1, way, 8192);
        let into = pair.memory(1, 4096);
        into.fill(0xee);
        let from = pair.memory(0, 4096);
        from.fill(7);
        let [a, b] = &mut pair.nodes;
        let access = Access::REMOTE_WRITE;
        let region = b.ntrdma.register(b.pd, into, access, &mut pair.rng).unwrap();
        let to = RemoteAddress { address: region.address, rkey: region.rkey };
        let exposed = b.ntrdma.exposed.bus_address();
        let offset = other.bus_address() - exposed;
        a.ntrdma.session.as_mut().unwrap().info.lent_at = region.address - offset;
        let payload = Payload::Windows(core::slice::from_ref(&from));
        let write = SendOperation::Write { payload, to, immediate: None };
        a.ntrdma.post_send(a.qp, &request(1, write)).unwrap();
        assert_eq!(wait(&mut pair, 1), [(1, Status::RemoteInvalidRequest)]);
        assert!(contents(&into) == [0xee; 4096], "granted memory is unchanged");
        assert_eq!(pair.nodes[1].ntrdma.counters().violations, 1);
    }
}

/// If the peer gives a false address of its lent memory, only its lent memory is written.
#[test]
fn no_write_is_placed_outside_of_lent_memory() {
    let (pair, _, to) = lent(1, Way::Posted, 4096);
    let session = pair.nodes[0].ntrdma.session.as_ref().unwrap();
    let (info, window) = (session.info, session.window.len());
    let used = (info.layout.size() + info.frames as usize) as u64;
    let at = |offset: u64, length| info.lent(info.lent_at.wrapping_add(offset), length, window);
    assert!(info.lent(to.address, 4096, window).is_some());
    assert_eq!((at(used, 8), at(used - 1, 8)), (Some(used as usize), None));
    let end = info.exposed.min(window as u64);
    assert_eq!((at(end - 8, 8), at(end - 8, 9)), (Some(end as usize - 8), None));
    assert_eq!((at(0, 8), at(u64::MAX, 8), at(end, usize::MAX)), (None, None, None));
    let nothing = crate::wire::Info { lent_at: 0, ..info };
    assert_eq!(nothing.lent(used, 8, window), None);
}
