//! Choice of the member for a request, and the order of requests.

use super::superblock::DISTANCE;
use super::*;
use crate::volume::RamVolume;

/// Whether it is the user's read of one sector.
fn read(request: &Request) -> bool {
    request.operation == Operation::Read && request.sector >= RESERVED && request.data.len() == 512
}

impl World {
    /// Writes that one member completes first.
    fn writes_won_by(&mut self, first: usize, count: u64) {
        for _ in 0..count {
            self.write(3, 0xaa);
            self.log();
            assert_eq!(self.disks[first].end(data, None), 1);
            assert_eq!(self.mirror.poll(), None);
            assert_eq!(self.run(), [Ok(())]);
        }
    }

    fn is_busy(&self) -> [bool; 2] {
        self.disks.each_ref().map(|disk| disk.waits(read))
    }
}

/// Reads go to the member with fewer jobs in flight, or else to the one that completes most writes first.
#[test]
fn reads_go_to_the_member_that_is_faster() {
    for (fast, writes, expected) in [(0, 0, 0), (0, 16, 0), (1, 16, 1), (1, 1, 0)] {
        netsim::label!(fast, writes);
        let mut world = World::new();
        world.writes_won_by(fast, writes);
        world.submit(Operation::Read, 3, 0);
        assert_eq!(world.is_busy(), [expected == 0, expected == 1]);
        // The next one goes to the other.
        world.submit(Operation::Read, 4, 0);
        assert_eq!(world.is_busy(), [true, true]);
        assert_eq!(world.run(), [Ok(()), Ok(())]);
        // The other member wins as many writes.
        world.writes_won_by(1 - fast, writes);
        world.submit(Operation::Read, 3, 0);
        assert_eq!(world.is_busy(), [true, false]);
    }
}

/// A read is tried once on each member.
#[test]
fn read_that_both_members_fail_is_reported() {
    let mut world = World::new();
    world.submit(Operation::Read, 3, 0);
    assert_eq!(world.disks[0].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    assert_eq!(world.is_busy(), [false, true]);
    assert_eq!(world.disks[1].end(read, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Err(VolumeError::Io)));
    assert_eq!(world.is_busy(), [false, false]);
    assert_eq!(
        world.mirror.status().get().members,
        [MemberState::InSync; 2],
        "a failed read leaves no member out"
    );
}

/// A read that the source fails is not tried on a member that is out or syncing.
#[test]
fn stale_member_is_not_read() {
    for back in [false, true] {
        netsim::label!(back);
        let mut world = World::new();
        world.drop_second(0, 0xaa);
        assert_eq!(world.run(), [Ok(())]);
        if back {
            world.tend();
            while world.disks[0].end(|r| !data(r), None) + world.disks[1].end(|r| !data(r), None)
                > 0
            {
                assert_eq!(world.mirror.poll(), None);
            }
            assert_eq!(world.mirror.status().get().members[1], MemberState::Syncing);
        }
        world.submit(Operation::Read, 20, 0);
        assert_eq!(world.disks[0].end(read, Some(VolumeError::Io)), 1);
        assert_eq!(world.mirror.poll().map(|done| done.result), Some(Err(VolumeError::Io)));
        assert!(!world.disks[1].waits(read));
    }
}

/// A member completes a read after it was left out: its data may be from before a write that it has missed.
#[test]
fn read_from_a_member_left_out_meanwhile_is_repeated() {
    let mut world = World::new();
    world.writes_won_by(1, 16);
    world.submit(Operation::Read, 3, 0);
    assert_eq!(world.is_busy(), [false, true]);
    world.drop_second(20, 0xbb);
    assert_eq!(world.mirror.poll(), None);
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Ok(())), "the write");
    assert_eq!(world.disks[1].end(read, None), 1);
    assert_eq!(world.mirror.poll(), None);
    assert_eq!(world.is_busy(), [true, false]);
    assert_eq!(world.run(), [Ok(())]);
}

/// A read does not overtake an overlapping write that waits for a copy; other reads do.
#[test]
fn overlapping_requests_stay_in_order() {
    let mut world = World::new();
    world.drop_second(8, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.tend();
    for _ in 0..10 {
        world.disks[0].end(any, None);
        world.disks[1].end(|request| !data(request), None);
        assert_eq!(world.mirror.poll(), None);
    }
    assert!(world.disks[1].waits(data), "the region is being copied");
    world.write(9, 0xbb);
    world.log();
    world.submit(Operation::Read, 9, 0xbb);
    assert_eq!(world.is_busy(), [false, false], "the read waits for the write");
    world.submit(Operation::Read, 10, 0xbb);
    world.submit(Operation::Read, 10, 0xbb);
    let sectors = |disk: &Disk, sector| {
        disk.0.borrow().queue.iter().filter(|r| read(r) && r.sector == RESERVED + sector).count()
    };
    assert_eq!([9, 10].map(|sector| sectors(&world.disks[0], sector)), [0, 2]);
    assert_eq!(world.run().len(), 4);
    world.settle();
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}

/// Regions that the record being written marks need no further record.
#[test]
fn concurrent_writes_are_marked_by_one_record() {
    for (sectors, records) in [([3, 4, 5], 1), ([3, 12, 13], 2), ([3, 12, 20], 2)] {
        netsim::label!(sectors);
        let mut world = World::new();
        let before = world.mirror.log.durable;
        sectors.iter().for_each(|&sector| world.write(sector, 0xaa));
        world.log();
        assert_eq!(world.mirror.log.durable - before, records);
        assert!(world.disks.iter().all(|disk| disk.waits(data)));
        assert_eq!(world.run(), [Ok(()); 3]);
    }
}

/// A blank member gets a record only after the other member's record says that it is left out. Otherwise both would
/// count as equal after a power cut.
#[test]
fn a_blank_member_gets_its_record_after_the_other() {
    let mut world = World::new();
    world.drop_second(3, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    {
        let plan = &mut *world.disks[1].0.borrow_mut();
        plan.cache.fill(0);
        plan.durable.fill(0);
    }
    world.tend();
    for _ in 0..5 {
        world.disks.iter().for_each(|disk| _ = disk.end(|request| !own(request), None));
        assert_eq!(world.mirror.poll(), None);
    }
    assert_eq!(world.disks.each_ref().map(|disk| disk.waits(own)), [true, false]);
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll(), None);
    assert!(world.disks[0].record().alone && world.disks[0].record().dirty.count() == 4);
    assert!(world.disks[1].waits(own));
    world.settle();
    assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
}

/// With either member as the source before.
#[test]
fn a_write_that_both_fail_makes_one_the_source() {
    for source in 0..2 {
        netsim::label!(source);
        let mut world = World::new();
        if source == 1 {
            // The first one is left out for a while.
            world.write(3, 0xaa);
            world.log();
            assert_eq!(world.disks[0].end(data, Some(VolumeError::Io)), 1);
            assert_eq!(world.run(), [Ok(())]);
            world.settle();
        }
        assert_eq!(world.mirror.source, source);
        world.write(20, 0xbb);
        world.log();
        for disk in &world.disks {
            assert_eq!(disk.end(data, Some(VolumeError::Io)), 1);
        }
        assert_eq!(world.mirror.poll().map(|done| done.result), Some(Err(VolumeError::Io)));
        let members = world.mirror.status().get().members;
        assert_eq!((members[source], members[1 - source]), (MemberState::InSync, MemberState::Out));
        world.settle();
        assert!(world.disks[0].data() == world.disks[1].data(), "the members differ");
    }
}

/// A volume that has only a geometry.
struct Shaped(Geometry);

impl Volume for Shaped {
    fn geometry(&self) -> Geometry {
        self.0
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        Err(VolumeError::Io)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

/// A mirror supports what both members support; an absent member does not count.
#[test]
fn mirror_supports_the_operations_of_both_members() {
    let one = Geometry {
        sectors: 1000,
        logical_block: 512,
        physical_block: 4096,
        max_transfer: 1 << 20,
        max_discard_sectors: 8,
        discard_granularity: 512,
        max_write_zeroes_sectors: 8,
        features: Features::DISCARD | Features::WRITE_ZEROES,
    };
    let other = Geometry {
        logical_block: 4096,
        physical_block: 8192,
        max_transfer: 1 << 16,
        discard_granularity: 4096,
        max_discard_sectors: 4,
        features: Features::VOLATILE_CACHE | Features::DISCARD,
        ..one
    };
    let gone = |of: Geometry| Geometry { sectors: 0, ..of };
    let cached = Features::VOLATILE_CACHE | Features::DISCARD;
    let (large, small) = ((512, 4096, 1 << 20, 512), (4096, 8192, 1 << 16, 4096));
    for (what, members, blocks, features, most) in [
        ("both", [one, other], small, cached, (4, 0)),
        ("the other way round", [other, one], small, cached, (4, 0)),
        ("two of a kind", [one, one], large, one.features, (8, 8)),
        ("one of them", [one, gone(other)], large, one.features | Features::VOLATILE_CACHE, (8, 8)),
        ("the other of them", [gone(one), other], small, cached, (4, 0)),
        ("none", [gone(one), gone(one)], (512, 512, 512, 0), Features::empty(), (0, 0)),
    ] {
        let mut arena = Arena::on_heap(1 << 20);
        let memory = arena.alloc(Mirror::MEMORY, 4096).unwrap();
        let members = members.map(|shape| Box::new(Shaped(shape)) as Box<dyn Volume>);
        let geometry = Mirror::assemble(members, memory).geometry();
        let Geometry { logical_block, physical_block, max_transfer, discard_granularity, .. } =
            geometry;
        let shape = (logical_block, physical_block, max_transfer, discard_granularity);
        assert_eq!((shape, geometry.features), (blocks, features), "{what}");
        let sectors = (geometry.max_discard_sectors, geometry.max_write_zeroes_sectors);
        assert_eq!(sectors, most, "{what}");
    }
}

/// Regions of large mirrors are larger than a part, and the last region is shorter.
#[test]
fn a_large_region_is_copied_in_parts() {
    const SECTORS: u64 = 2 * 256 + 88;
    let mut arena = Arena::on_heap(4 << 20);
    let write = |volume: &mut RamVolume, sector, data| {
        let operation = Operation::Write { durable: false };
        let request = Request { tag: 0.into(), operation, sector, data };
        assert!(matches!(volume.submit(&request), Ok(Submitted::Done)));
    };
    let shape = Shape { uuid: [7; 16], sectors: SECTORS, region_sectors: 256 };
    let mut dirty = Bitmap::new();
    dirty.set_all(0..3);
    let data = arena.alloc(SECTORS as usize * 512, 4096).unwrap();
    let bytes: Vec<u8> = (0..SECTORS as usize * 512).map(|at| (at / 512 * 7 + at) as u8).collect();
    data.write(0, &bytes).unwrap();
    let volumes = [(5, true), (4, false)].map(|(generation, alone)| {
        let memory = arena.alloc((RESERVED + SECTORS) as usize * 512, 4096).unwrap();
        let mut volume = RamVolume::new(memory, false);
        let record = Superblock { shape, generation, alone, dirty: dirty.clone() }.emit();
        let place = arena.alloc(record.len(), 4096).unwrap();
        place.write(0, &record).unwrap();
        for sector in [0, DISTANCE as u64 / 512] {
            write(&mut volume, sector, place);
        }
        if alone {
            write(&mut volume, RESERVED, data);
        }
        Box::new(volume) as Box<dyn Volume>
    });
    let memory = arena.alloc(Mirror::MEMORY, 4096).unwrap();
    let mut mirror = Mirror::assemble(volumes, memory);
    for second in 1..20 {
        mirror.tend(Instant::ZERO + Duration::from_secs(second));
        (0..10).for_each(|_| assert_eq!(mirror.poll(), None));
    }
    let status = mirror.status().get();
    assert_eq!((status.members, status.copied), ([MemberState::InSync; 2], 3));
    assert_eq!((status.regions, status.stale), (3, 0));
    data.fill(0);
    let read = Request { tag: 0.into(), operation: Operation::Read, sector: RESERVED, data };
    match mirror.members[1].volume.submit(&read) {
        Ok(Submitted::Lent(lent)) => {
            let mut copy = alloc::vec![0; lent.len()];
            lent.read(0, &mut copy).unwrap();
            assert!(copy == bytes);
        }
        other => panic!("{other:?}"),
    }
}
