//! Tests of the log: kept lines, repeats and readers.

use super::*;
use core::sync::atomic::AtomicU64;
use log::Log as _;
use std::cell::Cell;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_500_000_000) };
}

fn now() -> Instant {
    Instant::from_nanos(NOW.get())
}

/// Advances the clock.
fn pass(ring: &LogRing, seconds: u64) {
    NOW.set(NOW.get() + seconds * 1_000_000_000);
    ring.settle(now());
}

fn ring(lines: usize) -> LogRing {
    log::set_max_level(log::LevelFilter::Trace);
    NOW.set(1_500_000_000);
    LogRing::new(lines, now)
}

/// Logs a message from this line of code.
fn log_at(ring: &LogRing, line: u32, level: Level, target: &str, text: &str) {
    let mut record = Record::builder();
    record.level(level).target(target).line(Some(line));
    ring.log(&record.args(format_args!("{text}")).build());
}

/// Logs a warning, each from another line of code.
fn log_warning(ring: &LogRing, text: &str) {
    static LINE: AtomicU64 = AtomicU64::new(10_000);
    log_at(ring, LINE.fetch_add(1, Ordering::Relaxed) as u32, Level::Warn, "x", text);
}

fn texts(ring: &LogRing, filter: Filter) -> Vec<String> {
    let mut cursor = Cursor::default();
    let entries = core::iter::from_fn(|| ring.next_of(&mut cursor, filter));
    entries.map(|entry| entry.text().to_string()).collect()
}

#[test]
fn slow_reader_learns_the_number_of_missed_messages() {
    let ring = ring(14);
    let mut cursor = Cursor::default();
    assert!(ring.next(&mut cursor).is_none());
    log_warning(&ring, "a\nb");
    let (entry, missed) = ring.next(&mut cursor).unwrap();
    assert_eq!((entry.to_string().as_str(), missed), ("[    1.500000] WARN  a b", 0));
    (0..10).for_each(|i| log_warning(&ring, &i.to_string()));
    let (entry, missed) = ring.next(&mut cursor).unwrap();
    assert_eq!((entry.text(), missed), ("6", 6));
    assert_eq!(texts(&ring, Filter::All), ["6", "7", "8", "9"]);
    let rest = core::iter::from_fn(|| ring.next(&mut cursor));
    assert_eq!(rest.map(|(e, _)| e.text().to_string()).collect::<Vec<_>>(), ["7", "8", "9"]);
}

#[test]
fn last_messages_of_all_kinds_are_in_order_and_never_block() {
    let ring = ring(100);
    for i in 0..8 {
        let (level, target) = [
            (Level::Info, "audit"),
            (Level::Warn, "refused"),
            (Level::Error, "x"),
            (Level::Info, "x"),
        ][i % 4];
        log_at(&ring, 100 + i as u32, level, target, &i.to_string());
    }
    let mut last = Vec::new();
    assert!(ring.try_last(5, |entry| last.push(entry.text().to_string())));
    assert_eq!(last, ["3", "4", "5", "6", "7"]);
    let page: Vec<String> = ring.page(2, 3).iter().map(|e| e.text().to_string()).collect();
    assert_eq!(page, ["2", "3", "4"]);
    assert!(ring.page(8, 3).is_empty());
    let held = ring.lock();
    assert!(!ring.try_last(2, |_| unreachable!("the log is locked")));
    drop(held);
}

#[test]
fn overlong_message_is_cut_at_a_character_boundary() {
    let ring = ring(10);
    log_warning(&ring, &format!("x{}", "é".repeat(500)));
    let (entry, _) = ring.next(&mut Cursor::default()).unwrap();
    assert_eq!(entry.text(), format!("x{}", "é".repeat((TEXT - 1) / 2)));
}

#[test]
fn audit_and_errors_outlast_any_number_of_refusals_and_notes() {
    let ring = ring(2000);
    log_at(&ring, 1, Level::Info, "audit", "console: set http.port 81");
    log_at(&ring, 2, Level::Error, "x", "disk0: has failed");
    log_at(&ring, 3, Level::Warn, "refused", "refused session \"a\" of 10.0.0.2: taken");
    for i in 0..50_000u32 {
        let host = core::net::Ipv4Addr::from_bits(0x0a01_0000 + i);
        log_at(&ring, 3, Level::Warn, "refused", &format!("refused http of {host}: no"));
        log_at(&ring, 4, Level::Info, "x", &format!("session of {host} is up"));
        // A warning that any host can cause.
        log_at(&ring, 5, Level::Warn, "x", &format!("path of {host} is down"));
        if i % 50 == 0 {
            pass(&ring, 1);
        }
    }
    assert_eq!(texts(&ring, Filter::Audit), ["console: set http.port 81"]);
    let errors = texts(&ring, Filter::Errors);
    assert!(errors.contains(&"disk0: has failed".to_string()), "{}", errors.len());
    let all = texts(&ring, Filter::All);
    assert!(all.len() > 1500 && all.len() <= 2000, "{}", all.len());
    assert!(
        all.iter().any(|text| text.contains("more like this in")),
        "further messages are counted"
    );
}

#[test]
fn repeats_of_a_host_are_counted_and_logged_after_a_minute() {
    let ring = ring(2000);
    for _ in 0..607 {
        log_at(&ring, 7, Level::Warn, "refused", "refused http \"/api\" of 10.0.0.9: no token");
    }
    log_at(&ring, 7, Level::Warn, "refused", "refused http \"/api\" of 10.0.0.8: no token");
    assert_eq!(texts(&ring, Filter::Errors).len(), 9, "eight of one host, one of the other");
    assert!(ring.due().is_some_and(|due| due == now() + repeats::WINDOW));
    pass(&ring, 60);
    let last = texts(&ring, Filter::Errors).pop().unwrap();
    assert!(last.starts_with("… 599 more like this from 10.0.0.9 in 60 s: refused http"), "{last}");
    assert_eq!((ring.due(), ring.counters().repeats), (None, 599));
    log_at(&ring, 7, Level::Warn, "refused", "refused http \"/api\" of 10.0.0.9: no token");
    assert_eq!(texts(&ring, Filter::Errors).len(), 11, "a new window keeps messages again");
}

#[test]
fn different_messages_of_one_place_in_the_code_are_limited() {
    let ring = ring(2000);
    for i in 0..300 {
        log_at(&ring, 7, Level::Info, "x", &format!("volume v{i}"));
    }
    assert_eq!(texts(&ring, Filter::All).len(), usize::from(repeats::KEPT_OF_SITE));
    pass(&ring, 61);
    let last = texts(&ring, Filter::All).pop().unwrap();
    assert_eq!(last, "… 180 more like this in 61 s: volume v299");
}

#[test]
fn messages_about_many_hosts_from_one_place_are_limited() {
    let ring = ring(2000);
    for i in 0..10_000u32 {
        let host = core::net::Ipv4Addr::from_bits(0x0a01_0000 + i);
        log_at(&ring, 7, Level::Warn, "refused", &format!("refused connection of {host}: no"));
    }
    let kept = texts(&ring, Filter::All).len();
    assert!(kept <= usize::from(repeats::KEPT_OF_SITE) + 2, "{kept}");
}

#[test]
fn audit_messages_that_differ_in_a_word_are_all_kept_and_repeats_are_counted() {
    let ring = ring(2000);
    for i in 0..250 {
        log_at(&ring, 7, Level::Info, "audit", &format!("http ci from 10.0.0.7:9: write /a {i}"));
    }
    assert_eq!(texts(&ring, Filter::Audit).len(), 250);
    for i in 0..20 {
        let text = format!("http ann from 10.0.0.{}:{}: save", i % 3, 1000 + i);
        log_at(&ring, 7, Level::Info, "audit", &text);
    }
    assert_eq!(texts(&ring, Filter::Audit).len(), 258, "one action from any address");
    pass(&ring, 60);
    let last = texts(&ring, Filter::Audit).pop().unwrap();
    assert_eq!(last, "http ann from 10.0.0.1:1019: 12 more like this in 60 s: save");
    let at = |target| Metadata::builder().level(Level::Info).target(target).build();
    let levels = levels::Levels::new();
    levels.set(log::LevelFilter::Off, &[]);
    assert!(levels.takes(&at("audit")), "at any level");
    levels.set(log::LevelFilter::Warn, &[]);
    assert!(!levels.takes(&at("x")));
}

#[test]
fn stamps_are_utc_if_the_time_is_known_and_uptime_otherwise() {
    let ring = ring(100);
    log_at(&ring, 1, Level::Info, "audit", "console: save");
    let shown = || ring.next(&mut Cursor::default()).unwrap().0.to_string();
    assert_eq!(shown(), "[    1.500000] AUDIT console: save");
    ring.set_epoch(1_763_636_868 * 1_000_000_000);
    assert_eq!(shown(), "[2025-11-20T11:07:49.500Z] AUDIT console: save");
}
