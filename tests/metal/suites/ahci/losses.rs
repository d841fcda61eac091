//! Writes that a drive may have lost with its power, and flushes that failed: no flush claims them.

use super::*;

const NONE: Window = Window::empty();
const LOST: Result<(), DiskError> = Err(DiskError::Io);

impl Bench {
    /// Cuts the power of the pulled drive, and plugs it in again.
    fn return_without_power(&self, mut drive: Plugged, change: impl FnOnce(&mut Drive)) {
        if let Plugged::Disk(drive) = &mut drive {
            drive.cut_power();
            change(drive);
        }
        self.plug(drive);
    }

    fn write(&mut self, sector: u64) {
        let data = self.buffer(512);
        data.fill(9);
        assert_eq!(self.done(Operation::Write, sector, data), OK);
    }

    /// One flush fails, and the next one succeeds.
    fn one_flush_fails(&mut self) {
        assert_eq!(self.done(Operation::Flush, 0, NONE), LOST);
        assert_eq!(self.done(Operation::Flush, 0, NONE), OK);
        self.works();
    }
}

#[test]
fn write_that_was_not_polled_before_the_drive_was_pulled_counts_as_lost() {
    let mut bench = open(Config::default());
    let data = bench.buffer(512);
    bench.submit(4, Operation::Write, 0, data);
    bench.watch(1);
    let drive = bench.pull();
    bench.watch(2);
    bench.return_without_power(drive, |_| {});
    bench.watch(5);
    assert_eq!(bench.poll()[0].result, OK);
    bench.one_flush_fails();
}

#[test]
fn power_cycle_of_a_drive_that_was_given_up_is_a_loss() {
    let mut bench = open(Config::default());
    bench.write(0);
    (0..5).for_each(|_| bench.inject(Fault::NeverCompletes));
    let data = bench.buffer(512);
    bench.submit(7, Operation::Read, 0, data);
    while !bench.disks[0].disk.health().unwrap().gone {
        bench.watch(1);
    }
    assert!(bench.poll()[0].result.is_err());
    bench.machine.model(|model| model.drive(0).cut_power());
    bench.repair();
    bench.watch(130);
    bench.one_flush_fails();
}

#[test]
fn link_that_flaps_while_an_error_is_examined_is_noticed() {
    for logs in [true, false] {
        let mut bench = open(with(Shape { logs, ..Shape::default() }));
        bench.write(0);
        bench.inject(Fault::BadBlock(5));
        let data = bench.buffer(512);
        bench.submit(7, Operation::Read, 5, data);
        bench.machine.run();
        // The port stops because of the error.
        assert_eq!(bench.disk().poll(), None);
        let drive = bench.pull();
        bench.return_without_power(drive, |_| {});
        assert_eq!(bench.complete(1)[0].result, LOST);
        bench.repair();
        bench.watch(3);
        bench.one_flush_fails();
    }
}

#[test]
fn flush_that_the_drive_has_failed_is_not_repeated() {
    let mut bench = open(Config::default());
    bench.write(0);
    bench.inject(Fault::NoFlushBusy);
    assert_eq!(bench.done(Operation::Flush, 0, NONE), LOST);
    assert_eq!(bench.done(Operation::Flush, 0, NONE), OK);
    bench.works();
}

/// Nobody flushes a drive that had no volatile cache when it was opened.
#[test]
fn cache_that_came_on_with_the_power_is_turned_off_again() {
    let mut bench = open(with(Shape { cache: false, ..Shape::default() }));
    let drive = bench.pull();
    bench.watch(2);
    bench.return_without_power(drive, |drive| drive.shape.cache = true);
    bench.watch(8);
    assert!(!bench.machine.model(|model| model.drive(0).shape.cache));
    bench.write(3);
    bench.machine.model(|model| model.drive(0).cut_power());
    assert_eq!(bench.medium(3 * 512, 1), [9]);
    // A drive that ignores the command is not used.
    bench.inject(Fault::NoFeatures);
    let drive = bench.pull();
    bench.watch(2);
    bench.return_without_power(drive, |drive| drive.shape.cache = true);
    bench.watch(100);
    assert!(bench.disks[0].disk.health().unwrap().gone);
}

/// Its users flush, and must learn what was lost.
#[test]
fn cache_that_went_off_with_the_power_is_still_flushed() {
    let mut bench = open(Config::default());
    bench.write(0);
    let drive = bench.pull();
    bench.watch(2);
    bench.return_without_power(drive, |drive| drive.shape.cache = false);
    bench.watch(5);
    assert!(bench.disks[0].disk.geometry().features.contains(Features::VOLATILE_CACHE));
    bench.one_flush_fails();
}

#[test]
fn log_page_that_was_not_transferred_names_no_command() {
    let mut bench = open(Config::default());
    bench.inject(Fault::BadBlock(2));
    bench.inject(Fault::EmptyLog);
    let data = bench.buffer(512);
    for tag in 0..4 {
        let request = Request { tag, operation: Operation::Read, sector: tag, data };
        bench.disk().submit(&request).unwrap();
    }
    bench.disk().flush_queue();
    let done = bench.complete(4);
    assert_eq!(done.len(), 4);
    for one in done {
        assert_eq!(one.result, if one.tag == 2 { LOST } else { OK }, "{}", one.tag);
    }
}
