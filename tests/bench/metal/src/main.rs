//! What `./isthmus bench metal` counts, as a program to be run under callgrind: `bench-metal SCENARIO COUNT` does a
//! thing COUNT times. Everything else that it does is the same for every COUNT.

use drivers::hal::{Disk, Operation, Platform, Request, Window};
use drivers::registry::Class;
use metal::Metal;
use models::nvme::{Config, Nvme, Shape};

/// Requests that are under way.
const DEPTH: usize = 32;
const BYTES: usize = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.get(1).map(String::as_str) {
        Some("nvme-read4k") => nvme_read4k(count),
        _ => eprintln!("bench-metal SCENARIO COUNT; see ./isthmus bench metal"),
    }
}

/// Reads of 4 KiB, 32 at a time.
fn nvme_read4k(count: usize) {
    let settings = Config { namespaces: vec![Shape::new(1, 1 << 14, 9)], ..Config::default() };
    let mut machine = Metal::new(Nvme::new(settings), 8 << 20);
    let device = machine.find().take(Class::Disks).remove(0);
    let clock = machine.clock();
    let mut disk = device.open_disks(&mut machine, &clock).expect("it works").disks.remove(0).disk;
    let buffers: Vec<Window> =
        (0..DEPTH).map(|_| machine.arena().alloc(BYTES, BYTES).expect("room")).collect();
    let mut left = count;
    while left > 0 {
        let now = left.min(DEPTH);
        assert_eq!(turn(&machine, &mut *disk, &buffers[..now]), now, "all are read");
        left -= now;
    }
}

/// Requests go out, the model does them, completions come in: how many were good. This is what is counted, but for
/// what the model does.
#[inline(never)]
fn turn(machine: &Metal<Nvme>, disk: &mut dyn Disk, buffers: &[Window]) -> usize {
    for (tag, &data) in (0..).zip(buffers) {
        let request = Request { tag, operation: Operation::Read, sector: tag * 8, data };
        disk.submit(&request).expect("there is room");
    }
    disk.flush_queue();
    machine.run();
    let mut good = 0;
    while let Some(done) = disk.poll() {
        good += usize::from(done.result.is_ok());
    }
    good
}
