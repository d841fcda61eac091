//! Tests of the audit log at boot, with disks that fail.

use super::super::disks::{Role, SharedDisk};
use super::*;
use crate::config::disk::{Event, format};
use crate::config::partitions::Stretch;
use crate::log_ring::LogRing;
use core::cell::Cell;
use drivers::hal::{
    Completion, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError,
};
use log::{Level, Log as _, Record};
use std::collections::VecDeque;

/// A disk whose block at a sector cannot be read, or is never answered.
struct Ram {
    bytes: Vec<u8>,
    bad: Vec<u64>,
    silent: bool,
    done: VecDeque<Completion>,
}

impl Disk for Ram {
    fn geometry(&self) -> Geometry {
        let sectors = (self.bytes.len() / 512) as u64;
        let max_transfer = 64 << 10;
        Geometry { sectors, max_transfer, features: Features::empty(), ..Geometry::ABSENT }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        assert!(matches!(request.operation, Operation::Read));
        let (at, sectors) = (request.sector as usize * 512, request.data.len() as u64 / 512);
        request.data.write(0, &self.bytes[at..at + request.data.len()]).unwrap();
        let all = request.sector..request.sector + sectors;
        let is_bad = self.bad.iter().any(|bad| all.contains(bad));
        let result = if is_bad { Err(DiskError::Io) } else { Ok(()) };
        if !(is_bad && self.silent) {
            self.done.push_back(Completion { tag: request.tag, result });
        }
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

#[derive(Default)]
struct Steps(Cell<u64>);

impl Clock for Steps {
    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 100_000_000);
        Instant::from_nanos(self.0.get())
    }
}

/// The audit log of a disk with these bad blocks, by their place. The disk keeps 60 blocks.
fn read_with(bad: &[usize], silent: bool) -> Trail {
    const AUDIT: usize = 896 << 10;
    let mut bytes = format(None).unwrap();
    let (ring, mut trail) = (LogRing::new(2000, || Instant::ZERO), Trail::default());
    for block in 0..60 {
        for line in 0..20 {
            let text = format!("console: {block} {line} {}", "x".repeat(200));
            let mut record = Record::builder();
            ring.log(
                &record.level(Level::Info).target("audit").args(format_args!("{text}")).build(),
            );
            // As each round of the loop does, before the ring evicts a line.
            trail.poll(&ring, Instant::ZERO);
        }
    }
    // Each block is written once, so that each place has a current one.
    while let Some((write, block)) = trail.next_write() {
        bytes[AUDIT + write.place * audit::BLOCK..][..audit::BLOCK].copy_from_slice(&block);
        trail.note_written(write, Instant::ZERO);
    }
    let bad = bad.iter().map(|place| ((AUDIT + place * audit::BLOCK) / 512) as u64).collect();
    let ram = Ram { bytes, bad, silent, done: VecDeque::new() };
    let (geometry, mut arena) = (ram.geometry(), Arena::on_heap(2 << 20));
    let mut slot = DiskSlot {
        name: "disk0".into(),
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        location: String::new(),
        device: String::new(),
        geometry,
        disk: SharedDisk::new(Box::new(ram)),
        role: Role::Configuration,
    };
    let whole = Stretch { first: 0, sectors: geometry.sectors };
    let mut engine = ConfigDisk::new(geometry, whole, &mut arena).unwrap();
    while engine.poll(&mut slot.disk) != Some(Event::Loaded(None)) {}
    read_audit(&engine, &mut slot, &mut arena, &Steps::default())
}

/// Whether a new line would be written to the disk.
fn is_written(trail: &mut Trail) -> bool {
    let ring = LogRing::new(2000, || Instant::ZERO);
    ring.log(&Record::builder().target("audit").args(format_args!("console: save")).build());
    trail.poll(&ring, Instant::ZERO);
    trail.has_unwritten()
}

#[test]
fn bad_block_loses_no_other_one() {
    let (mut good, mut one) = (read_with(&[], false), read_with(&[20], false));
    assert!(good.len() >= 1000, "{}", good.len());
    let lost = good.len() - one.len();
    assert!((1..=20).contains(&lost), "{lost} lines of one block of 4 KiB");
    assert!(is_written(&mut good) && is_written(&mut one));
}

#[test]
fn log_of_a_disk_that_does_not_answer_is_not_overwritten() {
    let mut silent = read_with(&[20], true);
    assert!(!silent.is_empty() && !is_written(&mut silent));
    let failing: Vec<usize> = (16..64).collect();
    assert!(!is_written(&mut read_with(&failing, false)));
}
