//! The PVSCSI driver on the model, with and without faults.

use super::disk_bench::{self, OK, pattern};
use drivers::hal::{Clock, DiskError, Features, Operation, Platform, Request, SubmitError, Window};
use models::pvscsi::{Fault, Pvscsi, Unit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Bench = disk_bench::Bench<Pvscsi>;

fn with(model: Pvscsi) -> Bench {
    disk_bench::try_open(model, "pvscsi").unwrap()
}

fn open() -> Bench {
    with(Pvscsi::default())
}

impl Bench {
    fn complaints(&self) -> Vec<String> {
        self.machine.model(|model| model.complaints.clone())
    }

    fn inject(&self, fault: Fault) {
        self.machine.model(|model| model.inject(fault));
    }
}

#[test]
fn disk_is_found_with_its_shape() {
    let bench = open();
    let one = &bench.disks[0];
    assert_eq!((bench.disks.len(), one.serial.as_str()), (1, "model-1"));
    assert_eq!(one.location.to_string(), "pci:0000:00:03.0/0:0");
    let g = one.disk.geometry();
    assert_eq!((g.sectors, g.logical_block, g.max_transfer), (4096, 512, 1 << 20));
    let all = Features::VOLATILE_CACHE | Features::DISCARD | Features::WRITE_ZEROES;
    assert_eq!(g.features, all);
    assert_eq!((one.disk.depth(), one.disk.wakes()), (255, true));
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn data_is_written_and_read_back_at_any_offset() {
    for block in [512, 4096] {
        let mut model = Pvscsi::default();
        model.unit = Unit { block, bytes: vec![0xa5; 2 << 20], ..Unit::default() };
        let mut bench = with(model);
        let whole = bench.buffer(2 << 20);
        for (offset, blocks) in [(0, 1), (1, 8), (4095, 16), (7, 200)] {
            let len = blocks * block;
            let (bytes, data) = (pattern(len, offset), whole.slice(offset, len).unwrap());
            data.write(0, &bytes).unwrap();
            assert_eq!(bench.done(Operation::Write, 16, data), OK);
            let medium = bench.machine.model(|model| model.unit.bytes[8192..][..len].to_vec());
            assert!(medium == bytes);
            data.fill(0);
            assert_eq!(bench.done(Operation::Read, 16, data), OK);
            let mut back = vec![0; len];
            data.read(0, &mut back).unwrap();
            assert!(back == bytes);
        }
        let none = Window::empty();
        assert_eq!(bench.done(Operation::Flush, 0, none), OK);
        assert_eq!(bench.done(Operation::Discard { sectors: 8 }, 16, none), OK);
        let zeroes = Operation::WriteZeroes { sectors: 8, unmap: false };
        assert_eq!(bench.done(zeroes, 24, none), OK);
        let medium = bench.machine.model(|model| model.unit.bytes[8192..][..8192].to_vec());
        assert!(medium.iter().all(|byte| *byte == 0));
        assert_eq!(bench.machine.model(|model| model.unit.flushes), 1);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn full_ring_completes_around_its_end() {
    let mut bench = open();
    let depth = bench.disks[0].disk.depth() as u64;
    let data = bench.buffer(512);
    for _ in 0..10 {
        for tag in 0..depth {
            let request = Request { tag, operation: Operation::Read, sector: tag, data };
            bench.disk().submit(&request).unwrap();
        }
        let more = Request { tag: 999, operation: Operation::Read, sector: 0, data };
        assert_eq!(bench.disk().submit(&more), Err(SubmitError::Full));
        bench.disk().flush_queue();
        let mut tags: Vec<u64> =
            bench.complete(depth as usize).iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..depth).collect::<Vec<_>>());
    }
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn temporary_failures_are_retried_and_others_reported() {
    let mut bench = open();
    let data = bench.buffer(512);
    for (fault, expected) in [
        (Fault::Sense([6, 0x29, 0]), OK),
        (Fault::HostStatus(0x25), OK),
        (Fault::Sense([3, 0x11, 0]), Err(DiskError::Io)),
        (Fault::HostStatus(0x20), Err(DiskError::Io)),
        (Fault::HostStatus(0x0c), Err(DiskError::Io)),
        (Fault::Sense([5, 0x20, 0]), Err(DiskError::Unsupported)),
    ] {
        bench.inject(fault);
        assert_eq!(bench.done(Operation::Read, 0, data), expected, "{fault:?}");
        assert_eq!(bench.done(Operation::Read, 0, data), OK, "{fault:?}");
    }
    assert!(!bench.disks[0].disk.health().unwrap().gone);
}

#[test]
fn no_flush_claims_what_the_unit_has_refused_or_lost() {
    let mut bench = open();
    let (data, none) = (bench.buffer(512), Window::empty());
    // The unit says that its cache is on.
    bench.inject(Fault::Sense([5, 0x20, 0]));
    assert_eq!(bench.done(Operation::Flush, 0, none), Err(DiskError::Unsupported));
    let mut plain = Pvscsi::default();
    plain.unit.caches = false;
    let mut plain = with(plain);
    plain.inject(Fault::Sense([5, 0x20, 0]));
    assert_eq!(plain.done(Operation::Flush, 0, none), OK);
    // Power was lost, with and without writes that were not flushed.
    for (writes, expected) in [(false, OK), (true, Err(DiskError::Io)), (false, OK)] {
        if writes {
            assert_eq!(bench.done(Operation::Write, 0, data), OK);
        } else {
            assert_eq!(bench.done(Operation::Flush, 0, none), OK);
        }
        bench.inject(Fault::Sense([6, 0x29, 1]));
        assert_eq!(bench.done(Operation::Read, 0, data), OK);
        assert_eq!(bench.done(Operation::Flush, 0, none), expected, "{writes}");
    }
}

#[test]
fn transfer_that_is_too_short_or_too_long_is_no_success() {
    let mut bench = open();
    let data = bench.buffer(4096);
    for fault in [Fault::Bytes(0, 512), Fault::Bytes(0x12, 512), Fault::Bytes(0x12, 5000)] {
        bench.inject(fault);
        assert_eq!(bench.done(Operation::Read, 0, data), Err(DiskError::Io), "{fault:?}");
    }
    // Some adapters do not report the number.
    bench.inject(Fault::Bytes(0, 0));
    assert_eq!(bench.done(Operation::Read, 0, data), OK);
}

#[test]
fn requests_to_a_removed_adapter_end_within_their_depth() {
    let mut bench = open();
    let data = bench.buffer(512);
    bench.machine.pull_out(true);
    bench.watch(2);
    let request = Request { tag: 0, operation: Operation::Read, sector: 0, data };
    let most = 2 * bench.disks[0].disk.depth();
    let taken = (0..most).take_while(|_| bench.disk().submit(&request).is_ok()).count();
    assert!(taken < most);
    assert_eq!(bench.poll().len(), taken);
}

#[test]
fn adapter_without_disks_in_use_reaches_no_memory() {
    let mut bench = open();
    let is_master = |bench: &Bench| {
        bench.machine.model(|model| models::Function::config(model).is_bus_master())
    };
    assert!(is_master(&bench));
    bench.disks.clear();
    assert!(!is_master(&bench));
}

#[test]
fn crash_record_is_no_success_if_the_flush_fails() {
    for (sense, expected) in
        [([5, 0x20, 0], Ok(())), ([3, 0x0c, 0], Err("the disk did not flush its cache"))]
    {
        let mut bench = open();
        let mut crash = bench.disks[0].crash.take().unwrap();
        assert!(crash.prepare(512, bench.machine.arena()));
        bench.machine.model(|model| model.unit.flush_sense = Some(sense));
        let (clock, stop) = (bench.machine.clock(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    clock.now();
                    thread::yield_now();
                }
            });
            let result = crash.write(8, &[7; 512]);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(result, expected);
        });
    }
}

#[test]
fn invalid_completion_stops_the_adapter_and_ends_each_request_once() {
    for fault in [
        Fault::Context(0),
        Fault::Context(77),
        Fault::Context(1 << 40),
        Fault::Twice,
        Fault::Index(5000),
        Fault::HostStatus(0x99),
    ] {
        let mut bench = open();
        let data = bench.buffer(512);
        bench.inject(fault);
        for tag in 0..4 {
            let request = Request { tag, operation: Operation::Read, sector: tag, data };
            bench.disk().submit(&request).unwrap();
        }
        bench.disk().flush_queue();
        let mut tags: Vec<u64> = bench.complete(4).iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2, 3], "{fault:?}");
        assert_eq!(bench.poll(), []);
        assert!(bench.disks[0].disk.health().unwrap().gone, "{fault:?}");
        assert!(bench.notices()[0].1.contains("invalid entries"));
        assert_eq!(bench.done(Operation::Read, 0, data), Err(DiskError::Broken));
    }
}

#[test]
fn adapter_that_refuses_or_does_not_answer_is_not_used() {
    for (fault, text) in
        [(Fault::RefusesRings, "refuses its rings"), (Fault::NeverCompletes, "in 2 s")]
    {
        let mut model = Pvscsi::default();
        model.inject(fault);
        let Err(why) = disk_bench::try_open(model, "pvscsi") else { panic!("{fault:?}") };
        assert!(why.contains(text), "{why}");
    }
}

#[test]
fn interrupts_are_raised_when_armed() {
    let mut bench = open();
    let data = bench.buffer(512);
    for n in 0..20 {
        bench.disk().set_interrupts(true);
        let before = bench.disks[0].disk.interrupts();
        assert!(!bench.disks[0].disk.pending());
        bench.submit(n, Operation::Read, n, data);
        bench.machine.run();
        assert_eq!(bench.disks[0].disk.interrupts(), before + 1);
        assert!(bench.disks[0].disk.pending());
        bench.disk().set_interrupts(false);
        assert_eq!(bench.poll().len(), 1);
    }
}

#[test]
fn removed_adapter_is_reported() {
    let mut bench = open();
    let data = bench.buffer(512);
    bench.inject(Fault::NeverCompletes);
    bench.submit(1, Operation::Read, 0, data);
    bench.machine.pull_out(true);
    bench.watch(2);
    assert_eq!(bench.poll()[0].result, Err(DiskError::Broken));
    assert!(bench.disks[0].disk.health().unwrap().gone);
    assert!(bench.notices()[0].1.contains("was removed"));
}
