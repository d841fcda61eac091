//! The drivers of disk controllers on QEMU's models.

use drivers::block::OpenDisk;
use drivers::driver::Class;
use drivers::hal::{
    Completion, Disk, DiskError, Features, Operation, Platform, Request, SubmitError, Window,
};
use qtest::Machine;
use std::time::Duration;

const OK: Result<(), DiskError> = Ok(());
/// Sizes of the disks in MiB.
const MIB: [u64; 2] = [8, 16];

/// Defines each test for each controller.
macro_rules! on_each_controller {
    ($($story:ident),* $(,)?) => {
        on_each_controller!(@ ahci, $($story),*);
        on_each_controller!(@ pvscsi, $($story),*);
        on_each_controller!(@ nvme, $($story),*);
    };
    (@ $driver:ident, $($story:ident),*) => {
        mod $driver {
            $(
                #[test]
                fn $story() {
                    super::$story(stringify!($driver));
                }
            )*
        }
    };
}

on_each_controller!(
    disks_are_found_with_their_size_and_serial,
    data_is_written_and_read_back,
    full_queue_completes_many_times,
    flush_and_discard_reach_the_disk,
    interrupts_are_raised_when_armed,
    errors_of_the_medium_fail_their_own_requests,
);

struct Bench {
    /// Dropped before the machine.
    disks: Vec<OpenDisk>,
    machine: Machine,
}

fn open(driver: &str, debug: &str) -> Bench {
    let (controller, disk) = match driver {
        "ahci" => ("ich9-ahci,id=it", "ide-hd,bus=it.{n},drive=disk{n},serial=S{n}"),
        "pvscsi" => ("pvscsi,id=it", "scsi-hd,bus=it.0,scsi-id={n},drive=disk{n},serial=S{n}"),
        _ => ("nvme,id=it,serial=S", "nvme-ns,bus=it,drive=disk{n}"),
    };
    let machine = qtest::with_disks(crate::qemu(), controller, disk, &MIB, debug);
    let mut machine = machine.expect("QEMU starts");
    let device = machine.find().take(Class::Disks).remove(0);
    assert_eq!(device.driver(), driver);
    let clock = machine.clock();
    let opened = device.open_disks(&mut machine, &clock);
    let opened = opened.unwrap_or_else(|why| panic!("{why}"));
    assert!(opened.refused.is_empty(), "{:?}", opened.refused);
    Bench { disks: opened.disks, machine }
}

impl Bench {
    fn buffer(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).expect("room").slice(0, len).expect("inside")
    }

    fn disk(&mut self) -> &mut dyn Disk {
        &mut *self.disks[0].disk
    }

    /// Completions of `count` requests.
    fn complete(&mut self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        for n in 0..20_000 {
            while let Some(one) = self.disk().poll() {
                done.push(one);
            }
            if done.len() >= count {
                return done;
            }
            let now = self.machine.pass(Duration::from_millis(1));
            if n % 100 == 99 {
                let now = self.machine.pass(Duration::from_secs(1)).max(now);
                self.disk().watch(now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} of {count} requests have completed", done.len());
    }

    fn done(&mut self, operation: Operation, sector: u64, data: Window) -> Result<(), DiskError> {
        self.disk().submit(&Request { tag: 1, operation, sector, data }).expect("room");
        self.disk().flush_queue();
        self.complete(1)[0].result
    }
}

fn disks_are_found_with_their_size_and_serial(driver: &str) {
    let bench = open(driver, "");
    assert_eq!(bench.disks.len(), 2);
    for (n, one) in bench.disks.iter().enumerate() {
        assert_eq!(one.disk.geometry().sectors, MIB[n] << 11);
        let serial = if driver == "nvme" { "S".to_string() } else { format!("S{n}") };
        assert_eq!(one.serial, serial);
        assert!(one.disk.depth() >= 31 && one.disk.wakes());
        assert!(one.disk.geometry().features.contains(Features::VOLATILE_CACHE));
    }
}

fn data_is_written_and_read_back(driver: &str) {
    let mut bench = open(driver, "");
    let whole = bench.buffer(2 << 20);
    for (n, (offset, len)) in
        [(0, 512), (4, 4096), (2048, 65536), (4092, 512), (512, 256 << 10)].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 512 + n) as u8).collect();
        let data = whole.slice(offset, len).expect("inside");
        data.write(0, &bytes).expect("inside");
        assert_eq!(bench.done(Operation::Write, 16, data), OK);
        data.fill(0);
        assert_eq!(bench.done(Operation::Read, 16, data), OK);
        let mut back = vec![0; len];
        data.read(0, &mut back).expect("inside");
        assert!(back == bytes, "{offset} {len}");
        assert!(bench.machine.disk(0).expect("a file")[8192..][..len] == bytes[..]);
    }
    let untouched = bench.machine.disk(1).expect("a file").iter().all(|byte| *byte == 0);
    assert!(untouched, "the other disk was written to");
}

fn full_queue_completes_many_times(driver: &str) {
    let mut bench = open(driver, "");
    let depth = bench.disks[0].disk.depth();
    let data = bench.buffer(512);
    for _ in 0..20 {
        for tag in 0..depth as u64 {
            let request = Request { tag, operation: Operation::Read, sector: tag * 3, data };
            bench.disk().submit(&request).expect("room");
        }
        let more = Request { tag: 0, operation: Operation::Read, sector: 0, data };
        assert_eq!(bench.disk().submit(&more), Err(SubmitError::Full));
        bench.disk().flush_queue();
        let mut tags: Vec<u64> = bench.complete(depth).iter().map(|one| one.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..depth as u64).collect::<Vec<_>>());
    }
}

fn flush_and_discard_reach_the_disk(driver: &str) {
    let mut bench = open(driver, "");
    let data = bench.buffer(512 << 10);
    data.fill(7);
    assert_eq!(bench.done(Operation::Write, 0, data), OK);
    assert_eq!(bench.done(Operation::Flush, 0, Window::empty()), OK);
    assert!(bench.disks[0].disk.geometry().features.contains(Features::DISCARD));
    assert_eq!(bench.done(Operation::Discard { sectors: 512 }, 0, Window::empty()), OK);
    let file = bench.machine.disk(0).expect("a file");
    assert!(file[..512 * 512].iter().all(|byte| *byte == 0));
    assert!(file[512 * 512..512 << 10].iter().all(|byte| *byte == 7));
}

fn interrupts_are_raised_when_armed(driver: &str) {
    let mut bench = open(driver, "");
    let data = bench.buffer(512);
    let raised = |bench: &Bench| {
        bench.machine.take_interrupts();
        bench.disks[0].disk.interrupts()
    };
    for _ in 0..20 {
        assert_eq!(bench.done(Operation::Read, 0, data), OK);
    }
    assert_eq!(raised(&bench), 0, "not armed");
    for tag in 0..20 {
        bench.disk().set_interrupts(true);
        bench.machine.pass(Duration::from_millis(1));
        let before = raised(&bench);
        assert!(!bench.disks[0].disk.pending());
        let request = Request { tag, operation: Operation::Read, sector: tag, data };
        bench.disk().submit(&request).expect("room");
        bench.disk().flush_queue();
        let mut looks = 0;
        while raised(&bench) == before {
            bench.machine.pass(Duration::from_millis(1));
            std::thread::sleep(Duration::from_millis(1));
            looks += 1;
            assert!(looks < 5000, "no interrupt");
        }
        assert!(bench.disks[0].disk.pending());
        bench.disk().set_interrupts(false);
        assert_eq!(bench.complete(1)[0].result, OK);
    }
}

fn errors_of_the_medium_fail_their_own_requests(driver: &str) {
    let rule = "{\"event\":\"read_aio\",\"errno\":5,\"sector\":40}";
    let mut bench = open(driver, rule);
    let data = bench.buffer(512);
    for round in 0..3 {
        for tag in 0..16 {
            let request = Request { tag, operation: Operation::Read, sector: 8 * tag, data };
            bench.disk().submit(&request).expect("room");
        }
        bench.disk().flush_queue();
        for one in bench.complete(16) {
            let expected = if one.tag == 5 { Err(DiskError::Io) } else { OK };
            assert_eq!(one.result, expected, "round {round}, request {}", one.tag);
        }
        assert_eq!(bench.done(Operation::Read, 40, data), Err(DiskError::Io));
        assert_eq!(bench.done(Operation::Write, 48, data), OK);
    }
    assert!(!bench.disks[0].disk.health().is_some_and(|health| health.gone));
}
