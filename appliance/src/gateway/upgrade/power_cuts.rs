//! Tests of power cuts at each step of an upgrade, on a disk that keeps any part of unflushed data: either the former
//! image boots, or the complete new image on trial.

use super::super::disks::SharedDisk;
use super::*;
use drivers::hal::{Arena, Completion, Disk, DiskError, Geometry, Request, SubmitError, Window};
use ed25519_dalek::{Signer, SigningKey};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const PARTITION: usize = 3 << 20;
const SECTOR: usize = 512;

/// A disk with a volatile cache.
struct Model {
    durable: Vec<u8>,
    /// Sectors that were written since the last flush, oldest first.
    cache: Vec<(usize, Vec<u8>)>,
    queue: VecDeque<Request>,
    /// Requests that are still executed. Then the power fails, or all further requests fail.
    left: usize,
    fails: bool,
}

impl Model {
    fn contents(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (at, data) in &self.cache {
            bytes[*at..][..data.len()].copy_from_slice(data);
        }
        bytes
    }

    /// Contents after a power cut: of unflushed sectors only those survive whose bit in `survive` is set, in turn.
    fn after_a_cut(&self, mut survive: u32) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let under_way = self.queue.iter().filter(|it| matches!(it.operation, Operation::Write));
        let under_way = under_way.flat_map(sectors);
        for (at, data) in self.cache.iter().cloned().chain(under_way) {
            if survive & 1 == 1 {
                bytes[at..][..data.len()].copy_from_slice(&data);
            }
            survive = survive.rotate_right(1);
        }
        bytes
    }
}

/// Data of a write request, by sector.
fn sectors(request: &Request) -> Vec<(usize, Vec<u8>)> {
    let mut bytes = vec![0; request.data.len()];
    request.data.read(0, &mut bytes).unwrap();
    let at = request.sector as usize * SECTOR;
    bytes.chunks(SECTOR).enumerate().map(|(i, part)| (at + i * SECTOR, part.to_vec())).collect()
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Model>>);

impl Disk for Shared {
    fn geometry(&self) -> Geometry {
        let sectors = (self.0.borrow().durable.len() / SECTOR) as u64;
        let features = Features::VOLATILE_CACHE;
        // Not a multiple of a write.
        Geometry { sectors, max_transfer: 12 << 10, features, ..Geometry::ABSENT }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.0.borrow_mut().queue.push_back(*request);
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        let mut model = self.0.borrow_mut();
        if model.left == 0 && !model.fails {
            return None;
        }
        let request = model.queue.pop_front()?;
        if model.left == 0 {
            return Some(Completion { tag: 0, result: Err(DiskError::Io) });
        }
        model.left -= 1;
        let at = request.sector as usize * SECTOR;
        match request.operation {
            Operation::Read => {
                let bytes = model.contents();
                request.data.write(0, &bytes[at..][..request.data.len()]).unwrap();
            }
            Operation::Write => model.cache.extend(sectors(&request)),
            Operation::Flush => {
                model.durable = model.contents();
                model.cache.clear();
            }
            _ => unreachable!("an upgrade uses no other operation"),
        }
        Some(Completion { tag: 0, result: Ok(()) })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

fn slot(model: &Shared, role: Role) -> DiskSlot {
    DiskSlot {
        name: "disk".into(),
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        location: String::new(),
        device: String::new(),
        geometry: model.geometry(),
        disk: SharedDisk::new(Box::new(model.clone())),
        role,
    }
}

fn model(durable: Vec<u8>, left: usize, fails: bool) -> Shared {
    let (cache, queue) = Default::default();
    Shared(Rc::new(RefCell::new(Model { durable, cache, queue, left, fails })))
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

fn release(image: &[u8], made: u64) -> Vec<u8> {
    let mut header = Header::new(image, made, "test", key().verifying_key().to_bytes());
    header.signature = key().sign(&header.signed()).to_bytes();
    [&header.emit()[..], image].concat()
}

/// A partition with the booting release in slot A, and an older one in slot B.
fn partition(old: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; PARTITION];
    let record = Record { generation: 7, current: Some(Slot::A), ..Record::default() };
    for (at, bytes_of) in [
        (layout::RECORDS[0], &record.emit()[..]),
        (layout::RECORDS[1], &Record { generation: 6, ..record }.emit()),
        (layout::slot_start(PARTITION as u64, Slot::A), &release(old, 100)),
        (layout::slot_start(PARTITION as u64, Slot::B), &release(b"the one before", 50)),
    ] {
        bytes[at as usize..][..bytes_of.len()].copy_from_slice(bytes_of);
    }
    bytes
}

/// An upgrade from a disk into slot B, as started by an order.
fn ordered(disk: &Shared, source: &Shared, buffer: Window, made: u64) -> (Upgrade, Vec<DiskSlot>) {
    let bytes = disk.0.borrow().contents();
    let copies = layout::RECORDS.map(|at| &bytes[at as usize..]);
    let (record, older) = newest(copies).unwrap();
    let area = |disk: &Shared| Stretch { first: 0, sectors: disk.geometry().sectors };
    let io = |disk: &Shared| DiskIo::new(disk.geometry(), area(disk), buffer).unwrap();
    let source_of = Source::Disk(1, io(source), 0);
    let key = key().verifying_key().to_bytes();
    let install = Install::new(source_of, Slot::B, key, made, true, buffer);
    let upgrade = Upgrade {
        disk: 0,
        io: io(disk),
        record,
        older,
        headers: [None, None],
        noted: Noted::default(),
        in_force: vec!["export a of v".into()],
        booted: None,
        confirm_at: None,
        rollback_at: Instant::ZERO,
        warned: false,
        failed: None,
        work: Work::Install(Box::new(install)),
        ending: None,
        closing: None,
    };
    (upgrade, vec![slot(disk, Role::Boot), slot(source, Role::Release)])
}

/// Polls it until it ends or stalls. Returns whether it restarts, and its last result.
fn run(upgrade: &mut Upgrade, disks: &mut [DiskSlot]) -> (bool, Option<Progress>) {
    let mut last = None;
    for _ in 0..200 {
        match upgrade.poll(disks, Instant::ZERO) {
            (progress, true) => return (true, progress),
            (progress @ Some(Progress::Done(_)), _) => last = progress,
            _ => {}
        }
    }
    (false, last)
}

/// The image that the UEFI front end boots from this partition, and whether it is a trial.
fn boots(bytes: &[u8]) -> (Option<Vec<u8>>, bool) {
    let copies = layout::RECORDS.map(|at| &bytes[at as usize..]);
    let (mut record, _) = newest(copies).expect("one of the records is whole");
    let choice = record.choose();
    let image = |slot: Slot| {
        let start = &bytes[layout::slot_start(PARTITION as u64, slot) as usize..];
        let header = Header::parse(start).ok()?;
        let image = start.get(release::HEADER..)?.get(..header.length as usize)?;
        let mut digest = release::Digest::new();
        digest.update(image);
        (digest.finish() == header.digest).then(|| image.to_vec())
    };
    let first = choice.slot.and_then(image);
    match (choice.trial, first) {
        (true, None) => (record.current.and_then(image), false),
        (trial, first) => (first, trial),
    }
}

fn images() -> [Vec<u8>; 2] {
    let image = |salt: u32| (0..50_000u32).map(|i| (i * 7 + salt) as u8).collect();
    [image(0), image(1)]
}

#[test]
fn power_cut_at_any_step_leaves_a_complete_image() {
    let [old, new] = images();
    let mut arena = Arena::on_heap(1 << 20);
    let buffer = arena.alloc(PIECE, BLOCK).unwrap();
    let mut outcomes = [0, 0];
    for cut in 0.. {
        let disk = model(partition(&old), cut, false);
        let source = model(padded(release(&new, 200)), usize::MAX, false);
        let (mut upgrade, mut disks) = ordered(&disk, &source, buffer, 100);
        let (restarts, _) = run(&mut upgrade, &mut disks);
        for survive in [0, !0, 0x5555_5555, 0xaaaa_aaaa, 0x0f0f_3355, 0x8000_0001, 0x7fff_fffe] {
            let (image, trial) = boots(&disk.0.borrow().after_a_cut(survive));
            let wanted = if trial { &new } else { &old };
            assert!(image.as_ref() == Some(wanted), "{cut} requests, {survive:#x}: {trial}");
            assert!(trial || !restarts, "it restarts when the record is durable");
            outcomes[usize::from(trial)] += 1;
        }
        if restarts {
            assert_eq!(disks[1].role, Role::Free);
            assert!(cut > 20, "each request was cut: {cut}");
            break;
        }
    }
    assert!(outcomes.iter().all(|&count| count > 5), "{outcomes:?}");
}

fn padded(mut release: Vec<u8>) -> Vec<u8> {
    release.resize(release.len().next_multiple_of(BLOCK), 0);
    release
}

#[test]
fn failing_disk_ends_the_upgrade_and_keeps_the_boot_image() {
    let [old, new] = images();
    let mut arena = Arena::on_heap(1 << 20);
    let buffer = arena.alloc(PIECE, BLOCK).unwrap();
    for fails_after in 0..20 {
        let disk = model(partition(&old), fails_after, true);
        let source = model(padded(release(&new, 200)), usize::MAX, false);
        let (mut upgrade, mut disks) = ordered(&disk, &source, buffer, 100);
        let (restarts, last) = run(&mut upgrade, &mut disks);
        assert!(!restarts && matches!(last, Some(Progress::Done(Err(_)))), "{fails_after}");
        assert!(!upgrade.is_busy() && disks[1].role == Role::Free);
        assert_eq!(boots(&disk.0.borrow().contents()), (Some(old.clone()), false));
    }
}

#[test]
fn invalid_release_is_refused_and_keeps_the_boot_image() {
    let [old, new] = images();
    let mut arena = Arena::on_heap(1 << 20);
    let buffer = arena.alloc(PIECE, BLOCK).unwrap();
    let good = release(&new, 200);
    let mut changed = good.clone();
    changed[release::HEADER + 40_000] ^= 1;
    let long = release(&vec![1; (1 << 20) - release::HEADER + 1], 200);
    let cut = good[..release::HEADER + 16_384].to_vec();
    for (release, expected) in [
        (release(&new, 99), "older than the running release"),
        (long, "has room for 1044480"),
        (cut, "too small"),
        (changed, "not the one that was signed"),
        (vec![0; 64 << 10], "no release"),
    ] {
        let disk = model(partition(&old), usize::MAX, false);
        let source = model(padded(release), usize::MAX, false);
        let (mut upgrade, mut disks) = ordered(&disk, &source, buffer, 100);
        let (restarts, done) = run(&mut upgrade, &mut disks);
        let Some(Progress::Done(Err(why))) = done else { panic!("{expected}: it was installed") };
        assert!(!restarts && why.contains(expected), "{why}");
        assert_eq!(boots(&disk.0.borrow().contents()), (Some(old.clone()), false));
    }
}

#[test]
fn trial_is_confirmed_when_ready_or_rolled_back() {
    let [old, new] = images();
    let mut arena = Arena::on_heap(1 << 20);
    let buffer = arena.alloc(PIECE, BLOCK).unwrap();
    let disk = model(partition(&old), usize::MAX, false);
    let source = model(padded(release(&new, 200)), usize::MAX, false);
    let (mut upgrade, mut disks) = ordered(&disk, &source, buffer, 100);
    assert!(run(&mut upgrade, &mut disks).0 && upgrade.record.was_ready);
    upgrade.rollback_at = Instant::ZERO + ROLLBACK;
    let lacking = ["net0: no address".to_string()];
    assert_eq!(upgrade.check_trial(&lacking, Instant::ZERO + CONFIRM), None);
    assert_eq!(upgrade.confirm_at, Some(Instant::ZERO + CONFIRM + CHECK_INTERVAL));
    assert_eq!(upgrade.check_trial(&lacking, Instant::ZERO + ROLLBACK), Some(false));
    assert!(upgrade.is_on_trial(), "the watchdog stays on");
    assert_eq!(upgrade.check_trial(&[], Instant::ZERO + ROLLBACK), Some(true));
    run(&mut upgrade, &mut disks);
    assert_eq!(boots(&disk.0.borrow().contents()), (Some(new), false));
}
