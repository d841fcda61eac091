//! Start of a mirror from its members' records, and the return of a member.

use super::superblock::{DISTANCE, SIZE};
use super::*;

impl Disk {
    /// Sets the number of sectors that it reports.
    fn resize(&self, sectors: u64) {
        self.0.borrow_mut().sectors = sectors;
    }

    /// Overwrites the sectors of the records.
    fn overwrite(&self, at: usize, bytes: &[u8]) {
        let plan = &mut *self.0.borrow_mut();
        plan.cache[at..at + bytes.len()].copy_from_slice(bytes);
        plan.durable[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets both of its records.
    fn put_record(&self, record: &Superblock) {
        let bytes = record.emit();
        [0, DISTANCE].into_iter().for_each(|at| self.overwrite(at, &bytes));
    }

    /// Contents of the reserved sectors.
    fn own_sectors(&self) -> Vec<u8> {
        self.0.borrow().durable[..RESERVED as usize * 512].to_vec()
    }
}

/// Sectors of a member.
const ALL: u64 = (BYTES / 512) as u64;

impl World {
    /// Passes some seconds, in which all requests complete.
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

    /// Starts a mirror with these members.
    fn start(&mut self, members: [Disk; 2]) {
        self.disks = members;
        self.mirror = Mirror::assemble(Self::members(&self.disks), self.memory);
    }
}

/// An absent remote volume has no sectors. A member that lacks only its last sector is waited for as well.
#[test]
fn mirror_waits_for_a_member_smaller_than_its_record() {
    for (n, sectors) in [(0, 0), (1, 0), (0, ALL - 1), (1, ALL - 1)] {
        let mut world = World::new();
        world.disks[n].resize(sectors);
        world.reboot();
        world.some_time();
        assert_eq!(world.states().0, MirrorState::Alone, "{sectors} sectors");
        assert_eq!(world.mirror.geometry().sectors, 0, "the mirror has not started");
        world.disks[n].resize(ALL);
        world.settle();
        assert_eq!(world.mirror.geometry().sectors, SECTORS as u64);
    }
}

/// A member that was left out returns only when it has its size again.
#[test]
fn member_that_returns_smaller_is_not_copied_to() {
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
fn single_member_starts_if_its_record_or_the_operator_allows() {
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
        // Stale regions: the one written without the other member, or all if the record does not know.
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

/// Members of two mirrors, and disks without records: nothing is written to them.
#[test]
fn members_of_different_mirrors_do_not_start() {
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

/// A blank member alone does not decide the state: the other member may have a record.
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

/// A foreign disk takes the place of a member that was left out.
#[test]
fn foreign_disk_is_not_copied_to() {
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

/// The records of a member that fails to read them are read again, after a delay.
#[test]
fn a_member_whose_records_cannot_be_read_is_tried_again() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    let records = |request: &Request| request.operation == Operation::Read && request.sector == 0;
    for _ in 0..3 {
        world.tend();
        assert_eq!(
            world.disks[1].end(records, Some(VolumeError::Io)),
            1,
            "the records are read once"
        );
        assert_eq!(world.run(), []);
        assert_eq!(world.states().1[1], MemberState::Out);
        // Within the delay they are not read.
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

/// A member with the first sector of a record, in either of the two places, has the remnant of one and is copied to.
#[test]
fn member_with_the_remnant_of_a_record_is_copied_to() {
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

/// Members that were not left out and have no marked regions are in sync at once, whichever has the newer record.
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

/// If members may differ, the newer one is copied to the other.
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

/// A record replaces the older one, also after a restart of the mirror.
#[test]
fn record_replaces_the_older_one() {
    let mut world = World::new();
    let mut generation = 0;
    for n in 0..8 {
        netsim::label!(n);
        world.write(8 * (n % 4) + 1, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        // Every second time the record no longer marks the region.
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
