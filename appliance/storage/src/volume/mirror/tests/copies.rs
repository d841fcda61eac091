//! Copies and requests that wait for each other.

use super::*;

/// Sectors of a region.
const REGION: u64 = 8;

/// Whether it is a read or a write of a copy: a whole region.
fn copy(request: &Request) -> bool {
    request.sector >= RESERVED && request.data.len() == REGION as usize * 512
}

fn reads(request: &Request) -> bool {
    request.operation == Operation::Read && request.sector >= RESERVED
}

/// A mirror whose second member is stale in its second and third region; the second is being copied to it.
fn copying() -> World {
    let mut world = World::new();
    world.drop_second(REGION, 0xaa);
    assert_eq!(world.run(), [Ok(())]);
    world.write(2 * REGION, 0xab);
    assert_eq!(world.run(), [Ok(())]);
    world.tend();
    for _ in 0..10 {
        world.disks[0].end(any, None);
        world.disks[1].end(|request| !data(request), None);
        assert_eq!(world.mirror.poll(), None);
    }
    assert!(world.disks[1].waits(|request| copy(request) && request.sector == RESERVED + REGION));
    world
}

/// All waiting requests complete with `expected`, and the members hold the same data.
fn ends(mut world: World, expected: &[Result<(), VolumeError>]) -> [Vec<u8>; 2] {
    assert_eq!(world.run(), expected);
    world.settle();
    let [first, second] = world.disks.each_ref().map(Disk::data);
    assert!(first == second, "the members differ");
    [first, second]
}

#[test]
fn write_waits_only_for_a_copy_of_its_sectors() {
    for sector in 0..SECTORS as u64 {
        let mut world = copying();
        world.write(sector, 0xbb);
        world.log();
        let waits = !world.disks[0].waits(data);
        assert_eq!(waits, (REGION..2 * REGION).contains(&sector), "sector {sector}");
        let [first, _] = ends(world, &[Ok(())]);
        assert_eq!(first[sector as usize * 512], 0xbb, "sector {sector}");
    }
}

#[test]
fn read_does_not_wait_for_a_copy() {
    for sector in [REGION, 2 * REGION - 1] {
        let mut world = copying();
        world.submit(Operation::Read, sector, 0);
        assert!(world.disks[0].waits(reads), "sector {sector}");
        ends(world, &[Ok(())]);
    }
}

/// Otherwise the copy could read data from before the write, and overwrite it afterwards.
#[test]
fn copy_waits_only_for_writes_to_its_sectors() {
    for sector in (0..REGION).chain(2 * REGION..SECTORS as u64) {
        let mut world = copying();
        world.write(sector, 0xbb);
        world.log();
        assert!(world.disks[0].waits(data) && world.disks[1].waits(data), "the copy is in flight");
        world.disks[1].end(copy, None);
        for _ in 0..3 {
            assert_eq!(world.mirror.poll(), None);
        }
        let waits = !world.disks[0].waits(reads);
        assert_eq!(waits, (2 * REGION..3 * REGION).contains(&sector), "sector {sector}");
        ends(world, &[Ok(())]);
    }
}

/// A member that fails while it is copied to is left out, and the copy begins again when it returns.
#[test]
fn failed_copy_is_repeated_later() {
    let mut world = copying();
    assert_eq!(world.disks[1].end(copy, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    let status = world.mirror.status().get();
    assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
    assert_eq!((status.why[1], status.stale), (Some(Why::Failed(VolumeError::Io)), 2));
    assert!(!world.disks[1].waits(any), "it gets no requests meanwhile");
    ends(world, &[]);
}

/// The copy fails if the source cannot be read. The source stays in sync, because it is the only member.
#[test]
fn copy_that_cannot_be_read_leaves_the_source_in_sync() {
    let mut world = copying();
    world.disks[1].end(copy, None);
    for _ in 0..3 {
        assert_eq!(world.mirror.poll(), None);
    }
    assert_eq!(world.disks[0].end(reads, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    let status = world.mirror.status().get();
    assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
    assert_eq!(status.copied, 4 + 1, "all regions once when the mirror was created, and one now");
    ends(world, &[]);
}

/// A mirror that is dissolved copies only the part in flight.
#[test]
fn dissolved_mirror_starts_no_further_copy() {
    let mut world = copying();
    world.mirror.ending().set(true);
    world.disks[1].end(copy, None);
    for _ in 0..5 {
        world.tend();
        assert_eq!(world.run(), []);
    }
    assert!(world.mirror.is_idle());
    let status = world.mirror.status().get();
    assert_eq!((status.members[1], status.stale), (MemberState::Syncing, 1));
    world.mirror.ending().set(false);
    ends(world, &[]);
}

/// A member fails after the copy, while the record that no member is left out is being written. A record that says
/// otherwise follows, before any write that the member has missed completes.
#[test]
fn member_that_fails_before_its_return_is_recorded_is_left_out() {
    let mut world = copying();
    let user = |request: &Request| data(request) && !copy(request);
    world.write(0, 0xbb);
    world.log();
    for _ in 0..30 {
        world.disks[1].end(|request| !user(request), None);
        world.disks[0].end(|request| !user(request) && !own(request), None);
        assert_eq!(world.mirror.poll(), None);
    }
    assert!(world.disks[0].waits(own), "all is copied");
    assert_eq!(world.disks[1].end(user, Some(VolumeError::Io)), 1);
    assert_eq!(world.disks[0].end(user, None), 1);
    assert_eq!(world.mirror.poll(), None);
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll(), None, "the record says that no member is left out");
    assert!(!world.disks[0].record().alone);
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Ok(())));
    assert!(world.disks[0].record().alone);
    ends(world, &[]);
}
