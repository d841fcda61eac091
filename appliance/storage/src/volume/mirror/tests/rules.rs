//! Rules of the mirror, each with a sequence of events in which breaking the rule loses data.

use super::*;

#[test]
fn write_that_a_member_missed_completes_after_the_record() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(
        world.mirror.poll(),
        None,
        "only the first member has the write, and no record says so"
    );
    assert!(!world.disks[0].record().alone);
    assert!(world.disks[0].waits(own), "the record is being written");
    assert!(!world.disks[1].waits(any), "the member that is left out gets no requests");
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Ok(())));
    assert!(world.disks[0].record().alone);
    // The member that missed the write does not start alone, and does not become the source.
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    world.reboot();
    world.settle();
    assert!(world.disks.iter().all(|disk| disk.data()[3 * 512] == 0xaa));
}

/// If both records of a member were torn, the other member would wait for the operator.
#[test]
fn record_that_may_be_torn_is_rewritten_first() {
    for others in 0..2 {
        let mut world = World::new();
        // The second member fails while a record is written to it.
        world.write(3, 0xaa);
        world.disks[1].tear();
        world.disks[1].end(own, Some(VolumeError::Io));
        assert_eq!(world.run(), [Ok(())]);
        for sector in 0..others {
            world.write(8 * sector, 0xbb);
            assert_eq!(world.run(), [Ok(())]);
        }
        // It returns, and the power fails while it gets its first record.
        while !world.disks[1].waits(own) {
            world.tend();
            world.disks[0].end(any, None);
            world.disks[1].end(|request| !own(request), None);
            assert_eq!(world.mirror.poll(), None);
        }
        world.disks[1].tear();
        world.reboot();
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
    }
}

#[test]
fn a_region_that_was_copied_and_not_flushed_may_differ() {
    let mut world = World::new();
    world.drop_second(0, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    // It returns, and is copied to, up to the flush.
    let flush = |request: &Request| request.operation == Operation::Flush;
    world.tend();
    for _ in 0..20 {
        for disk in &world.disks {
            disk.end(|request| !flush(request), None);
        }
        assert_eq!(world.mirror.poll(), None);
    }
    assert!(world.disks[1].waits(flush), "all is copied");
    assert!(world.disks[1].data() == world.disks[0].data(), "all is copied");
    // A record is written meanwhile, because a write begins somewhere else.
    world.write(20, 0xbb);
    world.log();
    let region = |sector: usize| sector / 8;
    assert!(world.disks[0].record().dirty.contains(region(0)..region(0) + 1), "not durable yet");
    assert!(world.disks[0].record().dirty.contains(region(20)..region(20) + 1));
    world.reboot();
    assert!(world.disks[1].data()[0] == 0, "the copy was lost");
    world.settle();
    assert_eq!(world.disks[0].data()[0], 0xaa);
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}

/// One member fails, and the other loses unflushed writes: the member that stays lacks acknowledged
/// writes, which the next flush reports.
#[test]
fn flush_reports_writes_that_both_members_may_have_lost() {
    for lost_first in [false, true] {
        let mut world = World::new();
        world.write(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        // A write to another region is marked first: there one member fails, and the other reports its loss.
        world.write(20, 0xbb);
        let fates = [VolumeError::Io, VolumeError::Lost];
        let order = if lost_first { [1, 0] } else { [0, 1] };
        for n in order {
            assert_eq!(world.disks[n].end(own, Some(fates[n])), 1);
            // The last member fails the write if it failed itself; after a loss it executes the write again.
            let fails = n == order[1] && fates[n] == VolumeError::Io;
            assert_eq!(
                world.mirror.poll().map(|done| done.result),
                fails.then_some(Err(VolumeError::Io))
            );
        }
        world.tend();
        let results = world.run();
        let stays = world.mirror.source;
        assert_eq!(stays, order[1], "the last one stays");
        let expected: &[_] = if stays == 1 { &[Ok(())] } else { &[] };
        assert_eq!(results, expected);
        world.submit(Operation::Flush, 0, 0);
        let results = world.run();
        let expected = if stays == 1 { Err(VolumeError::Io) } else { Ok(()) };
        assert_eq!(results, [expected]);
        world.submit(Operation::Flush, 0, 0);
        assert_eq!(world.run(), [Ok(())], "the loss is reported once");
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data());
    }
}

/// A flush is issued to one member while the other is out, and fails there after the other has returned.
#[test]
fn a_flush_of_a_member_that_is_left_out_is_done_by_the_other() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    let flush = |request: &Request| request.operation == Operation::Flush;
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.mirror.poll(), None);
    assert!(world.disks[0].waits(flush) && !world.disks[1].waits(flush));
    // The second member returns meanwhile, and then the first one fails.
    for _ in 0..10 {
        world.tend();
        while world.disks[0].end(|r| !flush(r), None) + world.disks[1].end(any, None) > 0 {
            assert_eq!(world.mirror.poll(), None);
        }
    }
    assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    world.write(20, 0xbb);
    world.log();
    assert_eq!(world.disks[0].end(|r| data(r) || flush(r), Some(VolumeError::Io)), 2);
    assert_eq!(world.run(), [Ok(()), Ok(())], "the write, and the flush");
    assert_eq!(world.mirror.status().get().members, [MemberState::Out, MemberState::InSync]);
    assert!(world.disks[1].0.borrow().durable[(RESERVED as usize + 3) * 512] == 0xaa);
}

/// A member fails a read, is left out and returns before the other one fails the read too. The first may hold good
/// data by then, so the read is tried on it again.
#[test]
fn read_is_retried_on_a_member_that_returned() {
    let mut world = World::new();
    world.write(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.mirror.members[1].lead = 64;
    world.submit(Operation::Read, 3, 0);
    let read =
        |request: &Request| request.operation == Operation::Read && request.sector == RESERVED + 3;
    assert_eq!(world.disks[1].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    assert!(world.disks[0].waits(read), "the read goes to the other member");
    world.drop_second(20, 0xbb);
    let mut results = 0;
    for _ in 0..2 {
        while world.disks[0].end(|r| !read(r), None) + world.disks[1].end(any, None) > 0 {
            results += core::iter::from_fn(|| world.mirror.poll()).count();
        }
        world.tend();
    }
    results += core::iter::from_fn(|| world.mirror.poll()).count();
    while world.disks[0].end(|r| !read(r), None) + world.disks[1].end(any, None) > 0 {
        results += core::iter::from_fn(|| world.mirror.poll()).count();
    }
    assert_eq!(results, 1, "the write");
    assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    assert_eq!(world.disks[0].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.run(), [Ok(())]);
    let mut byte = [0];
    world.buffer.read(0, &mut byte).unwrap();
    assert_eq!(byte, [0xaa]);
}

/// A write that both members fail is reported, and both hold the same data in the end, whichever
/// member executed a part of it, with and without a power cut.
#[test]
fn a_write_that_both_members_fail_leaves_them_equal() {
    for power in [false, true] {
        for reverse in [false, true] {
            netsim::label!(power, reverse);
            let mut world = World::new();
            world.write(3, 0xaa);
            world.log();
            // One member has executed it nevertheless.
            let partly = &world.disks[usize::from(reverse)];
            let at = (RESERVED as usize + 3) * 512;
            partly.0.borrow_mut().cache[at..at + 512].fill(0xaa);
            let order = if reverse { [1, 0] } else { [0, 1] };
            for n in order {
                assert_eq!(world.disks[n].end(data, Some(VolumeError::Io)), 1);
                let _ = world.mirror.poll();
            }
            if power {
                world.disks.iter().for_each(|disk| {
                    let plan = &mut *disk.0.borrow_mut();
                    plan.durable.copy_from_slice(&plan.cache);
                });
                world.reboot();
            } else {
                let _ = world.run();
            }
            world.settle();
            assert!(world.disks[0].data() == world.disks[1].data(), "power {power}");
        }
    }
}

/// Members in memory complete at once; the copy must still leave time for other work.
#[test]
fn round_of_the_loop_copies_one_part() {
    const REGIONS: u64 = 128;
    let mut arena = Arena::on_heap(4 << 20);
    let bytes = (RESERVED + REGIONS * 8) as usize * 512;
    let mut volumes = [0; 2].map(|_| {
        let memory = arena.alloc(bytes, 4096).unwrap();
        crate::volume::RamVolume::new(memory, false)
    });
    let data = arena.alloc(bytes, 4096).unwrap();
    data.fill(0xaa);
    let operation = Operation::Write { durable: false };
    let request = Request { tag: 0.into(), operation, sector: 0, data };
    assert!(matches!(volumes[0].submit(&request), Ok(Submitted::Done)));
    let memory = arena.alloc(Mirror::MEMORY, 4096).unwrap();
    let volumes = volumes.map(|volume| Box::new(volume) as Box<dyn Volume>);
    let mut mirror = Mirror::create(volumes, memory, [7; 16]);
    let status = mirror.status();
    (0..4).for_each(|_| mirror.tend(Instant::from_nanos(1)));
    assert_eq!(status.get().members[1], MemberState::Syncing);
    for _ in 0..2 * REGIONS {
        let (before, wanted) = (status.get().copied, mirror.wants_turn());
        assert_eq!(mirror.poll(), None);
        let copied = status.get().copied - before;
        assert!(copied <= 1, "{copied} regions at once");
        assert!(wanted || copied == 0, "the loop would have slept");
    }
    mirror.tend(Instant::from_nanos(2));
    assert_eq!(status.get().members, [MemberState::InSync; 2]);
    let read = Request { operation: Operation::Read, sector: RESERVED, ..request };
    let read = Request { data: data.slice(0, REGIONS as usize * 4096).unwrap(), ..read };
    match mirror.members[1].volume.submit(&read) {
        Ok(Submitted::Lent(data)) => {
            let mut bytes = alloc::vec![0; data.len()];
            data.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0xaa));
        }
        other => panic!("{other:?}"),
    }
}

/// A write waits for a silent member until the timeout, and later requests do not wait for it.
#[test]
fn silent_member_is_left_out_after_the_timeout() {
    for durable in [false, true] {
        let mut world = World::new();
        world.submit(Operation::Write { durable }, 3, 0xaa);
        assert_eq!(world.wait(4900, true), [], "the timeout has not passed");
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
        assert_eq!(world.wait(300, true), [Ok(())]);
        let status = world.mirror.status().get();
        assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
        assert_eq!((status.why[1], status.timeouts), (Some(Why::Silent), 1));
        assert_eq!(status.dropped, 1);
        assert_eq!((status.stale, status.stale_bytes), (1, 4096), "the status is updated at once");
        assert!(world.disks[0].record().alone);
        world.write(4, 0xbb);
        assert_eq!(world.wait(10, true), [Ok(())], "the next write does not wait");
        // It returns and executes its old requests. The regions are copied nevertheless.
        world.tend();
        assert!(!world.disks[1].waits(any), "it gets no requests before it is idle");
        assert!(world.disks[1].end_given_up() > 0);
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
        assert_eq!(world.disks[1].data()[4 * 512], 0xbb);
    }
}

/// While neither member responds, none is left out.
#[test]
fn mirror_waits_for_two_silent_members() {
    for late in 0..2 {
        let mut world = World::new();
        world.write(3, 0xaa);
        world.log();
        assert_eq!(world.wait(50_000, false), []);
        // One member responds four seconds before the other.
        world.disks[late].end(any, None);
        assert_eq!(world.wait(4000, false), []);
        assert_eq!(world.run(), [Ok(())]);
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    }
}

/// Both members stop responding just after one has completed a request, which does not count as a response.
#[test]
fn earlier_completion_is_no_sign_of_life() {
    for durable in [false, true] {
        let mut world = World::new();
        world.submit(Operation::Write { durable }, 3, 0xaa);
        assert!(world.disks[0].end(any, None) > 0);
        assert_eq!(world.wait(20_000, false), []);
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
        assert_eq!(world.run(), [Ok(())]);
    }
}

/// After both were silent, the second to respond gets the full timeout from the first one's return.
#[test]
fn timeout_of_a_member_begins_when_the_other_returns() {
    let mut world = World::new();
    world.write(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.mirror.members[1].lead = 64;
    world.submit(Operation::Read, 3, 0);
    assert_eq!(world.wait(10_000, false), []);
    assert!(world.disks[0].end(any, None) > 0, "a probe was sent");
    assert_eq!(world.wait(4900, true), []);
    assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    assert_eq!(world.wait(300, true), [Ok(())]);
    assert_eq!(world.mirror.status().get().members[1], MemberState::Out);
}

/// A read that a silent member does not complete goes to the other one, if that one answers a probe.
#[test]
fn a_read_of_a_silent_member_is_done_by_the_other() {
    for responds in [true, false] {
        let mut world = World::new();
        world.write(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        world.mirror.members[1].lead = 64;
        world.submit(Operation::Read, 3, 0);
        assert!(world.disks[1].waits(any) && !world.disks[0].waits(any));
        let results = world.wait(6000, responds);
        assert_eq!(results, if responds { alloc::vec![Ok(())] } else { alloc::vec![] });
        let out = world.mirror.status().get().members[1] == MemberState::Out;
        assert_eq!(out, responds, "without a response of the other one the mirror waits for both");
        if responds {
            let mut byte = [0];
            world.buffer.read(0, &mut byte).unwrap();
            assert_eq!(byte, [0xaa]);
        }
    }
}

/// A copy to a member that stops responding does not block writes to its sectors for ever.
#[test]
fn hanging_copy_does_not_block_writes() {
    let mut world = World::new();
    world.drop_second(0, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.tend();
    for _ in 0..10 {
        world.disks[0].end(any, None);
        world.disks[1].end(|request| !data(request), None);
        assert_eq!(world.mirror.poll(), None);
    }
    assert!(world.disks[1].waits(data), "a region is being copied");
    world.write(1, 0xbb);
    assert_eq!(world.wait(4000, true), []);
    assert_eq!(world.wait(1300, true), [Ok(())]);
    world.disks[1].end_given_up();
    world.settle();
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}

/// A member in memory whose contents are lost is all zeroes, and is copied to completely.
#[test]
fn blank_member_is_copied_completely() {
    let mut world = World::new();
    for sector in [0, 8, 16, 24] {
        world.write(sector, 0x11);
        assert_eq!(world.run(), [Ok(())]);
    }
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    {
        let plan = &mut *world.disks[1].0.borrow_mut();
        plan.cache.fill(0);
        plan.durable.fill(0);
    }
    world.settle();
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}

/// Regions that were copied before a power cut are not copied again.
#[test]
fn copy_resumes_after_a_power_cut() {
    let mut world = World::new();
    world.drop_second(0, 0x40);
    assert_eq!(world.run(), [Ok(())]);
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    for sector in [8, 16, 24] {
        world.write(sector, 0x40 + sector as u8);
        assert_eq!(world.run(), [Ok(())]);
    }
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    let before = world.mirror.status().get().copied;
    world.tend();
    // All regions are to be copied; the third one hangs, and then the last one.
    for hangs in [16, 24] {
        netsim::label!(hangs);
        for _ in 0..30 {
            let waits = |request: &Request| data(request) && request.sector >= RESERVED + hangs;
            world.disks[0].end(any, None);
            world.disks[1].end(|request| !waits(request), None);
            assert_eq!(world.mirror.poll(), None);
            world.now = world.now + Duration::from_millis(100);
            world.mirror.tend(world.now);
        }
    }
    let copied = world.mirror.status().get().copied - before;
    world.reboot();
    world.settle();
    let again = world.mirror.status().get().copied;
    assert!(
        copied == 3 && again <= 2,
        "{copied} regions were copied before the power cut, and {again} afterwards"
    );
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}
