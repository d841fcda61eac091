//! Power cuts during `commit`, `rollback`, `save` and `commit confirmed … reboot`: after each request to the disk, with
//! any part of the unflushed sectors kept, in any order. Each boot has one whole document.

use super::*;
use crate::config::{History, Revision, check};

/// What is done when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// `commit`, or `set`: a new revision.
    Commit,
    /// `rollback`: a new revision with an old document.
    RollBack,
    Save,
    /// `commit confirmed 5 reboot`.
    Try,
    /// `confirm` in the boot of the trial.
    Confirm,
}

/// Which of the unflushed sectors survive a cut, and the bytes of torn sectors that do.
pub(super) const SURVIVORS: [(u64, usize); 10] = [
    (0, 0),
    (u64::MAX, 0),
    (1, 100),
    (0xaaaa_aaaa_aaaa_aaaa, 511),
    (0x5555_5555_5555_5555, 1),
    (0xffff_ffff_0000_0000, 24),
    (0xffff_fffe, 256),
    (0x1234_5678_9abc_def0, 300),
    (0x8000_0000_0000_0001, 64),
    (0x7fff_ffff_ffff_fff0, 12),
];

/// A valid document of some KiB.
pub(super) fn document(number: u64) -> String {
    format!("[system]\nhostname = \"v{number}\"\n{}", "# a comment\n".repeat(800))
}

/// The revisions on a disk, as the gateway reads them.
fn revisions(disk: &Model, engine: &ConfigDisk) -> History {
    let contents = disk.contents();
    let slots = engine.revisions().map(|sector| &contents[sector as usize * SECTOR..][..SLOT_LEN]);
    let texts = slots.filter_map(|bytes| slot::read_as(bytes, slot::REVISION));
    let texts = texts.filter_map(|(_, text)| core::str::from_utf8(text).ok());
    History::of(texts.filter_map(Revision::of_slot).collect())
}

/// Runs the engine for at most `requests` requests. Returns the event, if there is one.
pub(super) fn run(engine: &mut ConfigDisk, disk: &mut Model, requests: usize) -> Option<Event> {
    let mut slow = Slow { disk, left: requests };
    (0..100).find_map(|_| engine.poll(&mut slow))
}

/// A disk with the saved document 1 and more revisions than it has room for.
pub(super) fn prepared() -> Vec<u8> {
    let mut disk = Model::new(format(Some(&document(1))).unwrap(), 4096, Features::VOLATILE_CACHE);
    let (mut engine, _) = boot(&mut disk);
    for number in 1..=60 {
        let revision = revision(number, document(number));
        engine.record(number, &revision.to_slot()).unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::Recorded(number));
    }
    disk.contents()
}

fn revision(number: u64, text: String) -> Revision {
    let [by, what, comment] = ["console", "commit", ""].map(str::to_string);
    Revision { number, at: 0, by, what, comment, text }
}

/// Does the work, and cuts the power after some requests. Returns whether it was completed before.
fn cut_in(work: Work, disk: &mut Model, requests: usize, survivors: (u64, usize)) -> bool {
    let (mut engine, _) = boot_with_trial(disk);
    match work {
        Work::Commit => engine.record(61, &revision(61, document(61)).to_slot()),
        Work::RollBack => engine.record(61, &revision(61, document(30)).to_slot()),
        Work::Save | Work::Confirm => engine.save(&document(2)),
        Work::Try => engine.arm(&document(2), 300),
    }
    .unwrap();
    let event = run(&mut engine, disk, requests);
    let expected = match work {
        Work::Commit | Work::RollBack => Event::Recorded(61),
        Work::Save | Work::Confirm => Event::Saved,
        Work::Try => Event::Armed,
    };
    assert!(event.is_none() || event.as_ref() == Some(&expected), "{event:?}");
    disk.cut(survivors.0, survivors.1);
    event.is_some()
}

/// Checks a boot after a cut. Returns the document in force.
fn boot_checked(disk: &mut Model) -> String {
    let (engine, text) = boot_with_trial(disk);
    let text = String::from_utf8(text.expect("a document")).unwrap();
    check(text.as_bytes()).unwrap();
    // Each revision is whole. At most the one is missing whose place was being written.
    let history = revisions(disk, &engine);
    for revision in history.iter() {
        check(revision.text.as_bytes()).unwrap();
        let is_known = revision.text == document(revision.number);
        assert!(is_known || (revision.number == 61 && revision.text == document(30)));
    }
    assert!(history.iter().count() >= REVISIONS - 1);
    text
}

#[test]
fn power_cut_at_any_request_leaves_one_whole_document() {
    let contents = prepared();
    let mut cuts = 0;
    for work in [Work::Commit, Work::RollBack, Work::Save, Work::Try, Work::Confirm] {
        for requests in 0.. {
            let mut completed = false;
            for survivors in SURVIVORS {
                let mut disk = Model::new(contents.clone(), 4096, Features::VOLATILE_CACHE);
                if work == Work::Confirm {
                    // The boot that starts the trial.
                    let (mut engine, _) = boot(&mut disk);
                    engine.arm(&document(2), 300).unwrap();
                    assert_eq!(finish(&mut engine, &mut disk), Event::Armed);
                }
                completed = cut_in(work, &mut disk, requests, survivors);
                cuts += 1;
                let first = boot_checked(&mut disk);
                let allowed: &[u64] = match (work, completed) {
                    // The running configuration is lost without `save`.
                    (Work::Commit | Work::RollBack, _) => &[1],
                    (Work::Save | Work::Confirm | Work::Try, true) => &[2],
                    (Work::Save | Work::Confirm | Work::Try, false) => &[1, 2],
                };
                let is_allowed = allowed.iter().any(|number| first == document(*number));
                assert!(is_allowed, "{work:?} {requests} {survivors:?}");
                let second = boot_checked(&mut disk);
                match work {
                    // The trial comes back by itself.
                    Work::Try => assert!(second == document(1), "{requests} {survivors:?}"),
                    _ => assert!(second == first, "{work:?} {requests} {survivors:?}"),
                }
                if completed && matches!(work, Work::Commit | Work::RollBack) {
                    let (engine, _) = boot(&mut disk);
                    assert_eq!(revisions(&disk, &engine).newest().unwrap().number, 61);
                }
                // The disk is still usable.
                let (mut engine, _) = boot(&mut disk);
                engine.save(&document(3)).unwrap();
                assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
                assert_eq!(boot(&mut disk).1, loaded(&document(3)));
            }
            if completed {
                break;
            }
        }
    }
    assert!(cuts >= 300, "{cuts}");
}

#[test]
fn power_cut_in_the_withdrawal_of_a_trial_starts_it_at_most_once() {
    let contents = prepared();
    for requests in 0..4 {
        for survivors in SURVIVORS {
            let mut disk = Model::new(contents.clone(), 4096, Features::VOLATILE_CACHE);
            let (mut engine, _) = boot(&mut disk);
            engine.arm(&document(2), 300).unwrap();
            // The last flush fails; then the withdrawal is cut.
            let steps = 1 + 4 + 1 + 1;
            disk.failing = vec![disk.completed + steps + 1];
            let event = run(&mut engine, &mut disk, steps + 1 + requests);
            disk.cut(survivors.0, survivors.1);
            let refused = matches!(event, Some(Event::Failed(_)));
            let first = boot_checked(&mut disk);
            assert!(first == document(1) || (first == document(2) && !refused), "{requests}");
            assert!(boot_checked(&mut disk) == document(1));
        }
    }
}
