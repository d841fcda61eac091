//! The NVMe driver on the model, with and without faults.

use drivers::block::OpenDisk;
use drivers::driver::Class;
use drivers::hal::{
    Clock, Completion, Disk, DiskError, Features, Operation, Platform, Request, Severity,
    SubmitError, Window,
};
use metal::Metal;
use models::nvme::{Config, Fault, Nvme, Shape};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

mod returns;

const SECOND: Duration = Duration::from_secs(1);

pub struct Bench {
    machine: Metal<Nvme>,
    pub disks: Vec<OpenDisk>,
    pub refused: Vec<String>,
}

fn machine(settings: Config) -> Metal<Nvme> {
    Metal::new(Nvme::new(settings), 8 << 20)
}

/// Opens the drive of a machine. An error is the reason.
fn try_open(mut machine: Metal<Nvme>) -> Result<Bench, String> {
    let device = machine.find().take(Class::Disks).remove(0);
    assert_eq!(device.driver(), "nvme");
    let free = machine.arena().available();
    let clock = machine.clock();
    match device.open_disks(&mut machine, &clock) {
        Ok(opened) => {
            let refused = opened.refused.into_iter().map(|(at, why)| format!("{at}: {why}"));
            Ok(Bench { refused: refused.collect(), machine, disks: opened.disks })
        }
        Err(why) => {
            assert_eq!(machine.arena().available(), free, "memory is freed");
            Err(why.to_string())
        }
    }
}

pub fn open(settings: Config) -> Bench {
    try_open(machine(settings)).unwrap()
}

impl Bench {
    fn buffer(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).unwrap()
    }

    fn disk(&mut self, unit: usize) -> &mut dyn Disk {
        &mut *self.disks[unit].disk
    }

    fn submit(&mut self, unit: usize, request: Request) {
        self.disk(unit).submit(&request).unwrap();
        self.disk(unit).flush_queue();
    }

    /// Runs the model, and polls all completions.
    fn poll(&mut self, unit: usize) -> Vec<Completion> {
        self.machine.run();
        let disk = self.disk(unit);
        std::iter::from_fn(|| disk.poll()).collect()
    }

    /// Runs one request, and returns its result.
    fn done(
        &mut self,
        unit: usize,
        operation: Operation,
        sector: u64,
        data: Window,
    ) -> Result<(), DiskError> {
        self.submit(unit, Request { tag: 1, operation, sector, data });
        let done = self.poll(unit);
        assert_eq!((done.len(), done[0].tag), (1, 1));
        done[0].result
    }

    /// Advances the time by this many seconds, with only the health checks of the disks.
    fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            self.machine.run();
            self.disks.iter_mut().for_each(|one| one.disk.watch(now));
            self.machine.run();
        }
    }

    /// Runs rounds of the loop until a request completes, 50 at most.
    fn turns(&mut self, unit: usize) -> Vec<Completion> {
        (0..50).map(|_| self.poll(unit)).find(|done| !done.is_empty()).unwrap_or_default()
    }

    /// The driver's notices to the operator.
    fn notices(&mut self) -> Vec<(Severity, &'static str)> {
        let disk = self.disk(0);
        std::iter::from_fn(|| disk.notice()).map(|one| (one.severity, one.text)).collect()
    }

    fn complaints(&self) -> Vec<String> {
        self.machine.model(|model| model.complaints.clone())
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.machine.model(|model| models::Function::counters(model));
        counters.into_iter().find(|(n, _)| n == name).unwrap().1
    }
}

fn read(tag: u64, sector: u64, data: Window) -> Request {
    Request { tag, operation: Operation::Read, sector, data }
}

const OK: Result<(), DiskError> = Ok(());

#[test]
fn a_drive_is_found_with_its_names_and_shape() {
    let bench = open(Config::default());
    let one = &bench.disks[0];
    assert_eq!(one.location.to_string(), "pci:0000:00:03.0/1");
    assert_eq!(
        (one.serial.as_str(), one.model.as_str(), one.firmware.as_str()),
        ("model-1", "Model", "1.0")
    );
    let g = one.disk.geometry();
    assert_eq!((g.sectors, g.logical_block, g.max_transfer), (4096, 512, 128 << 10));
    let all = Features::VOLATILE_CACHE
        | Features::WRITE_THROUGH
        | Features::DISCARD
        | Features::WRITE_ZEROES;
    assert_eq!(g.features, all);
    assert_eq!(one.disk.depth(), 255);
    let health = one.disk.health().unwrap();
    assert_eq!((health.celsius, health.spare, health.gone), (Some(37), Some(100), false));
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn data_is_written_and_read_back_at_any_offset() {
    for (mdts, shift) in [(5, 9), (0, 12), (1, 9)] {
        let shape = Shape::new(1, 4 << (20 - shift), shift);
        let mut bench = open(Config { mdts, namespaces: vec![shape], ..Config::default() });
        let most = bench.disks[0].disk.geometry().max_transfer as usize;
        assert_eq!(most, if mdts == 0 { 1 << 20 } else { 4096 << mdts });
        let whole = bench.buffer(2 * (most + 8192));
        for (offset, len) in
            [(0, 4096), (4, 4096), (2048, 8192), (4092, most), (0, most), (512, most)]
        {
            let from = whole.slice(offset, len).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 512 + offset) as u8).collect();
            from.write(0, &bytes).unwrap();
            assert_eq!(bench.done(0, Operation::WriteThrough, 16, from), OK);
            let medium =
                bench.machine.model(|m| m.namespace(1).unwrap().medium()[8192..][..len].to_vec());
            assert!(medium == bytes, "{mdts} {offset} {len}");
            let into = whole.slice(most + 8192 + offset, len).unwrap();
            into.fill(0);
            assert_eq!(bench.done(0, Operation::Read, 16, into), OK);
            let mut back = vec![0; len];
            into.read(0, &mut back).unwrap();
            assert!(back == bytes, "{mdts} {offset} {len}");
        }
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn flushed_and_fua_writes_survive_a_power_cut() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    data.fill(7);
    assert_eq!(bench.done(0, Operation::Write, 0, data), OK);
    assert_eq!(bench.done(0, Operation::Flush, 0, Window::empty()), OK);
    assert_eq!(bench.done(0, Operation::WriteThrough, 1, data), OK);
    assert_eq!(bench.done(0, Operation::Write, 2, data), OK);
    let medium = bench.machine.model(|model| {
        model.cut_power();
        model.namespace(1).unwrap().medium()[..1536].to_vec()
    });
    assert_eq!((medium[0], medium[512], medium[1024]), (7, 7, 0xa5));
}

#[test]
fn flush_without_a_cache_sends_no_command() {
    let mut bench = open(Config { volatile_cache: false, ..Config::default() });
    assert!(!bench.disks[0].disk.geometry().features.contains(Features::VOLATILE_CACHE));
    assert_eq!(bench.done(0, Operation::Flush, 0, Window::empty()), OK);
    assert_eq!(bench.counter("flushes"), 0);
}

#[test]
fn blocks_are_zeroed_and_discarded() {
    let mut bench = open(Config::default());
    let none = Window::empty();
    let zeroes = |unmap| Operation::WriteZeroes { sectors: 8, unmap };
    assert_eq!(bench.done(0, zeroes(true), 0, none), OK);
    assert_eq!(bench.done(0, zeroes(false), 8, none), OK);
    assert_eq!(bench.done(0, Operation::Discard { sectors: 100 }, 16, none), OK);
    let medium = bench.machine.model(|model| model.namespace(1).unwrap().medium().to_vec());
    assert!(medium[..116 * 512].iter().all(|&byte| byte == 0));
    assert_eq!(medium[116 * 512], 0xa5, "no further blocks");
}

#[test]
fn drives_without_optional_commands_work() {
    let mut bench = open(Config {
        version: 0x0001_0000,
        optional: 0,
        volatile_cache: false,
        lists_namespaces: false,
        health: false,
        entries: 2,
        stride: 3,
        vectors: 1,
        ..Config::default()
    });
    let features = bench.disks[0].disk.geometry().features;
    assert_eq!(features, Features::WRITE_THROUGH);
    assert_eq!(bench.disks[0].disk.depth(), 1);
    let data = bench.buffer(4096);
    assert_eq!(bench.done(0, Operation::Write, 0, data), OK);
    let discard = Request {
        tag: 1,
        operation: Operation::Discard { sectors: 8 },
        sector: 0,
        data: Window::empty(),
    };
    assert_eq!(bench.disk(0).submit(&discard), Err(SubmitError::Unsupported));
    assert_eq!(bench.disks[0].disk.health().unwrap().celsius, None);
    bench.watch(100);
    assert_eq!(bench.notices(), []);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn namespaces_are_disks_of_their_own() {
    let read_only = Shape { read_only: true, ..Shape::new(7, 16, 12) };
    let metadata = Shape { metadata: 8, ..Shape::new(8, 16, 9) };
    let huge = Shape::new(9, u64::MAX / 512, 9);
    let namespaces = vec![Shape::new(2, 100, 9), read_only, metadata, huge];
    let mut bench = open(Config { namespaces, ..Config::default() });
    let places: Vec<String> = bench.disks.iter().map(|one| one.location.to_string()).collect();
    assert_eq!(places, ["pci:0000:00:03.0/2", "pci:0000:00:03.0/7"]);
    assert_eq!(bench.refused.len(), 2);
    assert!(
        bench.refused[0].contains("pci:0000:00:03.0/8") && bench.refused[0].contains("nvme format")
    );
    assert!(bench.disks[1].disk.geometry().features.contains(Features::READ_ONLY));
    let data = bench.buffer(4096);
    let write = Request { operation: Operation::Write, ..read(1, 0, data) };
    assert_eq!(bench.disk(1).submit(&write), Err(SubmitError::Unsupported));
    // Each disk gets its own completions, whichever disk is polled.
    let one = data.slice(0, 512).unwrap();
    (0..3).for_each(|tag| bench.submit(0, read(tag, tag, one)));
    bench.submit(1, read(70, 0, data));
    assert_eq!(bench.poll(1).iter().map(|done| done.tag).collect::<Vec<_>>(), [70]);
    assert!(bench.disks[0].disk.pending());
    assert_eq!(bench.poll(0).iter().map(|done| done.tag).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!bench.disks[0].disk.pending());
    assert_eq!((bench.disks[0].disk.depth(), bench.disks[1].disk.depth()), (127, 127));
}

#[test]
fn impossible_requests_are_refused_without_a_command() {
    let mut bench = open(Config { namespaces: vec![Shape::new(1, 100, 12)], ..Config::default() });
    let data = bench.buffer(256 << 10);
    let commands = bench.counter("commands");
    let mut refused = |sector, offset, len| {
        let data = data.slice(offset, len).unwrap();
        assert_eq!(bench.disk(0).submit(&read(1, sector, data)), Err(SubmitError::Range));
    };
    refused(0, 0, 0);
    refused(0, 0, 512); // not a block
    refused(4, 0, 4096); // not aligned to a block
    refused(800, 0, 4096); // past the end
    refused(u64::MAX - 7, 0, 4096);
    refused(0, 0, 132 << 10); // more than MDTS
    refused(0, 2, 4096); // memory that PRPs cannot address
    assert_eq!(bench.counter("commands"), commands);
}

#[test]
fn queue_accepts_requests_up_to_its_depth() {
    let mut bench = open(Config { entries: 64, ..Config::default() });
    let data = bench.buffer(512);
    let mut next = 0;
    // Many laps of the rings, with both phases.
    for _ in 0..20 {
        let first = next;
        while bench.disk(0).submit(&read(next, next % 4096, data)).is_ok() {
            next += 1;
        }
        assert_eq!(next - first, 63);
        assert_eq!(bench.disk(0).submit(&read(0, 0, data)), Err(SubmitError::Full));
        bench.disk(0).flush_queue();
        let tags: Vec<u64> = bench.poll(0).iter().map(|done| done.tag).collect();
        assert!(tags.into_iter().eq(first..next));
    }
    assert_eq!(bench.complaints(), [""; 0]);
}

/// A failed request frees its queue entry.
#[test]
fn failed_request_frees_its_entry() {
    let mut bench = open(Config { entries: 64, ..Config::default() });
    let data = bench.buffer(512);
    for tag in 0..200 {
        bench.machine.model(|drive| drive.inject(Fault::Fails(1 << 14 | 0x281)));
        bench.disk(0).submit(&read(tag, 0, data)).expect("room");
        bench.disk(0).flush_queue();
        let ended = bench.poll(0);
        assert!(ended.len() == 1 && ended[0].tag == tag && ended[0].result.is_err(), "{ended:?}");
    }
    let room = (0..100).take_while(|&n| bench.disk(0).submit(&read(n, n, data)).is_ok()).count();
    assert_eq!(room, 63);
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    for vectors in [1, 2] {
        let mut bench = open(Config { vectors, ..Config::default() });
        assert!(bench.disks[0].disk.wakes());
        let data = bench.buffer(512);
        assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
        assert_eq!(bench.disks[0].disk.interrupts(), 0);
        bench.disk(0).set_interrupts(true);
        let stale = bench.disks[0].disk.interrupts();
        assert!(stale <= 1, "earlier completions raise one interrupt");
        bench.submit(0, read(2, 0, data));
        bench.machine.run();
        assert!(bench.disks[0].disk.pending());
        assert_eq!(bench.disks[0].disk.interrupts(), stale + 1);
        bench.disk(0).set_interrupts(false);
        assert_eq!(bench.poll(0).len(), 1);
        let accesses = bench.machine.accesses();
        bench.disk(0).set_interrupts(false);
        assert_eq!(bench.machine.accesses(), accesses, "the mask is written once");
    }
    // Without a free interrupt the loop must poll.
    let mut machine = machine(Config::default());
    machine.interrupts = 0;
    let mut bench = try_open(machine).unwrap();
    assert!(!bench.disks[0].disk.wakes());
    let data = bench.buffer(512);
    assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
}

#[test]
fn a_lost_interrupt_costs_time_and_nothing_else() {
    let mut bench = open(Config::default());
    bench.machine.model(|model| model.inject(Fault::NoInterrupts));
    let data = bench.buffer(512);
    bench.disk(0).set_interrupts(true);
    bench.submit(0, read(5, 0, data));
    bench.machine.run();
    assert_eq!(bench.disks[0].disk.interrupts(), 0);
    bench.watch(60);
    assert_eq!(bench.poll(0), [Completion { tag: 5, result: OK }], "the completion was there");
    assert_eq!(bench.notices(), []);
}

#[test]
fn error_affects_one_request() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    for (status, result) in [
        (0x4281, Err(DiskError::Io)),
        (0x4080, Err(DiskError::Io)),
        (0x4001, Err(DiskError::Unsupported)),
        (0x0021, OK), // interrupted: done again
        (0x0082, OK),
        (0x4082, Err(DiskError::Io)),
    ] {
        bench.machine.model(|model| model.inject(Fault::Fails(status)));
        bench.submit(0, read(1, 0, data));
        bench.submit(0, read(2, 0, data));
        let mut done = bench.poll(0);
        done.extend(bench.poll(0));
        done.sort_by_key(|done| done.tag);
        let expected = [Completion { tag: 1, result }, Completion { tag: 2, result: OK }];
        assert_eq!(done, expected, "{status:#x}");
    }
    // Retries of a persistent transient error are limited.
    (0..10).for_each(|_| bench.machine.model(|model| model.inject(Fault::Fails(0x21))));
    bench.submit(0, read(1, 0, data));
    assert_eq!(bench.turns(0), [Completion { tag: 1, result: Err(DiskError::Io) }]);
}

#[test]
fn request_that_never_completes_is_aborted_and_repeated() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.machine.model(|model| model.inject(Fault::NeverCompletes));
    bench.submit(0, read(9, 3, data));
    bench.submit(0, read(10, 4, data));
    assert_eq!(bench.poll(0).len(), 1, "the other request");
    bench.watch(9);
    assert_eq!((bench.poll(0), bench.notices()), (vec![], vec![]), "within the time limit");
    bench.watch(3);
    assert_eq!(bench.turns(0), [Completion { tag: 9, result: OK }]);
    let news = bench.notices();
    assert!(
        news.len() == 1 && news[0].0 == Severity::Warning && news[0].1.contains("abort"),
        "{news:?}"
    );
    let health = bench.disks[0].disk.health().unwrap();
    assert_eq!((health.aborts, health.resets), (1, 0));
    assert_eq!(bench.complaints(), [""; 0]);
}

/// Checks that the controller is reset, and that outstanding requests are repeated.
fn works_again(bench: &mut Bench, tags: &[u64], says: &str) {
    let mut done: Vec<Completion> = (0..60).flat_map(|_| bench.poll(0)).collect();
    done.sort_by_key(|done| done.tag);
    let expected: Vec<Completion> =
        tags.iter().map(|&tag| Completion { tag, result: OK }).collect();
    assert_eq!(done, expected);
    let news = bench.notices();
    let (first, last) = (news[0], news[news.len() - 1]);
    assert!(
        news.iter().any(|(how, text)| *how == Severity::Warning && text.contains(says)),
        "{news:?}"
    );
    assert_eq!(last, (Severity::Information, "the drive works again"), "{first:?}");
    let data = bench.buffer(512);
    assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_controller_that_does_not_abort_is_reset() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.machine.model(|model| model.inject(Fault::NeverAborts));
    bench.submit(0, read(9, 3, data));
    bench.watch(17);
    works_again(&mut bench, &[9], "did not complete a request, nor abort it");
    assert_eq!(bench.disks[0].disk.health().unwrap().resets, 1);
}

#[test]
fn fatal_error_causes_a_reset() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.machine.model(|model| model.inject(Fault::Fatal));
    (0..5).for_each(|tag| bench.submit(0, read(tag, tag, data)));
    assert_eq!(bench.poll(0), []);
    bench.watch(1);
    // Requests during the reset wait.
    bench.submit(0, read(5, 5, data));
    works_again(&mut bench, &[0, 1, 2, 3, 4, 5], "CSTS.CFS");
}

#[test]
fn a_controller_that_resets_itself_is_set_up_anew() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.submit(0, read(1, 1, data));
    bench.machine.model(|model| model.inject(Fault::ResetsItself));
    bench.watch(1);
    works_again(&mut bench, &[1], "has reset itself");
}

#[test]
fn duplicate_completion_is_noticed_and_ends_no_other_request() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.machine.model(|model| model.inject(Fault::CompletesTwice));
    bench.submit(0, read(1, 1, data));
    bench.machine.run();
    assert_eq!(bench.disk(0).poll(), Some(Completion { tag: 1, result: OK }));
    // Another request, without data yet, uses the entry now.
    bench.submit(0, read(2, 2, data));
    assert_eq!(bench.disk(0).poll(), None);
    works_again(&mut bench, &[2], "completed one twice");
}

#[test]
fn completion_of_an_unknown_request_is_noticed() {
    for by in [1, 0x100, 0xff00] {
        let mut bench = open(Config::default());
        let data = bench.buffer(512);
        bench.machine.model(|model| model.inject(Fault::NamesAnother(by)));
        bench.submit(0, read(1, 1, data));
        works_again(&mut bench, &[1], "completed an unknown request");
    }
}

/// The named request ends early and once, and the other one is repeated.
#[test]
fn completion_that_names_another_request_ends_each_once() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.machine.model(|model| model.inject(Fault::NamesAnother(1)));
    bench.submit(0, read(1, 1, data));
    bench.submit(0, read(2, 2, data));
    works_again(&mut bench, &[1, 2], "completed one twice");
}

#[test]
fn controller_that_needs_too_many_resets_is_given_up() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    let mut last = None;
    for tag in 0..10 {
        bench.machine.model(|model| model.inject(Fault::CompletesTwice));
        bench.submit(0, read(tag, 1, data));
        (0..60).for_each(|_| last = bench.poll(0).pop().or(last));
    }
    assert_eq!(last, Some(Completion { tag: 9, result: Err(DiskError::Broken) }));
    let news = bench.notices();
    assert!(
        news.iter().any(|(how, text)| *how == Severity::Error && text.contains("too many resets"))
    );
    let health = bench.disks[0].disk.health().unwrap();
    assert!(health.gone && health.resets == 3);
}

#[test]
fn controller_that_does_not_stop_loses_bus_mastering() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench
        .machine
        .model(|model| [Fault::StuckReady, Fault::StuckFatal].map(|fault| model.inject(fault)));
    bench.submit(0, read(1, 1, data));
    bench.watch(60);
    assert_eq!(bench.poll(0), [Completion { tag: 1, result: Err(DiskError::Broken) }]);
    let master = bench.machine.model(|model| models::Function::config(model).is_bus_master());
    assert!(!master, "it could still write to reused memory");
}

#[test]
fn a_controller_that_is_silent_on_the_admin_queue_is_reset() {
    let mut bench = open(Config::default());
    bench.machine.model(|model| model.inject(Fault::DeafAdmin));
    let reset = (0..200).any(|_| {
        bench.watch(1);
        bench.disks[0].disk.health().unwrap().resets > 0
    });
    assert!(reset);
    bench.machine.model(|model| model.repair());
    works_again(&mut bench, &[], "does not complete admin commands");
}

#[test]
fn another_drive_in_the_same_place_is_not_used() {
    let mut bench = open(Config::default());
    bench
        .machine
        .model(|model| *model = Nvme::new(Config { serial: "other".into(), ..Config::default() }));
    let command = 6u16.to_le_bytes();
    bench.machine.model(|model| models::Function::config(model).write(4, &command));
    let data = bench.buffer(512);
    bench.watch(3);
    (0..50).for_each(|_| assert_eq!(bench.poll(0), []));
    bench.submit(0, read(1, 1, data));
    assert_eq!(bench.poll(0)[0].result, Err(DiskError::Broken));
    assert!(bench.notices().iter().any(|(_, text)| text.contains("another drive")));
    bench.watch(100);
    assert!(bench.disks[0].disk.health().unwrap().gone, "it is not tried again");
}

#[test]
fn broken_controllers_do_not_open_and_say_why() {
    for (faults, says) in [
        (vec![Fault::StuckReady], "does not come out of reset in 2 s"),
        (vec![Fault::NeverReady], "does not become ready in 2 s"),
        (vec![Fault::StuckFatal], "fatal error"),
        (vec![Fault::DeafAdmin], "does not answer the command Identify"),
        (
            vec![Fault::RefusesAdmin(6)],
            "refuses the command Identify with status type 0, code 0x02",
        ),
        (vec![Fault::RefusesAdmin(5)], "refuses the command Create I/O Completion Queue"),
        (vec![Fault::RefusesAdmin(1)], "refuses the command Create I/O Submission Queue"),
    ] {
        let machine = machine(Config::default());
        machine.model(|model| faults.iter().for_each(|&fault| model.inject(fault)));
        let why = try_open(machine).err().unwrap();
        assert!(why.contains(says), "{faults:?}: {why}");
    }
    let why = try_open(machine(Config { version: 0x100, ..Config::default() })).err().unwrap();
    assert!(why.contains("version 0x100"), "{why}");
    let why = try_open(machine(Config { namespaces: vec![], ..Config::default() })).err().unwrap();
    assert!(why.contains("nvme create-ns"), "{why}");
}

#[test]
fn a_controller_that_does_not_count_queues_has_one_all_the_same() {
    let machine = machine(Config::default());
    machine.model(|model| model.inject(Fault::RefusesAdmin(9)));
    let mut bench = try_open(machine).unwrap();
    let data = bench.buffer(512);
    assert_eq!(bench.done(0, Operation::Read, 0, data), OK);
}

#[test]
fn a_controller_that_vanishes_while_it_is_set_up_ends_the_wait() {
    let mut machine = machine(Config::default());
    let device = machine.find().take(Class::Disks).remove(0);
    machine.pull_out(true);
    let clock = machine.clock();
    assert!(device.open_disks(&mut machine, &clock).is_err());
}

#[test]
fn health_is_polled_and_warnings_are_reported_once() {
    let mut bench = open(Config {
        namespaces: vec![Shape::new(1, 100, 9), Shape::new(2, 100, 9)],
        ..Config::default()
    });
    bench.machine.model(|model| (model.temperature, model.warnings) = (353, 2));
    bench.machine.model(|model| model.resize(2, 300));
    bench.watch(40);
    assert_eq!(bench.disks[1].disk.health().unwrap().celsius, Some(80));
    let news = bench.notices();
    assert!(news.len() == 1 && news[0].1.contains("too hot"), "{news:?}");
    bench.watch(100);
    assert_eq!(bench.notices(), []);
    assert!(!bench.disk(0).capacity_changed() && bench.disk(1).capacity_changed());
    assert!(!bench.disk(1).capacity_changed(), "reported once");
    assert_eq!(bench.disks[1].disk.geometry().sectors, 300);
}

#[test]
fn drive_is_notified_of_shutdown() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    data.fill(7);
    assert_eq!(bench.done(0, Operation::Write, 0, data), OK);
    assert!(!bench.disks[0].disk.is_shut_down());
    bench.disk(0).shut_down();
    assert!(bench.disks[0].disk.is_shut_down());
    assert_eq!(bench.counter("shutdowns"), 1);
    bench.machine.model(|model| {
        model.cut_power();
        assert_eq!(model.namespace(1).unwrap().medium()[0], 7);
    });
    bench.machine.pull_out(true);
    bench.disk(0).shut_down();
    assert!(bench.disks[0].disk.is_shut_down(), "no wait for a removed drive");
}

/// The crash write after a panic, with requests of the driver outstanding.
#[test]
fn crash_write_is_durable_when_it_returns() {
    let namespaces = vec![Shape::new(1, 256, 12)];
    let mut bench = open(Config { namespaces, mdts: 1, ..Config::default() });
    let mut crash = bench.disks[0].crash.take().unwrap();
    assert!(crash.prepare(64 << 10, bench.machine.arena()));
    let data = bench.buffer(4096);
    bench.submit(0, read(1, 0, data));
    let (clock, stop) = (bench.machine.clock(), AtomicBool::new(false));
    let record: Vec<u8> = (0..40 << 10).map(|i| (i / 100) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                clock.now();
                thread::yield_now();
            }
        });
        let results = [4, 16, 16].map(|sector| crash.write(sector, &record));
        stop.store(true, Ordering::Relaxed);
        let misaligned = Err("the write is not in whole blocks of the disk");
        assert_eq!(results, [misaligned, Ok(()), Err("there was a write already")]);
    });
    bench.machine.model(|model| {
        model.cut_power();
        assert!(model.namespace(1).unwrap().medium()[8192..][..record.len()] == record);
    });
    assert_eq!(bench.complaints(), [""; 0]);
}

/// After a pause of the machine (a paused VM) requests are late, but the drive is not broken.
#[test]
fn pause_of_the_machine_is_not_blamed_on_the_drive() {
    let mut bench = open(Config::default());
    bench.watch(2);
    let data = bench.buffer(512);
    bench.submit(0, read(1, 1, data));
    let now = bench.machine.pass(Duration::from_secs(3600));
    bench.disk(0).watch(now);
    assert_eq!(bench.notices(), []);
    assert_eq!(bench.turns(0), [Completion { tag: 1, result: OK }]);
}
