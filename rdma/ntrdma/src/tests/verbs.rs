//! Tests of the verbs while the link is up, with any order of writes.

use crate::Layout;
use crate::testing::{Pair, SMALL, Way};
use core::time::Duration;
use drivers::hal::Window;
use netsim::Rng;
use netsim::contents;
use proptest::prelude::*;
use rand_core::Rng as _;
use std::vec::Vec;
use verbs::{
    Access, CompletedOperation, MemoryVerbs, Payload, Provider, RecvRequest, RemoteAddress,
    SendOperation, SendRequest, SendWith, Status, VerbsError,
};

const SECOND: Duration = Duration::from_secs(1);

/// A signaled request.
pub fn request(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

pub fn fill(window: &Window, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = std::vec![0; window.len()];
    rng.fill_bytes(&mut bytes);
    window.write(0, &bytes).unwrap();
    bytes
}

fn connected(seed: u64, layout: Layout, way: Way) -> Pair {
    let mut pair = Pair::new(seed, layout, way);
    pair.connect();
    pair
}

/// Runs until node 0 has completed so many requests; returns ids and statuses.
pub fn wait(pair: &mut Pair, count: usize) -> Vec<(u64, Status)> {
    let mut ended = Vec::new();
    for _ in 0..20_000 {
        pair.step();
        ended.extend(pair.nodes[0].completions().iter().map(|c| (c.id, c.status)));
        if ended.len() >= count {
            return ended;
        }
    }
    panic!("only {ended:?} of {count} requests ended");
}

#[test]
fn send_with_every_suffix_and_size() {
    let mut seed = 0;
    for size in [0, 1, 63, 64, 65, 4096, 8192, 8193, 40_001, 300_000] {
        for suffix in 0..3 {
            for way in Way::ALL {
                netsim::label!(size, suffix, way);
                seed += 1;
                let mut pair = connected(seed, SMALL, way);
                let mut rng = Rng::new(size as u64);
                let from = pair.memory(0, size);
                let into = pair.memory(1, size + 8);
                into.fill(0xee);
                let granted = pair.memory(1, 64);
                let sent = fill(&from, &mut rng);
                let [a, b] = &mut pair.nodes;
                let access = Access::REMOTE_WRITE;
                let region = b.ntrdma.register(b.pd, granted, access, &mut rng).unwrap();
                let with = [
                    SendWith::Nothing,
                    SendWith::Immediate(0x0102_0304),
                    SendWith::Invalidate(region.rkey),
                ][suffix];
                let halves = [
                    from.slice(0, size / 3).unwrap(),
                    from.slice(size / 3, size - size / 3).unwrap(),
                ];
                let parts = [into.slice(0, 5).unwrap(), into.slice(5, size + 3).unwrap()];
                b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &parts }).unwrap();
                let operation = SendOperation::Send { payload: Payload::Windows(&halves), with };
                a.ntrdma.post_send(a.qp, &request(9, operation)).unwrap();
                let to = RemoteAddress { address: region.address, rkey: region.rkey };
                let byte =
                    SendOperation::Write { payload: Payload::Inline(&[1]), to, immediate: None };
                a.ntrdma.post_send(a.qp, &request(10, byte)).unwrap();
                let ended = wait(&mut pair, 2);
                // An invalidated key grants no access.
                let write = if suffix == 2 { Status::RemoteAccess } else { Status::Success };
                assert_eq!(ended, [(9, Status::Success), (10, write)]);
                let got = pair.nodes[1].completions();
                assert_eq!(
                    (got[0].id, got[0].status, got[0].operation),
                    (5, Status::Success, CompletedOperation::Recv { length: size as u32, with })
                );
                let found = contents(&into);
                assert!(found[..size] == sent && found[size..] == [0xee; 8], "{size} bytes");
                let counters = pair.nodes[0].ntrdma.counters();
                assert!(way == Way::Lent || counters.bytes_lent == 0);
                assert_eq!(counters.violations, 0);
            }
        }
    }
}

#[test]
fn write_and_read_access_exactly_their_range() {
    for (seed, size) in [0usize, 1, 64, 65, 4097, 9000, 200_000].into_iter().enumerate() {
        for way in Way::ALL {
            netsim::label!(size, way);
            let mut pair = connected(seed as u64, SMALL, way);
            let mut rng = Rng::new(3);
            let (from, back) = (pair.memory(0, size), pair.memory(0, size));
            let memory = pair.memory(1, size + 200);
            let sent = fill(&from, &mut rng);
            memory.fill(0xee);
            let [a, b] = &mut pair.nodes;
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let region = b.ntrdma.register(b.pd, memory, access, &mut rng).unwrap();
            let to = RemoteAddress { address: region.address + 100, rkey: region.rkey };
            b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &[] }).unwrap();
            let payload = Payload::Windows(&[from]);
            let write = SendOperation::Write { payload, to, immediate: Some(77) };
            a.ntrdma.post_send(a.qp, &request(1, write)).unwrap();
            let read = SendOperation::Read { into: &[back], from: to };
            a.ntrdma.post_send(a.qp, &request(2, read)).unwrap();
            let inline = SendOperation::Write {
                payload: Payload::Inline(&[1, 2, 3]),
                to: RemoteAddress { address: region.address, ..to },
                immediate: None,
            };
            a.ntrdma.post_send(a.qp, &request(3, inline)).unwrap();
            assert_eq!(wait(&mut pair, 3), [1, 2, 3].map(|id| (id, Status::Success)));
            assert!(contents(&back) == sent, "{size} bytes");
            let all = contents(&memory);
            assert_eq!(&all[..4], [1, 2, 3, 0xee]);
            assert!(all[4..100].iter().chain(&all[100 + size..]).all(|&b| b == 0xee));
            let got = pair.nodes[1].completions();
            let operation =
                CompletedOperation::RecvWriteImmediate { length: size as u32, immediate: 77 };
            assert_eq!((got.len(), got[0].operation), (1, operation));
            let counters = pair.nodes[0].ntrdma.counters();
            let large = if size > 64 { size as u64 } else { 0 };
            let expected = if way == Way::Lent { (large, 0) } else { (0, large) };
            assert_eq!((counters.bytes_lent, counters.bytes_staged), expected);
        }
    }
}

#[test]
fn atomics_act_on_eight_bytes() {
    let mut pair = connected(1, SMALL, Way::Posted);
    let mut rng = Rng::new(3);
    let memory = pair.memory(1, 64);
    memory.write(8, &40u64.to_ne_bytes()).unwrap();
    let old: Vec<Window> = (0..3).map(|_| pair.memory(0, 8)).collect();
    let [a, b] = &mut pair.nodes;
    let region = b.ntrdma.register(b.pd, memory, Access::REMOTE_ATOMIC, &mut rng).unwrap();
    let at = RemoteAddress { address: region.address + 8, rkey: region.rkey };
    let operations = [
        SendOperation::FetchAdd { into: old[0], at, add: 2 },
        SendOperation::CompareSwap { into: old[1], at, compare: 42, swap: 50 },
        SendOperation::CompareSwap { into: old[2], at, compare: 42, swap: 60 },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        a.ntrdma.post_send(a.qp, &request(id as u64, operation)).unwrap();
    }
    assert_eq!(wait(&mut pair, 3).len(), 3);
    let value = |w: &Window| u64::from_ne_bytes(contents(w)[..8].try_into().unwrap());
    assert_eq!(old.iter().map(value).collect::<Vec<_>>(), [40, 42, 50]);
    assert_eq!(value(&memory.slice(8, 8).unwrap()), 50);
    let a = &mut pair.nodes[0];
    let unaligned = RemoteAddress { address: at.address + 4, ..at };
    let operation = SendOperation::FetchAdd { into: old[0], at: unaligned, add: 1 };
    a.ntrdma.post_send(a.qp, &request(9, operation)).unwrap();
    assert_eq!(wait(&mut pair, 1), [(9, Status::RemoteInvalidRequest)]);
}

#[test]
fn send_waits_for_a_late_receive() {
    let mut pair = connected(1, SMALL, Way::Posted);
    let into = pair.memory(1, 64);
    let a = &mut pair.nodes[0];
    let payload = Payload::Inline(b"hello");
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    a.ntrdma.post_send(a.qp, &request(1, operation)).unwrap();
    assert!(!pair.run(SECOND / 50, |pair| !pair.nodes[0].completions().is_empty()));
    let b = &mut pair.nodes[1];
    assert!(b.ntrdma.counters().not_ready > 0);
    b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &[into] }).unwrap();
    assert_eq!(wait(&mut pair, 1), [(1, Status::Success)]);
    assert_eq!(&contents(&into)[..5], b"hello");
}

/// Access that was not granted fails the queue pair, and has no effect.
#[test]
fn access_that_was_not_granted_is_refused() {
    type Wrong = fn(&mut RemoteAddress, &mut u64);
    let wrongs: [(Access, Wrong, Status); 5] = [
        (Access::REMOTE_WRITE, |to, _| to.rkey ^= 1, Status::RemoteAccess),
        (Access::REMOTE_WRITE, |to, _| to.address -= 1, Status::RemoteAccess),
        (Access::REMOTE_WRITE, |to, _| to.address += 1, Status::RemoteAccess),
        (Access::REMOTE_READ, |_, _| (), Status::RemoteAccess),
        (Access::REMOTE_WRITE, |to, _| to.address = u64::MAX, Status::RemoteAccess),
    ];
    for (seed, (access, wrong, status)) in wrongs.into_iter().enumerate() {
        let mut pair = connected(seed as u64, SMALL, Way::Posted);
        let (from, memory) = (pair.memory(0, 500), pair.memory(1, 500));
        memory.fill(0xee);
        let mut rng = Rng::new(1);
        let [a, b] = &mut pair.nodes;
        let region = b.ntrdma.register(b.pd, memory, access, &mut rng).unwrap();
        let mut to = RemoteAddress { address: region.address, rkey: region.rkey };
        wrong(&mut to, &mut 0);
        for id in 1..4 {
            let payload = Payload::Windows(&[from]);
            let write = SendOperation::Write { payload, to, immediate: None };
            a.ntrdma.post_send(a.qp, &request(id, write)).unwrap();
        }
        b.ntrdma.post_recv(b.qp, &RecvRequest { id: 5, into: &[] }).unwrap();
        let ended = wait(&mut pair, 3);
        assert_eq!(ended, [(1, status), (2, Status::Flushed), (3, Status::Flushed)]);
        assert!(pair.run(SECOND, |pair| !pair.nodes[1].completions().is_empty()));
        assert!(contents(&memory).iter().all(|&byte| byte == 0xee));
        let a = &mut pair.nodes[0];
        let payload = Payload::Inline(&[1]);
        let write = SendOperation::Write { payload, to, immediate: None };
        let refused = a.ntrdma.post_send(a.qp, &request(9, write));
        assert_eq!(refused, Err(VerbsError::WrongState));
    }
}

/// Many small requests: each batch is announced once, and rings wrap.
#[test]
fn requests_are_announced_in_batches() {
    let mut pair = connected(1, Layout { ring: 64, ..SMALL }, Way::Posted);
    let before = pair.nodes[0].ntrdma.counters().batches;
    let mut rng = Rng::new(1);
    let memory = pair.memory(1, 64);
    let [a, b] = &mut pair.nodes;
    let region = b.ntrdma.register(b.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    for id in 0..64 {
        let payload = Payload::Inline(&[1, 2, 3]);
        let write = SendOperation::Write { payload, to, immediate: None };
        a.ntrdma.post_send(a.qp, &request(id, write)).unwrap();
    }
    a.ntrdma.poll(&mut a.bridge, pair.now);
    assert_eq!(a.ntrdma.counters().batches - before, 1);
    wait(&mut pair, 64);
    assert_eq!(pair.nodes[1].ntrdma.counters().entries_received, 64);
}

/// A queue accepts its configured number of requests, and the same again once completions are polled.
#[test]
fn queues_accept_their_configured_depth() {
    let mut pair = connected(1, SMALL, Way::Posted);
    let mut rng = Rng::new(1);
    let memory = pair.memory(1, 64);
    let b = &mut pair.nodes[1];
    let region = b.ntrdma.register(b.pd, memory, Access::REMOTE_WRITE, &mut rng).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    let payload = Payload::Inline(&[1]);
    let write = SendOperation::Write { payload, to, immediate: None };
    for round in 0..3 {
        let a = &mut pair.nodes[0];
        for id in 0..256 {
            assert_eq!(a.ntrdma.post_send(a.qp, &request(id, write)), Ok(()), "{round}");
        }
        assert_eq!(a.ntrdma.post_send(a.qp, &request(0, write)), Err(VerbsError::QueueFull));
        let ended = wait(&mut pair, 256);
        assert!(ended.iter().enumerate().all(|(n, e)| *e == (n as u64, Status::Success)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// SENDs of any sizes with any order of writes: each arrives once, complete, and in order.
    #[test]
    fn sends_arrive_complete_and_in_order(
        seed in any::<u64>(), way in proptest::sample::select(&Way::ALL),
        sizes in proptest::collection::vec(0..20_000usize, 1..40),
    ) {
        let mut pair = connected(seed, SMALL, way);
        let mut rng = Rng::new(seed);
        let mut all = Vec::new();
        for (n, &size) in sizes.iter().enumerate() {
            let (from, into) = (pair.memory(0, size), pair.memory(1, size));
            let sent = fill(&from, &mut rng);
            let [a, b] = &mut pair.nodes;
            let id = n as u64;
            b.ntrdma.post_recv(b.qp, &RecvRequest { id, into: &[into] }).unwrap();
            let windows = [from];
            let payload = Payload::Windows(&windows);
            let operation = SendOperation::Send { payload, with: SendWith::Immediate(n as u32) };
            a.ntrdma.post_send(a.qp, &request(id, operation)).unwrap();
            all.push((into, sent));
        }
        let mut got = Vec::new();
        for _ in 0..40_000 {
            pair.step();
            for c in pair.nodes[1].completions() {
                // The data is complete when the receive completes.
                let (into, sent) = &all[c.id as usize];
                prop_assert!(contents(into) == *sent);
                got.push((c.id, c.status, c.operation));
            }
            if got.len() == all.len() {
                break;
            }
        }
        let expected: Vec<_> = sizes.iter().enumerate().map(|(n, &size)| {
            let with = SendWith::Immediate(n as u32);
            let operation = CompletedOperation::Recv { length: size as u32, with };
            (n as u64, Status::Success, operation)
        }).collect();
        prop_assert_eq!(got, expected);
        for node in &pair.nodes {
            prop_assert_eq!(node.ntrdma.counters().violations, 0);
        }
    }
}
