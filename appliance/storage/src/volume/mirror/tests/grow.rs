//! Growth of a mirror whose members have become larger.

use super::site::*;
use super::*;

/// Sectors of the enlarged disks.
const MORE: usize = 3 * SECTORS + 5;
/// Sectors of them that the mirror can use.
const USED: u64 = (MORE / 8 * 8) as u64;

impl Site {
    /// Both disks have more space, with different contents.
    fn with_more_space() -> Self {
        let mut site = Site::new(16);
        site.write(0, 3, 0xaa);
        assert_eq!(site.pass(10), [(0, Ok(()))]);
        site.disks.iter().for_each(|disk| disk.resize(MORE));
        let old = (RESERVED as usize + SECTORS) * 512;
        site.disks[1].0.borrow_mut().bytes[old..].fill(0x77);
        site
    }

    fn grow(&mut self) {
        self.mirror.growing().set(true);
        self.mirror.tend(self.now);
    }

    fn sectors(&self) -> u64 {
        self.mirror.geometry().sectors
    }

    fn in_sync(&mut self) {
        assert_eq!(self.pass(10_000), []);
        assert_eq!(self.states(), [MemberState::InSync; 2]);
        self.compare();
    }
}

/// The new space becomes equal on both members, only it is copied, and no member is left out meanwhile.
#[test]
fn mirror_grows_when_both_members_have_grown() {
    let mut site = Site::with_more_space();
    let copied = site.mirror.status().get().copied;
    site.pass(1000);
    assert_eq!(site.sectors(), SECTORS as u64, "no growth without a request");
    site.grow();
    assert_eq!(site.states(), [MemberState::InSync; 2]);
    site.pass(3000);
    let status = site.mirror.status().get();
    assert_eq!((site.sectors(), status.sectors, status.possible_sectors), (USED, USED, USED));
    assert_eq!((status.copied, status.dropped, status.grows), (copied, 0, false));
    site.in_sync();
    assert_eq!([3, USED - 1].map(|n| site.disks[1].sector(n)), [0xaa, 0x5a]);
    site.write(0, USED - 1, 0xbb);
    site.ask(1, READ, 3, 0);
    assert_eq!(site.pass(10).len(), 2);
    assert_eq!(site.byte(1), 0xaa);
    // The size survives a power cut.
    site.cut_power();
    site.pass(2000);
    assert_eq!(site.sectors(), USED);
    site.in_sync();
    assert_eq!(site.disks[0].sector(USED - 1), 0xbb);
}

/// Only one member has more space.
#[test]
fn mirror_is_as_large_as_its_smaller_member() {
    let mut site = Site::new(16);
    site.disks[1].resize(MORE);
    site.grow();
    site.pass(3000);
    assert_eq!((site.sectors(), site.mirror.status().get().grows), (SECTORS as u64, false));
    site.in_sync();
}

/// The power fails after any number of requests of the disks: the mirror has the old size or the new one, and both
/// members hold the same data.
#[test]
fn power_cut_while_the_mirror_grows_leaves_members_equal() {
    let mut sizes = [false; 2];
    for stop in 0..24 {
        for order in [[0, 1], [1, 0]] {
            netsim::label!(stop, order);
            let mut site = Site::with_more_space();
            site.disks.iter().for_each(|disk| disk.silence(all));
            site.grow();
            let mut done = 0;
            while done < stop {
                let before = done;
                for n in order {
                    if done < stop && site.disks[n].do_one() {
                        done += 1;
                    }
                }
                site.pass(10);
                if done == before {
                    break;
                }
            }
            site.cut_power();
            site.pass(2000);
            let sectors = site.sectors();
            assert!([SECTORS as u64, USED].contains(&sectors), "{sectors}");
            sizes[usize::from(sectors == USED)] = true;
            site.in_sync();
            assert_eq!(site.sectors(), sectors);
            site.grow();
            site.pass(3000);
            assert_eq!(site.sectors(), USED);
            site.in_sync();
            assert_eq!(site.disks[1].sector(3), 0xaa);
        }
    }
    assert_eq!(sizes, [true; 2], "both sizes occur");
}

/// A member stops responding: it is left out, and the mirror keeps its old size until the operator requests growth
/// again.
#[test]
fn member_that_is_silent_ends_the_growth() {
    for silent in 0..2 {
        for steps in 0..8 {
            netsim::label!(silent, steps);
            let mut site = Site::with_more_space();
            site.disks[silent].silence(all);
            site.grow();
            for _ in 0..steps {
                site.disks[silent].do_one();
                site.pass(10);
            }
            site.write(5, 4, 0xcc);
            assert_eq!(site.pass(9000), [(5, Ok(()))]);
            assert_eq!(site.states()[silent], MemberState::Out);
            site.disks[silent].answer();
            site.in_sync();
            if site.sectors() != USED {
                site.grow();
            }
            site.pass(3000);
            assert_eq!(site.sectors(), USED);
            site.in_sync();
        }
    }
}

/// Clients write all the time, and to the new space as soon as it exists.
#[test]
fn mirror_grows_under_writes() {
    let mut site = Site::with_more_space();
    site.grow();
    for round in 0..200u64 {
        let last = site.sectors() - 1;
        site.write(0, round % SECTORS as u64, round as u8);
        site.write(1, last - round % 8, round as u8);
        assert_eq!(site.pass(10).len(), 2);
    }
    assert_eq!(site.sectors(), USED);
    site.in_sync();
    site.cut_power();
    site.in_sync();
}
