//! The DSA driver on the model, with and without faults. Between fences, the model executes a batch in reverse order.

use super::dma_engine::{self, LEN, MICROSECOND, PARTS};
use drivers::dma::Health;
use models::dsa::{Dsa, Fault};
use std::time::Duration;

type Bench = dma_engine::Bench<Dsa>;

fn open(fault: Option<Fault>) -> Result<Bench, String> {
    Bench::open(Dsa::new(fault), "idxd")
}

impl Bench {
    fn inject(&self, fault: Option<Fault>) {
        self.machine.model(|model| model.inject(fault));
    }
}

#[test]
fn a_batch_costs_one_write_and_nothing_is_read() {
    let mut bench = open(None).unwrap();
    assert_eq!(bench.channels.len(), 4);
    let (accesses, reads) = (bench.machine.accesses(), bench.machine.reads());
    (0..30).for_each(|part| assert_eq!(bench.push(part), Some(part as u64 + 1)));
    assert_eq!(bench.pass(10 * MICROSECOND), (0, Health::Good));
    assert_eq!((bench.machine.accesses(), bench.copied().len()), (accesses, 0));
    bench.channel().start();
    assert_eq!(bench.machine.accesses(), accesses + 1);
    assert_eq!(bench.pass(100 * MICROSECOND), (30, Health::Good));
    assert_eq!(bench.copied(), Vec::from_iter(0..30));
    // A single descriptor is not a batch.
    bench.push(30);
    bench.channel().start();
    assert_eq!(bench.pass(100 * MICROSECOND), (31, Health::Good));
    assert_eq!(bench.machine.accesses(), accesses + 2);
    bench.pass(1000 * MICROSECOND);
    assert_eq!(bench.machine.reads(), reads);
    let counters = bench.channel().counters();
    assert_eq!((counters.copies, counters.bytes, counters.batches), (31, 31 * LEN as u64, 2));
    assert_eq!((bench.counter("torn"), bench.counter("batches")), (0, 1));
}

#[test]
fn queues_copy_independently() {
    let mut bench = open(None).unwrap();
    for n in 0..4 {
        assert_eq!(bench.channels[n].number(), n as u8);
        let to = bench.to.slice(n * LEN, LEN).unwrap();
        let from = bench.from.slice(n * LEN, LEN).unwrap();
        bench.channels[n].push(&to, &from);
        bench.channels[n].start();
    }
    let now = bench.machine.pass(10 * MICROSECOND);
    bench.machine.run();
    for channel in &mut bench.channels {
        assert_eq!(channel.complete(now), (1, Health::Good));
    }
    assert_eq!(bench.copied(), [0, 1, 2, 3]);
}

/// Without the fence the first part would be the last to be written.
#[test]
fn order_is_kept_in_a_batch_and_across_batches() {
    let mut bench = open(None).unwrap();
    for part in 0..200 {
        bench.push_to(part, 0);
        bench.channel().order();
        if part % 7 == 0 {
            bench.channel().start();
        }
    }
    bench.channel().start();
    let mut last = 0;
    for _ in 0..10_000 {
        let now = bench.machine.pass(MICROSECOND);
        bench.machine.run();
        let done = bench.channel().complete(now).0;
        let current = bench.at(0).map_or(0, |part| part + 1);
        assert!(current >= last && current as u64 >= done, "{current} {last} {done}");
        last = current;
    }
    assert_eq!((last, bench.counter("fences") > 100), (200, true));
    // Without `order` the model reorders.
    bench.push_to(1, 2);
    bench.push_to(2, 2);
    bench.channel().start();
    bench.pass(100 * MICROSECOND);
    assert_eq!(bench.at(2), Some(1), "the model reorders");
}

#[test]
fn copies_beyond_a_batch_are_split_into_batches() {
    let mut bench = open(None).unwrap();
    let mut pushed = 0;
    while bench.push(pushed % PARTS).is_some() {
        pushed += 1;
    }
    assert_eq!(bench.channel().room(), 0);
    bench.channel().start();
    assert_eq!(bench.pass(10_000 * MICROSECOND), (pushed as u64, Health::Good));
    assert_eq!((bench.copied().len(), bench.counter("copies")), (PARTS, pushed as u64));
}

/// A completed copy is never repeated: it could overwrite a newer value of a cell with an older one.
#[test]
fn recovery_from_an_error_does_not_repeat_completed_copies() {
    for fault in [Fault::ErrorAt(0), Fault::ErrorAt(26), Fault::ErrorAt(27), Fault::HangOnce] {
        let mut bench = open(None).unwrap();
        let mut last = 0;
        for part in 0..60 {
            bench.push_to(part, 0);
            bench.channel().order();
            bench.push(100 + part);
        }
        bench.inject(Some(fault));
        bench.channel().start();
        for _ in 0..2000 {
            let now = bench.machine.pass(100 * MICROSECOND);
            bench.machine.run();
            let (_, health) = bench.channel().complete(now);
            assert_eq!(health, Health::Good);
            let current = bench.at(0).map_or(0, |part| part + 1);
            assert!(current >= last, "{fault:?}: {current} after {last}");
            last = current;
        }
        assert_eq!(bench.pass(MICROSECOND), (120, Health::Good), "{fault:?}");
        assert_eq!(bench.at(0), Some(59));
        assert_eq!(bench.copied().len(), 60, "{fault:?}");
        assert_eq!(bench.counter("copies"), 120, "each was executed once");
        assert_eq!(bench.channel().counters().resets, 1);
    }
}

#[test]
fn an_engine_that_always_fails_is_given_up_and_leaves_the_rest() {
    for (fault, time) in
        [(Fault::Error, 1_000), (Fault::Halt, 10_000), (Fault::NoRecord, 2_000_000)]
    {
        let mut bench = open(None).unwrap();
        (0..3).for_each(|part| _ = bench.push(part));
        bench.channel().start();
        bench.pass(50 * MICROSECOND);
        bench.inject(Some(fault));
        (3..10).for_each(|part| _ = bench.push(part));
        bench.channel().start();
        assert_eq!(bench.pass(time * MICROSECOND), (3, Health::Failed), "{fault:?}");
        let rest = std::iter::from_fn(|| bench.channel().take_rest());
        let rest: Vec<u64> = rest.map(|(to, _)| to.bus_address()).collect();
        let at = |part: usize| bench.to.bus_address() + (part * LEN) as u64;
        assert_eq!(rest, Vec::from_iter((3..10).map(at)), "{fault:?}");
    }
}

#[test]
fn engine_that_hangs_or_is_removed_is_failed_or_lost() {
    let mut bench = open(None).unwrap();
    bench.inject(Some(Fault::Hang));
    bench.push(0);
    bench.channel().start();
    assert_eq!(bench.pass(Duration::from_secs(2)).1, Health::Failed, "abort works");
    let mut bench = open(None).unwrap();
    bench.push(0);
    bench.channel().start();
    bench.machine.pull_out(true);
    assert_eq!(bench.pass(Duration::from_millis(10)).1, Health::Lost);
    assert!(bench.channel().take_rest().is_none());
    let mut bench = open(None).unwrap();
    bench.inject(Some(Fault::Hang));
    bench.push(0);
    bench.channel().start();
    bench.pass(Duration::from_millis(50));
    bench.inject(Some(Fault::StuckCommand));
    assert_eq!(bench.pass(Duration::from_secs(2)).1, Health::Lost, "abort fails, too");
}

#[test]
fn open_of_a_faulty_engine_names_the_cause() {
    for (fault, words) in [(Fault::Locked, "BIOS"), (Fault::StuckCommand, "command 5")] {
        let why = open(Some(fault)).err().expect("it is refused");
        assert!(why.contains(words), "{fault:?}: {why}");
    }
}

#[test]
fn version_3_is_driven() {
    let mut bench = Bench::open(Dsa::new(None).with_version(0x300), "idxd").unwrap();
    bench.push(1);
    bench.channel().start();
    assert_eq!(bench.pass(100 * MICROSECOND), (1, Health::Good));
    let why = Bench::open(Dsa::new(None).with_version(0x400), "idxd").err().unwrap();
    assert!(why.contains("version"), "{why}");
}

#[test]
fn engine_that_was_left_halted_gets_the_reset_that_it_asks_for() {
    for reset in [0, 1] {
        let mut bench = Bench::open(Dsa::new(None).with_halt(reset), "idxd").unwrap();
        bench.push(1);
        bench.channel().start();
        assert_eq!(bench.pass(100 * MICROSECOND), (1, Health::Good), "{reset}");
    }
    for reset in [2, 3] {
        let why = Bench::open(Dsa::new(None).with_halt(reset), "idxd").err().unwrap();
        assert!(why.contains("power it off and on"), "{why}");
    }
}
