//! Power cuts of the config disk: a model with a volatile cache loses any part of the unflushed data and tears a
//! sector.

use super::*;
use drivers::hal::Completion;
use proptest::prelude::*;
use std::collections::VecDeque;

#[path = "power_cut_tests.rs"]
mod power_cuts;
#[path = "wipe_tests.rs"]
mod wipes;

struct Model {
    geometry: Geometry,
    durable: Vec<u8>,
    /// Sectors written since the last flush, oldest first.
    cache: Vec<(usize, Vec<u8>)>,
    queue: VecDeque<(Operation, usize, Window)>,
    /// Requests completed so far; some fail.
    completed: usize,
    failing: Vec<usize>,
}

impl Model {
    fn new(contents: Vec<u8>, max_transfer: u32, features: Features) -> Model {
        let geometry = Geometry {
            sectors: (contents.len() / SECTOR) as u64,
            logical_block: 512,
            physical_block: 512,
            max_transfer,
            max_discard_sectors: 0,
            discard_granularity: 512,
            max_write_zeroes_sectors: 0,
            features,
        };
        let (cache, queue, failing) = Default::default();
        Model { geometry, durable: contents, cache, queue, completed: 0, failing }
    }

    fn contents(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (sector, data) in &self.cache {
            bytes[sector * SECTOR..][..SECTOR].copy_from_slice(data);
        }
        bytes
    }

    /// Makes all written data durable.
    fn settle(&mut self) {
        for (sector, data) in core::mem::take(&mut self.cache) {
            self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&data);
        }
    }

    /// Cuts the power. Of the unflushed sectors and of writes in flight, those with a set bit in `survive` survive.
    /// Every seventh lost sector is torn after `torn` bytes.
    fn cut(&mut self, mut survive: u64, torn: usize) {
        while let Some((operation, sector, data)) = self.queue.pop_front() {
            if let Operation::Write = operation {
                self.cache_write(sector, data);
            }
        }
        let cache = core::mem::take(&mut self.cache);
        for (i, (sector, data)) in cache.into_iter().enumerate() {
            let len = match survive & 1 {
                1 => SECTOR,
                _ if i % 7 == 3 => torn,
                _ => 0,
            };
            self.durable[sector * SECTOR..][..len].copy_from_slice(&data[..len]);
            survive = survive.rotate_right(1);
        }
    }

    fn cache_write(&mut self, sector: usize, data: Window) {
        let mut bytes = vec![0; data.len()];
        data.read(0, &mut bytes).unwrap();
        for (i, part) in bytes.chunks(SECTOR).enumerate() {
            self.cache.push((sector + i, part.to_vec()));
        }
    }
}

impl Disk for Model {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let end = request.sector as usize * SECTOR + request.data.len();
        let fits = end <= self.durable.len()
            && request.data.len() <= self.geometry.max_transfer as usize
            && request.data.len().is_multiple_of(SECTOR);
        if !fits {
            return Err(SubmitError::Range);
        }
        self.queue.push_back((request.operation, request.sector as usize, request.data));
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        let (operation, sector, data) = self.queue.pop_front()?;
        self.completed += 1;
        if self.failing.contains(&self.completed) {
            return Some(Completion { tag: 0, result: Err(DiskError::Io) });
        }
        match operation {
            Operation::Read => {
                let mut bytes = self.durable[sector * SECTOR..][..data.len()].to_vec();
                for (at, written) in &self.cache {
                    let place = at.checked_sub(sector).filter(|at| at * SECTOR < bytes.len());
                    if let Some(place) = place {
                        bytes[place * SECTOR..][..SECTOR].copy_from_slice(written);
                    }
                }
                data.write(0, &bytes).unwrap();
            }
            Operation::Write => self.cache_write(sector, data),
            Operation::Flush => self.settle(),
            _ => unreachable!("the config disk asks for nothing else"),
        }
        if !self.geometry.features.contains(Features::VOLATILE_CACHE) {
            self.settle();
        }
        Some(Completion { tag: 0, result: Ok(()) })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

/// The contents of the smallest area.
fn small(text: Option<&str>) -> Vec<u8> {
    let mut area = format(text).unwrap();
    area.truncate(LEAST_LEN);
    area
}

fn finish(engine: &mut ConfigDisk, disk: &mut Model) -> Event {
    (0..100).find_map(|_| engine.poll(disk)).expect("it ends")
}

fn boot(disk: &mut Model) -> (ConfigDisk, Event) {
    let area = Stretch { first: 0, sectors: disk.geometry.sectors };
    let mut engine = ConfigDisk::new(disk.geometry(), area, &mut Arena::on_heap(1 << 16)).unwrap();
    let event = finish(&mut engine, disk);
    (engine, event)
}

fn loaded(text: &str) -> Event {
    Event::Loaded(Some(text.into()))
}

#[test]
fn saved_document_is_loaded_at_the_next_boot() {
    for (max_transfer, features) in [(4096, Features::VOLATILE_CACHE), (1 << 20, Features::empty())]
    {
        let mut disk = Model::new(small(None), max_transfer, features);
        assert_eq!(boot(&mut disk).1, Event::Loaded(None));
        for i in 0..5 {
            let (mut engine, _) = boot(&mut disk);
            for j in 0..3 {
                engine.save(&format!("a = {i}{j}\n")).unwrap();
                assert!(engine.save("b = 1").unwrap_err().contains("busy"));
                assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
            }
            assert_eq!(boot(&mut disk).1, loaded(&format!("a = {i}2\n")));
        }
    }
}

#[test]
fn older_copy_is_kept_while_the_newest_is_unusable() {
    let mut disk = Model::new(small(Some("a = 1")), 1 << 20, Features::empty());
    let (engine, _) = boot(&mut disk);
    assert_eq!((engine.before(), engine.is_damaged()), (None, false));
    let (mut engine, _) = boot(&mut disk);
    engine.save("a = 2").unwrap();
    finish(&mut engine, &mut disk);
    let (mut engine, event) = boot(&mut disk);
    assert_eq!((event, engine.before()), (loaded("a = 2"), Some(&b"a = 1"[..])));
    // The newest document is unusable: the next save overwrites it.
    engine.keep_before();
    engine.save("a = 3").unwrap();
    finish(&mut engine, &mut disk);
    let (engine, event) = boot(&mut disk);
    assert_eq!((event, engine.before()), (loaded("a = 3"), Some(&b"a = 1"[..])));
}

#[test]
fn damaged_disk_is_distinguished_from_a_new_one() {
    let mut bytes = small(Some("a = 1"));
    bytes[SLOTS[0] + 25] ^= 1;
    let mut disk = Model::new(bytes, 1 << 20, Features::empty());
    let (engine, event) = boot(&mut disk);
    assert_eq!((event, engine.is_damaged()), (Event::Loaded(None), true));
    let mut disk = Model::new(small(None), 1 << 20, Features::empty());
    assert!(!boot(&mut disk).0.is_damaged());
}

#[test]
fn foreign_disks_are_not_written() {
    let mut disk = Model::new(vec![0x55; 1 << 16], 1 << 20, Features::empty());
    let (_, event) = boot(&mut disk);
    assert_eq!((event, disk.completed), (Event::NotAConfigDisk, 1));
    let whole = Stretch { first: 0, sectors: 128 };
    let coarse = Geometry { logical_block: 8192, ..disk.geometry };
    for (geometry, area) in [
        (disk.geometry, Stretch { sectors: 127, ..whole }),
        (disk.geometry, Stretch { first: 1, ..whole }),
        (coarse, whole),
    ] {
        let mut engine = ConfigDisk::new(geometry, area, &mut Arena::on_heap(1 << 16)).unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::NotAConfigDisk);
        assert_eq!(disk.completed, 1);
    }
}

#[test]
fn an_area_in_a_partition_touches_nothing_else() {
    const FIRST: usize = 64;
    let mut bytes = vec![0x55; FIRST * SECTOR];
    bytes.extend(small(None));
    bytes.extend([0x55; 8192]);
    let mut disk = Model::new(bytes, 1 << 20, Features::empty());
    let area = Stretch { first: FIRST as u64, sectors: 128 };
    for text in ["a = 1", "a = 2"] {
        let arena = &mut Arena::on_heap(1 << 16);
        let mut engine = ConfigDisk::new(disk.geometry(), area, arena).unwrap();
        assert!(matches!(finish(&mut engine, &mut disk), Event::Loaded(_)));
        engine.save(text).unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
    }
    let arena = &mut Arena::on_heap(1 << 16);
    let mut engine = ConfigDisk::new(disk.geometry(), area, arena).unwrap();
    assert_eq!(finish(&mut engine, &mut disk), loaded("a = 2"));
    assert_eq!(engine.crashes(), 64 + 96);
    let all = disk.contents();
    assert!(all[..FIRST * SECTOR].iter().all(|&byte| byte == 0x55));
    assert!(all[FIRST * SECTOR + LEAST_LEN..].iter().all(|&byte| byte == 0x55));
}

#[test]
fn impossible_save_is_refused_with_a_reason() {
    let mut disk = Model::new(small(Some("x = 1")), 4096, Features::READ_ONLY);
    let (mut engine, event) = boot(&mut disk);
    assert_eq!(event, loaded("x = 1"));
    assert!(engine.save("").unwrap_err().contains("read-only"));
    disk.geometry.features = Features::VOLATILE_CACHE;
    let (mut engine, _) = boot(&mut disk);
    assert!(engine.save(&"x".repeat(20_000)).unwrap_err().contains("at most 16360 fit"));
    disk.failing = vec![disk.completed + 2];
    engine.save("y = 1").unwrap();
    assert!(matches!(finish(&mut engine, &mut disk), Event::Failed(why) if why.contains("I/O")));
    assert_eq!(boot(&mut disk).1, loaded("x = 1"));
}

/// Boots, and starts the trial if there is one, as the gateway does. Returns the document in force.
fn boot_with_trial(disk: &mut Model) -> (ConfigDisk, Option<Vec<u8>>) {
    let (mut engine, event) = boot(disk);
    let Event::Loaded(mut text) = event else { panic!("{event:?}") };
    if let Some((_, trial, sector, spent)) = engine.take_trial() {
        disk.settle();
        disk.durable[sector as usize * SECTOR..][..spent.len()].copy_from_slice(&spent);
        text = Some(trial);
    }
    (engine, text)
}

#[test]
fn trial_is_started_by_one_boot_only() {
    let mut disk = Model::new(small(Some("a = 1")), 4096, Features::VOLATILE_CACHE);
    let (mut engine, _) = boot(&mut disk);
    engine.arm("a = 2", 7).unwrap();
    assert_eq!(finish(&mut engine, &mut disk), Event::Armed);
    let (mut engine, event) = boot(&mut disk);
    assert_eq!(event, loaded("a = 1"), "the saved document is unchanged");
    assert_eq!(engine.take_trial().unwrap().0, 7);
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 2");
    let (mut engine, text) = boot_with_trial(&mut disk);
    assert_eq!(text.unwrap(), b"a = 1");
    assert!(!engine.is_damaged());
    // A save after the trial overwrites its slot.
    engine.save("a = 3").unwrap();
    assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 3");
}

/// Arms a trial while these requests fail, counted from the first one. Returns whether it was armed.
fn arm_with_errors(disk: &mut Model, engine: &mut ConfigDisk, failing: &[usize]) -> bool {
    disk.failing = failing.iter().map(|request| disk.completed + request).collect();
    engine.arm("a = 2", 7).unwrap();
    let event = finish(engine, disk);
    disk.failing.clear();
    assert!(matches!(event, Event::Armed | Event::Failed(_)), "{event:?}");
    event == Event::Armed
}

#[test]
fn trial_refused_after_an_io_error_is_started_by_no_boot() {
    let mut refused = 0;
    for request in 1..20 {
        let mut disk = Model::new(small(Some("a = 1")), 4096, Features::VOLATILE_CACHE);
        let (mut engine, _) = boot(&mut disk);
        let armed = arm_with_errors(&mut disk, &mut engine, &[request]);
        assert!(
            !engine.is_in_doubt(),
            "an armed trial is not in doubt, and a refused one is withdrawn"
        );
        engine.withdraw();
        assert!(!engine.is_busy());
        disk.cut(u64::MAX, 0);
        let text = boot_with_trial(&mut disk).1.unwrap();
        assert_eq!(text, if armed { b"a = 2" } else { b"a = 1" }, "request {request}");
        refused += usize::from(!armed);
    }
    assert_eq!(refused, 8, "flush, four writes, flush, mark, flush");
}

#[test]
fn trial_that_cannot_be_withdrawn_is_withdrawn_later() {
    let mut disk = Model::new(small(Some("a = 1")), 1 << 20, Features::VOLATILE_CACHE);
    let (mut engine, _) = boot(&mut disk);
    // The flush after the mark fails, then the withdrawal.
    assert!(!arm_with_errors(&mut disk, &mut engine, &[5, 6]));
    assert!(engine.is_in_doubt());
    disk.failing = vec![disk.completed + 1];
    engine.withdraw();
    assert_eq!(finish(&mut engine, &mut disk), Event::StillArmed);
    engine.withdraw();
    assert_eq!(finish(&mut engine, &mut disk), Event::Withdrawn);
    assert!(!engine.is_in_doubt());
    disk.cut(0, 0);
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 1");
    // A save takes the slot of a trial in doubt.
    assert!(!arm_with_errors(&mut disk, &mut engine, &[5, 6]));
    engine.save("a = 3").unwrap();
    assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
    assert!(!engine.is_in_doubt());
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 3");
}

#[test]
fn trial_that_a_boot_could_not_mark_is_withdrawn() {
    let mut disk = Model::new(small(Some("a = 1")), 1 << 20, Features::VOLATILE_CACHE);
    let (mut engine, _) = boot(&mut disk);
    assert!(arm_with_errors(&mut disk, &mut engine, &[]));
    let (mut engine, _) = boot(&mut disk);
    assert!(engine.take_trial().is_some() && engine.is_in_doubt());
    engine.withdraw();
    assert_eq!(finish(&mut engine, &mut disk), Event::Withdrawn);
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 1");
}

#[test]
fn trial_on_a_disk_without_a_document_is_not_damage() {
    let mut disk = Model::new(small(None), 4096, Features::empty());
    let (mut engine, _) = boot(&mut disk);
    engine.arm("a = 2", 1).unwrap();
    assert_eq!(finish(&mut engine, &mut disk), Event::Armed);
    assert_eq!(boot_with_trial(&mut disk).1.unwrap(), b"a = 2");
    let (engine, text) = boot_with_trial(&mut disk);
    assert_eq!((text, engine.is_damaged()), (None, false));
}

#[test]
fn torn_trial_is_not_damage() {
    let mut area = format(None).unwrap();
    slot::write_as(&mut area[SLOTS[0]..][..SLOT_LEN], slot::TRIAL, 60, &"a = 1\n".repeat(200))
        .unwrap();
    area[SLOTS[0] + SECTOR..][..SECTOR].fill(0);
    let mut disk = Model::new(area, 4096, Features::empty());
    let (engine, event) = boot(&mut disk);
    assert_eq!((event, engine.is_damaged()), (Event::Loaded(None), false));
}

#[test]
fn revisions_are_kept_in_a_ring() {
    let mut disk = Model::new(format(Some("a = 1")).unwrap(), 1 << 20, Features::empty());
    let (mut engine, _) = boot(&mut disk);
    for number in 1..=60u64 {
        engine.record(number, &format!("{number}\n0\nconsole\nset\n\na = {number}\n")).unwrap();
        assert_eq!(finish(&mut engine, &mut disk), Event::Recorded(number));
    }
    let contents = disk.contents();
    let slots = engine.revisions().map(|sector| &contents[sector as usize * SECTOR..][..SLOT_LEN]);
    let read = slots.filter_map(|bytes| slot::read_as(bytes, slot::REVISION));
    let found = read.filter_map(|(_, text)| {
        crate::config::Revision::of_slot(core::str::from_utf8(text).unwrap())
    });
    let history = crate::config::History::of(found.collect());
    assert_eq!(history.iter().count(), REVISIONS);
    assert_eq!(history.newest().unwrap().text, "a = 60\n");
    assert_eq!(boot(&mut disk).1, loaded("a = 1"));
    // An area of 64 KiB has no room for them.
    let mut disk = Model::new(small(None), 1 << 20, Features::empty());
    let (mut engine, _) = boot(&mut disk);
    assert!(engine.record(1, "").is_err());
    assert_eq!(engine.revisions().count(), 0);
}

#[derive(Clone, Debug)]
enum Act {
    /// A save that completes.
    Save,
    /// A trial that completes, and a boot that starts it.
    Trial,
    /// A power cut after this many requests while a trial is written.
    CutWhileArming { requests: usize, survive: u64, torn: usize },
    /// A power cut after this many requests of a save.
    CutWhileSaving { requests: usize, survive: u64, torn: usize },
    /// A crash of the appliance after this many requests of a save. The disk stays powered.
    CrashWhileSaving { requests: usize },
    /// A save in which this request fails.
    SaveWithError { request: usize },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        Just(Act::Save),
        Just(Act::Trial),
        (0usize..12, any::<u64>(), 0..SECTOR)
            .prop_map(|(requests, survive, torn)| Act::CutWhileArming { requests, survive, torn }),
        (0usize..12, any::<u64>(), 0..SECTOR)
            .prop_map(|(requests, survive, torn)| Act::CutWhileSaving { requests, survive, torn }),
        (0usize..12).prop_map(|requests| Act::CrashWhileSaving { requests }),
        (1usize..8).prop_map(|request| Act::SaveWithError { request }),
    ]
}

proptest! {
    #[test]
    fn a_power_cut_leaves_the_old_or_the_new_document(
        acts in prop::collection::vec(act(), 1..12),
        max_transfer in prop::sample::select(vec![4096u32, 8192, 65536]),
        long in 0usize..16_000,
    ) {
        let document = |i: usize| format!("# {i}\n{}", "#".repeat(long));
        let mut disk =
            Model::new(small(Some(&document(0))), max_transfer, Features::VOLATILE_CACHE);
        let (mut engine, _) = boot(&mut disk);
        // The loaded document is the last acknowledged one or a later one.
        let mut acknowledged = 0;
        for (i, act) in (1..).zip(acts) {
            let trial = format!("{}# trial", document(i));
            match act {
                Act::Trial => {
                    engine.arm(&trial, 5).unwrap();
                    prop_assert_eq!(finish(&mut engine, &mut disk), Event::Armed);
                    let (_, text) = boot_with_trial(&mut disk);
                    prop_assert_eq!(text, Some(trial.into_bytes()));
                    engine = boot(&mut disk).0;
                }
                Act::CutWhileArming { requests, survive, torn } => {
                    engine.arm(&trial, 5).unwrap();
                    let armed = step(&mut engine, &mut disk, requests);
                    disk.cut(survive, torn);
                    // The whole trial, or the saved document.
                    let (_, text) = boot_with_trial(&mut disk);
                    let tried = text.is_some_and(|text| text == trial.as_bytes());
                    prop_assert!(tried || !armed);
                    engine = boot(&mut disk).0;
                }
                _ => engine.save(&document(i)).unwrap(),
            }
            match act {
                Act::Trial | Act::CutWhileArming { .. } => {}
                Act::Save => {
                    prop_assert_eq!(finish(&mut engine, &mut disk), Event::Saved);
                    acknowledged = i;
                }
                Act::SaveWithError { request } => {
                    disk.failing = vec![disk.completed + request];
                    if finish(&mut engine, &mut disk) == Event::Saved {
                        acknowledged = i;
                    }
                    disk.failing.clear();
                }
                Act::CutWhileSaving { requests, survive, torn } => {
                    if step(&mut engine, &mut disk, requests) {
                        acknowledged = i;
                    }
                    disk.cut(survive, torn);
                    engine = boot(&mut disk).0;
                }
                Act::CrashWhileSaving { requests } => {
                    if step(&mut engine, &mut disk, requests) {
                        acknowledged = i;
                    }
                    disk.queue.clear();
                    engine = boot(&mut disk).0;
                }
            }
            let (_, event) = boot(&mut disk);
            let found = (acknowledged..=i).any(|k| event == loaded(&document(k)));
            prop_assert!(found, "after {i}, {acknowledged} acknowledged: {event:?}");
        }
    }
}

/// Runs a save for `requests` disk requests. Returns whether it was acknowledged.
fn step(engine: &mut ConfigDisk, disk: &mut Model, requests: usize) -> bool {
    let mut slow = Slow { disk, left: requests };
    (0..100).any(|_| matches!(engine.poll(&mut slow), Some(Event::Saved | Event::Armed)))
}

/// A disk that completes only the next `left` requests.
struct Slow<'a> {
    disk: &'a mut Model,
    left: usize,
}

impl Disk for Slow<'_> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.disk.submit(request)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.left = self.left.checked_sub(1)?;
        self.disk.poll()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}
