//! Absence and return of a drive, and drives that start slowly.

use super::*;
use drivers::hal::{DeviceLife, DeviceState};

#[test]
fn a_drive_that_is_pulled_out_ends_its_requests_and_works_after_its_return() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    (0..3).for_each(|tag| bench.submit(0, read(tag, tag, data)));
    bench.machine.pull_out(true);
    assert_eq!(bench.poll(0), []);
    bench.watch(1);
    let mut done = bench.poll(0);
    done.sort_by_key(|done| done.tag);
    let broken = |tag| Completion { tag, result: Err(DiskError::Broken) };
    assert_eq!(done, [broken(0), broken(1), broken(2)]);
    bench.submit(0, read(4, 0, data));
    assert_eq!(bench.poll(0), [broken(4)]);
    bench.submit(
        0,
        Request { operation: Operation::Flush, data: Window::empty(), ..read(5, 0, data) },
    );
    assert_eq!(bench.poll(0), [broken(5)]);
    let news = bench.notices();
    assert!(
        news.len() == 1 && news[0].0 == Severity::Error && news[0].1.contains("pulled out"),
        "{news:?}"
    );
    assert!(bench.disks[0].disk.health().unwrap().gone);
    let life = bench.disks[0].disk.life();
    assert!(life.state == DeviceState::Absent && life.next_try.is_some(), "{life:?}");
    // The driver only looks for it from time to time, and sends no further notices.
    let accesses = bench.machine.accesses();
    bench.watch(100);
    assert!(!bench.disks[0].disk.pending());
    assert_eq!((bench.notices(), bench.machine.accesses()), (vec![], accesses));
    bench.machine.pull_out(false);
    bench.machine.hot_reset(Duration::from_secs(1));
    bench.watch(64);
    (0..10).for_each(|_| assert_eq!(bench.poll(0), []));
    assert_eq!(bench.notices(), [(Severity::Information, "the drive works again")]);
    assert!(!bench.disks[0].disk.health().unwrap().gone);
    assert_eq!(bench.disks[0].disk.life(), DeviceLife::default());
    assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
    // What the drive's cache held may be lost.
    let flush = |bench: &mut Bench| bench.done(0, Operation::Flush, 0, Window::empty());
    assert_eq!(flush(&mut bench), Err(DiskError::Broken));
    assert_eq!(flush(&mut bench), OK);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_drive_may_take_as_long_as_it_says_to_become_ready() {
    let settings = Config { ready_time: 100_000_000_000, timeout: 255, ..Config::default() };
    let mut bench = try_open(machine(settings.clone())).unwrap();
    let data = bench.buffer(512);
    assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
    let why = try_open(machine(Config { timeout: 100, ..settings })).err().unwrap();
    assert!(why.contains("does not become ready in 50 s"), "{why}");
}
