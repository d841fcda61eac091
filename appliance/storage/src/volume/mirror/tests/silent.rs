//! Members that are local disks, one of which stops responding: it keeps its requests, and may access
//! their memory at any later time.

use super::site::*;
use super::superblock::DISTANCE;
use super::*;
use drivers::hal;

/// For each kind of request that the disk does not complete, and for each disk.
#[test]
fn write_beside_a_silent_disk_ends_within_the_timeout() {
    for silent in 0..2 {
        for mute in [all, data_writes, records] {
            netsim::label!(silent);
            let mut site = Site::new(16);
            site.disks[silent].silence(mute);
            site.write(0, 3, 0xaa);
            assert_eq!(site.pass(4900), [], "the timeout has not passed");
            assert_eq!(site.pass(300), [(0, Ok(()))]);
            let mut states = [MemberState::InSync; 2];
            states[silent] = MemberState::Out;
            assert_eq!(site.states(), states);
            assert!(site.disks[1 - silent].record().alone);
            assert!(site.disks[silent].has() > 0, "it still has its requests");
            // In the same region, in another one, and the same block again: no write waits for the disk any more.
            for (tag, sector) in [(1, 4), (2, 20), (3, 3)] {
                site.write(tag, sector, 0xb0 + tag as u8);
                assert_eq!(site.pass(10), [(tag as u64, Ok(()))]);
                site.ask(tag, READ, sector, 0);
                assert_eq!(site.pass(10), [(tag as u64, Ok(()))]);
                assert_eq!(site.byte(tag), 0xb0 + tag as u8);
            }
            site.ask(4, Operation::Flush, 0, 0);
            assert_eq!(site.pass(10), [(4, Ok(()))]);
            assert_eq!(site.pass(60_000), [], "no member returns while the disk is silent");
            assert_eq!(site.states(), states);
            site.disks[silent].answer();
            site.settle();
            assert_eq!([3, 4, 20].map(|n| site.disks[silent].sector(n)), [0xb3, 0xb1, 0xb2]);
        }
    }
}

/// The user reuses its memory before the disk executes its old requests.
#[test]
fn memory_of_a_completed_request_is_not_accessed() {
    let mut site = Site::new(16);
    for (tag, sector) in [(0, 3), (1, 9)] {
        // The record marks both regions from now on.
        site.write(tag, sector, 0xaa);
        assert_eq!(site.pass(10), [(tag as u64, Ok(()))]);
    }
    site.disks[1].silence(all);
    site.mirror.members[1].lead = 64;
    site.ask(1, READ, 3, 0);
    site.write(2, 9, 0xbb);
    let mut results = site.pass(5200);
    results.sort_by_key(|(tag, _)| *tag);
    assert_eq!(results, [(1, Ok(())), (2, Ok(()))]);
    assert_eq!(site.byte(1), 0xaa, "the other member was read");
    site.buffers.iter().for_each(|buffer| buffer.fill(0x55));
    site.write(3, 3, 0xcc);
    assert_eq!(site.pass(10), [(3, Ok(()))]);
    // The disk executes its old requests, and only then the member gets new ones.
    site.disks[1].answer();
    while core::iter::from_fn(|| site.mirror.poll()).next().is_some() {}
    assert_eq!(site.disks[1].sector(9), 0xbb, "it writes the data of the request");
    assert!(site.buffers[..3].iter().all(|buffer| {
        let mut bytes = [0; 512];
        buffer.read(0, &mut bytes).unwrap();
        bytes == [0x55; 512]
    }));
    site.settle();
    assert_eq!(site.disks[1].sector(3), 0xcc);
}

/// A silent disk writes the record of its request at last, although later records were written since. Otherwise
/// the records of both members would say that the other one is left out.
#[test]
fn late_record_has_the_contents_of_its_request() {
    let mut site = Site::new(16);
    let before = site.disks[0].record().generation;
    site.disks[0].silence(records);
    for tag in 0..4 {
        site.write(tag, 8 * tag as u64, 0xaa);
        assert_eq!(site.pass(5200), [(tag as u64, Ok(()))]);
    }
    assert!(site.disks[1].record().generation > before + 2);
    // It executes its requests, and the power fails before it gets new ones.
    site.disks[0].answer();
    hal::Disk::poll(&mut site.disks[0].clone()).expect("its record");
    let record = site.disks[0].record();
    assert_eq!((record.generation, record.alone), (before + 1, false));
    site.cut_power();
    assert_eq!(site.pass(2000), []);
    assert_eq!(site.mirror.source, 1);
    site.settle();
    assert_eq!(site.disks[0].sector(24), 0xaa);
}

/// The requests of the silent disk hold all slots and all bounce buffers.
#[test]
fn requests_complete_when_a_silent_disk_holds_all_memory() {
    for pages in [4, DEPTH, 4 * DEPTH] {
        netsim::label!(pages);
        let mut site = Site::new(pages);
        site.disks[0].silence(all);
        for tag in 0..DEPTH {
            let sector = tag as u64 % SECTORS as u64;
            match tag < SECTORS {
                true => site.write(tag, sector, tag as u8),
                false => site.ask(tag, READ, sector, 0),
            }
        }
        let results = site.pass(5500);
        assert_eq!(results.len(), DEPTH, "all of them");
        assert!(results.iter().all(|(_, result)| result.is_ok()));
        for round in 0..3 {
            for tag in 0..DEPTH {
                site.write(tag, tag as u64 % SECTORS as u64, round);
            }
            assert_eq!(site.pass(50).len(), DEPTH);
        }
        site.disks[0].answer();
        site.settle();
        assert_eq!(site.disks[0].sector(5), 2);
        // All of it is free again.
        site.disks[1].silence(all);
        site.write(0, 5, 0xee);
        assert_eq!(site.pass(5200), [(0, Ok(()))]);
    }
}

/// While both are silent, none is left out, and requests complete when they respond again.
#[test]
fn mirror_waits_for_two_silent_disks() {
    let mut site = Site::new(16);
    site.disks.iter().for_each(|disk| disk.silence(all));
    for tag in 0..8 {
        site.write(tag, 4 * tag as u64, 0xa0 + tag as u8);
    }
    assert_eq!(site.pass(120_000), []);
    assert_eq!(site.states(), [MemberState::InSync; 2]);
    site.disks[1].answer();
    assert_eq!(site.pass(4000), []);
    site.disks[0].answer();
    assert_eq!(site.pass(100).len(), 8);
    assert_eq!(site.mirror.status().get().dropped, 0);
    site.settle();
}

/// A disk that is silent repeatedly, for less than the timeout, is not left out.
#[test]
fn short_silences_leave_no_member_out() {
    let mut site = Site::new(16);
    for round in 0..10 {
        let silent = &site.disks[round % 2];
        silent.silence(all);
        site.write(0, round as u64, 0xaa);
        assert_eq!(site.pass(4500), []);
        site.disks[round % 2].answer();
        assert_eq!(site.pass(100), [(0, Ok(()))]);
    }
    let status = site.mirror.status().get();
    assert_eq!((status.dropped, status.timeouts), (0, 0));
    site.settle();
}

/// It stops responding while it is copied to: at its records, at the data, and when all regions are copied.
#[test]
fn disk_that_is_silent_during_the_copy_is_abandoned() {
    for mute in [all, data_writes, records] {
        for turns in 0..12 {
            netsim::label!(turns);
            let mut site = Site::new(16);
            site.disks[0].silence(all);
            for tag in 0..4 {
                site.write(tag, 8 * tag as u64 + 1, 0xaa);
            }
            assert_eq!(site.pass(5200).len(), 4);
            site.disks[0].answer();
            (0..turns).for_each(|_| assert_eq!(site.pass(100), []));
            site.disks[0].silence(mute);
            for tag in 0..4 {
                site.write(tag, 8 * tag as u64 + 1, 0xbb);
            }
            assert_eq!(site.pass(5500).len(), 4, "writes to the region that was being copied");
            site.disks[0].answer();
            site.settle();
            assert_eq!([1, 9, 17, 25].map(|n| site.disks[0].sector(n)), [0xbb; 4]);
        }
    }
}

/// After a power cut, one of the members does not respond when its records are read, or when it is copied to.
#[test]
fn disk_that_is_silent_after_a_power_cut_blocks_no_request() {
    for mute in [all, data_writes, records] {
        let mut site = Site::new(16);
        site.disks[0].silence(all);
        site.write(0, 3, 0xaa);
        assert_eq!(site.pass(5200), [(0, Ok(()))]);
        site.cut_power();
        site.disks[0].silence(mute);
        assert_eq!(site.pass(2000), []);
        assert_eq!(site.mirror.status().get().state, MirrorState::Running);
        site.ask(0, READ, 3, 0);
        site.write(1, 20, 0xbb);
        assert_eq!(site.pass(5500).len(), 2);
        assert_eq!(site.byte(0), 0xaa);
        site.disks[0].answer();
        site.settle();
        assert_eq!([3, 20].map(|n| site.disks[0].sector(n)), [0xaa, 0xbb]);
    }
}

/// The only member does not complete a read into the user's memory. Until the read has ended, the other member does
/// not get in sync.
#[test]
fn member_with_a_read_into_users_memory_stays_the_only_one() {
    let mut site = Site::new(16);
    site.disks[1].silence(all);
    site.write(0, 3, 0xaa);
    assert_eq!(site.pass(5200), [(0, Ok(()))]);
    site.disks[0].silence(|request| reads(request) && request.sector == RESERVED + 3);
    site.ask(0, READ, 3, 0);
    assert_eq!(site.pass(10), []);
    site.disks[1].answer();
    // The copy of that region reads more than this sector.
    assert_eq!(site.pass(20_000), []);
    assert_eq!(site.states()[0], MemberState::InSync);
    assert_ne!(site.states()[1], MemberState::InSync);
    site.disks[0].answer();
    assert_eq!(site.pass(10), [(0, Ok(()))]);
    assert_eq!(site.byte(0), 0xaa);
    site.settle();
}

/// Bounce buffers do not change the alternation of records: both places are written in turn.
#[test]
fn records_are_written_in_both_places() {
    let mut site = Site::new(16);
    for round in 0..4 {
        site.write(0, 8 * round, 0xaa);
        assert_eq!(site.pass(10), [(0, Ok(()))]);
    }
    let bytes = site.disks[0].0.borrow().bytes[..2 * DISTANCE].to_vec();
    let whole = [0, DISTANCE].map(|at| {
        Superblock::has_remnant(&{
            let mut one = [0; 2 * DISTANCE];
            one[at..at + DISTANCE].copy_from_slice(&bytes[at..at + DISTANCE]);
            one
        })
    });
    assert_eq!(whole, [true; 2]);
}

/// Without requests of the user.
#[test]
fn idle_mirror_notices_a_silent_member() {
    for silent in 0..2 {
        let mut site = Site::new(16);
        site.disks[silent].silence(all);
        assert_eq!(site.pass(9000), []);
        let mut states = [MemberState::InSync; 2];
        states[silent] = MemberState::Out;
        assert_eq!(site.states(), states);
        let status = site.mirror.status().get();
        assert_eq!(status.why[silent], Some(Why::Silent));
        assert_eq!(std::format!("{status}"), "running on one member");
        site.disks[silent].answer();
        site.settle();
        let status = site.mirror.status().get();
        assert_eq!((status.why, std::format!("{status}")), ([None; 2], "running".into()));
    }
}

/// With the only member silent, or both: none is left out, and the status does not say `running`.
#[test]
fn status_shows_that_no_member_responds() {
    for both in [true, false] {
        netsim::label!(both);
        let mut site = Site::new(16);
        site.disks[1].silence(all);
        if !both {
            site.pass(9000);
        }
        site.disks[0].silence(all);
        assert_eq!(site.pass(9000), []);
        let status = site.mirror.status().get();
        assert_eq!([status.is_in_sync(0), status.is_in_sync(1)], [false; 2]);
        assert_eq!(std::format!("{status}"), "not answering: requests wait for its members");
        assert_eq!(status.member(0), "silent");
        site.write(0, 3, 0xaa);
        assert_eq!(site.pass(20_000), []);
        site.disks.iter().for_each(Local::answer);
        assert_eq!(site.pass(10), [(0, Ok(()))]);
        site.settle();
        assert_eq!(std::format!("{}", site.mirror.status().get()), "running");
    }
}

/// The operator detaches a member that works, or one that is silent, and attaches it again.
#[test]
fn member_is_detached_with_requests_in_flight() {
    for mute in [None, Some(all as Mute)] {
        let mut site = Site::new(16);
        if let Some(mute) = mute {
            site.disks[0].silence(mute);
        }
        site.write(0, 3, 0xaa);
        site.ask(1, READ, 20, 0);
        let detached = site.mirror.detached();
        detached.set([true, false]);
        site.mirror.tend(site.now);
        let mut results = site.pass(50);
        results.sort_by_key(|(tag, _)| *tag);
        assert_eq!(results, [(0, Ok(())), (1, Ok(()))]);
        assert_eq!(site.states(), [MemberState::Out, MemberState::InSync]);
        site.disks[0].answer();
        site.write(2, 4, 0xbb);
        assert_eq!(site.pass(60_000), [(2, Ok(()))]);
        assert_eq!(
            site.states(),
            [MemberState::Out, MemberState::InSync],
            "as long as it is detached"
        );
        assert_eq!(site.mirror.status().get().why[0], Some(Why::Detached));
        // The last member in sync is not detached.
        detached.set([true, true]);
        site.mirror.tend(site.now);
        assert_eq!(detached.get(), [true, false]);
        detached.set([false; 2]);
        site.settle();
        assert_eq!([3, 4].map(|n| site.disks[0].sector(n)), [0xaa, 0xbb]);
    }
}
