//! Random tests of the NVMe driver: power cuts at any moment, checked against the acknowledged writes; and drives with
//! random faults. A seed reproduces its case.

use drivers::driver::Class;
use drivers::hal::{Disk, DiskError, Operation, Platform, Request, Window};
use metal::Metal;
use models::nvme::{Config, Fault, Nvme, Shape};
use std::collections::BTreeMap;
use std::time::Duration;

const SEEDS: u64 = 200;
const BLOCKS: u64 = 16;

/// A reproducible random generator.
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
    device.open_disks(machine, &clock).expect("the drive works").disks.remove(0).disk
}

/// The numbers of the writes that a block may hold after a power cut.
#[derive(Clone, Default)]
struct Block {
    /// The last write that is durable.
    durable: u32,
    /// Later writes that completed without a flush, and writes that did not complete.
    perhaps: Vec<u32>,
}

#[test]
fn durable_writes_survive_any_power_cut() {
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
            let mut outstanding: BTreeMap<u64, (Operation, u64, u32)> = BTreeMap::new();
            // Writes that completed before the flush was sent.
            let mut flushing: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
            let mut completed: Vec<(u64, u32)> = Vec::new();
            for _ in 0..60 {
                let free = (0..8).find(|tag| !outstanding.contains_key(tag));
                // One write to a block at a time: the order of two is not defined.
                let block = chance.below(BLOCKS);
                let busy = outstanding.values().any(|(operation, at, _)| {
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
                    outstanding.insert(tag, (operation, block, number));
                }
                if chance.below(3) == 0 {
                    machine.run();
                }
                while let Some(done) = disk.poll() {
                    assert_eq!(done.result, Ok(()), "seed {seed}");
                    let (operation, block, number) =
                        outstanding.remove(&done.tag).expect("the request is outstanding");
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

/// With any fault of the drive, each request ends once, and reads without an error return the right data.
#[test]
fn each_request_ends_once_with_any_fault_of_the_drive() {
    let mut ends = [0; 2];
    for seed in 0..SEEDS {
        let mut chance = Chance(seed ^ 0x5a5a);
        let mut machine = machine(9);
        let mut disk = open(&mut machine);
        let buffers: Vec<Window> =
            (0..15).map(|_| machine.arena().alloc(512, 512).expect("room")).collect();
        let mut outstanding = BTreeMap::new();
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
                // The driver cannot detect a completion that names another request.
                lies |= matches!(fault, Fault::NamesAnother(_));
                machine.model(|model| model.inject(fault));
            }
            if chance.below(40) == 0 {
                machine.model(Nvme::repair);
            }
            if let Some(place) = (0..15).find(|place| !outstanding.values().any(|p| p == place)) {
                let data = buffers[place];
                data.fill(0);
                let (operation, sector) = (Operation::Read, chance.below(BLOCKS));
                if disk.submit(&Request { tag: next, operation, sector, data }).is_ok() {
                    outstanding.insert(next, place);
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
            let mut look = |outstanding: &mut BTreeMap<u64, usize>| {
                while let Some(done) = disk.poll() {
                    let place = outstanding.remove(&done.tag);
                    let place =
                        place.unwrap_or_else(|| panic!("seed {seed}: {} ends twice", done.tag));
                    ends[usize::from(done.result.is_ok())] += 1;
                    let mut bytes = [0; 512];
                    buffers[place].read(0, &mut bytes).expect("inside");
                    let right = bytes == [0xa5; 512];
                    assert!(right || lies || done.result.is_err(), "seed {seed}: wrong data");
                }
            };
            look(&mut outstanding);
        }
        // The remaining requests end as well, with or without an error.
        machine.model(Nvme::repair);
        for _ in 0..200 {
            let now = machine.pass(Duration::from_secs(1));
            disk.watch(now);
            machine.run();
            while let Some(done) = disk.poll() {
                assert!(outstanding.remove(&done.tag).is_some(), "seed {seed}: ends twice");
                assert!(matches!(done.result, Ok(()) | Err(DiskError::Io | DiskError::Broken)));
            }
        }
        assert_eq!(outstanding.len(), 0, "seed {seed}: requests never end");
        // The driver does not notice at once that a drive has reset itself and has no queues.
        let mut complaints = machine.model(|model| model.complaints.clone());
        complaints.retain(|complaint| !complaint.contains("which does not exist"));
        assert_eq!(complaints, [""; 0], "seed {seed}");
    }
    assert!(ends[0] > 100 && ends[1] > 1000, "both happen: {ends:?}");
}
