//! Rules of the mirror, each with the story in which breaking it loses data.

use super::*;

#[test]
fn nothing_is_answered_that_a_member_missed_before_that_is_written_down() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.mirror.poll(), None, "only the first member has it, and that is not written");
    assert!(!world.disks[0].record().alone);
    assert!(world.disks[0].waits(own), "it is being written");
    assert!(!world.disks[1].waits(any), "the member that is left out gets nothing");
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Ok(())));
    assert!(world.disks[0].record().alone);
    // The member that missed it does not come up alone, and does not win.
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.run(), [Ok(())]);
    world.reboot();
    world.settle();
    assert!(world.disks.iter().all(|disk| disk.data()[3 * 512] == 0xaa));
}

/// A member whose two records are both torn is nobody: the other one would wait for the operator.
#[test]
fn a_record_that_may_be_torn_is_written_before_the_whole_one() {
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
        // It comes back, and there is a power cut while it gets its first record.
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
    // It is back, and copied to, up to the flush.
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

/// One member fails, and the other has lost what was not flushed: whoever stays has not all that was
/// acknowledged, and says so.
#[test]
fn what_both_members_may_have_lost_is_told_with_the_next_flush() {
    for lost_first in [false, true] {
        let mut world = World::new();
        world.write(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        // A write elsewhere is marked first: there one member fails, and the other tells its loss.
        world.write(20, 0xbb);
        let fates = [VolumeError::Io, VolumeError::Lost];
        let order = if lost_first { [1, 0] } else { [0, 1] };
        for n in order {
            assert_eq!(world.disks[n].end(own, Some(fates[n])), 1);
            // The last one fails the write if it failed itself; after a loss it goes on.
            let fails = n == order[1] && fates[n] == VolumeError::Io;
            assert_eq!(
                world.mirror.poll().map(|done| done.result),
                fails.then_some(Err(VolumeError::Io))
            );
        }
        world.tend();
        let told = world.run();
        let stays = world.mirror.source;
        assert_eq!(stays, order[1], "the last one stays");
        let expected: &[_] = if stays == 1 { &[Ok(())] } else { &[] };
        assert_eq!(told, expected);
        world.submit(Operation::Flush, 0, 0);
        let told = world.run();
        let expected = if stays == 1 { Err(VolumeError::Io) } else { Ok(()) };
        assert_eq!(told, [expected]);
        world.submit(Operation::Flush, 0, 0);
        assert_eq!(world.run(), [Ok(())], "it is told once");
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data());
    }
}

/// A flush that was given to one member while the other was away, and fails there after the other is back.
#[test]
fn a_flush_of_a_member_that_is_left_out_is_done_by_the_other() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    let flush = |request: &Request| request.operation == Operation::Flush;
    world.submit(Operation::Flush, 0, 0);
    assert_eq!(world.mirror.poll(), None);
    assert!(world.disks[0].waits(flush) && !world.disks[1].waits(flush));
    // The second comes back meanwhile, and then the first one fails.
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

/// A member that could not read something, and is left out and back in sync before the other one fails to read it,
/// too: it may be good by then.
#[test]
fn a_member_that_is_back_is_asked_again() {
    let mut world = World::new();
    world.write(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.mirror.members[1].lead = 64;
    world.submit(Operation::Read, 3, 0);
    let read =
        |request: &Request| request.operation == Operation::Read && request.sector == RESERVED + 3;
    assert_eq!(world.disks[1].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    assert!(world.disks[0].waits(read), "the other one is asked");
    world.drop_second(20, 0xbb);
    let mut told = 0;
    for _ in 0..2 {
        while world.disks[0].end(|r| !read(r), None) + world.disks[1].end(any, None) > 0 {
            told += core::iter::from_fn(|| world.mirror.poll()).count();
        }
        world.tend();
    }
    told += core::iter::from_fn(|| world.mirror.poll()).count();
    while world.disks[0].end(|r| !read(r), None) + world.disks[1].end(any, None) > 0 {
        told += core::iter::from_fn(|| world.mirror.poll()).count();
    }
    assert_eq!(told, 1, "the write");
    assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    assert_eq!(world.disks[0].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.run(), [Ok(())]);
    let mut byte = [0];
    world.buffer.read(0, &mut byte).unwrap();
    assert_eq!(byte, [0xaa]);
}

/// A write that no member has done: the user is told, and both hold the same in the end, whichever
/// member has done a part of it, and whether the power fails then.
#[test]
fn a_write_that_both_members_fail_leaves_them_equal() {
    for power in [false, true] {
        for reverse in [false, true] {
            netsim::label!(power, reverse);
            let mut world = World::new();
            world.write(3, 0xaa);
            world.log();
            // One of them has done it all the same.
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

/// Members in memory are done at once; others are served meanwhile all the same.
#[test]
fn a_turn_copies_one_part() {
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

/// A write waits for a silent member no longer than it may, and no other one does.
#[test]
fn a_silent_member_is_left_out_in_time() {
    for durable in [false, true] {
        let mut world = World::new();
        world.submit(Operation::Write { durable }, 3, 0xaa);
        assert_eq!(world.wait(4900, true), [], "the second member may answer yet");
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
        assert_eq!(world.wait(300, true), [Ok(())]);
        let status = world.mirror.status().get();
        assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
        assert_eq!((status.why[1], status.timeouts), (Some(Why::Silent), 1));
        assert_eq!(status.dropped, 1);
        assert_eq!((status.stale, status.stale_bytes), (1, 4096), "told at once");
        assert!(world.disks[0].record().alone);
        world.write(4, 0xbb);
        assert_eq!(world.wait(10, true), [Ok(())], "the next one waits for nobody");
        // It is back, and does what it was asked for before: that is not believed, and copied over.
        world.tend();
        assert!(!world.disks[1].waits(any), "it is not asked before that is over");
        assert!(world.disks[1].end_given_up() > 0);
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
        assert_eq!(world.disks[1].data()[4 * 512], 0xbb);
    }
}

/// While neither answers nobody is left out, however long it takes.
#[test]
fn two_silent_members_are_waited_for() {
    for late in 0..2 {
        let mut world = World::new();
        world.write(3, 0xaa);
        world.log();
        assert_eq!(world.wait(50_000, false), []);
        // One is back four seconds before the other.
        world.disks[late].end(any, None);
        assert_eq!(world.wait(4000, false), []);
        assert_eq!(world.run(), [Ok(())]);
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    }
}

/// Both fall silent just after one of them has answered something: that one is not taken for being there.
#[test]
fn an_answer_of_before_is_no_sign_of_life() {
    for durable in [false, true] {
        let mut world = World::new();
        world.submit(Operation::Write { durable }, 3, 0xaa);
        assert!(world.disks[0].end(any, None) > 0);
        assert_eq!(world.wait(20_000, false), []);
        assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
        assert_eq!(world.run(), [Ok(())]);
    }
}

/// After both were silent, the first to be back waits for the other as long as ever.
#[test]
fn a_member_is_waited_for_from_when_the_other_is_back() {
    let mut world = World::new();
    world.write(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.mirror.members[1].lead = 64;
    world.submit(Operation::Read, 3, 0);
    assert_eq!(world.wait(10_000, false), []);
    assert!(world.disks[0].end(any, None) > 0, "it was asked for a sign of life");
    assert_eq!(world.wait(4900, true), []);
    assert_eq!(world.mirror.status().get().members, [MemberState::InSync; 2]);
    assert_eq!(world.wait(300, true), [Ok(())]);
    assert_eq!(world.mirror.status().get().members[1], MemberState::Out);
}

/// A read of a silent member goes to the other one, if that is there: it is asked.
#[test]
fn a_read_of_a_silent_member_is_done_by_the_other() {
    for there in [true, false] {
        let mut world = World::new();
        world.write(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        world.mirror.members[1].lead = 64;
        world.submit(Operation::Read, 3, 0);
        assert!(world.disks[1].waits(any) && !world.disks[0].waits(any));
        let told = world.wait(6000, there);
        assert_eq!(told, if there { alloc::vec![Ok(())] } else { alloc::vec![] });
        let out = world.mirror.status().get().members[1] == MemberState::Out;
        assert_eq!(out, there, "without a sign of life of the other one both are waited for");
        if there {
            let mut byte = [0];
            world.buffer.read(0, &mut byte).unwrap();
            assert_eq!(byte, [0xaa]);
        }
    }
}

/// A copy to a member that falls silent keeps nobody from writing where it is being copied.
#[test]
fn a_copy_that_hangs_gives_way() {
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

/// Memory that a member was made of, and that is zeroes now, is copied to as a whole.
#[test]
fn a_member_that_is_blank_gets_everything() {
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

/// What was copied of a member before the power failed is not copied again.
#[test]
fn a_copy_goes_on_where_it_was() {
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
    // All regions are to be copied; the third takes a while, and then the last one.
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
    assert!(copied == 3 && again <= 2, "{copied} were copied before, and {again} afterwards");
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}
