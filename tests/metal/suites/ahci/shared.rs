//! What the ports of a controller share, and drives that change while they are away.

use super::*;
use models::Function;

impl Bench {
    fn is_bus_master(&self) -> bool {
        self.machine.model(|model| model.config().is_bus_master())
    }
}

fn two_drives() -> Config {
    let second = disk(Shape { serial: "second".into(), ..Shape::default() });
    Config { ports: vec![disk(Shape::default()), second], ..Config::default() }
}

/// A request may be sent by `submit`, and its port stop because of another before the doorbell.
#[test]
fn doorbell_is_not_rung_while_the_port_stops() {
    let mut bench = open(Config::default());
    bench.inject(Fault::BadBlock(5));
    let data = bench.buffer(512);
    bench.submit(1, Operation::Read, 5, data);
    bench.machine.run();
    bench.disk().submit(&Request { tag: 2, operation: Operation::Read, sector: 0, data }).unwrap();
    assert_eq!(bench.disk().poll(), None);
    bench.disk().flush_queue();
    let mut done = bench.complete(2);
    done.sort_by_key(|one| one.tag);
    let results: Vec<_> = done.iter().map(|one| (one.tag, one.result)).collect();
    assert_eq!(results, [(1, Err(DiskError::Io)), (2, OK)]);
    assert_eq!(bench.complaints(), [""; 0]);
}

/// The port that does not stop may still have commands, whose memory is in use for something else.
#[test]
fn other_port_does_not_let_a_stuck_one_reach_memory_again() {
    let mut bench = open(two_drives());
    let data = bench.buffer(512);
    bench.inject(Fault::NeverStops);
    bench.inject(Fault::BadBlock(0));
    assert_eq!(bench.done(Operation::Read, 0, data), Err(DiskError::Broken));
    assert!(!bench.is_bus_master());
    let request = Request { tag: 8, operation: Operation::Read, sector: 0, data };
    bench.disks[1].disk.submit(&request).unwrap();
    bench.disks[1].disk.flush_queue();
    for _ in 0..200 {
        bench.watch(1);
        assert!(!bench.is_bus_master());
    }
    let done = bench.disks[1].disk.poll().unwrap();
    assert_eq!((done.tag, done.result), (8, Err(DiskError::Broken)));
    bench.repair();
    bench.watch(130);
    assert!(bench.disks.iter().all(|one| !one.disk.health().unwrap().gone));
    bench.works();
}

#[test]
fn hot_reset_of_the_controller_is_survived() {
    let mut bench = open(two_drives());
    let data = bench.buffer(512);
    bench.inject(Fault::NeverCompletes);
    bench.submit(5, Operation::Read, 0, data);
    bench.machine.run();
    bench.machine.hot_reset(Duration::from_millis(100));
    bench.watch(3);
    assert_eq!(bench.poll()[0].result, Err(DiskError::Broken));
    bench.watch(130);
    assert!(bench.disks.iter().all(|one| !one.disk.health().unwrap().gone));
    bench.works();
    // The interrupt is routed again.
    bench.disk().set_interrupts(true);
    let before = bench.disks[0].disk.interrupts();
    bench.submit(1, Operation::Read, 0, data);
    bench.machine.run();
    assert_eq!(bench.disks[0].disk.interrupts(), before + 1);
}

#[test]
fn controller_without_drives_in_use_reaches_no_memory() {
    let ports = vec![Plugged::Nothing, Plugged::Other(0x1234)];
    let bench = try_open(Config { ports, ..Config::default() }).unwrap();
    assert_eq!((bench.disks.len(), bench.refused.len()), (0, 1));
    assert!(!bench.is_bus_master());
    let mut bench = open(Config::default());
    assert!(bench.is_bus_master());
    bench.disks.clear();
    assert!(!bench.is_bus_master());
}

#[test]
fn drive_that_never_spins_up_ends_its_requests() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.inject(Fault::NeverCompletes);
    bench.inject(Fault::NoFeatures);
    bench.machine.model(|model| model.drive(0).shape.sleeps = true);
    assert!(bench.done(Operation::Read, 0, data).is_err());
    bench.repair();
    bench.watch(130);
    bench.works();
}

#[test]
fn drive_that_is_back_with_another_queue_is_not_used() {
    let mut bench = open(Config::default());
    let mut drive = bench.pull();
    bench.watch(2);
    if let Plugged::Disk(drive) = &mut drive {
        drive.shape.queue = 4;
    }
    bench.plug(drive);
    bench.watch(10);
    assert!(bench.disks[0].disk.health().unwrap().gone);
    assert!(bench.notices().iter().any(|one| one.1.contains("another drive")));
}

#[test]
fn requests_to_a_drive_that_is_away_end_within_its_depth() {
    let mut bench = open(with(Shape { queue: 4, ..Shape::default() }));
    bench.pull();
    bench.watch(2);
    let data = bench.buffer(512);
    let mut request = Request { tag: 0, operation: Operation::Read, sector: 0, data };
    for tag in 0..4 {
        request.tag = tag;
        bench.disk().submit(&request).unwrap();
    }
    assert_eq!(bench.disk().submit(&request), Err(SubmitError::Full));
    assert_eq!(bench.poll().len(), 4);
    bench.disk().submit(&request).unwrap();
}
