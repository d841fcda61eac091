//! The I/OAT driver on the model, with and without faults.

use super::dma_engine::{self, LEN, MICROSECOND};
use drivers::dma::{Carried, Carrier, Channel, Dma, Health};
use drivers::hal::{Platform, Window};
use metal::Metal;
use models::Function;
use models::ioat::{Config, Fault, Ioat};
use std::time::Duration;

fn model(version: u8, channels: u8) -> Ioat {
    Ioat::new(Config { device: 0x2021, channels, version, fault: None })
}

type Opened = Result<(Metal<Ioat>, Vec<Box<dyn Channel>>), String>;

/// Opens the engine of a new machine. An error is the reason.
fn try_open(model: Ioat) -> Opened {
    let mut machine = Metal::new(model, 4 << 20);
    let channels = dma_engine::try_open(&mut machine, "ioatdma")?;
    Ok((machine, channels))
}

type Bench = dma_engine::Bench<Ioat>;

impl Bench {
    fn new() -> Self {
        Bench::open(model(0x34, 1), "ioatdma").unwrap()
    }

    fn inject(&self, fault: Option<Fault>) {
        self.machine.model(|model| model.inject(fault));
    }
}

#[test]
fn a_batch_costs_one_write_and_no_read() {
    let mut bench = Bench::new();
    let before = bench.machine.accesses();
    for part in 0..50 {
        assert_eq!(bench.push(part), Some(part as u64 + 1));
        if part % 5 == 0 {
            bench.channel().order();
        }
    }
    assert_eq!((bench.machine.accesses(), bench.copied().len()), (before, 0));
    bench.channel().start();
    assert_eq!(bench.pass(100 * MICROSECOND), (50, Health::Good));
    assert_eq!(bench.machine.accesses(), before + 1);
    assert_eq!(bench.copied(), Vec::from_iter(0..50));
    let counters = bench.channel().counters();
    assert_eq!((counters.copies, counters.bytes, counters.batches), (50, 50 * LEN as u64, 1));
}

#[test]
fn sources_are_in_use_until_they_are_complete() {
    let mut bench = Bench::new();
    (0..32).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    let mut before = 0;
    for _ in 0..200 {
        let (done, _) = bench.pass(MICROSECOND);
        assert!(done >= before && bench.copied().len() as u64 >= done);
        before = done;
    }
    assert_eq!(before, 32);
}

#[test]
fn the_ring_goes_round_and_is_never_overrun() {
    let mut bench = Bench::new();
    let mut pushed = 0;
    for _ in 0..100 {
        while let Some(number) = bench.push((pushed % 64) as usize) {
            pushed += 1;
            assert_eq!(number, pushed);
            if pushed % 7 == 0 {
                bench.channel().order();
            }
            if pushed % 100 == 0 {
                bench.channel().start();
                bench.channel().order();
            }
        }
        bench.channel().start();
        bench.pass(300 * MICROSECOND);
    }
    assert_eq!(bench.pass(3000 * MICROSECOND), (pushed, Health::Good));
    assert!(pushed > 20_000);
    assert_eq!((bench.channel().counters().missed, bench.channel().counters().resets), (0, 0));
}

#[test]
fn status_register_replaces_missing_completion_writes() {
    for fault in [Fault::NoCompletion, Fault::NobodysCompletion, Fault::StaleCompletion] {
        let mut bench = Bench::new();
        bench.inject(Some(fault));
        for round in 1..=10 {
            (0..20).for_each(|part| assert!(bench.push(part).is_some()));
            bench.channel().start();
            let (done, health) = bench.pass(Duration::from_millis(10));
            assert_eq!((done, health), (20 * round, Health::Good), "{fault:?}");
        }
        let counters = bench.channel().counters();
        assert!(counters.missed > 0 && counters.resets == 0, "{fault:?} {counters:?}");
        assert_eq!(counters.nonsense > 0, fault == Fault::NobodysCompletion, "{fault:?}");
    }
}

#[test]
fn a_channel_that_halts_is_reset_and_does_the_rest() {
    let mut bench = Bench::new();
    (0..40).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    bench.pass(10 * MICROSECOND);
    bench.inject(Some(Fault::HaltOnce));
    bench.pass(2 * MICROSECOND);
    // Copies can be pushed during the reset.
    (40..60).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().order();
    bench.channel().start();
    assert_eq!(bench.pass(Duration::from_millis(5)), (60, Health::Good));
    assert_eq!(bench.copied(), Vec::from_iter(0..60));
    assert_eq!(bench.channel().counters().resets, 1);
}

#[test]
fn a_channel_that_hangs_is_reset() {
    let mut bench = Bench::new();
    bench.inject(Some(Fault::Hang));
    (0..40).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    bench.pass(Duration::from_millis(50));
    bench.inject(None);
    assert_eq!(bench.pass(Duration::from_millis(500)), (40, Health::Good));
    assert_eq!(bench.channel().counters().resets, 1);
}

#[test]
fn a_channel_that_does_not_recover_leaves_the_rest_to_others() {
    let mut bench = Bench::new();
    (0..40).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    bench.pass(10 * MICROSECOND);
    bench.inject(Some(Fault::Halt));
    let (done, health) = bench.pass(Duration::from_secs(1));
    assert_eq!(health, Health::Failed);
    assert_eq!(done, bench.copied().len() as u64);
    let mut part = done as usize;
    while let Some((to, from)) = bench.channel().take_rest() {
        assert_eq!(from.bus_address(), bench.from.bus_address() + (part * LEN) as u64);
        assert_eq!(to.bus_address(), bench.to.bus_address() + (part * LEN) as u64);
        part += 1;
    }
    assert_eq!(part, 40);
}

#[test]
fn removed_engine_is_lost() {
    let mut bench = Bench::new();
    (0..40).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    bench.pass(10 * MICROSECOND);
    bench.machine.pull_out(true);
    let (done, health) = bench.pass(Duration::from_secs(1));
    assert_eq!(health, Health::Lost);
    assert!(done < 40 && bench.channel().take_rest().is_none());
}

#[test]
fn channels_work_in_parallel() {
    let (mut machine, mut channels) = try_open(model(0x32, 4)).unwrap();
    assert_eq!(channels.iter().map(|channel| channel.number()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let [from, to] = [0; 2].map(|_| machine.arena().alloc(4 * LEN, 4096).unwrap());
    from.fill(9);
    to.fill(0);
    for (n, channel) in channels.iter_mut().enumerate() {
        let at = |window: &Window| window.slice(n * LEN, LEN).unwrap();
        channel.push(&at(&to), &at(&from)).unwrap();
        channel.start();
    }
    let now = machine.pass(10 * MICROSECOND);
    machine.run();
    assert!(channels.iter_mut().all(|channel| channel.complete(now) == (1, Health::Good)));
    let mut bytes = vec![0; 4 * LEN];
    to.read(0, &mut bytes).unwrap();
    assert!(bytes == vec![9; 4 * LEN]);
}

#[test]
fn channel_that_an_earlier_system_left_running_is_suspended_and_reset() {
    let mut bench = Bench::new();
    (0..200).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    bench.pass(10 * MICROSECOND);
    let channels = dma_engine::try_open(&mut bench.machine, "ioatdma").unwrap();
    bench.channels = channels;
    (0..20).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    assert_eq!(bench.pass(200 * MICROSECOND), (20, Health::Good));
    assert_eq!(bench.machine.model(|model| model.complaints.clone()), [""; 0]);
}

#[test]
fn writes_are_ordered_and_addresses_written_in_halves() {
    let mut bench = Bench::new();
    (0..20).for_each(|part| assert!(bench.push(part).is_some()));
    bench.channel().start();
    assert_eq!(bench.pass(100 * MICROSECOND), (20, Health::Good));
    assert_eq!(bench.machine.model(|model| model.complaints.clone()), [""; 0]);
    assert!(!bench.machine.model(|model| model.config().may_reorder()));
}

#[test]
fn unusable_engine_is_refused_with_the_cause() {
    let why = |model| try_open(model).err().unwrap();
    assert!(why(model(0x31, 1)).contains("version 3.1"));
    assert!(why(model(0xff, 1)).contains("does not answer"));
    for fault in [Fault::NoCompletion, Fault::Halt] {
        let mut broken = model(0x33, 2);
        broken.inject(Some(fault));
        let why = why(broken);
        assert!(why.contains("channel 0") && why.contains("does not come up"), "{why}");
    }
}

/// A carrier on the model's channel.
struct Carriage {
    bench: Bench,
    carrier: Carrier,
}

impl Carriage {
    fn new() -> Self {
        let (machine, mut channels) = try_open(model(0x34, 1)).unwrap();
        let mut bench = Bench::new();
        bench.machine = machine;
        let [from, to] = [0; 2].map(|_| bench.machine.arena().alloc(64 * LEN, 4096).unwrap());
        (bench.from, bench.to) = (from, to);
        to.fill(0);
        let mut carrier = Carrier::new();
        assert!(carrier.use_channel(channels.remove(0), to, bench.machine.arena()));
        Carriage { bench, carrier }
    }

    fn at(&self, offset: usize, len: usize) -> Window {
        self.bench.to.slice(offset, len).unwrap()
    }

    /// Number of fenced descriptors so far.
    fn fences(&self) -> u64 {
        let counters = self.bench.machine.model(|model| model.counters());
        counters.iter().find(|(name, _)| name == "channel0.fences").unwrap().1
    }

    /// Runs a round of the loop. Returns whether the engine's work is lost.
    fn step(&mut self, time: Duration) -> bool {
        self.carrier.start();
        let now = self.bench.machine.pass(time);
        self.bench.machine.run();
        self.carrier.complete(now).lost
    }
}

#[test]
fn short_writes_to_adjacent_addresses_are_one_copy() {
    let mut carriage = Carriage::new();
    let before = carriage.bench.machine.accesses();
    for n in 0..8 {
        let place = carriage.at(64 * n, 64);
        carriage.carrier.put(&place, &[n as u64; 8]);
    }
    carriage.carrier.order();
    for n in 0..4 {
        let place = carriage.at(4096 + 4 * n, 4);
        carriage.carrier.put32(&place, 7);
    }
    let bell = carriage.at(8192, 4);
    carriage.carrier.announce(&bell, 1);
    for _ in 0..10 {
        carriage.step(MICROSECOND);
    }
    assert!(carriage.carrier.is_idle());
    assert_eq!(bell.load32(0), 1);
    assert_eq!(carriage.carrier.counters().copies, 3);
    assert_eq!(carriage.fences(), 2, "after the gathered writes, and after the cells");
    // The device has already fetched the last descriptor, so a null descriptor with a fence keeps the order.
    carriage.carrier.announce(&bell, 2);
    for _ in 0..10 {
        carriage.step(MICROSECOND);
    }
    assert_eq!((bell.load32(0), carriage.fences()), (2, 2), "nothing was in flight");
    for value in [3, 4] {
        carriage.carrier.announce(&bell, value);
        carriage.carrier.start();
    }
    for _ in 0..10 {
        carriage.step(MICROSECOND);
    }
    assert_eq!((bell.load32(0), carriage.fences()), (4, 3));
    assert_eq!(carriage.bench.machine.accesses(), before + 4);
}

#[test]
fn doorbell_never_precedes_the_data_that_it_announces() {
    for seed in 0..24u64 {
        let mut carriage = Carriage::new();
        let mut state = seed * 77 + 1;
        let mut random = |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let bell = carriage.at(60 * LEN, 4);
        let (mut announced, mut lost) = (0, false);
        for round in 1..2000u32 {
            if carriage.carrier.has_room() && round < 1500 {
                announced += 1;
                // A part is reused only after its copy is complete.
                let part = (announced % 16) as usize;
                let words = [u64::from(announced); 4];
                carriage.carrier.put(&carriage.at(32 * LEN + 32 * part, 32), &words);
                let from = carriage.bench.from.slice(part * LEN, LEN).unwrap();
                let done = carriage.carrier.complete(carriage.bench.machine.pass(MICROSECOND)).done;
                if carriage.carrier.submitted() <= done {
                    from.fill(announced as u8);
                    carriage.carrier.submit(&carriage.at(part * LEN, LEN), &from);
                }
                carriage.carrier.announce(&bell, announced);
            }
            let fault = match random(40) {
                0 => Some(Fault::HaltOnce),
                1 => Some(Fault::NoCompletion),
                2 => Some(Fault::NobodysCompletion),
                3 if round > 1400 && seed % 3 == 0 => Some(Fault::Halt),
                _ => None,
            };
            if carriage.carrier.carried() != Carried::Cpu {
                carriage.bench.inject(fault);
            }
            let time = Duration::from_micros(1 + random(200));
            lost |= carriage.step(time);
            let rung = bell.load32(0);
            assert!(rung <= announced);
            let words = carriage.at(32 * LEN + 32 * (rung % 16) as usize, 32);
            let newest = words.load64(0);
            assert!(newest >= u64::from(rung) || rung == 0, "seed {seed}: {newest} {rung}");
        }
        carriage.bench.inject(None);
        for _ in 0..1000 {
            carriage.step(Duration::from_millis(1));
        }
        assert!(!lost && carriage.carrier.is_idle(), "seed {seed}");
        assert_eq!(bell.load32(0), announced, "seed {seed}");
        for part in 0..16 {
            let (mut copied, mut original) = ([0; LEN], [0; LEN]);
            carriage.at(part * LEN, LEN).read(0, &mut copied).unwrap();
            carriage.bench.from.read(part * LEN, &mut original).unwrap();
            assert!(copied == original, "seed {seed} part {part}");
        }
    }
}

#[test]
fn cpu_takes_over_from_a_failed_engine() {
    let mut carriage = Carriage::new();
    let bell = carriage.at(60 * LEN, 4);
    carriage.bench.from.fill(3);
    let from = carriage.bench.from.slice(0, LEN).unwrap();
    for n in 0..20 {
        carriage.carrier.submit(&carriage.at(n * LEN, LEN), &from);
        carriage.carrier.announce(&bell, n as u32 + 1);
    }
    carriage.bench.inject(Some(Fault::Halt));
    for _ in 0..1000 {
        assert!(!carriage.step(Duration::from_millis(1)));
    }
    assert_eq!((carriage.carrier.carried(), bell.load32(0)), (Carried::Cpu, 20));
    assert_eq!(carriage.carrier.bytes_by_cpu(), 20 * (LEN as u64 + 4));
    assert!((0..20).all(|n| carriage.at(n * LEN, LEN).load32(LEN - 4) == 0x0303_0303));
    carriage.carrier.put32(&bell, 99);
    assert_eq!(bell.load32(0), 99, "at once");
}

#[test]
fn lost_work_is_reported_once() {
    let mut carriage = Carriage::new();
    carriage.bench.from.fill(3);
    carriage.carrier.submit(&carriage.at(0, LEN), &carriage.bench.from);
    let ticket = carriage.carrier.submitted();
    carriage.step(Duration::from_nanos(1));
    carriage.bench.machine.pull_out(true);
    let mut lost = 0;
    for _ in 0..1000 {
        lost += u32::from(carriage.step(Duration::from_millis(1)));
    }
    assert_eq!((lost, carriage.carrier.carried()), (1, Carried::Cpu));
    let now = carriage.bench.machine.pass(MICROSECOND);
    assert!(carriage.carrier.complete(now).done >= ticket, "the engine no longer reads the source");
    carriage.carrier.submit(&carriage.at(0, LEN), &carriage.bench.from);
    assert_eq!(carriage.at(0, 4).load32(0), 0x0303_0303);
}
