//! Wipes of the config disk, with power cuts after each request, disks that fail, and disks that keep what they were told
//! to erase.

use super::power_cuts::{SURVIVORS, document, prepared, run};
use super::*;

/// Sectors of the area after its first block.
const ERASED: u64 = ((AREA_LEN - HEADER_LEN) / SECTOR) as u64;

/// A disk with documents, revisions, an audit log, a certificate, and records of panics.
fn full() -> Vec<u8> {
    let mut contents = prepared();
    contents[PAIR..PAIR + 4096].fill(0x11);
    contents[CRASHES..CRASHES + 16384].fill(0x22);
    contents[AUDIT..AUDIT + PLACES * BLOCK].fill(0x33);
    contents
}

fn model(contents: &[u8]) -> Model {
    Model::new(contents.to_vec(), 4096, Features::VOLATILE_CACHE)
}

fn wiped(disk: &mut Model) {
    let (mut engine, _) = boot(disk);
    engine.wipe().unwrap();
    assert_eq!(finish(&mut engine, disk), Event::Wiped(ERASED));
}

#[test]
fn wiped_disk_is_a_new_config_disk() {
    for (max_transfer, features) in [(4096, Features::VOLATILE_CACHE), (1 << 20, Features::empty())]
    {
        let mut disk = Model::new(full(), max_transfer, features);
        let (mut engine, _) = boot(&mut disk);
        engine.wipe().unwrap();
        assert!(engine.wipe().unwrap_err().contains("busy"));
        assert_eq!(finish(&mut engine, &mut disk), Event::Wiped(ERASED));
        assert!(disk.contents() == format(None).unwrap());
        // Nothing of the running configuration comes back to it.
        assert!(engine.save("a = 1").unwrap_err().contains("reboot first"));
        assert!(engine.arm("a = 1", 5).unwrap_err().contains("reboot first"));
        assert!(engine.wipe().unwrap_err().contains("already"));
        assert!(!engine.has_history() && !engine.has_audit() && !engine.is_half_wiped());
        let (mut engine, event) = boot(&mut disk);
        assert_eq!((event, engine.is_half_wiped()), (Event::Loaded(None), false));
        engine.save("a = 2").unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
        assert_eq!(boot(&mut disk).1, loaded("a = 2"));
    }
}

#[test]
fn smallest_area_is_wiped_and_the_rest_of_the_disk_is_not() {
    let mut disk = model(&small(Some(&document(1))));
    let (mut engine, _) = boot(&mut disk);
    engine.wipe().unwrap();
    let sectors = ((LEAST_LEN - HEADER_LEN) / SECTOR) as u64;
    assert_eq!(finish(&mut engine, &mut disk), Event::Wiped(sectors));
    let mut contents = full();
    contents.extend([7; 8192]);
    let mut disk = model(&contents);
    wiped(&mut disk);
    assert!(disk.contents()[AREA_LEN..] == [7; 8192]);
}

#[test]
fn power_cut_leaves_the_old_configuration_or_an_unfinished_wipe() {
    let contents = full();
    let mut ends = [0; 3];
    let mut last = false;
    // Of the many requests that erase and check, some are cut.
    for requests in (0..8).chain((8..1020).step_by(97)).chain(1020..1032) {
        for survivors in SURVIVORS {
            let mut disk = model(&contents);
            let (mut engine, _) = boot(&mut disk);
            engine.wipe().unwrap();
            let event = run(&mut engine, &mut disk, requests);
            last |= event.is_some();
            disk.cut(survivors.0, survivors.1);
            let (mut engine, found) = boot(&mut disk);
            match (&found, engine.is_half_wiped()) {
                (Event::Loaded(Some(_)), false) => {
                    // Everything is as it was, but for a torn mark.
                    assert_eq!(found, loaded(&document(1)), "{requests} {survivors:?}");
                    assert!(disk.contents()[HEADER_LEN..] == contents[HEADER_LEN..]);
                    ends[0] += 1;
                }
                (Event::Loaded(None), true) => {
                    assert!(engine.take_trial().is_none() && engine.before().is_none());
                    assert_eq!(engine.revisions().count() + engine.audit().count(), 0);
                    let refused = engine.save(&document(2)).unwrap_err();
                    assert!(refused.contains("wipe unfinished"), "{refused}");
                    ends[1] += 1;
                }
                (Event::Loaded(None), false) => {
                    let rest = disk.contents().split_off(HEADER_LEN);
                    assert!(rest.iter().all(|&byte| byte == 0), "{requests} {survivors:?}");
                    ends[2] += 1;
                }
                other => panic!("{requests} {survivors:?}: {other:?}"),
            }
            assert!(event.is_none() || ends[2] > 0);
            // The next boot finds the same, and a repeated wipe ends.
            let (again, same) = boot(&mut disk);
            assert_eq!((again.is_half_wiped(), same), (engine.is_half_wiped(), found));
            wiped(&mut disk);
            assert!(disk.contents() == format(None).unwrap());
        }
    }
    assert!(last && ends.iter().all(|&count| count > 10), "{ends:?}");
}

#[test]
fn failed_write_is_reported_and_the_wipe_can_be_repeated() {
    let contents = full();
    for failing in [2, 3, 4, 20, 600, 1029] {
        let mut disk = model(&contents);
        let (mut engine, _) = boot(&mut disk);
        let start = disk.completed;
        disk.failing = vec![start + failing];
        engine.wipe().unwrap();
        let Event::Failed(why) = finish(&mut engine, &mut disk) else { panic!("{failing}") };
        assert!(why.starts_with("wipe unfinished"), "{failing}: {why}");
        assert!(engine.is_half_wiped() && engine.save("a = 1").is_err());
        engine.wipe().unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::Wiped(ERASED));
    }
    // Before the mark nothing has happened.
    let mut disk = model(&contents);
    let (mut engine, _) = boot(&mut disk);
    disk.failing = vec![disk.completed + 1];
    engine.wipe().unwrap();
    assert!(
        matches!(finish(&mut engine, &mut disk), Event::Failed(why) if why.contains("unchanged"))
    );
    engine.save(&document(2)).unwrap();
    assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
}

#[test]
fn sector_that_keeps_its_contents_is_named() {
    let mut disk = model(&full());
    let (mut engine, _) = boot(&mut disk);
    engine.wipe().unwrap();
    // Everything is erased and flushed, and is about to be read back.
    let erasing = 3 + (AREA_LEN - HEADER_LEN) / 4096 + 1;
    assert_eq!(run(&mut engine, &mut disk, erasing), None);
    disk.durable[700 * SECTOR + 5] = 1;
    let Event::Failed(why) = finish(&mut engine, &mut disk) else { panic!("it ends") };
    assert!(why.contains("sector 700 does not read back"), "{why}");
    assert!(boot(&mut disk).0.is_half_wiped());
}

#[test]
fn mark_that_a_power_cut_tore_is_none() {
    for len in [0, 1, 4, 15] {
        let mut contents = full();
        contents[MAGIC.len()..][..len].copy_from_slice(&wipe::MARK[..len]);
        let (engine, event) = boot(&mut model(&contents));
        assert_eq!((event, engine.is_half_wiped()), (loaded(&document(1)), false), "{len}");
    }
}

#[test]
fn read_only_disk_is_not_wiped() {
    let mut disk = Model::new(full(), 4096, Features::READ_ONLY);
    let (mut engine, _) = boot(&mut disk);
    assert!(engine.wipe().unwrap_err().contains("read-only"));
}
