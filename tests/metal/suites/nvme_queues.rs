//! Queue pairs of an NVMe drive for several cores, on the model: each core uses its own pair, and a reset or the loss
//! of the drive ends for all cores, in whatever order they poll.

use drivers::block::OpenDisk;
use drivers::driver::Class;
use drivers::hal::{
    Completion, CoreQueue, Disk, DiskError, MoreQueues, Notice, Operation, Platform, QueueCount,
    QueueSeat, Request, Window,
};
use metal::Metal;
use models::nvme::{Config, Fault, Nvme, Shape};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const OK: Result<(), DiskError> = Ok(());

/// A drive with its owner, and the loop of another core.
struct Cores {
    machine: Metal<Nvme>,
    owner: Vec<OpenDisk>,
    queues: Box<dyn MoreQueues>,
    other: Vec<Box<dyn Disk>>,
    /// Number of wake-ups of the other loop.
    woken: Arc<AtomicUsize>,
}

/// The drive with its owner only.
fn alone(settings: Config, faults: &[Fault]) -> Cores {
    let mut machine = Metal::new(Nvme::new(settings), 8 << 20);
    machine.model(|model| faults.iter().for_each(|&fault| model.inject(fault)));
    let device = machine.find().take(Class::Disks).remove(0);
    let clock = machine.clock();
    let opened = device.open_disks(&mut machine, &clock).expect("the drive works");
    let queues = opened.queues.expect("the drive supports more queues");
    Cores { machine, owner: opened.disks, queues, other: Vec::new(), woken: Arc::default() }
}

fn cores(settings: Config) -> Cores {
    let mut cores = alone(settings, &[]);
    cores.other = cores.open(1).expect("the drive has another pair").disks();
    cores
}

fn read(tag: u64, sector: u64, data: Window) -> Request {
    Request { tag, operation: Operation::Read, sector, data }
}

fn ends(disk: &mut dyn Disk) -> Vec<Completion> {
    std::iter::from_fn(|| disk.poll()).collect()
}

impl Cores {
    fn open(&mut self, core: u16) -> Option<Box<dyn CoreQueue>> {
        let woken = self.woken.clone();
        let wake = Box::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        });
        let interrupt = self.machine.allocate_interrupt();
        let interrupt = &mut || interrupt;
        let clock = self.machine.clock();
        let platform = &mut self.machine;
        self.queues.open(QueueSeat { core, interrupt, wake, platform, clock: &clock })
    }

    fn buffer(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).expect("room")
    }

    /// The disk of the owner (0) or the other core.
    fn disk(&mut self, core: usize) -> &mut dyn Disk {
        if core == 0 { &mut *self.owner[0].disk } else { &mut *self.other[0] }
    }

    fn submit(&mut self, core: usize, request: Request) {
        self.disk(core).submit(&request).expect("there is room");
        self.disk(core).flush_queue();
    }

    /// Polls both cores in turn, and runs the model in between. Returns the completions with their cores.
    fn turns(&mut self, count: usize) -> Vec<(usize, Completion)> {
        let mut all = Vec::new();
        for _ in 0..count {
            for core in 0..2 {
                self.machine.run();
                all.extend(ends(self.disk(core)).into_iter().map(|done| (core, done)));
            }
        }
        all.sort_by_key(|(core, done)| (*core, done.tag));
        all
    }

    /// Advances the time by this many seconds, with health checks of both cores.
    fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            for core in 0..2 {
                self.machine.run();
                self.disk(core).watch(now);
            }
        }
        self.machine.run();
    }

    fn notices(&mut self) -> Vec<Notice> {
        let disk = self.disk(0);
        std::iter::from_fn(|| disk.notice()).collect()
    }

    fn done_by(&self, queue: u16) -> u64 {
        self.machine.model(|model| model.done_by.get(&queue).copied().unwrap_or(0))
    }

    fn complaints(&self) -> Vec<String> {
        self.machine.model(|model| model.complaints.clone())
    }
}

/// Checks that these requests succeeded, each once.
fn all_well(ended: &[(usize, Completion)], tags: [&[u64]; 2]) {
    let of = |core: usize| {
        tags[core]
            .iter()
            .map(move |&tag| (core, Completion { tag, result: OK }))
            .collect::<Vec<_>>()
    };
    assert_eq!(ended, [of(0), of(1)].concat());
}

#[test]
fn each_core_has_a_pair_of_its_own() {
    let mut cores = cores(Config::default());
    let geometry = cores.disk(0).geometry();
    assert_eq!((cores.disk(1).geometry(), cores.disk(1).depth()), (geometry, 255));
    let data = cores.buffer(4096);
    let before = cores.done_by(1);
    (0..40).for_each(|tag| cores.submit(1, read(tag, tag, data)));
    (0..3).for_each(|tag| cores.submit(0, read(tag, tag, data)));
    let tags: Vec<u64> = (0..40).collect();
    all_well(&cores.turns(1), [&[0, 1, 2], &tags]);
    assert_eq!((cores.done_by(1) - before, cores.done_by(2)), (3, 40));
    let counts = cores.disk(0).queue_counts();
    let of = |core, requests| QueueCount { core, requests, interrupts: 0 };
    assert_eq!(counts, [of(0, 3), of(1, 40)]);
    // The model grants four pairs.
    assert!(cores.open(2).is_some() && cores.open(3).is_some());
    assert!(cores.open(4).is_none());
    assert_eq!(cores.complaints(), [""; 0]);
}

#[test]
fn missing_queues_are_refused() {
    for settings in [
        Config { pairs: 1, ..Config::default() },
        Config { vectors: 2, ..Config::default() },
        Config { vectors: 0, ..Config::default() },
    ] {
        let mut cores = alone(settings.clone(), &[]);
        let free = cores.machine.arena().available();
        assert!(cores.open(1).is_none(), "{settings:?}");
        assert_eq!(cores.machine.arena().available(), free);
        let data = cores.buffer(512);
        cores.submit(0, read(1, 0, data));
        cores.machine.run();
        assert_eq!(ends(cores.disk(0)), [Completion { tag: 1, result: OK }]);
    }
    // The drive refuses Number of Queues, or the creation of a granted queue.
    let mut cores = alone(Config::default(), &[Fault::RefusesAdmin(9)]);
    assert!(cores.open(1).is_none());
    for opcode in [1, 5] {
        let mut cores = alone(Config::default(), &[]);
        cores.machine.model(|model| model.inject(Fault::RefusesAdmin(opcode)));
        assert!(cores.open(1).is_none());
        assert_eq!((cores.notices().len(), cores.complaints().len()), (0, 0));
        assert!(!cores.disk(0).pending());
    }
    // Without memory there is no pair, either.
    let mut cores = alone(Config::default(), &[]);
    while cores.machine.arena().alloc(64 << 10, 4096).is_some() {}
    let free = cores.machine.arena().available();
    assert!(cores.open(1).is_none());
    assert_eq!(cores.machine.arena().available(), free);
}

#[test]
fn drive_that_does_not_answer_a_queue_creation_is_reset() {
    let mut cores = alone(Config::default(), &[]);
    cores.machine.model(|model| model.inject(Fault::DeafAdmin));
    assert!(cores.open(1).is_none());
    cores.machine.model(Nvme::repair);
    let data = cores.buffer(512);
    cores.submit(0, read(1, 0, data));
    for _ in 0..50 {
        cores.machine.run();
        if let Some(done) = cores.disk(0).poll() {
            assert_eq!(done, Completion { tag: 1, result: OK });
            return;
        }
    }
    panic!("the drive does not come back");
}

#[test]
fn namespaces_share_the_pair_of_a_core() {
    let namespaces = vec![Shape::new(1, 100, 9), Shape::new(2, 100, 12)];
    let mut cores = cores(Config { namespaces, ..Config::default() });
    assert_eq!((cores.other.len(), cores.other[1].geometry().logical_block), (2, 4096));
    let data = cores.buffer(4096);
    cores.submit(1, read(1, 0, data.slice(0, 512).expect("inside")));
    cores.other[1].submit(&read(70, 8, data)).expect("room");
    cores.other[1].flush_queue();
    cores.machine.run();
    assert_eq!(ends(&mut *cores.other[1]), [Completion { tag: 70, result: OK }]);
    assert_eq!(ends(&mut *cores.other[0]), [Completion { tag: 1, result: OK }]);
    // The owner notices new sizes, and notifies the other core.
    cores.machine.model(|model| model.resize(2, 300));
    cores.watch(40);
    assert!(cores.owner[1].disk.capacity_changed());
    assert!(!cores.other[0].capacity_changed() && cores.other[1].capacity_changed());
    assert_eq!(cores.other[1].geometry().sectors, 2400);
    assert_eq!(cores.complaints(), [""; 0]);
}

#[test]
fn flush_covers_writes_of_all_queues() {
    for flusher in 0..2 {
        let mut cores = cores(Config::default());
        let data = cores.buffer(512);
        data.fill(7);
        for core in 0..2 {
            let sector = core as u64;
            cores.submit(core, Request { operation: Operation::Write, ..read(1, sector, data) });
        }
        all_well(&cores.turns(1), [&[1], &[1]]);
        let none = Window::empty();
        cores.submit(flusher, Request { operation: Operation::Flush, ..read(2, 0, none) });
        assert_eq!(cores.turns(1).len(), 1);
        let medium = cores.machine.model(|model| {
            model.cut_power();
            model.namespace(1).expect("there").medium()[..1024].to_vec()
        });
        assert!(medium == [7; 1024], "flushed by {flusher}");
    }
}

#[test]
fn each_core_is_interrupted_for_its_own_requests_only_when_it_halts() {
    let mut cores = cores(Config::default());
    let data = cores.buffer(512);
    assert!(cores.disk(1).wakes());
    let interrupts = |cores: &mut Cores| {
        let counts = cores.disk(0).queue_counts();
        let other = cores.disk(1).interrupts();
        assert_eq!(
            (counts[1].interrupts, cores.disk(0).interrupts()),
            (other, counts[0].interrupts + other)
        );
        [counts[0].interrupts, other]
    };
    cores.submit(1, read(1, 0, data));
    assert_eq!(cores.turns(1).len(), 1);
    assert_eq!(interrupts(&mut cores), [0, 0]);
    cores.disk(1).set_interrupts(true);
    let stale = interrupts(&mut cores)[1];
    cores.submit(0, read(2, 0, data));
    cores.submit(1, read(2, 0, data));
    cores.machine.run();
    assert_eq!(interrupts(&mut cores), [0, stale + 1]);
    cores.disk(1).set_interrupts(false);
    cores.disk(0).set_interrupts(true);
    assert_eq!(cores.turns(1).len(), 2);
    // A lost interrupt only costs time.
    cores.machine.model(|model| model.inject(Fault::NoInterrupts));
    cores.disk(1).set_interrupts(true);
    cores.submit(1, read(3, 0, data));
    cores.watch(30);
    assert!(cores.disk(1).pending());
    all_well(&cores.turns(1), [&[], &[3]]);
    assert_eq!(cores.notices(), []);
}

#[test]
fn reset_repeats_the_outstanding_requests_of_all_cores() {
    for fault in [Fault::Fatal, Fault::ResetsItself] {
        let mut cores = cores(Config::default());
        let data = cores.buffer(512);
        cores.machine.model(|model| model.inject(fault));
        for core in 0..2 {
            (0..5).for_each(|tag| cores.submit(core, read(tag, tag, data)));
        }
        assert_eq!(cores.turns(1), []);
        let woken = cores.woken.load(Ordering::Relaxed);
        cores.watch(1);
        assert!(cores.woken.load(Ordering::Relaxed) > woken);
        // Requests during the reset wait.
        (0..2).for_each(|core| cores.submit(core, read(5, 5, data)));
        all_well(&cores.turns(50), [&[0, 1, 2, 3, 4, 5]; 2]);
        let news = cores.notices();
        assert!(news.len() == 2 && news[1].text == "the drive works again", "{news:?}");
        assert_eq!(cores.disk(0).health().expect("it has").resets, 1);
        assert!(!cores.disk(0).pending() && !cores.disk(1).pending());
        // Further requests work.
        (0..2).for_each(|core| cores.submit(core, read(6, 6, data)));
        all_well(&cores.turns(1), [&[6], &[6]]);
        assert_eq!(cores.complaints(), [""; 0]);
    }
}

/// A busy loop does not delay other cores, and does not use stale queues when it polls again.
#[test]
fn late_core_delays_only_itself() {
    let mut cores = cores(Config::default());
    let data = cores.buffer(512);
    (0..5).for_each(|tag| cores.submit(1, read(tag, tag, data)));
    for round in 1..=2u64 {
        cores.machine.model(|model| model.inject(Fault::Fatal));
        cores.submit(0, read(1, 1, data));
        let now = cores.machine.pass(SECOND);
        cores.disk(0).watch(now);
        let mut done = Vec::new();
        for _ in 0..50 {
            cores.machine.run();
            done.extend(ends(cores.disk(0)));
            // The late core submits without polling.
            if done.is_empty() {
                let _ = cores.other[0].submit(&read(10 * round, 1, data));
            }
        }
        assert_eq!(done, [Completion { tag: 1, result: OK }]);
        assert!(!cores.disk(0).pending(), "the owner does not spin for the other core");
    }
    // After two resets the core polls again, and its requests complete.
    let mut done = cores.turns(2);
    cores.watch(1);
    done.extend(cores.turns(20));
    assert!(done.iter().all(|(core, done)| *core == 1 && done.result == OK));
    let mut tags: Vec<u64> = done.iter().map(|(_, done)| done.tag).collect();
    tags.retain(|tag| *tag < 5);
    assert_eq!(tags, [0, 1, 2, 3, 4]);
    assert_eq!(cores.complaints(), [""; 0]);
}

/// A loop without outstanding requests does not poll. It arms its interrupt when it halts, and can halt then.
#[test]
fn halting_core_notices_a_reset() {
    let mut cores = cores(Config::default());
    cores.disk(1).set_interrupts(true);
    cores.machine.model(|model| model.inject(Fault::Fatal));
    let now = cores.machine.pass(SECOND);
    cores.disk(0).watch(now);
    for _ in 0..50 {
        cores.machine.run();
        assert_eq!(cores.disk(0).poll(), None);
        if cores.disk(1).pending() {
            cores.disk(1).set_interrupts(false);
            cores.disk(1).set_interrupts(true);
            assert!(!cores.disk(1).pending());
        }
    }
    assert!(!cores.disk(0).pending());
    let data = cores.buffer(512);
    cores.submit(1, read(1, 1, data));
    cores.machine.run();
    assert!(cores.disk(1).interrupts() > 0, "interrupts still wake the core");
    all_well(&cores.turns(1), [&[], &[1]]);
    assert_eq!(cores.complaints(), [""; 0]);
}

#[test]
fn a_drive_that_is_pulled_out_ends_the_requests_of_all() {
    let mut cores = cores(Config::default());
    let data = cores.buffer(512);
    for core in 0..2 {
        (0..3).for_each(|tag| cores.submit(core, read(tag, tag, data)));
    }
    cores.machine.pull_out(true);
    assert_eq!(cores.turns(1), []);
    cores.watch(1);
    let broken = |core, tag| (core, Completion { tag, result: Err(DiskError::Broken) });
    let expected: Vec<_> =
        (0..2).flat_map(|core| (0..3).map(move |tag| broken(core, tag))).collect();
    assert_eq!(cores.turns(1), expected);
    cores.submit(1, read(4, 0, data));
    assert_eq!(cores.turns(1), [broken(1, 4)]);
    let accesses = cores.machine.accesses();
    cores.watch(100);
    assert!(!cores.disk(0).pending() && !cores.disk(1).pending());
    assert_eq!((cores.notices().len(), cores.machine.accesses()), (1, accesses));
}

#[test]
fn a_drive_that_is_given_up_is_given_up_for_all() {
    let mut cores = cores(Config::default());
    let data = cores.buffer(512);
    let mut last = Vec::new();
    for tag in 0..10 {
        cores.machine.model(|model| model.inject(Fault::CompletesTwice));
        cores.submit(1, read(tag, 1, data));
        cores.turns(2);
        cores.watch(1);
        last = cores.turns(50);
    }
    assert_eq!(last, [], "the drive was given up before");
    for core in 0..2 {
        cores.submit(core, read(77, 1, data));
        let broken = Completion { tag: 77, result: Err(DiskError::Broken) };
        assert_eq!(cores.turns(1), [(core, broken)]);
    }
    let health = cores.disk(0).health().expect("it has");
    assert!(health.gone && health.resets == 3);
}

/// A completion in a wrong queue, or with a wrong queue number, ends no request, not even one with the same identifier.
#[test]
fn completion_of_another_queue_ends_no_request() {
    for fault in
        [Fault::CompletesIn(1), Fault::CompletesIn(2), Fault::NamesQueue(1), Fault::NamesQueue(2)]
    {
        let mut cores = cores(Config::default());
        let data = cores.buffer(512);
        cores.machine.model(|model| model.inject(fault));
        // The fault affects the other core's request for queue 1, the owner's for queue 2.
        let faulty = match fault {
            Fault::CompletesIn(1) | Fault::NamesQueue(1) => 1,
            _ => 0,
        };
        cores.submit(faulty, read(0, 1, data));
        cores.machine.run();
        // The unaffected core has a request with the same identifier.
        cores.submit(1 - faulty, read(0, 1, data));
        let early = match fault {
            Fault::NamesQueue(_) => Vec::new(),
            _ => ends(cores.disk(1 - faulty)),
        };
        assert_eq!(early, [], "{fault:?}");
        let mut done = cores.turns(3);
        for _ in 0..20 {
            cores.watch(1);
            done.extend(cores.turns(5));
        }
        done.sort_by_key(|(core, _)| *core);
        all_well(&done, [&[0], &[0]]);
        let news = cores.notices();
        assert!(news[0].text.contains("completed an unknown request"), "{fault:?} {news:?}");
        assert_eq!(cores.disk(0).health().expect("it has").resets, 1, "{fault:?}");
        assert_eq!(cores.complaints(), [""; 0]);
    }
}

#[test]
fn owner_aborts_or_resets_for_late_requests_of_another_core() {
    for (fault, aborts, resets) in [(Fault::NeverCompletes, 1, 0), (Fault::NeverAborts, 1, 1)] {
        let mut cores = cores(Config::default());
        let data = cores.buffer(512);
        cores.machine.model(|model| model.inject(fault));
        cores.submit(1, read(9, 3, data));
        cores.machine.run();
        cores.submit(1, read(10, 4, data));
        cores.submit(0, read(11, 4, data));
        all_well(&cores.turns(1), [&[11], &[10]]);
        cores.watch(9);
        assert_eq!((cores.turns(1).len(), cores.notices().len()), (0, 0), "within the time limit");
        let mut done = Vec::new();
        for _ in 0..10 {
            cores.watch(1);
            done.extend(cores.turns(10));
        }
        all_well(&done, [&[], &[9]]);
        let health = cores.disk(0).health().expect("it has");
        assert_eq!((health.aborts, health.resets), (aborts, resets), "counted once");
        assert_eq!(cores.complaints(), [""; 0]);
    }
}

/// A drive that refuses its queues after a reset is given up, and all requests end.
#[test]
fn a_drive_that_has_fewer_queues_after_a_reset_is_given_up() {
    let mut cores = cores(Config::default());
    let data = cores.buffer(512);
    cores.submit(1, read(1, 1, data));
    cores.machine.model(|model| {
        model.inject(Fault::Fatal);
        model.inject(Fault::RefusesAdmin(9));
    });
    cores.watch(1);
    let done = cores.turns(50);
    assert_eq!(done, [(1, Completion { tag: 1, result: Err(DiskError::Broken) })]);
    assert!(cores.disk(0).health().expect("it has").gone);
}

/// Two threads, each with a pair, while faults are injected: each request ends once, and reads without an error return
/// the right data.
#[test]
fn two_threads_with_a_faulty_drive() {
    const ROUNDS: u64 = 4_000;
    let mut cores = alone(Config { entries: 16, ..Config::default() }, &[]);
    let queue = cores.open(1).expect("the drive has another pair");
    let buffers: Vec<Window> = (0..16).map(|_| cores.buffer(4096)).collect();
    let (mine, theirs) = buffers.split_at(8);
    let finished = AtomicBool::new(false);
    // Reads of the other thread, which may be scheduled late.
    let read_there = AtomicU64::new(0);
    let user = |disk: &mut dyn Disk,
                buffers: &[Window],
                read_here: &AtomicU64,
                stop: &dyn Fn(u64) -> bool,
                turn: &mut dyn FnMut(&mut dyn Disk, u64)| {
        let mut outstanding = vec![None; buffers.len()];
        let (mut ended, mut round) = ([0u64; 2], 0);
        loop {
            let over = stop(round);
            for (place, slot) in outstanding.iter_mut().enumerate() {
                if slot.is_none() && !over {
                    buffers[place].fill(0);
                    let tag = round << 8 | place as u64;
                    if disk
                        .submit(&read(
                            tag,
                            round % 4000,
                            buffers[place].slice(0, 512).expect("inside"),
                        ))
                        .is_ok()
                    {
                        *slot = Some(tag);
                    }
                }
            }
            disk.flush_queue();
            turn(disk, round);
            while let Some(done) = disk.poll() {
                let place = (done.tag & 0xff) as usize;
                assert_eq!(outstanding[place].take(), Some(done.tag), "each request ends once");
                let mut bytes = [0; 512];
                buffers[place].read(0, &mut bytes).expect("inside");
                assert!(done.result.is_err() || bytes == [0xa5; 512], "wrong data");
                ended[usize::from(done.result.is_ok())] += 1;
                read_here.store(ended[1], Ordering::Relaxed);
            }
            round += 1;
            if over && outstanding.iter().all(Option::is_none) {
                return ended;
            }
        }
    };
    let (clock, machine) = (cores.machine.clock(), &cores.machine);
    let time = |round: u64| drivers::hal::Instant::from_nanos(round * 100_000_000);
    let (first, second) = std::thread::scope(|scope| {
        let clock_there = machine.clock();
        let (finished, read_there) = (&finished, &read_there);
        let there = scope.spawn(move || {
            let mut disks = queue.disks();
            let mut turn = |disk: &mut dyn Disk, round: u64| {
                drivers::hal::Clock::now(&clock_there);
                if round.is_multiple_of(10) {
                    disk.watch(time(round));
                }
            };
            user(
                &mut *disks[0],
                theirs,
                read_there,
                &|_| finished.load(Ordering::Relaxed),
                &mut turn,
            )
        });
        let faults = [
            Fault::Fatal,
            Fault::ResetsItself,
            Fault::CompletesTwice,
            Fault::NeverAborts,
            Fault::NeverCompletes,
            Fault::NamesQueue(7),
        ];
        let last = Cell::new(0);
        let mut turn = |disk: &mut dyn Disk, round: u64| {
            last.set(round);
            drivers::hal::Clock::now(&clock);
            if round.is_multiple_of(1000) && round < ROUNDS {
                let fault = faults[(round / 1000) as usize % faults.len()];
                machine.model(|model| model.inject(fault));
            }
            if round.is_multiple_of(10) {
                disk.watch(time(round));
            }
        };
        let stop = |round| round > ROUNDS && read_there.load(Ordering::Relaxed) > 100;
        let first = user(&mut *cores.owner[0].disk, mine, &AtomicU64::new(0), &stop, &mut turn);
        finished.store(true, Ordering::Relaxed);
        // The owner continues its health checks until the other thread has ended.
        let mut round = last.get() + 1000;
        while !there.is_finished() {
            round += 1;
            drivers::hal::Clock::now(&clock);
            let disk = &mut *cores.owner[0].disk;
            disk.watch(time(round));
            assert_eq!(disk.poll(), None);
        }
        (first, there.join().expect("no panic"))
    });
    assert!(first[1] > 1000 && second[1] > 100, "both worked: {first:?} {second:?}");
    let health = cores.owner[0].disk.health().expect("it has");
    assert!(!health.gone && health.resets > 0, "{health:?}");
    let mut complaints = cores.complaints();
    // The driver does not notice at once that a drive has reset itself and has no queues.
    complaints.retain(|complaint| !complaint.contains("which does not exist"));
    assert_eq!(complaints, [""; 0]);
}
