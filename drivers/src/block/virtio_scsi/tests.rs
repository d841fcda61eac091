//! Tests with a model of a controller and a few targets, which runs on a thread of its own.

use super::crash::VirtioScsiCrash;
use super::open;
use super::queues::ANSWER;
use crate::block::OpenDisk;
use crate::driver::{Class, Device};
use crate::hal::{
    Clock, Completion, CrashWriter, Disk, DiskError, Features, Instant, Operation, Platform,
    Request, SubmitError, Window,
};
use crate::virtio::attach_polled;
use crate::virtio::model::{Machine, Model, WallClock};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::string::ToString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::vec::Vec;

const MODERN: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const CHANGE: u64 = 1 << 2;
const BLOCKS: u64 = 2048;
const REQUESTS: usize = 2;

/// A logical unit.
struct Lun {
    kind: u8,
    block: usize,
    bytes: Vec<u8>,
    serial: &'static str,
    /// Answers to the next commands, which are not executed: response, status, sense key, code, qualifier.
    answers: VecDeque<[u8; 5]>,
    /// Residual of every command.
    residual: u32,
    flushes: usize,
}

impl Lun {
    fn disk(serial: &'static str, block: usize) -> Lun {
        let answers = VecDeque::from([[0, 2, 6, 0x29, 0]]);
        let bytes = std::vec![0xa5; BLOCKS as usize * block];
        Lun { kind: 0, block, bytes, serial, answers, residual: 0, flushes: 0 }
    }

    fn cd() -> Lun {
        Lun { kind: 5, ..Lun::disk("", 2048) }
    }

    /// Executes a command. Returns its data, or the sense key, code and qualifier if it is refused.
    fn command(&mut self, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, [u8; 3]> {
        let lba = || u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize * self.block;
        let count = || u32::from_be_bytes(cdb[10..14].try_into().unwrap()) as usize * self.block;
        let blocks = (self.bytes.len() / self.block) as u64;
        Ok(match (cdb[0], cdb[1], cdb[2]) {
            (0x00, ..) => Vec::new(),
            (0x12, 0, 0) => std::vec![self.kind, 0, 5, 2, 31],
            (0x12, 1, 0x80) => {
                let mut page = std::vec![self.kind, 0x80, 0, self.serial.len() as u8];
                page.extend_from_slice(self.serial.as_bytes());
                page
            }
            (0x12, 1, 0xb0) => {
                let mut page = std::vec![0; 64];
                (page[1], page[3]) = (0xb0, 60);
                page[8..12].copy_from_slice(&128u32.to_be_bytes());
                page[20..24].copy_from_slice(&64u32.to_be_bytes());
                page[28..32].copy_from_slice(&8u32.to_be_bytes());
                page
            }
            (0x12, 1, 0xb2) => std::vec![0, 0xb2, 0, 4, 0, 0xc0, 0, 0],
            (0x1a, ..) => {
                let mut page = std::vec![0; 4 + 8 + 20];
                let cache = if self.serial == "no-cache" { 0 } else { 4 };
                (page[3], page[12], page[13], page[14]) = (8, 8, 18, cache);
                page
            }
            (0x9e, ..) => {
                let mut answer = std::vec![0; 32];
                answer[..8].copy_from_slice(&(blocks - 1).to_be_bytes());
                answer[8..12].copy_from_slice(&(self.block as u32).to_be_bytes());
                answer[13] = 3;
                answer
            }
            (0x88, ..) => self.bytes[lba()..lba() + count()].to_vec(),
            (0x8a, ..) => {
                let (at, count) = (lba(), count());
                assert_eq!(data.len(), count);
                self.bytes[at..at + count].copy_from_slice(data);
                Vec::new()
            }
            (0x93, flags, _) => {
                assert!(flags == 0 || flags == 8);
                let (at, count) = (lba(), count());
                assert_eq!(data.len(), self.block);
                self.bytes[at..at + count]
                    .chunks_mut(self.block)
                    .for_each(|b| b.copy_from_slice(data));
                Vec::new()
            }
            (0x42, ..) => {
                assert_eq!((data.len(), data[1], data[3]), (24, 22, 16));
                let at = u64::from_be_bytes(data[8..16].try_into().unwrap()) as usize * self.block;
                let count = u32::from_be_bytes(data[16..20].try_into().unwrap()) as usize;
                self.bytes[at..at + count * self.block].fill(0xdd);
                Vec::new()
            }
            (0x35, ..) if self.serial == "no-cache" => return Err([5, 0x20, 0]),
            (0x35, ..) => {
                self.flushes += 1;
                Vec::new()
            }
            _ => return Err([5, 0x20, 0]),
        })
    }
}

type Luns = BTreeMap<(u8, u16), Lun>;

/// Model of the controller's request queue.
struct Player {
    luns: Arc<Mutex<Luns>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    fn start(model: &Model, luns: Luns) -> Player {
        let (luns, stop) = (Arc::new(Mutex::new(luns)), Arc::new(AtomicBool::new(false)));
        let (model, theirs, ended) = (model.clone(), luns.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if !serve(&model, &mut theirs.lock().unwrap()) {
                    std::thread::yield_now();
                }
            }
        });
        Player { luns, stop, thread: Some(thread) }
    }

    fn with<T>(&self, lun: (u8, u16), look: impl FnOnce(&mut Lun) -> T) -> T {
        look(self.luns.lock().unwrap().get_mut(&lun).unwrap())
    }

    /// Stops the model: requests are not answered any more.
    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one request; false if there was none.
fn serve(model: &Model, luns: &mut Luns) -> bool {
    let mut device = model.state();
    let Some(chain) = device.pop(REQUESTS) else { return false };
    let all = device.gather(&chain);
    let (header, data) = all.split_at(51);
    assert_eq!(header[0], 1);
    let lun = (header[1], u16::from_be_bytes([header[2] & 0x3f, header[3]]));
    let cdb = &header[19..51];
    let mut answer = std::vec![0; ANSWER];
    let mut bytes = Vec::new();
    let sense = |answer: &mut Vec<u8>, [key, code, qualifier]: [u8; 3]| {
        answer[0] = 18;
        answer[10] = 2;
        (answer[12], answer[14], answer[24], answer[25]) = (0x70, key, code, qualifier);
    };
    let units: Vec<u16> = luns.keys().filter(|(t, _)| *t == lun.0).map(|(_, lun)| *lun).collect();
    if units.is_empty() {
        answer[11] = 3;
    } else if cdb[0] == 0xa0 {
        bytes.extend_from_slice(&(units.len() as u32 * 8).to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for unit in units {
            bytes.extend_from_slice(&[0x40 | (unit >> 8) as u8, unit as u8, 0, 0, 0, 0, 0, 0]);
        }
    } else if let Some(lun) = luns.get_mut(&lun) {
        match lun.answers.pop_front() {
            Some([response, status, rest @ ..]) => {
                sense(&mut answer, rest);
                (answer[10], answer[11]) = (status, response);
            }
            None => match lun.command(cdb, data) {
                Ok(data) => bytes = data,
                Err(why) => sense(&mut answer, why),
            },
        }
        answer[4..8].copy_from_slice(&lun.residual.to_le_bytes());
    } else {
        sense(&mut answer, [5, 0x25, 0]);
    }
    answer.extend_from_slice(&bytes);
    let written = device.scatter(&chain, &answer);
    device.push(REQUESTS, chain.head, written);
    true
}

fn config() -> Vec<u8> {
    let mut config = std::vec![0; 36];
    config[0] = 1;
    config[8..12].copy_from_slice(&0xffffu32.to_le_bytes());
    config[12] = 16;
    config[30] = 3;
    config[32..36].copy_from_slice(&16383u32.to_le_bytes());
    config
}

fn plug(features: u64, entries: u16) -> (Machine, Model, Device) {
    let mut machine = Machine::new(8 << 20);
    let model = Model::new(&machine, 8, features, &config(), &[8, 8, entries]);
    machine.plug_pci(4, &model);
    let device = machine.find().take(Class::Disks).remove(0);
    (machine, model, device)
}

fn two_disks() -> Luns {
    let disk = |serial, block| Lun::disk(serial, block);
    [((0, 0), disk("first", 512)), ((0, 300), disk("no-cache", 4096)), ((2, 0), Lun::cd())].into()
}

fn set_up(features: u64) -> (Machine, Model, Player, Vec<OpenDisk>) {
    let (mut machine, model, device) = plug(features, 64);
    let player = Player::start(&model, two_disks());
    let disks = open(device, &mut machine, &WallClock).unwrap().disks;
    (machine, model, player, disks)
}

fn buffer(machine: &mut Machine, len: usize) -> Window {
    machine.arena().alloc(len, 512).unwrap()
}

fn request(tag: u64, operation: Operation, sector: u64, data: Window) -> Request {
    Request { tag, operation, sector, data }
}

fn wait(disk: &mut dyn Disk) -> Completion {
    let deadline = WallClock.now() + core::time::Duration::from_secs(20);
    loop {
        if let Some(completion) = disk.poll() {
            return completion;
        }
        assert!(WallClock.now() < deadline, "no completion");
        std::thread::yield_now();
    }
}

fn run(disk: &mut dyn Disk, request: Request) -> Result<(), DiskError> {
    disk.submit(&request).unwrap();
    disk.flush_queue();
    let completion = wait(disk);
    assert_eq!(completion.tag, request.tag);
    completion.result
}

#[test]
fn every_disk_behind_a_controller_is_found_with_its_shape() {
    for features in [MODERN, MODERN | EVENT_INDEX | CHANGE] {
        let (_machine, _model, _player, disks) = set_up(features);
        let names: Vec<_> =
            disks.iter().map(|one| (one.location.to_string(), one.serial.as_str())).collect();
        assert_eq!(
            names,
            [
                ("pci:0000:00:04.0/0:0".to_string(), "first"),
                ("pci:0000:00:04.0/0:300".to_string(), "no-cache")
            ]
        );
        let geometry = disks[1].disk.geometry();
        assert_eq!((geometry.sectors, geometry.logical_block), (BLOCKS * 8, 4096));
        assert_eq!((geometry.physical_block, geometry.max_transfer), (32768, 128 * 4096));
        assert_eq!(geometry.max_discard_sectors, 64 * 8);
        assert_eq!(geometry.discard_granularity, 8 * 4096);
        let all = Features::VOLATILE_CACHE | Features::DISCARD | Features::WRITE_ZEROES;
        assert_eq!(disks[0].disk.geometry().features, all);
        assert_eq!(geometry.features, all - Features::VOLATILE_CACHE);
        // 64 descriptors are 21 slots: ten each, of which one is the controller's.
        assert!(disks.iter().all(|one| one.disk.depth() == 9 && one.crash.is_some()));
    }
}

#[test]
fn operations_reach_the_unit() {
    let (mut machine, _model, player, mut disks) = set_up(MODERN | EVENT_INDEX);
    let data = buffer(&mut machine, 8192);
    data.fill(0x5a);
    let disk = &mut *disks[1].disk;
    assert_eq!(run(disk, request(1, Operation::Write, 16, data)), Ok(()));
    let look =
        |at: usize, len: usize| player.with((0, 300), |lun| lun.bytes[at..at + len].to_vec());
    assert_eq!(look(8192, 8192), [0x5a; 8192]);
    assert_eq!((look(0, 8192), look(16384, 4096)), ([0xa5; 8192].to_vec(), [0xa5; 4096].to_vec()));
    data.fill(0);
    let half = data.slice(0, 4096).unwrap();
    assert_eq!(run(disk, request(2, Operation::Read, 24, half)), Ok(()));
    let mut bytes = [0; 8192];
    data.read(0, &mut bytes).unwrap();
    assert!(bytes[..4096].iter().all(|&b| b == 0x5a) && bytes[4096..].iter().all(|&b| b == 0));
    let zeroes = Operation::WriteZeroes { sectors: 8, unmap: true };
    assert_eq!(run(disk, request(3, zeroes, 16, Window::empty())), Ok(()));
    assert_eq!((look(8192, 4096), look(12288, 1)), ([0; 4096].to_vec(), std::vec![0x5a]));
    let discard = Operation::Discard { sectors: 16 };
    assert_eq!(run(disk, request(4, discard, 0, Window::empty())), Ok(()));
    assert_eq!((look(0, 8192), look(8192, 1)), ([0xdd; 8192].to_vec(), std::vec![0]));
    // The second unit has no cache and refuses the command; the first supports it.
    assert_eq!(run(disk, request(5, Operation::Flush, 0, Window::empty())), Ok(()));
    let first = &mut *disks[0].disk;
    assert_eq!(run(first, request(6, Operation::Flush, 0, Window::empty())), Ok(()));
    assert_eq!(player.with((0, 0), |lun| lun.flushes), 1);
    for (operation, sector, data) in [
        (Operation::Read, 1, half),
        (Operation::Read, BLOCKS * 8, half),
        (Operation::Write, u64::MAX - 7, half),
        (Operation::Write, 0, half.slice(0, 100).unwrap()),
        (Operation::Read, 0, Window::empty()),
        (Operation::Discard { sectors: 0 }, 0, Window::empty()),
        (Operation::Discard { sectors: 520 }, 0, Window::empty()),
    ] {
        let refused = disks[1].disk.submit(&request(7, operation, sector, data));
        assert_eq!(refused, Err(SubmitError::Range), "{operation:?} {sector}");
    }
}

#[test]
fn temporary_failures_are_retried_and_permanent_ones_reported() {
    let (mut machine, _model, player, mut disks) = set_up(MODERN);
    let data = buffer(&mut machine, 4096);
    let disk = &mut *disks[0].disk;
    let mut read = |answers: &[[u8; 5]]| {
        player.with((0, 0), |lun| lun.answers = answers.iter().copied().collect());
        run(disk, request(9, Operation::Read, 0, data))
    };
    assert_eq!(read(&[[0, 2, 6, 0x29, 0], [0, 8, 0, 0, 0], [5, 0, 0, 0, 0]]), Ok(()));
    assert_eq!(read(&[[0, 2, 3, 0x11, 0]]), Err(DiskError::Io));
    assert_eq!(read(&[[0, 2, 5, 0x20, 0]]), Err(DiskError::Unsupported));
    assert_eq!(read(&[[0, 0x28, 0, 0, 0]; 200]), Err(DiskError::Io));
    assert_eq!(read(&[]), Ok(()));
    player.with((0, 0), |lun| lun.residual = 512);
    assert_eq!(read(&[]), Err(DiskError::Io), "a short transfer");
}

/// No interrupt is raised for these completions. The controller is given up, and each request ends once.
#[test]
fn duplicate_or_foreign_completion_ends_each_request_once() {
    for other in [None, Some(1), Some(9999)] {
        let (mut machine, model, mut player, mut disks) = set_up(MODERN);
        player.stop();
        let data = buffer(&mut machine, 4096);
        let disk = &mut *disks[0].disk;
        for tag in 0..3 {
            disk.submit(&request(tag, Operation::Read, 0, data)).unwrap();
        }
        disk.flush_queue();
        let mut device = model.state();
        let chains: Vec<_> = (0..3).map(|_| device.pop(REQUESTS).unwrap()).collect();
        for chain in &chains {
            device.scatter(chain, &[0; ANSWER]);
        }
        let head: u32 = chains[1].head.into();
        device.lie(REQUESTS, head, 0, 1);
        device.lie(REQUESTS, other.map_or(head, |other| head + other), 0, 1);
        drop(device);
        let mut ends: Vec<Completion> = core::iter::from_fn(|| disk.poll()).collect();
        ends.sort_unstable_by_key(|end| end.tag);
        assert_eq!(ends.iter().map(|end| end.tag).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(ends[0].result, Err(DiskError::Broken));
        assert_eq!(ends[2].result, Err(DiskError::Broken));
        assert_eq!(model.state().status, 0);
        assert!(disk.notice().unwrap().text.contains("its host is to blame"));
    }
}

#[test]
fn one_disk_does_not_take_the_others_slots_and_gets_only_its_own_completions() {
    let (mut machine, model, mut player, mut disks) = set_up(MODERN);
    player.stop();
    let data = buffer(&mut machine, 4096);
    let (first, second) = disks.split_at_mut(1);
    let (first, second) = (&mut *first[0].disk, &mut *second[0].disk);
    for tag in 0..9 {
        first.submit(&request(tag, Operation::Read, 0, data)).unwrap();
    }
    assert_eq!(first.submit(&request(9, Operation::Read, 0, data)), Err(SubmitError::Full));
    let discard = Operation::Discard { sectors: 8 };
    assert_eq!(first.submit(&request(9, discard, 0, Window::empty())), Err(SubmitError::Full));
    second.submit(&request(100, Operation::Read, 0, data)).unwrap();
    second.flush_queue();
    let mut luns = player.luns.lock().unwrap();
    while serve(&model, &mut luns) {}
    assert!(first.pending() && second.pending());
    assert_eq!(second.poll(), Some(Completion { tag: 100, result: Ok(()) }));
    assert_eq!(second.poll(), None);
    assert!(first.pending(), "completions found by the other disk's poll are kept");
    let mut tags: Vec<u64> = core::iter::from_fn(|| first.poll()).map(|done| done.tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..9));
}

/// A controller that missed a notification is notified again, once for all its disks. An idle controller is not.
#[test]
fn stalled_controller_is_notified_again() {
    let (mut machine, model, mut player, mut disks) = set_up(MODERN);
    player.stop();
    let watch = |disks: &mut Vec<OpenDisk>| {
        let before = model.state().kicks;
        disks.iter_mut().for_each(|one| one.disk.watch(Instant::ZERO));
        model.state().kicks - before
    };
    watch(&mut disks);
    assert_eq!(watch(&mut disks), 0);
    let data = buffer(&mut machine, 4096);
    disks[1].disk.submit(&request(1, Operation::Read, 0, data)).unwrap();
    assert_eq!(watch(&mut disks), 0, "the controller does not have it yet");
    disks[1].disk.flush_queue();
    assert_eq!((watch(&mut disks), watch(&mut disks)), (1, 1));
    assert!(serve(&model, &mut player.luns.lock().unwrap()));
    watch(&mut disks);
    assert_eq!(watch(&mut disks), 0);
}

#[test]
fn resize_is_reported_by_event_or_unit_attention() {
    // LUN 0 in flat space, as the driver names it, and in the peripheral form, as QEMU does.
    for (features, event) in
        [(MODERN | CHANGE, Some(0x40)), (MODERN | CHANGE, Some(0)), (MODERN, None)]
    {
        let (mut machine, model, player, mut disks) = set_up(features);
        let data = buffer(&mut machine, 512);
        assert!(!disks[0].disk.capacity_changed());
        player.with((0, 0), |lun| lun.bytes.resize(4096 * 512, 0));
        if let Some(method) = event {
            let mut device = model.state();
            let chain = device.pop(1).unwrap();
            let event = [3, 0, 0, 0, 1, 0, method, 0, 0, 0, 0, 0, 0x2a, 9, 0, 0];
            let written = device.scatter(&chain, &event);
            device.push(1, chain.head, written);
        } else {
            player.with((0, 0), |lun| lun.answers.push_back([0, 2, 6, 0x2a, 9]));
            assert_eq!(run(&mut *disks[0].disk, request(1, Operation::Read, 0, data)), Ok(()));
        }
        let deadline = WallClock.now() + core::time::Duration::from_secs(20);
        // Nobody polls a disk without requests.
        while !disks[0].disk.capacity_changed() {
            assert!(WallClock.now() < deadline, "the size is not read");
        }
        assert_eq!(disks[0].disk.geometry().sectors, 4096);
        assert_eq!(disks[1].disk.geometry().sectors, BLOCKS * 8);
        assert!(!disks[0].disk.capacity_changed() && !disks[1].disk.capacity_changed());
        assert_eq!(run(&mut *disks[0].disk, request(2, Operation::Read, 4095, data)), Ok(()));
    }
}

#[test]
fn silent_or_invalid_controller_is_not_used() {
    let (mut machine, model, device) = plug(MODERN, 64);
    let silent = open(device, &mut machine, &machine_clock()).err().unwrap().to_string();
    assert!(silent.contains("does not answer"), "{silent}");
    assert_eq!(model.state().status, 0, "it was reset");

    let (mut machine, model, mut player, mut disks) = set_up(MODERN);
    player.stop();
    let data = buffer(&mut machine, 512);
    for (tag, disk) in (0..).zip(&mut disks) {
        for n in 0..2 {
            let sectors = disk.disk.geometry().logical_block / 512;
            let zeroes = Operation::WriteZeroes { sectors, unmap: false };
            disk.disk.submit(&request(2 * tag + n, zeroes, 0, Window::empty())).unwrap();
        }
        disk.disk.flush_queue();
    }
    {
        // The device completes a request without writing an answer.
        let mut device = model.state();
        let chain = device.pop(REQUESTS).unwrap();
        device.push(REQUESTS, chain.head, 0);
    }
    for (tag, disk) in (0..).zip(&mut disks) {
        let mut tags: Vec<u64> = core::iter::from_fn(|| disk.disk.poll())
            .map(|done| {
                assert_eq!(done.result, Err(DiskError::Broken));
                done.tag
            })
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, [2 * tag, 2 * tag + 1]);
        disk.disk.submit(&request(9, Operation::Read, 0, data)).ok();
    }
    assert_eq!(model.state().status, 0);
}

/// A clock that advances half a second at each reading.
fn machine_clock() -> impl Clock {
    struct Fast(std::cell::Cell<u64>);
    impl Clock for Fast {
        fn now(&self) -> crate::hal::Instant {
            self.0.set(self.0.get() + 500_000_000);
            crate::hal::Instant::from_nanos(self.0.get())
        }
    }
    Fast(std::cell::Cell::new(0))
}

#[test]
fn crash_record_is_written_with_requests_in_flight() {
    let (mut machine, model, device) = plug(MODERN | EVENT_INDEX, 64);
    let mut player = Player::start(&model, two_disks());
    let mut disks = open(device, &mut machine, &WallClock).unwrap().disks;
    let mut crash = disks[1].crash.take().unwrap();
    assert!(crash.prepare(4096, machine.arena()));
    player.stop();
    let data = buffer(&mut machine, 512);
    disks[0].disk.submit(&request(1, Operation::Read, 8, data)).unwrap();
    disks[0].disk.flush_queue();
    let mut luns = two_disks();
    luns.get_mut(&(0, 300)).unwrap().answers = [[0, 2, 6, 0x29, 0]].into();
    let player = Player::start(&model, luns);
    assert_eq!(crash.write(96, &[0x5a; 4096]), Ok(()));
    player.with((0, 300), |lun| {
        assert!(lun.bytes[96 * 512..][..4096].iter().all(|&byte| byte == 0x5a));
        assert!(lun.bytes[104 * 512..].iter().all(|&byte| byte == 0xa5));
    });
    assert!(crash.write(96, &[1; 4096]).is_err(), "once");
    let mut other =
        VirtioScsiCrash::new(attach_polled(device, &mut machine).unwrap(), [1; 8], 4096);
    assert!(other.prepare(4096, machine.arena()));
    assert!(other.write(97, &[0; 4096]).is_err(), "not on a block of 4096");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// For any answer of the controller every request ends once, and nothing else does.
    #[test]
    fn any_answer_ends_each_request_once(
        answers in prop::collection::vec((any::<[u8; 5]>(), 0u8..12, any::<bool>()), 1..40),
        order in any::<u64>(),
    ) {
        let (mut machine, model, mut player, mut disks) = set_up(MODERN);
        player.stop();
        let data = buffer(&mut machine, 512);
        let zeroes = Operation::WriteZeroes { sectors: 1, unmap: false };
        let disk = &mut *disks[0].disk;
        for tag in 0..9 {
            let (operation, data) = if tag % 2 == 0 { (Operation::Read, data) } else { (zeroes, Window::empty()) };
            disk.submit(&request(tag, operation, tag, data)).unwrap();
        }
        disk.flush_queue();
        let mut ended = Vec::new();
        let mut answers = answers.into_iter().cycle();
        for _ in 0..4000 {
            if ended.len() == 9 {
                break;
            }
            let mut device = model.state();
            if !device.live() {
                drop(device);
                ended.extend(core::iter::from_fn(|| disk.poll()).map(|done| done.tag));
                break;
            }
            let mut chains: Vec<_> = core::iter::from_fn(|| device.pop(REQUESTS)).collect();
            if order % 3 == 0 {
                chains.reverse();
            }
            for chain in chains {
                let (sense, response, checked) = answers.next().unwrap();
                let mut answer = std::vec![0; ANSWER];
                answer[11] = response;
                answer[10] = if checked { 2 } else { sense[0] };
                answer[12..17].copy_from_slice(&sense);
                device.scatter(&chain, &answer);
                device.push(REQUESTS, chain.head, 0);
            }
            drop(device);
            ended.extend(core::iter::from_fn(|| disk.poll()).map(|done| done.tag));
        }
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..9).collect::<Vec<u64>>());
        prop_assert!(disk.poll().is_none());
    }
}

#[test]
fn a_controller_whose_queue_is_too_short_is_refused() {
    let (mut machine, _model, device) = plug(MODERN, 4);
    let refused = open(device, &mut machine, &WallClock).err().unwrap().to_string();
    assert!(refused.contains("queue 2"), "{refused}");
}
