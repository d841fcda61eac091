//! Tests of the audit log, also with power cuts at its writes.

use super::*;
use crate::caller::Caller;
use crate::config::Role;
use log::{Level, Log as _, Record};
use proptest::prelude::*;

fn ring() -> LogRing {
    LogRing::new(2000, || Instant::from_nanos(1_500_000_000))
}

fn write(ring: &LogRing, level: Level, text: &str) {
    let mut record = Record::builder();
    ring.log(&record.level(level).target("audit").args(format_args!("{text}")).build());
}

fn line(text: &str) -> Line {
    Line { refused: false, millis: 1, since_boot: true, text: text.into() }
}

fn texts(trail: &Trail) -> Vec<String> {
    trail.page(0, usize::MAX).into_iter().map(|line| line.text).collect()
}

/// Writes until nothing is unwritten.
fn sync(trail: &mut Trail, disk: &mut [Vec<u8>]) {
    while let Some((write, bytes)) = trail.next_write() {
        disk[write.place] = bytes;
        trail.note_written(write, Instant::ZERO);
    }
}

fn empty_disk() -> Vec<Vec<u8>> {
    vec![vec![0; BLOCK]; PLACES]
}

fn load(disk: &[Vec<u8>]) -> Trail {
    Trail::of(disk.iter().cloned().enumerate())
}

#[test]
fn row_names_the_user_the_address_and_the_result() {
    let from = Some("[fd00::7]:40122".parse().unwrap());
    let ci = Caller { name: "from".into(), from, role: Role::Admin, ..Caller::console() };
    let text = format!("{ci}: volume delete a: refused: in use: b");
    let line = Line { refused: true, millis: 1_800_000_000_000, since_boot: false, text };
    assert_eq!(
        line.row().to_json(),
        "{\"time\":\"2027-01-15T08:00:00.000Z\",\"seconds_since_boot\":null,\"name\":\"from\",\
         \"address\":\"[fd00::7]:40122\",\"known_by\":\"token\",\"result\":\"refused\",\
         \"what\":\"volume delete a: refused: in use: b\"}"
    );
    let json = super::Line { since_boot: true, ..line_of("console: save") }.row().to_json();
    assert!(json.contains("\"name\":null,\"address\":null,\"known_by\":\"console\""), "{json}");
}

fn line_of(text: &str) -> Line {
    line(text)
}

#[test]
fn trail_takes_only_actions_from_the_log() {
    log::set_max_level(log::LevelFilter::Trace);
    let (log, mut trail) = (ring(), Trail::default());
    let now = Instant::from_nanos(5_000_000_000);
    trail.poll(&log, now);
    assert!(!trail.has_unwritten());
    log.log(&Record::builder().level(Level::Warn).args(format_args!("noise")).build());
    write(&log, Level::Warn, "http a from 10.0.0.7:1: save: refused: needs the role admin");
    trail.poll(&log, now);
    assert_eq!(trail.due(), Some(now + LATER));
    write(&log, Level::Info, "console: save");
    trail.poll(&log, now);
    assert_eq!(trail.due(), Some(now + SOON));
    let lines = trail.page(0, 10);
    assert_eq!(lines.iter().map(|line| line.refused).collect::<Vec<_>>(), [true, false]);
    assert_eq!(lines[1].text, "console: save");
    trail.set_volatile();
    assert_eq!(trail.due(), None);
}

#[test]
fn two_thousand_longest_lines_survive_a_reboot() {
    let (mut trail, mut disk) = (Trail::default(), empty_disk());
    for i in 0..5000 {
        trail.add(&line(&format!("{i:0240}")));
        if i % 3 == 0 {
            sync(&mut trail, &mut disk);
        }
    }
    sync(&mut trail, &mut disk);
    let kept = texts(&load(&disk));
    assert_eq!(kept, texts(&trail));
    assert!(kept.len() >= 2000, "{}", kept.len());
    assert_eq!(kept.last().unwrap(), &format!("{:0240}", 4999));
    assert_eq!(trail.len(), kept.len());
    assert_eq!(trail.page(1990, 3).iter().map(|line| &line.text).collect::<Vec<_>>(), {
        kept[1990..1993].iter().collect::<Vec<_>>()
    });
}

#[test]
fn contents_of_a_disk_are_not_trusted() {
    let mut disk = empty_disk();
    let mut trail = Trail::default();
    trail.add(&line("console: a\x1b[2Jb"));
    sync(&mut trail, &mut disk);
    assert_eq!(texts(&load(&disk)), ["console: a [2Jb"]);
    let (at, block) = disk.iter().enumerate().find(|(_, block)| block[0] != 0).unwrap();
    for byte in 0..60 {
        let mut damaged = block.clone();
        damaged[byte] ^= 0x80;
        assert!(Trail::of([(at, damaged)]).is_empty() || byte >= 50, "{byte}");
    }
    assert!(Trail::of([(0, Vec::new()), (1, vec![0xff; BLOCK]), (2, MAGIC.to_vec())]).is_empty());
}

#[test]
fn failed_write_is_repeated_elsewhere() {
    let mut trail = Trail::default();
    trail.add(&line("console: a"));
    let (first, _) = trail.next_write().unwrap();
    trail.note_failed(first, Instant::ZERO);
    assert_eq!(trail.due(), Some(Instant::ZERO + LATER));
    let (second, _) = trail.next_write().unwrap();
    assert_ne!(first.place, second.place);
    trail.note_written(second, Instant::ZERO);
    assert!(trail.next_write().is_none() && !trail.has_unwritten());
}

proptest! {
    /// A power cut tears a write at any sector, in any order. Lines of completed writes survive.
    #[test]
    fn power_cut_loses_no_line_of_a_completed_write(
        runs in prop::collection::vec((1usize..40, 0usize..240, any::<u8>()), 1..60),
    ) {
        let (mut trail, mut disk) = (Trail::default(), empty_disk());
        let mut completed: Vec<String> = Vec::new();
        let mut count = 0;
        for (lines, length, survives) in runs {
            for _ in 0..lines {
                trail.add(&line(&format!("{count} {}", "x".repeat(length))));
                count += 1;
            }
            // Some writes complete, then the power fails in one.
            for _ in 0..survives % 3 {
                let Some((write, bytes)) = trail.next_write() else { break };
                disk[write.place] = bytes;
                trail.note_written(write, Instant::ZERO);
            }
            if trail.blocks.iter().all(|block| !block.is_dirty) {
                completed = texts(&trail);
            }
            if let Some((write, bytes)) = trail.next_write() {
                for sector in 0..8 {
                    if survives >> sector & 1 == 1 {
                        let at = sector * 512..(sector + 1) * 512;
                        disk[write.place][at.clone()].copy_from_slice(&bytes[at]);
                    }
                }
                trail = load(&disk);
                let kept = texts(&trail);
                let start = completed.iter().position(|line| Some(line) == kept.first());
                let start = if completed.is_empty() { Some(0) } else { start };
                prop_assert!(start.is_some(), "{kept:?}");
                let rest = &completed[start.unwrap().min(completed.len())..];
                prop_assert!(kept.starts_with(rest), "{rest:?} {kept:?}");
                completed = kept;
            }
        }
    }
}

/// Logs an action of a user below the role admin.
fn write_limited(ring: &LogRing, level: Level, text: &str) {
    let mut record = Record::builder();
    let record = record.level(level).target("audit").module_path(Some("limited"));
    ring.log(&record.args(format_args!("{text}")).build());
}

/// The texts that the log shows.
fn shown(ring: &LogRing) -> Vec<String> {
    let mut cursor = Cursor::default();
    let all = core::iter::from_fn(|| ring.next_of(&mut cursor, Filter::Audit));
    all.map(|entry| entry.text().to_string()).collect()
}

/// Actions of `ann` before another user floods the log.
const DONE: [&str; 3] = [
    "http ann from 10.0.0.1:1: put export a: revision 2, 1 keys",
    "http ann from 10.0.0.1:2: save",
    "console: set http.port 81",
];

/// Actions of every kind that a user may repeat, with other addresses, ports and arguments each time. The kinds are words
/// of this program: a user cannot invent more.
fn varied(number: usize) -> String {
    const KINDS: [&str; 8] = [
        "ping",
        "session end",
        "capture start",
        "resolve",
        "support",
        "reboot: refused: unsaved",
        "Post /api/v1/commands: refused: needs the role admin for",
        "rping",
    ];
    let kind = KINDS[number % KINDS.len()];
    let host = core::net::Ipv4Addr::from_bits(0x0a02_0000 + (number / 7) as u32);
    format!("http ci from {host}:{}: {kind} {number}", 1024 + number % 60_000)
}

#[test]
fn varied_actions_of_one_user_displace_neither_the_lines_of_others_nor_all_of_its_own() {
    thread_local! {
        static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    log::set_max_level(log::LevelFilter::Trace);
    let now = || Instant::from_nanos(1_000_000_000 + NOW.get());
    let (ring, mut trail, mut disk) = (LogRing::new(2000, now), Trail::default(), empty_disk());
    DONE.iter().for_each(|text| write(&ring, Level::Info, text));
    let theft = "http ci from 10.0.0.9:1: reads the capture";
    write_limited(&ring, Level::Info, theft);
    // Half a day, ten actions a second.
    let mut most = 0;
    for number in 0..432_000 {
        let level = if number % 3 == 0 { Level::Warn } else { Level::Info };
        write_limited(&ring, level, &varied(number));
        trail.poll(&ring, now());
        if number % 10 == 0 {
            NOW.set(NOW.get() + 1_000_000_000);
            ring.settle(now());
            if number % 3000 == 0 {
                sync(&mut trail, &mut disk);
            }
        }
        most = most.max(trail.blocks.len());
    }
    trail.poll(&ring, now());
    sync(&mut trail, &mut disk);
    let (logged, kept, reloaded) = (shown(&ring), texts(&trail), texts(&load(&disk)));
    for text in DONE.into_iter().chain([theft]) {
        assert!(logged.iter().any(|line| line == text), "the log lacks {text}");
    }
    for text in DONE {
        assert!(kept.iter().any(|line| line == text), "the audit log lacks {text}");
        assert!(reloaded.iter().any(|line| line == text), "the disk lacks {text}");
    }
    assert!(most <= KEPT);
    // Lines above the limit are counted in a line of the same user.
    let counted =
        logged.iter().filter(|line| line.contains(" more, not kept one by one; the last: "));
    assert!(counted.clone().count() > 20);
    assert!(counted.clone().all(|line| Action::of(line).name() == Some("ci")));
    // Half a day of the flood fits many times more than once into the limit of lines.
    assert!(trail.next < 9000, "{}", trail.next);
}

#[test]
fn administrator_displaces_no_line_of_another_user() {
    log::set_max_level(log::LevelFilter::Trace);
    let (ring, mut trail) = (ring(), Trail::default());
    DONE.iter().for_each(|text| write(&ring, Level::Info, text));
    for number in 0..100_000 {
        write(&ring, Level::Info, &varied(number));
        trail.poll(&ring, Instant::ZERO);
    }
    let (logged, kept) = (shown(&ring), texts(&trail));
    for text in DONE {
        assert!(logged.iter().any(|line| line == text), "the log lacks {text}");
        assert!(kept.iter().any(|line| line == text), "the audit log lacks {text}");
    }
    // Each action of an administrator is kept as long as there is room.
    let last: Vec<String> = (99_000..100_000).map(varied).collect();
    assert!(kept.ends_with(&last), "{:?}", kept.last());
}

#[test]
fn lines_of_several_users_are_in_order_after_a_reboot() {
    let (mut trail, mut disk) = (Trail::default(), empty_disk());
    let mut all = Vec::new();
    for number in 0..900 {
        let text = format!("http user{} from 10.0.0.1:1: set a {number}", number * number % 7);
        trail.add(&line(&text));
        all.push(text);
        if number % 11 == 0 {
            sync(&mut trail, &mut disk);
        }
    }
    sync(&mut trail, &mut disk);
    assert_eq!(texts(&trail), all);
    assert_eq!(texts(&load(&disk)), all);
    let mut again = load(&disk);
    again.add(&line("http user3 from 10.0.0.1:1: save"));
    assert_eq!(texts(&again).last().unwrap(), "http user3 from 10.0.0.1:1: save");
    assert_eq!(
        again.page(100, 5).into_iter().map(|line| line.text).collect::<Vec<_>>(),
        all[100..105]
    );
}
