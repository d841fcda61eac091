//! The NVMe driver under chance: power cuts at any moment, with a journal of what was acknowledged; drives that do
//! whatever wrong. Each case is told by its seed.

use drivers::hal::{Disk, DiskError, Operation, Platform, Request, Window};
use drivers::registry::Class;
use metal::Metal;
use models::nvme::{Config, Fault, Nvme, Shape};
use std::collections::BTreeMap;
use std::time::Duration;

const SEEDS: u64 = 200;
const BLOCKS: u64 = 16;

/// Numbers that are the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn machine(shift: u8) -> Metal<Nvme> {
    let namespaces = vec![Shape::new(1, BLOCKS, shift)];
    Metal::new(Nvme::new(Config { namespaces, entries: 16, ..Config::default() }), 4 << 20)
}

fn open(machine: &mut Metal<Nvme>) -> Box<dyn Disk> {
    let device = machine.find().take(Class::Disks).remove(0);
    let clock = machine.clock();
    device.open_disks(machine, &clock).expect("it works").disks.remove(0).disk
}

/// What a block may hold after a power cut: numbers of writes.
#[derive(Clone, Default)]
struct Block {
    /// The last write that is known to be durable.
    durable: u32,
    /// Writes that completed after it, and were not flushed; and those that did not complete.
    perhaps: Vec<u32>,
}

#[test]
fn what_was_acknowledged_as_durable_is_there_after_any_power_cut() {
    for seed in 0..SEEDS {
        let mut chance = Chance(seed);
        let shift = [9, 12][chance.below(2) as usize];
        let size = 1usize << shift;
        let mut machine = machine(shift);
        let buffers: Vec<Window> =
            (0..8).map(|_| machine.arena().alloc(size, size).expect("room")).collect();
        let mut blocks = vec![Block { durable: 0xa5a5_a5a5, perhaps: vec![] }; BLOCKS as usize];
        let mut number = 0u32;
        for _ in 0..3 {
            let mut disk = open(&mut machine);
            let mut under_way: BTreeMap<u64, (Operation, u64, u32)> = BTreeMap::new();
            // What completed before a flush was sent.
            let mut flushing: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
            let mut completed: Vec<(u64, u32)> = Vec::new();
            for _ in 0..60 {
                let free = (0..8).find(|tag| !under_way.contains_key(tag));
                // One write to a block at a time: the order of two is not told.
                let block = chance.below(BLOCKS);
                let busy = under_way.values().any(|(operation, at, _)| {
                    !matches!(operation, Operation::Flush) && *at == block
                });
                if let Some(tag) = free.filter(|_| !busy) {
                    let operation = match chance.below(5) {
                        0 => Operation::Flush,
                        1 => Operation::WriteThrough,
                        _ => Operation::Write,
                    };
                    let mut data = Window::empty();
                    if !matches!(operation, Operation::Flush) {
                        number += 1;
                        data = buffers[tag as usize];
                        data.write(0, &number.to_le_bytes().repeat(size / 4)).expect("inside");
                        blocks[block as usize].perhaps.push(number);
                    } else {
                        flushing.insert(tag, completed.clone());
                    }
                    let sector = block << (shift - 9);
                    disk.submit(&Request { tag, operation, sector, data }).expect("room");
                    disk.flush_queue();
                    under_way.insert(tag, (operation, block, number));
                }
                if chance.below(3) == 0 {
                    machine.run();
                }
                while let Some(done) = disk.poll() {
                    assert_eq!(done.result, Ok(()), "seed {seed}");
                    let (operation, block, number) =
                        under_way.remove(&done.tag).expect("it is under way");
                    let durable = match operation {
                        Operation::Flush => flushing.remove(&done.tag).unwrap_or_default(),
                        Operation::WriteThrough => vec![(block, number)],
                        _ => {
                            completed.push((block, number));
                            vec![]
                        }
                    };
                    for (block, number) in durable {
                        let block = &mut blocks[block as usize];
                        if block.perhaps.contains(&number) {
                            block.durable = number;
                            block.perhaps.retain(|&later| later > number);
                        }
                    }
                }
            }
            drop(disk);
            machine.model(Nvme::cut_power);
            let medium = machine.model(|model| model.namespace(1).expect("one").medium().to_vec());
            for (at, (block, bytes)) in blocks.iter_mut().zip(medium.chunks(size)).enumerate() {
                let found = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
                let known = found == block.durable || block.perhaps.contains(&found);
                assert!(known, "seed {seed}: block {at} has {found}, not {}", block.durable);
                assert!(bytes.chunks(4).all(|four| four == &bytes[..4]), "seed {seed}: torn");
                *block = Block { durable: found, perhaps: vec![] };
            }
        }
        assert_eq!(machine.model(|model| model.complaints.clone()), [""; 0], "seed {seed}");
    }
}

/// Whatever the drive does, each request ends once, and what is read without an error is right.
#[test]
fn whatever_a_drive_does_each_request_ends_once() {
    let mut ends = [0; 2];
    for seed in 0..SEEDS {
        let mut chance = Chance(seed ^ 0x5a5a);
        let mut machine = machine(9);
        let mut disk = open(&mut machine);
        let buffers: Vec<Window> =
            (0..15).map(|_| machine.arena().alloc(512, 512).expect("room")).collect();
        let mut under_way = BTreeMap::new();
        let mut next = 0;
        let mut lies = false;
        for _ in 0..120 {
            if chance.below(30) == 0 {
                let fault = match chance.below(10) {
                    0 => Fault::Fatal,
                    1 => Fault::ResetsItself,
                    2 => Fault::NoInterrupts,
                    3 => Fault::NeverCompletes,
                    4 => Fault::NeverAborts,
                    5 => Fault::CompletesTwice,
                    6 => Fault::NamesAnother(chance.below(0x400) as u16 + 1),
                    7 => Fault::Fails(chance.below(0x8000) as u16 | 1),
                    8 => Fault::DeafAdmin,
                    _ => Fault::RefusesAdmin(chance.below(10) as u8),
                };
                // A completion that names another, or says that it was done, is believed.
                lies |= matches!(fault, Fault::NamesAnother(_));
                machine.model(|model| model.inject(fault));
            }
            if chance.below(40) == 0 {
                machine.model(Nvme::repair);
            }
            if let Some(place) = (0..15).find(|place| !under_way.values().any(|p| p == place)) {
                let data = buffers[place];
                data.fill(0);
                let (operation, sector) = (Operation::Read, chance.below(BLOCKS));
                if disk.submit(&Request { tag: next, operation, sector, data }).is_ok() {
                    under_way.insert(next, place);
                    next += 1;
                }
                disk.flush_queue();
            }
            match chance.below(4) {
                0 => {
                    let now = machine.pass(Duration::from_millis(chance.below(3000)));
                    disk.watch(now);
                }
                1 => {}
                _ => machine.run(),
            }
            let mut look = |under_way: &mut BTreeMap<u64, usize>| {
                while let Some(done) = disk.poll() {
                    let place = under_way.remove(&done.tag);
                    let place =
                        place.unwrap_or_else(|| panic!("seed {seed}: {} ends twice", done.tag));
                    ends[usize::from(done.result.is_ok())] += 1;
                    let mut bytes = [0; 512];
                    buffers[place].read(0, &mut bytes).expect("inside");
                    let right = bytes == [0xa5; 512];
                    assert!(right || lies || done.result.is_err(), "seed {seed}: wrong data");
                }
            };
            look(&mut under_way);
        }
        // What is under way at last ends as well, well or not.
        machine.model(Nvme::repair);
        for _ in 0..200 {
            let now = machine.pass(Duration::from_secs(1));
            disk.watch(now);
            machine.run();
            while let Some(done) = disk.poll() {
                assert!(under_way.remove(&done.tag).is_some(), "seed {seed}: ends twice");
                assert!(matches!(done.result, Ok(()) | Err(DiskError::Io | DiskError::Broken)));
            }
        }
        assert_eq!(under_way.len(), 0, "seed {seed}: requests never end");
        // Of a drive that has reset itself nobody knows at once that it has no queues.
        let mut complaints = machine.model(|model| model.complaints.clone());
        complaints.retain(|complaint| !complaint.contains("which does not exist"));
        assert_eq!(complaints, [""; 0], "seed {seed}");
    }
    assert!(ends[0] > 100 && ends[1] > 1000, "both happen: {ends:?}");
}
