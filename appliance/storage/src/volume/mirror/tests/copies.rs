//! Who waits for a copy, and for whom a copy waits.

use super::*;

/// Sectors of a region.
const REGION: u64 = 8;

/// What a copy reads, and what it writes: a whole region.
fn copy(request: &Request) -> bool {
    request.sector >= RESERVED && request.data.len() == REGION as usize * 512
}

fn reads(request: &Request) -> bool {
    request.operation == Operation::Read && request.sector >= RESERVED
}

/// A mirror whose second member is behind in its second and third region; the second is being copied to it.
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

/// All that waits is done, and the members hold the same.
fn ends(mut world: World, told: &[Result<(), VolumeError>]) -> [Vec<u8>; 2] {
    assert_eq!(world.run(), told);
    world.settle();
    let [first, second] = world.disks.each_ref().map(Disk::data);
    assert!(first == second, "the members differ");
    [first, second]
}

#[test]
fn a_write_waits_for_a_copy_where_it_is_under_way_and_nowhere_else() {
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
fn a_read_waits_for_no_copy() {
    for sector in [REGION, 2 * REGION - 1] {
        let mut world = copying();
        world.submit(Operation::Read, sector, 0);
        assert!(world.disks[0].waits(reads), "sector {sector}");
        ends(world, &[Ok(())]);
    }
}

/// What it would read may be from before the write, and what it would write after it.
#[test]
fn a_copy_waits_for_a_write_where_it_goes_on_and_nowhere_else() {
    for sector in (0..REGION).chain(2 * REGION..SECTORS as u64) {
        let mut world = copying();
        world.write(sector, 0xbb);
        world.log();
        assert!(world.disks[0].waits(data) && world.disks[1].waits(data), "it is under way");
        world.disks[1].end(copy, None);
        for _ in 0..3 {
            assert_eq!(world.mirror.poll(), None);
        }
        let waits = !world.disks[0].waits(reads);
        assert_eq!(waits, (2 * REGION..3 * REGION).contains(&sector), "sector {sector}");
        ends(world, &[Ok(())]);
    }
}

/// A member that fails while it is copied to is left out, and the copy begins again when it is back.
#[test]
fn a_copy_that_fails_is_made_later() {
    let mut world = copying();
    assert_eq!(world.disks[1].end(copy, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    let status = world.mirror.status().get();
    assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
    assert_eq!((status.why[1], status.stale), (Some(Why::Failed(VolumeError::Io)), 2));
    assert!(!world.disks[1].waits(any), "it gets nothing meanwhile");
    ends(world, &[]);
}

/// What cannot be read of the member in sync cannot be copied: that one stays, being the only one.
#[test]
fn a_copy_of_what_cannot_be_read_leaves_the_reader_in_sync() {
    let mut world = copying();
    world.disks[1].end(copy, None);
    for _ in 0..3 {
        assert_eq!(world.mirror.poll(), None);
    }
    assert_eq!(world.disks[0].end(reads, Some(VolumeError::Io)), 1);
    assert_eq!(world.mirror.poll(), None);
    let status = world.mirror.status().get();
    assert_eq!(status.members, [MemberState::InSync, MemberState::Out]);
    assert_eq!(status.copied, 4 + 1, "all of them once, when the mirror was made, and one now");
    ends(world, &[]);
}

/// Who wants it taken apart has no more copied than what is under way.
#[test]
fn a_mirror_that_ends_copies_no_more() {
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

/// A member fails when all is copied to it and the record that nobody is left out is being written: one that says
/// otherwise is written behind it, before anything is answered that the member has missed.
#[test]
fn a_member_that_fails_before_its_return_is_written_down_is_left_out() {
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
    assert_eq!(world.mirror.poll(), None, "it says that nobody is left out");
    assert!(!world.disks[0].record().alone);
    world.disks[0].end(own, None);
    assert_eq!(world.mirror.poll().map(|done| done.result), Some(Ok(())));
    assert!(world.disks[0].record().alone);
    ends(world, &[]);
}
