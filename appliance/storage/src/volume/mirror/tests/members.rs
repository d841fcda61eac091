//! What a mirror makes of its members by their records, at the start and when one comes back.

use super::superblock::{DISTANCE, SIZE};
use super::*;

impl Disk {
    /// So many sectors are left of it.
    fn resize(&self, sectors: u64) {
        self.0.borrow_mut().sectors = sectors;
    }

    /// Somebody has written where the records are.
    fn overwrite(&self, at: usize, bytes: &[u8]) {
        let plan = &mut *self.0.borrow_mut();
        plan.cache[at..at + bytes.len()].copy_from_slice(bytes);
        plan.durable[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Both its records are these.
    fn put_record(&self, record: &Superblock) {
        let bytes = record.emit();
        [0, DISTANCE].into_iter().for_each(|at| self.overwrite(at, &bytes));
    }

    /// What the mirror's own sectors hold.
    fn own_sectors(&self) -> Vec<u8> {
        self.0.borrow().durable[..RESERVED as usize * 512].to_vec()
    }
}

/// Sectors of a member.
const ALL: u64 = (BYTES / 512) as u64;

impl World {
    /// Some seconds in which everything is done.
    fn some_time(&mut self) {
        for _ in 0..5 {
            self.tend();
            assert_eq!(self.run(), []);
        }
    }

    fn states(&self) -> (MirrorState, [MemberState; 2]) {
        let status = self.mirror.status().get();
        (status.state, status.members)
    }

    /// The members of this world as those of a mirror that starts.
    fn start(&mut self, members: [Disk; 2]) {
        self.disks = members;
        self.mirror = Mirror::assemble(Self::members(&self.disks), self.memory);
    }
}

/// A remote volume that is not there has no sectors; a member without its last one is not whole either.
#[test]
fn a_member_that_is_smaller_than_it_was_is_waited_for() {
    for (n, sectors) in [(0, 0), (1, 0), (0, ALL - 1), (1, ALL - 1)] {
        let mut world = World::new();
        world.disks[n].resize(sectors);
        world.reboot();
        world.some_time();
        assert_eq!(world.states().0, MirrorState::Alone, "{sectors} sectors");
        assert_eq!(world.mirror.geometry().sectors, 0, "nobody uses it");
        world.disks[n].resize(ALL);
        world.settle();
        assert_eq!(world.mirror.geometry().sectors, SECTORS as u64);
    }
}

/// The same of one that was left out: it comes back when it is whole.
#[test]
fn a_member_that_comes_back_smaller_is_not_copied_to() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.disks[1].resize(ALL - 1);
    world.some_time();
    assert_eq!(world.states().1[1], MemberState::Out);
    world.disks[1].resize(ALL + 1);
    world.settle();
    assert!(world.disks[0].data() == world.disks[1].data());
}

#[test]
fn a_member_alone_is_used_if_it_knows_that_the_other_is_out_or_the_operator_says_so() {
    for knows in [false, true] {
        let mut world = World::new();
        if knows {
            world.drop_second(3, 0xaa);
            assert_eq!(world.run(), [Ok(())]);
            world.submit(Operation::Flush, 0, 0);
            assert_eq!(world.run(), [Ok(())]);
        }
        world.disks[1].resize(0);
        world.reboot();
        world.some_time();
        if !knows {
            assert_eq!(world.states().0, MirrorState::Alone);
            world.mirror.forced().set(true);
            world.some_time();
        }
        let running = (MirrorState::Running, [MemberState::InSync, MemberState::Out]);
        assert_eq!(world.states(), running, "knows: {knows}");
        // What may differ: what was written without the other, or else nobody knows what.
        let stale = if knows { 1 } else { SECTORS / 8 };
        assert_eq!(world.mirror.status().get().stale, stale);
        assert!(world.disks[0].record().alone);
        world.write(20, 0xbb);
        assert_eq!(world.run(), [Ok(())]);
        world.disks[1].resize(ALL);
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data());
        assert_eq!(world.disks[1].data()[20 * 512], 0xbb);
        assert!(!world.disks[0].record().alone);
    }
}

/// Members of two mirrors, and disks that are none: nothing is written to them.
#[test]
fn what_is_not_of_one_mirror_does_not_start() {
    let (one, two) = (World::new(), World::new());
    let mut record = two.disks[1].record();
    record.shape.uuid = [8; 16];
    record.generation += 10;
    two.disks[1].put_record(&record);
    let blank = || [Disk::new(), Disk::new()];
    for members in [[one.disks[0].clone(), two.disks[1].clone()], blank()] {
        let before = members.each_ref().map(Disk::own_sectors);
        let mut world = World::new();
        world.start(members);
        world.some_time();
        assert_eq!(world.states(), (MirrorState::Strangers, [MemberState::Unknown; 2]));
        assert_eq!(world.mirror.geometry().sectors, 0);
        assert!(world.disks.each_ref().map(Disk::own_sectors) == before);
    }
}

/// While one of them has not been seen nobody knows what the two are.
#[test]
fn a_blank_disk_waits_for_the_other_one() {
    let mut world = World::new();
    world.start([Disk::new(), Disk::new()]);
    world.disks[1].resize(0);
    world.some_time();
    assert_eq!(world.states().0, MirrorState::Waiting);
    world.disks[1].resize(ALL);
    world.some_time();
    assert_eq!(world.states().0, MirrorState::Strangers);
}

/// In the place of a member that was left out stands a disk of others.
#[test]
fn what_is_somebody_elses_is_not_copied_to() {
    let foreign: [fn(&Disk, &Superblock); 2] = [
        |disk, own| {
            let mut record = own.clone();
            record.shape.uuid = [8; 16];
            disk.put_record(&record);
        },
        |disk, _| disk.overwrite(0, &alloc::vec![0x33; DISTANCE + SIZE]),
    ];
    for (case, put) in foreign.into_iter().enumerate() {
        let mut world = World::new();
        world.drop_second(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        let own = world.disks[1].record();
        put(&world.disks[1], &own);
        let before = world.disks[1].own_sectors();
        world.some_time();
        assert_eq!(world.states().1[1], MemberState::Out, "case {case}");
        assert!(world.disks[1].own_sectors() == before, "case {case}");
        world.disks[1].put_record(&own);
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data());
    }
}

/// A member whose records cannot be read is asked again, after a pause.
#[test]
fn a_member_whose_records_cannot_be_read_is_tried_again() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    let records = |request: &Request| request.operation == Operation::Read && request.sector == 0;
    for _ in 0..3 {
        world.tend();
        assert_eq!(world.disks[1].end(records, Some(VolumeError::Io)), 1, "it is asked once");
        assert_eq!(world.run(), []);
        assert_eq!(world.states().1[1], MemberState::Out);
        // Within the pause it is left alone.
        world.now = world.now + Duration::from_millis(900);
        world.mirror.tend(world.now);
        assert!(!world.disks[1].waits(any));
    }
    world.settle();
}

/// A mirror is as large as its smaller member, in whole pieces of 4 KiB, and has 32768 regions at most.
#[test]
fn a_new_mirror_has_the_size_of_its_smaller_member() {
    let largest = 32_768 * 8;
    for (first, second, sectors, regions) in [
        (72, 1000, 8, 1),
        (1000, 79, 8, 1),
        (80, 80, 16, 2),
        (RESERVED + largest, RESERVED + largest + 7, largest, 32_768),
        (RESERVED + largest + 8, RESERVED + largest + 8, largest + 8, 16_385),
    ] {
        let mut world = World::new();
        world.disks = [Disk::new(), Disk::new()];
        world.disks[0].resize(first);
        world.disks[1].resize(second);
        world.mirror = Mirror::create(World::members(&world.disks), world.memory, [9; 16]);
        world.tend();
        world.disks.iter().for_each(|disk| assert_eq!(disk.end(any, None), 1, "records are read"));
        assert_eq!(world.mirror.poll(), None);
        world.tend();
        let status = world.mirror.status().get();
        assert_eq!(world.mirror.geometry().sectors, sectors);
        assert_eq!((status.regions, status.stale), (regions, regions), "{sectors} sectors");
        assert_eq!(status.members, [MemberState::InSync, MemberState::Syncing]);
    }
}

/// A record of which one sector was written, in whichever of the two places, is what is left of a mirror's; that is
/// copied to.
#[test]
fn a_member_with_what_is_left_of_a_record_is_copied_to() {
    for place in [0, DISTANCE] {
        netsim::label!(place);
        let mut world = World::new();
        world.drop_second(3, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        let record = world.disks[1].record().emit();
        world.disks[1].overwrite(0, &alloc::vec![0; 2 * DISTANCE]);
        world.disks[1].overwrite(place, &record[..512]);
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
    }
}

/// Members that nobody left out, and that hold the same, are in sync at once, whichever has the newer record.
#[test]
fn members_that_are_equal_are_in_sync_at_once() {
    for newer in 0..2 {
        netsim::label!(newer);
        let mut world = World::new();
        let mut record = world.disks[0].record();
        (record.alone, record.dirty) = (false, Bitmap::new());
        for n in 0..2 {
            record.generation += u64::from(n == newer);
            world.disks[n].put_record(&record);
            record.generation -= u64::from(n == newer);
        }
        world.reboot();
        world.tend();
        world.disks.iter().for_each(|disk| assert_eq!(disk.end(any, None), 1, "records are read"));
        assert_eq!(world.mirror.poll(), None);
        world.tend();
        assert_eq!(world.states(), (MirrorState::Running, [MemberState::InSync; 2]));
        assert_eq!(world.mirror.source, newer);
        assert_eq!(world.mirror.status().get().copied, 0);
        world.settle();
    }
}

/// Of members that may differ the newer one is copied to the other.
#[test]
fn the_newer_member_is_copied_to_the_other() {
    for newer in 0..2 {
        netsim::label!(newer);
        let mut world = World::new();
        let mut record = world.disks[0].record();
        record.alone = false;
        record.dirty.set(1);
        for n in 0..2 {
            record.generation += u64::from(n == newer);
            world.disks[n].put_record(&record);
            record.generation -= u64::from(n == newer);
        }
        world.reboot();
        world.tend();
        world.disks.iter().for_each(|disk| assert_eq!(disk.end(any, None), 1, "records are read"));
        assert_eq!(world.mirror.poll(), None);
        world.tend();
        let mut members = [MemberState::Syncing; 2];
        members[newer] = MemberState::InSync;
        assert_eq!(world.states(), (MirrorState::Running, members));
        world.settle();
        assert_eq!(world.states(), (MirrorState::Running, [MemberState::InSync; 2]));
        assert_eq!(world.mirror.status().get().copied, 1);
    }
}

/// A record is written in place of the older one, also by a mirror that was started since.
#[test]
fn a_record_takes_the_place_of_the_older_one() {
    let mut world = World::new();
    let mut generation = 0;
    for n in 0..8 {
        netsim::label!(n);
        world.write(8 * (n % 4) + 1, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        // Every second time the region is taken out of the record again.
        if n % 2 == 1 {
            world.settle();
        }
        for disk in &world.disks {
            assert!(disk.record().generation > generation);
        }
        generation = world.disks[0].record().generation;
        world.reboot();
        world.run();
        world.settle();
        assert_eq!(world.states(), (MirrorState::Running, [MemberState::InSync; 2]));
    }
}
