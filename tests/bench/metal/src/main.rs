//! The scenarios of `./isthmus bench metal`, as a program to run under callgrind: `bench-metal SCENARIO COUNT` runs a
//! scenario COUNT times. All other work is the same for every COUNT.

use drivers::driver::Class;
use drivers::hal::{Disk, Operation, Packet, Platform, Port, Request, Window};
use metal::Metal;
use models::Function;
use models::ahci::{self, Ahci, Drive, Plugged};
use models::enic::{self, Enic};
use models::intel_nic::{Kind, Nic};
use models::nvme::{Config, Nvme, Shape};
use models::pvscsi::Pvscsi;

/// Outstanding requests.
const DEPTH: usize = 32;
const BYTES: usize = 4096;
/// Outstanding frames, and their length.
const BATCH: usize = 32;
const FRAME: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.get(1).map(String::as_str) {
        Some("nvme-read4k") => {
            let namespaces = vec![Shape::new(1, 1 << 14, 9)];
            read4k(Nvme::new(Config { namespaces, ..Config::default() }), count);
        }
        Some("ahci-read4k") => {
            read4k(Ahci::new(ahci::Config { ports: vec![large()], ..Default::default() }), count);
        }
        Some("pvscsi-read4k") => read4k(Pvscsi::default(), count),
        Some("igb-packet") => nic_packet(Nic::new(Kind::Igb, 3), count),
        Some("e1000-packet") => nic_packet(Nic::new(Kind::E1000, 0), count),
        Some("enic-packet") => enic_packet(count),
        _ => eprintln!("bench-metal SCENARIO COUNT; see ./isthmus bench metal"),
    }
}

/// A SATA drive of 8 MiB.
fn large() -> Plugged {
    let shape = ahci::Shape { blocks: 1 << 14, ..ahci::Shape::default() };
    Plugged::Disk(Box::new(Drive::new(shape)))
}

/// Reads of 4 KiB, 32 at a time.
fn read4k<F: Function + Send + 'static>(model: F, count: usize) {
    let mut machine = Metal::new(model, 8 << 20);
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

/// Submits requests, lets the model complete them, and polls completions. Returns the number of good ones. This
/// function is counted, without the model's instructions.
#[inline(never)]
fn turn<F: Function + Send + 'static>(
    machine: &Metal<F>,
    disk: &mut dyn Disk,
    buffers: &[Window],
) -> usize {
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

/// Receives frames of 64 bytes, and sends as many, 32 at a time.
fn nic_packet(nic: Nic, count: usize) {
    let mut machine = Metal::new(nic, 8 << 20);
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let mut port = device.open_port(&mut machine, &|_| None, &clock).expect("it works");
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH);
        machine.model(|nic| {
            nic.sent.clear();
            nic.arriving.extend((0..now).map(|_| vec![7; FRAME]));
        });
        assert_eq!(packets(&machine, &mut *port, now), now, "all are received");
        assert_eq!(machine.model(|nic| nic.sent.len()), now, "all are sent");
        left -= now;
    }
}

/// Likewise, with Cisco's VIC.
fn enic_packet(count: usize) {
    let mut machine = Metal::new(Enic::new(enic::Config::default()), 8 << 20);
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let mut port = device.open_port(&mut machine, &|_| Some(1500), &clock).expect("it works");
    machine.run();
    let mut frame = vec![7; FRAME];
    frame[..6].copy_from_slice(&enic::MAC);
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH);
        machine.model(|nic| {
            nic.sent.clear();
            nic.arriving.extend((0..now).map(|_| frame.clone()));
        });
        assert_eq!(packets(&machine, &mut *port, now), now, "all are received");
        assert_eq!(machine.model(|nic| nic.sent.len()), now, "all are sent");
        left -= now;
    }
}

/// Transmits packets, lets the model send and receive, and receives frames. Returns their number. This function is
/// counted, without the model's instructions.
#[inline(never)]
fn packets<F>(machine: &Metal<F>, port: &mut dyn Port, count: usize) -> usize
where
    F: Function + Send + 'static,
{
    let header = [7; FRAME];
    for _ in 0..count {
        let packet = Packet { header: &header, payload: &[], trailer: &[] };
        port.transmit(&packet).expect("there is room");
    }
    port.flush();
    machine.run();
    port.receive_each(count, &mut is_whole)
}

/// A function, because the name of a closure would contain the name of the counted function.
fn is_whole(bytes: &[u8]) -> bool {
    bytes.len() == FRAME
}
