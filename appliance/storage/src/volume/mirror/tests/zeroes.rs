//! Discards and write-zeroes on a mirror.

use super::site::*;
use super::*;

const ZEROES: Operation = Operation::WriteZeroes { sectors: 4 };
const DISCARD: Operation = Operation::Discard { sectors: 4 };

fn filled() -> Site {
    let mut site = Site::new(16);
    for tag in 0..SECTORS {
        site.write(tag, tag as u64, 0xaa);
    }
    assert_eq!(site.pass(10).len(), SECTORS);
    site
}

#[test]
fn discards_and_zeroes_reach_both_members() {
    for operation in [ZEROES, DISCARD] {
        let mut site = filled();
        site.ask(0, operation, 6, 0);
        assert_eq!(site.pass(10), [(0, Ok(()))]);
        for disk in &site.disks {
            assert_eq!([5, 6, 9, 10].map(|n| disk.sector(n)), [0xaa, 0, 0, 0xaa]);
        }
        site.settle();
    }
}

/// Their regions are marked in the records first, as for writes. After a power cut, the region that one member alone
/// has zeroed is copied.
#[test]
fn zeroes_that_one_member_has_done_at_a_power_cut_are_copied() {
    for operation in [ZEROES, DISCARD] {
        for first in 0..2 {
            let mut site = filled();
            site.settle();
            site.disks[1 - first].silence(data_writes);
            site.ask(0, operation, 6, 0);
            assert_eq!(site.pass(10), []);
            assert_ne!(
                site.disks[0].sector(6),
                site.disks[1].sector(6),
                "only one member has executed it"
            );
            site.cut_power();
            assert_eq!(site.pass(2000), []);
            site.settle();
        }
    }
}

/// A member that is left out gets them later, and a silent member blocks no request.
#[test]
fn zeroes_that_a_silent_member_has_missed_are_copied() {
    for operation in [ZEROES, DISCARD] {
        let mut site = filled();
        site.disks[1].silence(all);
        site.ask(0, operation, 6, 0);
        assert_eq!(site.pass(5200), [(0, Ok(()))]);
        site.ask(1, operation, 20, 0);
        assert_eq!(site.pass(10), [(1, Ok(()))]);
        site.write(2, 6, 0xbb);
        assert_eq!(site.pass(10), [(2, Ok(()))]);
        site.disks[1].answer();
        site.settle();
        assert_eq!([6, 7, 20].map(|n| site.disks[1].sector(n)), [0xbb, 0, 0]);
    }
}

/// A member that rejects an operation that it advertises is left out once, and the mirror stops advertising it.
#[test]
fn member_that_rejects_zeroes_is_left_out_once() {
    let mut site = filled();
    site.disks[1].0.borrow_mut().refuses = true;
    site.ask(0, ZEROES, 6, 0);
    assert_eq!(site.pass(10), [(0, Ok(()))]);
    assert_eq!(site.mirror.status().get().dropped, 1);
    site.settle();
    let geometry = site.mirror.geometry();
    assert_eq!((geometry.features, geometry.max_write_zeroes_sectors), (Features::DISCARD, 0));
    let data = Window::empty();
    let request = Request { tag: 0.into(), operation: ZEROES, sector: 6, data };
    assert_eq!(site.mirror.submit(&request).err(), Some(VolumeError::Unsupported));
}
