//! Errors, and their effects on both sides.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, send_inline, write_byte};
use core::time::Duration;
use netsim::contents;
use verbs::*;

/// A SEND waits for its receive without limit if RNR retries are unlimited.
pub fn send_waits_for_a_late_receive(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let into = world.memory(1, 64);
    world.post(0, 1, send_inline(b"hello"));
    for _ in 0..10 {
        world.nothing_completes();
    }
    world.post_recv(1, 5, &[into]);
    assert_eq!(world.statuses(0, 1), [(1, Status::Success)]);
    assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
    assert_eq!(&contents(&into)[..5], b"hello");
}

/// With a limit of RNR retries, the queue pair fails after the last.
pub fn rnr_retries_are_limited(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    if !world.offers().rnr_retries {
        return;
    }
    world.join(world.qp, ReadyToSend { rnr_retry: 2, ..SEND });
    let begun = world.now();
    world.post(0, 1, send_inline(b"x"));
    world.post(0, 2, send_inline(b"x"));
    assert_eq!(world.statuses(0, 2), [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
    // The peer requests pauses of 10 microseconds.
    assert!(world.now().since(begun) < Duration::from_millis(100));
    world.expect_error(0);
    // The peer's queue pair does not fail.
    let qp = world.qp[1];
    assert_eq!(world.device(1).qp_state(qp), Ok(QpState::Rts));
}

/// The oldest request exceeds its retries, and all later ones are flushed.
pub fn silent_peer_exceeds_the_retries(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    world.use_connection();
    for id in 1..4 {
        world.post(0, id, send_inline(b"x"));
        world.post_recv(0, 10 + id, &[]);
    }
    // The peer has no receive for the requests, so they are outstanding when the wire is cut.
    world.nothing_completes();
    world.cut();
    let mut ends = world.statuses(0, 6);
    ends.sort_by_key(|(id, _)| *id);
    assert_eq!(ends[0], (1, Status::RetryExceeded));
    assert!(ends[1..].iter().all(|(_, status)| *status == Status::Flushed), "{ends:?}");
    world.expect_error(0);
}

/// Both sides fail, and their statuses name the faulty side.
pub fn a_send_that_is_longer_than_its_receive_fails(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let (from, around) = (world.memory(0, 100), world.memory(1, 164));
    around.fill(0xee);
    from.fill(1);
    world.post_recv(1, 5, &[around.slice(0, 64).unwrap()]);
    world.post_recv(1, 6, &[around.slice(0, 64).unwrap()]);
    let payload = Payload::Windows(&[from]);
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    assert_eq!(world.attempt(send), Status::RemoteInvalidRequest);
    assert_eq!(world.statuses(1, 2), [(5, Status::LocalLength), (6, Status::Flushed)]);
    world.expect_error(0);
    world.expect_error(1);
    assert!(contents(&around)[64..].iter().all(|&byte| byte == 0xee));
}

/// Requests for memory without the rights transfer no data, and both queue pairs fail.
pub fn access_without_rights_is_refused(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let (write, read) = (Access::REMOTE_WRITE, Access::REMOTE_READ);
    let (from, back) = (world.memory(0, 3000), world.memory(0, 3000));
    type Wrong = fn(RemoteAddress) -> RemoteAddress;
    let same: Wrong = |to| to;
    let wrongs: [(&str, Access, bool, Wrong); 7] = [
        ("WRITE with another key", write, true, |to| RemoteAddress { rkey: to.rkey ^ 1, ..to }),
        ("WRITE with key 0", write, true, |to| RemoteAddress { rkey: 0, ..to }),
        ("WRITE to readable memory", read, true, same),
        ("READ of writable memory", write, false, same),
        ("READ of memory for atomics", Access::REMOTE_ATOMIC, false, same),
        ("READ with another key", read, false, |to| RemoteAddress { rkey: to.rkey ^ 256, ..to }),
        ("WRITE that wraps", write, true, |to| RemoteAddress { address: u64::MAX - 9, ..to }),
    ];
    for (what, access, writes, wrong) in wrongs {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        world.join(world.qp, SEND);
        let memory = world.memory(1, 3000);
        memory.fill(0xee);
        let region = world.grant(1, memory, access);
        let named = wrong(granted(&region));
        let (sources, targets) = ([from], [back]);
        back.fill(0x11);
        let operation = match writes {
            true => {
                let payload = Payload::Windows(&sources);
                SendOperation::Write { payload, to: named, immediate: None }
            }
            false => SendOperation::Read { into: &targets, from: named },
        };
        world.post(0, 1, operation);
        world.post(0, 2, operation);
        let ends = world.statuses(0, 2);
        assert_eq!(ends, [(1, Status::RemoteAccess), (2, Status::Flushed)], "{what}");
        world.expect_error(0);
        world.expect_error(1);
        assert!(contents(&memory).iter().all(|&byte| byte == 0xee), "{what}");
        assert!(contents(&back).iter().all(|&byte| byte == 0x11), "{what}");
        for n in 0..2 {
            let qp = world.qp[n];
            world.device(n).destroy_qp(qp).unwrap();
        }
    }
}

/// The first and the last byte of a region are accessible. The bytes before and after it are not, nor is an access that
/// crosses its end.
pub fn region_bounds_are_exact(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let all = world.memory(1, 3 * 4096);
    all.fill(0xee);
    let memory = all.slice(4096, 4000).unwrap();
    let source = world.memory(0, 4001);
    source.fill(7);
    let region = world.grant(1, memory, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let at = |offset: i64| RemoteAddress {
        address: region.address.wrapping_add_signed(offset),
        rkey: region.rkey,
    };
    for (offset, len, fits) in [
        (0, 1, true),
        (3999, 1, true),
        (0, 4000, true),
        (-1, 1, false),
        (4000, 1, false),
        (0, 4001, false),
        (3999, 2, false),
        (-1, 2, false),
    ] {
        for writes in [true, false] {
            world.qp = [0, 1].map(|n| {
                let init = World::init(world.pd[n], world.cq[n]);
                world.queue_pair(n, &init)
            });
            world.join(world.qp, SEND);
            let windows = [source.slice(0, len).unwrap()];
            let operation = match writes {
                true => {
                    let payload = Payload::Windows(&windows);
                    SendOperation::Write { payload, to: at(offset), immediate: None }
                }
                false => SendOperation::Read { into: &windows, from: at(offset) },
            };
            let expected = if fits { Status::Success } else { Status::RemoteAccess };
            assert_eq!(world.attempt(operation), expected, "{len} bytes at {offset}");
            for n in 0..2 {
                let qp = world.qp[n];
                world.device(n).destroy_qp(qp).unwrap();
            }
        }
    }
    let found = contents(&all);
    assert!(found[..4096].iter().chain(&found[8096..]).all(|&byte| byte == 0xee));
}

/// A queue pair of another domain does not reach the region.
pub fn keys_are_good_in_their_domain_only(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    memory.fill(0xee);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let other = world.device(1).alloc_pd().unwrap();
    let init = World::init(other, world.cq[1]);
    world.qp[1] = world.queue_pair(1, &init);
    let mut world = world.connected();
    assert_eq!(world.attempt(write_byte(granted(&region))), Status::RemoteAccess);
    assert!(contents(&memory).iter().all(|&byte| byte == 0xee));
}

/// The peer reports an invalid request, and the value stays.
pub fn atomics_that_are_not_aligned_are_refused(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    if !world.device(1).attributes().atomics {
        return;
    }
    let (memory, old) = (world.memory(1, 64), world.memory(0, 8));
    memory.fill(0xee);
    let region = world.grant(1, memory, Access::REMOTE_ATOMIC);
    let at = RemoteAddress { address: region.address + 4, rkey: region.rkey };
    let add = SendOperation::FetchAdd { into: old, at, add: 1 };
    assert_eq!(world.attempt(add), Status::RemoteInvalidRequest);
    assert!(contents(&memory).iter().all(|&byte| byte == 0xee));
}

/// Other queue pairs of the same completion queue and domain continue.
pub fn failure_affects_one_queue_pair(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let first = world.qp;
    world.qp = [0, 1].map(|n| {
        let init = World::init(world.pd[n], world.cq[n]);
        world.queue_pair(n, &init)
    });
    let mut world = world.connected();
    let second = world.qp;
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_READ);
    assert_eq!(world.attempt(write_byte(granted(&region))), Status::RemoteAccess);
    world.expect_error(0);
    world.expect_error(1);
    world.qp = first;
    world.use_connection();
    let third = [0, 1].map(|n| {
        let init = World::init(world.pd[n], world.cq[n]);
        world.queue_pair(n, &init)
    });
    world.join(third, SEND);
    world.qp = third;
    world.device(0).fail_qp(third[0]).unwrap();
    world.expect_error(0);
    world.device(0).destroy_qp(second[0]).unwrap();
    world.qp = first;
    world.use_connection();
}
