//! The AHCI driver on the model, with and without faults.

use super::disk_bench::{self, OK, pattern};
use drivers::hal::{
    Clock, DiskError, Features, Operation, Platform, Request, Severity, SubmitError, Window,
};
use models::ahci::{Ahci, Config, Drive, Fault, Plugged, Shape};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

mod losses;
mod shared;

type Bench = disk_bench::Bench<Ahci>;

fn disk(shape: Shape) -> Plugged {
    Plugged::Disk(Box::new(Drive::new(shape)))
}

fn with(shape: Shape) -> Config {
    Config { ports: vec![disk(shape), Plugged::Nothing], ..Config::default() }
}

fn try_open(settings: Config) -> Result<Bench, String> {
    disk_bench::try_open(Ahci::new(settings), "ahci")
}

fn open(settings: Config) -> Bench {
    let bench = try_open(settings).unwrap();
    assert_eq!(bench.refused, [""; 0]);
    bench
}

impl Bench {
    fn complaints(&self) -> Vec<String> {
        self.machine.model(|model| model.complaints.clone())
    }

    fn inject(&self, fault: Fault) {
        self.machine.model(|model| model.inject(0, fault));
    }

    fn repair(&self) {
        self.machine.model(Ahci::repair);
    }

    fn medium(&self, at: usize, len: usize) -> Vec<u8> {
        self.machine.model(|model| model.drive(0).medium()[at..][..len].to_vec())
    }

    /// Pulls the drive out, and returns it.
    fn pull(&self) -> Plugged {
        self.machine.model(|model| model.plug(0, Plugged::Nothing))
    }

    fn plug(&self, drive: Plugged) {
        self.machine.model(|model| _ = model.plug(0, drive));
    }

    /// Writes and reads back a block.
    fn works(&mut self) {
        let data = self.buffer(512);
        data.fill(0x3c);
        assert_eq!(self.done(Operation::Write, 9, data), OK);
        data.fill(0);
        assert_eq!(self.done(Operation::Read, 9, data), OK);
        let mut byte = [0];
        data.read(511, &mut byte).unwrap();
        assert_eq!(byte, [0x3c]);
        assert_eq!(self.complaints(), [""; 0]);
    }
}

#[test]
fn drive_is_found_with_its_names_and_shape() {
    let mut bench = open(Config::default());
    let one = &bench.disks[0];
    assert_eq!(one.location.to_string(), "pci:0000:00:03.0/port0");
    assert_eq!(
        (one.serial.as_str(), one.model.as_str(), one.firmware.as_str()),
        ("model-1", "Model of a drive", "1.0")
    );
    let g = one.disk.geometry();
    assert_eq!((g.sectors, g.logical_block, g.physical_block), (4096, 512, 4096));
    let all = Features::VOLATILE_CACHE | Features::WRITE_THROUGH | Features::DISCARD;
    assert_eq!(g.features, all);
    assert_eq!((one.disk.depth(), one.disk.wakes()), (32, true));
    assert!(!one.disk.health().unwrap().gone);
    bench.works();
}

#[test]
fn drives_of_other_shapes_are_read_and_written() {
    for (shape, queues, slots, depth) in [
        (Shape::default(), false, 32, 32),
        (Shape { queue: 0, ..Shape::default() }, true, 32, 32),
        (Shape { queue: 0, ..Shape::default() }, true, 4, 4),
        (Shape { queue: 8, ..Shape::default() }, true, 32, 8),
        (Shape { queue: 32, ..Shape::default() }, true, 4, 4),
        (Shape { block: 4096, physical: 0, blocks: 512, ..Shape::default() }, true, 32, 32),
        (Shape { sleeps: true, start: 4000, ..Shape::default() }, true, 32, 32),
    ] {
        let block = shape.block;
        let mut bench = open(Config { queues, slots, ..with(shape) });
        assert_eq!(bench.disks[0].disk.depth(), depth);
        let whole = bench.buffer(2 << 20);
        for (offset, blocks) in [(0, 1), (2, 8), (510, 16), (4094, 255)] {
            let len = blocks * block;
            let bytes = pattern(len, offset);
            let from = whole.slice(offset, len).unwrap();
            from.write(0, &bytes).unwrap();
            assert_eq!(bench.done(Operation::WriteThrough, 16, from), OK);
            assert!(bench.medium(16 * 512, len) == bytes);
            from.fill(0);
            assert_eq!(bench.done(Operation::Read, 16, from), OK);
            let mut back = vec![0; len];
            from.read(0, &mut back).unwrap();
            assert!(back == bytes);
        }
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn full_queue_completes_and_one_more_request_is_refused() {
    for queue in [0, 1, 31, 32] {
        let mut bench = open(with(Shape { queue, ..Shape::default() }));
        let depth = bench.disks[0].disk.depth();
        let data = bench.buffer(512);
        for _ in 0..20 {
            for tag in 0..depth as u64 {
                let request = Request { tag, operation: Operation::Read, sector: tag, data };
                bench.disk().submit(&request).unwrap();
            }
            let more = Request { tag: 99, operation: Operation::Read, sector: 0, data };
            assert_eq!(bench.disk().submit(&more), Err(SubmitError::Full));
            bench.disk().flush_queue();
            let mut tags: Vec<u64> = bench.complete(depth).iter().map(|done| done.tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, (0..depth as u64).collect::<Vec<_>>());
        }
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn impossible_requests_are_refused() {
    let mut bench = open(Config::default());
    let data = bench.buffer(2 << 20);
    let mut try_one = |operation, sector, data| {
        bench.disk().submit(&Request { tag: 1, operation, sector, data }).unwrap_err()
    };
    let part = |offset, len| data.slice(offset, len).unwrap();
    assert_eq!(try_one(Operation::Read, 4096, part(0, 512)), SubmitError::Range);
    assert_eq!(try_one(Operation::Read, u64::MAX, part(0, 512)), SubmitError::Range);
    assert_eq!(try_one(Operation::Read, 0, part(0, 100)), SubmitError::Range);
    assert_eq!(try_one(Operation::Read, 0, part(1, 512)), SubmitError::Range);
    assert_eq!(try_one(Operation::Read, 0, data), SubmitError::Range);
    assert_eq!(try_one(Operation::Read, 0, Window::empty()), SubmitError::Range);
    let zeroes = Operation::WriteZeroes { sectors: 8, unmap: true };
    assert_eq!(try_one(zeroes, 0, Window::empty()), SubmitError::Unsupported);
    let mut plain = open(with(Shape { fua: false, trims: false, ..Shape::default() }));
    let data = plain.buffer(512);
    for operation in [Operation::WriteThrough, Operation::Discard { sectors: 8 }] {
        let request = Request { tag: 1, operation, sector: 0, data };
        assert_eq!(plain.disk().submit(&request), Err(SubmitError::Unsupported));
    }
}

#[test]
fn flushed_and_fua_writes_survive_a_power_cut() {
    for queue in [0, 32] {
        let mut bench = open(with(Shape { queue, ..Shape::default() }));
        let data = bench.buffer(512);
        data.fill(7);
        assert_eq!(bench.done(Operation::Write, 0, data), OK);
        assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
        assert_eq!(bench.done(Operation::WriteThrough, 1, data), OK);
        assert_eq!(bench.done(Operation::Write, 2, data), OK);
        bench.machine.model(|model| model.drive(0).cut_power());
        let medium = bench.medium(0, 1536);
        assert_eq!((medium[0], medium[512], medium[1024]), (7, 7, 0xa5));
    }
    let mut bench = open(with(Shape { cache: false, ..Shape::default() }));
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
    assert_eq!(bench.machine.model(|model| model.drive(0).flushes), 0, "no cache, no command");
}

#[test]
fn flush_between_writes_waits_for_the_queue() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    for round in 0..50 {
        for tag in 0..10 {
            let operation = match tag {
                4 => Operation::Flush,
                7 => Operation::Discard { sectors: 8 },
                _ => Operation::Write,
            };
            let data = if tag == 4 || tag == 7 { Window::empty() } else { data };
            bench.disk().submit(&Request { tag, operation, sector: 8 * tag, data }).unwrap();
            if (round + tag) % 3 == 0 {
                bench.disk().flush_queue();
                bench.machine.run();
            }
        }
        bench.disk().flush_queue();
        let done = bench.complete(10);
        assert_eq!(done.len(), 10);
        assert!(done.iter().all(|one| one.result.is_ok()));
    }
    assert_eq!(bench.machine.model(|model| model.drive(0).flushes), 50);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn discarded_blocks_are_listed_in_ranges() {
    let shape = Shape { blocks: 80_000, ..Shape::default() };
    let mut bench = open(with(shape));
    let operation = Operation::Discard { sectors: 70_000 };
    assert_eq!(bench.done(operation, 1000, Window::empty()), OK);
    assert_eq!(bench.machine.model(|model| model.drive(0).trims), 2);
    for (sector, byte) in [(999, 0xa5), (1000, 0), (70_999, 0), (71_000, 0xa5)] {
        assert_eq!(bench.medium(sector * 512, 1), [byte], "{sector}");
    }
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn bad_block_fails_its_own_request_only() {
    for (queue, logs) in [(32, true), (32, false), (0, true)] {
        let mut bench = open(with(Shape { queue, logs, ..Shape::default() }));
        bench.inject(Fault::BadBlock(5));
        let data = bench.buffer(512);
        for _ in 0..10 {
            for tag in 0..16 {
                let request = Request { tag, operation: Operation::Read, sector: tag, data };
                bench.disk().submit(&request).unwrap();
            }
            bench.disk().flush_queue();
            let done = bench.complete(16);
            assert_eq!(done.len(), 16, "queue {queue}, logs {logs}");
            for one in done {
                let expected = if one.tag == 5 { Err(DiskError::Io) } else { OK };
                assert_eq!(one.result, expected, "{}: queue {queue}, logs {logs}", one.tag);
            }
        }
        let resets = bench.disks[0].disk.health().unwrap().resets;
        assert_eq!(resets, 0, "errors of the medium are no reason for a reset");
        bench.repair();
        bench.works();
    }
}

#[test]
fn log_that_fails_or_names_another_command_is_not_trusted() {
    for fault in [Fault::NoLog, Fault::LogNames(31)] {
        let mut bench = open(Config::default());
        bench.inject(Fault::BadBlock(2));
        bench.inject(fault);
        let data = bench.buffer(512);
        for tag in 0..4 {
            let request = Request { tag, operation: Operation::Read, sector: tag, data };
            bench.disk().submit(&request).unwrap();
        }
        bench.disk().flush_queue();
        let done = bench.complete(4);
        assert_eq!(done.len(), 4, "{fault:?}");
        for one in done {
            let expected = if one.tag == 2 { Err(DiskError::Io) } else { OK };
            assert_eq!(one.result, expected, "{fault:?}");
        }
        bench.repair();
        bench.works();
    }
}

#[test]
fn flush_that_fails_is_reported() {
    let mut bench = open(Config::default());
    bench.inject(Fault::NoFlush);
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), Err(DiskError::Io));
    bench.repair();
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
    bench.works();
}

#[test]
fn error_of_the_cable_resets_the_link_and_repeats_the_requests() {
    for queue in [0, 32] {
        let mut bench = open(with(Shape { queue, ..Shape::default() }));
        bench.inject(Fault::Cable);
        let data = bench.buffer(512);
        for tag in 0..8 {
            let request = Request { tag, operation: Operation::Read, sector: tag, data };
            bench.disk().submit(&request).unwrap();
        }
        bench.disk().flush_queue();
        let done = bench.complete(8);
        assert_eq!(done.len(), 8);
        assert!(done.iter().all(|one| one.result.is_ok()));
        let notices = bench.notices();
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].1.contains("on the way to the drive"), "{notices:?}");
        assert_eq!(notices[1], (Severity::Information, "the drive works again"));
        assert_eq!(bench.disks[0].disk.health().unwrap().resets, 1);
        bench.works();
    }
}

#[test]
fn late_request_is_repeated_after_a_reset() {
    for queue in [0, 32] {
        let mut bench = open(with(Shape { queue, ..Shape::default() }));
        bench.inject(Fault::NeverCompletes);
        let data = bench.buffer(512);
        assert_eq!(bench.done(Operation::Read, 3, data), OK);
        let health = bench.disks[0].disk.health().unwrap();
        assert_eq!((health.aborts, health.resets), (1, 1));
        assert!(bench.notices()[0].1.contains("in time"));
        bench.works();
    }
}

#[test]
fn drive_that_is_late_again_and_again_fails_and_is_tried_again() {
    let mut bench = open(Config::default());
    (0..5).for_each(|_| bench.inject(Fault::NeverCompletes));
    let data = bench.buffer(512);
    bench.submit(7, Operation::Read, 0, data);
    let mut done = Vec::new();
    for _ in 0..600 {
        bench.watch(1);
        done.extend(bench.poll());
    }
    assert_eq!(done.len(), 1);
    assert!(done[0].result.is_err());
    bench.repair();
    bench.watch(130);
    assert!(!bench.disks[0].disk.health().unwrap().gone);
    bench.works();
}

#[test]
fn pulled_drive_fails_its_requests_and_works_again_when_it_is_back() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    for round in 0..3 {
        bench.inject(Fault::NeverCompletes);
        bench.submit(5, Operation::Read, 0, data);
        bench.machine.run();
        let drive = bench.pull();
        bench.watch(2);
        let done = bench.poll();
        assert_eq!((done.len(), done[0].result), (1, Err(DiskError::Broken)), "{round}");
        assert!(bench.disks[0].disk.health().unwrap().gone);
        let notices = bench.notices();
        assert!(notices.iter().any(|one| one.1.contains("pulled out")), "{notices:?}");
        // A request while it is away fails at once.
        bench.submit(6, Operation::Write, 0, data);
        assert_eq!(bench.poll()[0].result, Err(DiskError::Broken));
        bench.watch(100);
        assert_eq!(bench.notices(), [], "one notice is enough");
        bench.plug(drive);
        bench.watch(5);
        assert!(!bench.disks[0].disk.health().unwrap().gone, "{round}");
        let notices = bench.notices();
        assert_eq!(notices, [(Severity::Information, "the drive works again")]);
        bench.works();
        assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
    }
}

#[test]
fn flush_fails_once_after_the_drive_was_away_with_unflushed_writes() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    data.fill(9);
    assert_eq!(bench.done(Operation::Write, 0, data), OK);
    let mut drive = bench.pull();
    if let Plugged::Disk(drive) = &mut drive {
        drive.cut_power();
    }
    bench.watch(2);
    bench.plug(drive);
    bench.watch(5);
    let notices = bench.notices();
    assert!(notices.iter().any(|one| one.1.contains("next flush fails")), "{notices:?}");
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), Err(DiskError::Io));
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
    assert_eq!(bench.medium(0, 1), [0xa5], "the write was lost");
}

#[test]
fn another_drive_is_not_used_in_place_of_the_first() {
    let mut bench = open(Config::default());
    let first = bench.pull();
    bench.watch(2);
    bench.plug(disk(Shape { serial: "other".into(), ..Shape::default() }));
    bench.watch(10);
    assert!(bench.disks[0].disk.health().unwrap().gone);
    let notices = bench.notices();
    assert!(notices.iter().any(|one| one.1.contains("another drive")), "{notices:?}");
    assert!(bench.medium(0, 4096).iter().all(|byte| *byte == 0xa5), "nothing is written to it");
    bench.pull();
    bench.watch(2);
    bench.plug(first);
    bench.watch(130);
    assert!(!bench.disks[0].disk.health().unwrap().gone);
    bench.works();
}

#[test]
fn controller_that_disappears_is_reported_and_used_again() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.inject(Fault::NeverCompletes);
    bench.submit(5, Operation::Read, 0, data);
    bench.machine.run();
    bench.machine.pull_out(true);
    bench.watch(3);
    assert_eq!(bench.poll()[0].result, Err(DiskError::Broken));
    let notices = bench.notices();
    assert!(notices.iter().any(|one| one.1.contains("controller")), "{notices:?}");
    bench.machine.pull_out(false);
    bench.watch(130);
    assert!(!bench.disks[0].disk.health().unwrap().gone);
    bench.works();
}

/// Its registers then show no command in flight, as if all were completed.
#[test]
fn controller_that_is_reset_by_others_loses_no_request() {
    for queue in [0, 32] {
        let mut bench = open(with(Shape { queue, ..Shape::default() }));
        let data = bench.buffer(512);
        data.fill(6);
        bench.inject(Fault::NeverCompletes);
        bench.submit(5, Operation::Write, 3, data);
        bench.machine.run();
        bench.machine.model(models::Function::reset);
        let done = bench.complete(1);
        assert_eq!((done.len(), done[0].result), (1, OK));
        assert_eq!(bench.medium(3 * 512, 1), [6]);
        bench.works();
    }
}

#[test]
fn drives_that_cannot_be_used_are_refused_by_name() {
    let ports = |fault: Option<Fault>, plugged: Plugged| {
        let mut model =
            Ahci::new(Config { ports: vec![disk(Shape::default()), plugged], ..Config::default() });
        fault.into_iter().for_each(|fault| model.inject(1, fault));
        let bench = disk_bench::try_open(model, "ahci").unwrap();
        assert_eq!(bench.disks.len(), 1, "the other drive is used");
        bench.refused
    };
    let good = || disk(Shape { serial: "second".into(), ..Shape::default() });
    for (fault, plugged, expected) in [
        (None, Plugged::Other(0x9669_0101), Some("port multiplier")),
        (None, Plugged::Other(0xeb14_0101), None),
        (None, Plugged::Other(0x1234), Some("unknown signature 0x00001234")),
        (None, disk(Shape { block: 520, ..Shape::default() }), Some("520 bytes")),
        (None, disk(Shape { blocks: 0, ..Shape::default() }), Some("no blocks")),
        (Some(Fault::NeverReady), good(), Some("does not become ready")),
        (Some(Fault::NoIdentify), good(), Some("fails IDENTIFY DEVICE")),
        (Some(Fault::DeafIdentify), good(), Some("does not")),
    ] {
        let refused = ports(fault, plugged);
        match expected {
            None => assert_eq!(refused, [""; 0]),
            Some(text) => {
                assert_eq!(refused.len(), 1, "{text}");
                assert!(refused[0].contains(text), "{refused:?}");
                assert!(refused[0].starts_with("pci:0000:00:03.0/port1: "), "{refused:?}");
            }
        }
    }
}

#[test]
fn firmware_hands_the_controller_over_or_it_is_refused() {
    for handoff in [0, 10, 1500] {
        let settings = Config { firmware: true, handoff: Some(handoff), ..Config::default() };
        open(settings).works();
    }
    let kept = Config { firmware: true, handoff: None, ..Config::default() };
    let Err(why) = try_open(kept) else { panic!("the firmware is busy") };
    assert!(why.contains("kept by the firmware"), "{why}");
}

#[test]
fn drives_spin_up_one_after_the_other_if_the_controller_wants_it() {
    let shape = |serial: &str| Shape { serial: serial.into(), start: 3000, ..Shape::default() };
    let ports = vec![disk(shape("a")), Plugged::Nothing, disk(shape("b")), disk(shape("c"))];
    let mut bench = open(Config { staggers: true, ports, ..Config::default() });
    assert_eq!(bench.disks.len(), 3);
    let spun_up = bench.machine.model(|model| model.spun_up());
    let times: Vec<u64> = spun_up.iter().filter(|(n, _)| *n != 1).map(|(_, when)| *when).collect();
    let apart = times.windows(2).all(|two| two[1] - two[0] >= 3_000_000_000);
    assert!(apart, "{spun_up:?}");
    bench.works();
}

#[test]
fn controller_of_32_bits_reaches_low_memory() {
    let settings = Config { has_64_bits: false, ..Config::default() };
    open(settings).works();
}

#[test]
fn interrupts_are_raised_when_armed() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.works();
    assert_eq!(bench.disks[0].disk.interrupts(), 0, "not armed");
    for n in 0..20 {
        bench.disk().set_interrupts(true);
        let before = bench.disks[0].disk.interrupts();
        assert!(!bench.disks[0].disk.pending());
        bench.submit(n, Operation::Read, n, data);
        bench.machine.run();
        assert_eq!(bench.disks[0].disk.interrupts(), before + 1, "{n}");
        assert!(bench.disks[0].disk.pending());
        bench.disk().set_interrupts(false);
        assert_eq!(bench.poll().len(), 1);
    }
    // An error wakes the loop as well.
    bench.inject(Fault::BadBlock(0));
    bench.disk().set_interrupts(true);
    let before = bench.disks[0].disk.interrupts();
    bench.submit(1, Operation::Read, 0, data);
    bench.machine.run();
    assert_eq!(bench.disks[0].disk.interrupts(), before + 1);
    bench.disk().set_interrupts(false);
    assert_eq!(bench.complete(1)[0].result, Err(DiskError::Io));
}

#[test]
fn port_that_does_not_stop_is_given_up_without_bus_mastering() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.inject(Fault::NeverStops);
    bench.inject(Fault::BadBlock(0));
    assert_eq!(bench.done(Operation::Read, 0, data), Err(DiskError::Broken));
    assert!(bench.disks[0].disk.health().unwrap().gone);
}

#[test]
fn crash_record_is_written_with_requests_in_flight() {
    for block in [512, 4096] {
        let mut bench = open(with(Shape { block, physical: 0, blocks: 512, ..Shape::default() }));
        let data = bench.buffer(4096);
        bench.inject(Fault::NeverCompletes);
        for tag in 0..5 {
            bench.submit(tag, Operation::Read, 0, data);
            bench.machine.run();
        }
        let mut crash = bench.disks[0].crash.take().unwrap();
        assert!(crash.prepare(8192, bench.machine.arena()));
        let bytes = pattern(8192, 3);
        let (clock, stop) = (bench.machine.clock(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    clock.now();
                    thread::yield_now();
                }
            });
            let results = [8, 8].map(|sector| crash.write(sector, &bytes));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(results, [Ok(()), Err("there was a write already")]);
        });
        bench.machine.model(|model| model.drive(0).cut_power());
        assert!(bench.medium(4096, 8192) == bytes);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn drive_parks_before_the_machine_ends() {
    let mut bench = open(Config::default());
    bench.works();
    bench.disk().shut_down();
    bench.machine.pass(Duration::from_millis(10));
    bench.machine.run();
    assert!(bench.disk().is_shut_down());
    assert_eq!(bench.machine.model(|model| model.drive(0).standbys), 1);
}
