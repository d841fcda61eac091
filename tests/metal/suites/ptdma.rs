//! The PTDMA driver on the model, with and without faults.

use super::dma_engine::{self, LEN, MICROSECOND};
use drivers::dma::Health;
use models::ptdma::{Fault, Ptdma};

type Bench = dma_engine::Bench<Ptdma>;

impl Bench {
    fn new() -> Self {
        Bench::open(Ptdma::new(None), "ptdma").unwrap()
    }

    fn inject(&self, fault: Option<Fault>) {
        self.machine.model(|model| model.inject(fault));
    }
}

#[test]
fn batch_costs_two_writes_and_an_idle_engine_no_reads() {
    let mut bench = Bench::new();
    let (accesses, reads) = (bench.machine.accesses(), bench.machine.reads());
    (0..30).for_each(|part| assert_eq!(bench.push(part), Some(part as u64 + 1)));
    assert_eq!(bench.pass(10 * MICROSECOND), (0, Health::Good));
    assert_eq!((bench.machine.accesses(), bench.copied().len()), (accesses, 0));
    bench.channel().start();
    assert_eq!(bench.machine.accesses(), accesses + 2);
    assert_eq!(bench.pass(100 * MICROSECOND), (30, Health::Good));
    assert_eq!(bench.copied(), Vec::from_iter(0..30));
    let read = bench.machine.reads();
    assert!(read > reads);
    bench.pass(1000 * MICROSECOND);
    assert_eq!(bench.machine.reads(), read);
    let counters = bench.channel().counters();
    assert_eq!((counters.copies, counters.bytes, counters.batches), (30, 30 * LEN as u64, 1));
}

#[test]
fn copies_after_a_fence_wait() {
    let mut bench = Bench::new();
    for part in 0..8 {
        bench.push(part);
        if part % 4 == 3 {
            bench.channel().order();
        }
    }
    bench.channel().start();
    let mut steps = 0;
    while bench.channels[0].complete(bench.machine.pass(MICROSECOND)).0 < 8 {
        bench.machine.run();
        let copied = bench.copied();
        assert!(copied.len() <= 4 || bench.channel().counters().batches == 2, "{copied:?}");
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!(bench.copied().len(), 8);
}

#[test]
fn the_ring_goes_round_and_is_never_overrun() {
    let mut bench = Bench::new();
    let mut pushed = 0;
    for _ in 0..3 {
        while bench.push((pushed % 64) as usize).is_some() {
            pushed += 1;
            if pushed % 7 == 0 {
                bench.channel().order();
            }
        }
        assert_eq!(bench.channel().room(), 0);
        bench.channel().start();
        bench.to.fill(0);
        assert_eq!(bench.pass(10_000 * MICROSECOND), (pushed, Health::Good));
        assert_eq!(bench.copied().len(), 64);
    }
    assert_eq!(bench.counter("copies"), pushed);
}

#[test]
fn recovery_from_an_error_reports_no_incomplete_copy() {
    let mut bench = Bench::new();
    for part in 0..20 {
        bench.push(part);
        bench.channel().start();
        if part % 6 == 2 {
            bench.inject(Some(Fault::ErrorOnce));
        }
        let (done, health) = bench.pass(7 * MICROSECOND);
        assert!(health == Health::Good && bench.copied().len() as u64 >= done);
    }
    assert_eq!(bench.pass(200 * MICROSECOND), (20, Health::Good));
    assert_eq!(bench.copied(), Vec::from_iter(0..20));
    assert!(bench.counter("errors") == 3 && bench.channel().counters().resets == 3);
}

#[test]
fn an_engine_that_always_fails_is_given_up_and_leaves_the_rest() {
    for (fault, time) in [(Fault::Error, 1_000), (Fault::Hang, 1_000_000)] {
        let mut bench = Bench::new();
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
fn removed_engine_is_lost() {
    let mut bench = Bench::new();
    bench.push(0);
    bench.channel().start();
    bench.machine.pull_out(true);
    assert_eq!(bench.pass(100 * MICROSECOND).1, Health::Lost);
    assert!(bench.channel().take_rest().is_none());
}
