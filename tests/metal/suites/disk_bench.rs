//! A disk driver on a model: requests, time, and notices.

use drivers::block::OpenDisk;
use drivers::driver::Class;
use drivers::hal::{Completion, Disk, DiskError, Operation, Platform, Request, Severity, Window};
use metal::Metal;
use models::Function;
use std::time::Duration;

pub const OK: Result<(), DiskError> = Ok(());

/// A machine with a controller, and its disks.
pub struct Bench<F> {
    pub machine: Metal<F>,
    pub disks: Vec<OpenDisk>,
    pub refused: Vec<String>,
}

/// Opens the controller of a machine with the driver of this name. An error is the reason.
pub fn try_open<F: Function + Send + 'static>(model: F, driver: &str) -> Result<Bench<F>, String> {
    let mut machine = Metal::new(model, 8 << 20);
    let device = machine.find().take(Class::Disks).remove(0);
    assert_eq!(device.driver(), driver);
    let clock = machine.clock();
    let opened = device.open_disks(&mut machine, &clock).map_err(|why| why.to_string())?;
    let refused = opened.refused.into_iter().map(|(at, why)| format!("{at}: {why}"));
    Ok(Bench { refused: refused.collect(), machine, disks: opened.disks })
}

impl<F: Function + Send + 'static> Bench<F> {
    pub fn buffer(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).unwrap().slice(0, len).unwrap()
    }

    pub fn disk(&mut self) -> &mut dyn Disk {
        &mut *self.disks[0].disk
    }

    pub fn submit(&mut self, tag: u64, operation: Operation, sector: u64, data: Window) {
        let disk = self.disk();
        disk.submit(&Request { tag, operation, sector, data }).unwrap();
        disk.flush_queue();
    }

    /// Runs the model, and polls all completions.
    pub fn poll(&mut self) -> Vec<Completion> {
        self.machine.run();
        let disk = self.disk();
        std::iter::from_fn(|| disk.poll()).collect()
    }

    /// Rounds of the loop with a watch every hundredth, until `count` requests have completed, a minute at most.
    pub fn complete(&mut self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        for n in 0..6000 {
            let now = self.machine.pass(Duration::from_millis(10));
            if n % 100 == 99 {
                self.disk().watch(now);
            }
            done.extend(self.poll());
            if done.len() >= count {
                break;
            }
        }
        done
    }

    /// Runs one request, and returns its result.
    pub fn done(
        &mut self,
        operation: Operation,
        sector: u64,
        data: Window,
    ) -> Result<(), DiskError> {
        self.submit(1, operation, sector, data);
        let done = self.complete(1);
        assert_eq!((done.len(), done[0].tag), (1, 1));
        done[0].result
    }

    /// Advances the time by this many seconds, with only the health checks of the disk.
    pub fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(Duration::from_secs(1));
            self.machine.run();
            self.disks.iter_mut().for_each(|one| one.disk.watch(now));
            self.machine.run();
        }
    }

    /// The driver's notices to the operator.
    pub fn notices(&mut self) -> Vec<(Severity, &'static str)> {
        let disk = self.disk();
        std::iter::from_fn(|| disk.notice()).map(|one| (one.severity, one.text)).collect()
    }
}

/// Bytes that depend on their place.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 512 + seed) as u8).collect()
}
