//! Wipes of a disk's table, with power cuts after each write and flush, and sectors that are not erased.

use super::test_model::{Model, claimed, load, make, run};
use super::*;
use drivers::hal::DiskError;
use std::vec;

/// A disk with volumes, and other data of this byte in what a wipe erases.
fn used() -> (Model, Store) {
    let (mut disk, mut store) = claimed(0xaa, true);
    for name in ["a", "b"] {
        assert_eq!(make(&mut store, &mut disk, Change::Create(name, 1)), StoreEvent::Done);
    }
    (disk, store)
}

fn wipe(store: &mut Store, disk: &mut Model) -> StoreEvent {
    assert!(store.wipe() && !store.wipe());
    run(store, disk)
}

#[test]
fn wiped_disk_has_no_table_and_can_be_claimed_again() {
    let (mut disk, mut store) = used();
    let volumes = disk.cache[UNIT as usize..].to_vec();
    assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Done);
    assert_eq!((store.state(), store.table().volumes().len()), (StoreState::Blank, 0));
    assert!(!store.wipe(), "nothing is left to wipe");
    assert!(disk.durable[..UNIT as usize].iter().all(|&byte| byte == 0));
    assert!(disk.durable[UNIT as usize..] == volumes, "extents are not touched");
    // Of the old data the end of the disk is left, so only force claims it.
    let mut store = load(&mut disk);
    assert_eq!(store.state(), StoreState::Foreign);
    assert!(store.claim(true));
    assert_eq!(run(&mut store, &mut disk), StoreEvent::Done);
    assert_eq!(make(&mut store, &mut disk, Change::Create("c", 1)), StoreEvent::Done);
    assert_eq!(load(&mut disk).table().volumes().len(), 1);
}

#[test]
fn damaged_table_is_wiped_and_a_foreign_disk_is_not() {
    let (mut disk, _) = used();
    for copy in [32 << 10, 64 << 10] {
        disk.cache[copy + 16] ^= 1;
    }
    let mut store = load(&mut disk);
    assert_eq!(store.state(), StoreState::Damaged);
    assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Done);
    for fill in [0, 0xaa] {
        let mut disk = Model::new(fill, true);
        assert!(!load(&mut disk).wipe(), "{fill}");
    }
}

#[test]
fn power_cut_leaves_the_table_or_none() {
    let mut ends = [0; 3];
    // Writes and flushes until the power fails. Of the many writes that erase, some are cut.
    for life in (0..5).chain((5..64).step_by(23)).chain(64..80) {
        let mut ended = false;
        for seed in 0..3 {
            let (mut disk, mut store) = used();
            let before = store.table().clone();
            disk.life = life;
            let event = wipe(&mut store, &mut disk);
            ended = event == StoreEvent::Done;
            assert!(ended || event == StoreEvent::Failed(DiskError::Broken), "{event:?}");
            disk.cut(seed);
            let mut store = load(&mut disk);
            match store.state() {
                StoreState::Ready => assert!(*store.table() == before && !ended),
                StoreState::HalfWiped => assert!(store.table().volumes().is_empty() && !ended),
                // A head that a cut tore, or that is erased.
                StoreState::Foreign => assert!(store.table().volumes().is_empty()),
                other => panic!("{life} {seed}: {other}"),
            }
            ends[match store.state() {
                StoreState::Ready => 0,
                StoreState::HalfWiped => 1,
                _ => 2,
            }] += 1;
            if store.state() == StoreState::HalfWiped {
                assert!(!store.claim(false));
                assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Done);
            }
        }
        if ended {
            break;
        }
        assert!(life < 79, "it ends");
    }
    assert!(ends.iter().all(|&count| count > 3), "{ends:?}");
}

#[test]
fn failed_mark_leaves_no_table_in_use() {
    let (mut disk, mut store) = used();
    // The flush, then the mark.
    disk.life = 1;
    assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Failed(DiskError::Broken));
    assert_eq!((store.state(), store.table().volumes().len()), (StoreState::HalfWiped, 0));
    let (mut disk, mut store) = used();
    disk.life = 0;
    assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Failed(DiskError::Broken));
    assert_eq!((store.state(), store.table().volumes().len()), (StoreState::Ready, 2));
}

#[test]
fn sector_that_is_not_erased_is_named() {
    for sector in [8, 9, 700, 2047] {
        let (mut disk, mut store) = used();
        disk.stuck = vec![sector];
        assert_eq!(wipe(&mut store, &mut disk), StoreEvent::Kept { sector: sector as u64 });
        assert_eq!(store.state(), StoreState::HalfWiped);
        assert_eq!(load(&mut disk).state(), StoreState::HalfWiped);
    }
}
