//! Tests of the shutdown's first step: disks are flushed before peers are disconnected, within a time limit.

use super::super::disks::SharedDisk;
use super::*;
use drivers::hal::{Completion, DiskError, Geometry};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Requests of a simulated disk, and its next completions.
#[derive(Default)]
struct Seen {
    submitted: Vec<u64>,
    /// Requests that find its queue full.
    full: u32,
    answers: VecDeque<Completion>,
}

struct Model {
    seen: Rc<RefCell<Seen>>,
    features: Features,
}

impl Disk for Model {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: 4096, features: self.features, ..Geometry::ABSENT }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let mut seen = self.seen.borrow_mut();
        if seen.full > 0 {
            seen.full -= 1;
            return Err(SubmitError::Full);
        }
        assert!(matches!(request.operation, Operation::Flush));
        seen.submitted.push(request.tag);
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.seen.borrow_mut().answers.pop_front()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

const CACHE: Features = Features::VOLATILE_CACHE;

fn slot(role: Role, features: Features) -> (DiskSlot, Rc<RefCell<Seen>>) {
    let seen = Rc::<RefCell<Seen>>::default();
    let model = Model { seen: seen.clone(), features };
    let slot = DiskSlot {
        name: "disk0".into(),
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        location: String::new(),
        device: String::new(),
        geometry: model.geometry(),
        disk: SharedDisk::new(Box::new(model)),
        role,
    };
    (slot, seen)
}

fn after(milliseconds: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(milliseconds)
}

#[test]
fn disks_with_caches_are_flushed_before_peers_are_disconnected() {
    let (one, first) = slot(Role::Volume, CACHE);
    let (other, second) = slot(Role::Volumes, CACHE);
    // A disk without client writes, and one without a write cache.
    let (free, untouched) = slot(Role::Free, CACHE);
    let (through, uncached) = slot(Role::Volume, Features::empty());
    let mut disks = [one, other, free, through];
    second.borrow_mut().full = 2;
    // Earlier writes complete first.
    first.borrow_mut().answers.push_back(Completion { tag: 7, result: Ok(()) });
    let mut ending = Ending::of_disks(End::Reboot, &disks, Instant::ZERO);
    for at in 0..5 {
        assert!(!ending.disks_are_done(&mut disks, after(at)));
    }
    for seen in [&first, &second] {
        assert_eq!(seen.borrow().submitted, [FLUSH], "once");
    }
    first.borrow_mut().answers.push_back(Completion { tag: FLUSH, result: Ok(()) });
    assert!(!ending.disks_are_done(&mut disks, after(6)), "the other is not done");
    // A failed flush does not delay the shutdown.
    let failed = Completion { tag: FLUSH, result: Err(DiskError::Io) };
    second.borrow_mut().answers.push_back(failed);
    assert!(ending.disks_are_done(&mut disks, after(7)));
    assert_eq!((ending.step, ending.deadline), (Step::Disconnects, after(7) + DISCONNECTS));
    assert!(untouched.borrow().submitted.is_empty() && uncached.borrow().submitted.is_empty());
}

#[test]
fn unresponsive_disk_delays_the_end_by_half_a_second() {
    for full in [0, u32::MAX] {
        let (one, seen) = slot(Role::Volume, CACHE);
        seen.borrow_mut().full = full;
        let mut disks = [one];
        let mut ending = Ending::of_disks(End::PowerOff, &disks, Instant::ZERO);
        let mut now = Instant::ZERO;
        while !ending.disks_are_done(&mut disks, now) {
            assert!(ending.poll_timeout(now) > now);
            now = ending.poll_timeout(now);
        }
        assert_eq!(now, Instant::ZERO + FLUSHES);
        // With the disconnects and the console it stays below a second.
        assert!(ending.deadline + CONSOLE < after(1000));
    }
}

#[test]
fn peers_are_disconnected_at_once_without_disks() {
    let mut ending = Ending::of_disks(End::Reboot, &[], Instant::ZERO);
    assert!(ending.disks_are_done(&mut [], Instant::ZERO));
}
