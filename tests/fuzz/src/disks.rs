//! Disks with arbitrary contents: the table of volumes of a disk, and the records of a mirror's members. The input
//! changes them. Their checksums are corrected, so that the code behind the checksum test is reached.

use crate::input::Input;
use crc::{CRC_32_ISCSI, Crc};
use drivers::hal::{
    Arena, Completion, Disk, DiskError, Features, Geometry, Instant, Operation, Request,
    SubmitError, Window,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use storage::volume::extents::{Change, Store, StoreState, Table};
use storage::volume::mirror::Mirror;
use storage::volume::{DiskVolume, Operation as What, Request as VolumeRequest, Volume};

const SUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
const SECTOR: usize = 512;

/// A disk in memory. Clones share it. Sectors beyond its memory read as zeroes, and writes to them are discarded.
#[derive(Clone)]
struct Memory(Rc<RefCell<State>>);

struct State {
    bytes: Vec<u8>,
    geometry: Geometry,
    queue: VecDeque<Request>,
    /// Number of requests until one fails; 0 for no failure.
    until_failure: u32,
}

impl Memory {
    fn new(bytes: Vec<u8>, sectors: u64) -> Self {
        let geometry = Geometry {
            sectors,
            logical_block: 512,
            physical_block: 4096,
            max_transfer: 64 << 10,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 1 << 16,
            features: Features::VOLATILE_CACHE | Features::WRITE_ZEROES,
        };
        let state = State { bytes, geometry, queue: VecDeque::new(), until_failure: 0 };
        Memory(Rc::new(RefCell::new(state)))
    }
}

impl Disk for Memory {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }
    fn depth(&self) -> usize {
        8
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let state = &mut *self.0.borrow_mut();
        if state.queue.len() == 8 {
            return Err(SubmitError::Full);
        }
        let sectors = match request.operation {
            Operation::Discard { sectors } | Operation::WriteZeroes { sectors, .. } => {
                u64::from(sectors)
            }
            Operation::Flush => 0,
            _ => (request.data.len() / SECTOR) as u64,
        };
        let end = request.sector.checked_add(sectors).expect("a sector number");
        assert!(
            sectors == 0 || end <= state.geometry.sectors,
            "a request beyond the end of the disk"
        );
        state.queue.push_back(*request);
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        let state = &mut *self.0.borrow_mut();
        let request = state.queue.pop_front()?;
        let tag = request.tag;
        if state.until_failure > 0 {
            state.until_failure -= 1;
            if state.until_failure == 0 {
                return Some(Completion { tag, result: Err(DiskError::Io) });
            }
        }
        let at = (request.sector as usize).saturating_mul(SECTOR).min(state.bytes.len());
        match request.operation {
            Operation::Read => {
                let len = request.data.len().min(state.bytes.len() - at);
                request.data.fill(0);
                request.data.write(0, &state.bytes[at..at + len]).expect("inside");
            }
            Operation::Write | Operation::WriteThrough => {
                let len = request.data.len().min(state.bytes.len() - at);
                request.data.read(0, &mut state.bytes[at..at + len]).expect("inside");
            }
            Operation::Discard { sectors } | Operation::WriteZeroes { sectors, .. } => {
                let len = (sectors as usize * SECTOR).min(state.bytes.len() - at);
                state.bytes[at..at + len].fill(0);
            }
            Operation::Flush => {}
        }
        Some(Completion { tag, result: Ok(()) })
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

/// Changes bytes: the input has the number of changes, then pairs of an offset and a value.
fn change(bytes: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..input.byte() % 24 {
        let at = input.word() as usize % bytes.len();
        bytes[at] = input.byte();
    }
}

const TABLE: usize = 32 << 10;
/// Bytes of the disk with contents; the rest is zero.
const THERE: usize = 3 * TABLE;
const MIB: u64 = 2048;

/// A disk with a table of volumes.
pub fn extents(data: &[u8]) {
    let mut input = Input(data);
    let mut bytes = vec![0; THERE];
    bytes[..16].copy_from_slice(b"ISTHMUS VOLUMES1");
    let mut table = Table::default();
    let names = ["a", "b", "volume"];
    for (name, mib) in names.iter().zip([1, 3, 2]) {
        if let Ok((next, _)) = table.changed(Change::Create(name, mib * MIB), 16 * MIB) {
            table = next;
        }
    }
    for copy in [1, 2] {
        let generation = u64::from(input.byte());
        let mut part = table.encode(generation);
        let how = input.byte();
        change(&mut part[..512], &mut input);
        if how & 1 == 0 {
            let field = u32::from_le_bytes([part[12], part[13], part[14], part[15]]);
            let end = (24 + field as usize).min(TABLE);
            let sum = SUM.checksum(&part[12..end]);
            part[8..12].copy_from_slice(&sum.to_le_bytes());
        }
        bytes[copy * TABLE..][..TABLE].copy_from_slice(&part);
    }
    change(&mut bytes[..64], &mut input);
    let sectors = [16 * MIB, 8 * MIB, 3 * MIB, 2 * MIB][input.below(4)];
    let mut disk = Memory::new(bytes, sectors);
    netsim::with_memory(64 << 10, |memory| {
        let mut arena = Arena::new(memory);
        let geometry = disk.geometry();
        let mut store = Store::new(geometry, &mut arena).expect("there is memory");
        settle(&mut store, &mut disk);
        for _ in 0..4 {
            if input.is_empty() {
                break;
            }
            if store.state() != StoreState::Ready {
                store.claim(input.byte() > 200);
                settle(&mut store, &mut disk);
                continue;
            }
            disk.0.borrow_mut().until_failure = u32::from(input.byte() % 16);
            let name = names[input.below(3)];
            let size = u64::from(input.word()) << (input.byte() % 48);
            let wanted = match input.byte() % 4 {
                0 => Change::Create(name, size),
                1 => Change::Create("more", size),
                2 => Change::Grow(name, size),
                _ => Change::Delete(name),
            };
            let _ = store.change(wanted);
            settle(&mut store, &mut disk);
        }
        if store.state() == StoreState::Ready {
            let mut extents: Vec<_> =
                store.table().volumes().iter().flat_map(|volume| volume.extents.clone()).collect();
            extents.sort_unstable();
            let apart = extents.windows(2).all(|two| two[0].start + two[0].sectors <= two[1].start);
            assert!(apart, "extents overlap: {extents:?}");
        }
    });
}

fn settle(store: &mut Store, disk: &mut Memory) {
    for _ in 0..100_000 {
        let before = store.position();
        let event = store.poll(disk);
        if !store.is_busy() || (event.is_none() && before == store.position()) {
            return;
        }
    }
    panic!("reading the table never ends");
}

pub fn extents_corpus() -> Vec<Vec<u8>> {
    vec![
        vec![1, 0, 0, 2, 0, 0, 0, 0],
        vec![1, 0, 2, 0, 30, 9, 0, 16, 3, 2, 0, 0, 0, 0, 0, 0, 1, 11, 0],
        vec![1, 0, 0, 2, 0, 0, 0, 0, 5, 0, 0, 2, 11, 2, 1, 0, 1, 0, 0, 3],
        vec![9, 1, 1, 0, 12, 255, 2, 1, 0, 0, 0, 0, 0, 1, 16, 11, 0],
    ]
}

/// Distance of a member's two records in bytes.
const RECORD: usize = 8 << 10;
const MEMBER: usize = 32 << 10;

/// Two members of a mirror. The input provides their records, except magic, version and checksum.
pub fn mirror(data: &[u8]) {
    let mut input = Input(data);
    let members = [0, 1].map(|_| {
        let mut bytes = vec![0; MEMBER + (32 << 10)];
        for at in [0, RECORD] {
            let how = input.byte();
            let record = &mut bytes[at..at + RECORD];
            record[..8].copy_from_slice(b"ISTHMIRR");
            record[8..12].copy_from_slice(&1u32.to_le_bytes());
            record[16..32].fill(7);
            record[32] = how >> 4;
            record[40..48].copy_from_slice(&64u64.to_le_bytes());
            record[48..56].copy_from_slice(&8u64.to_le_bytes());
            change(record, &mut input);
            if how & 1 == 0 {
                let sum = SUM.checksum(&record[16..SIZE]);
                record[12..16].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let sectors = ((bytes.len() / SECTOR) as u64) >> (input.byte() % 3);
        Memory::new(bytes, sectors)
    });
    netsim::with_memory(Mirror::MEMORY + (64 << 10), |memory| {
        let own = memory.slice(0, Mirror::MEMORY).expect("inside");
        let buffer = memory.slice(Mirror::MEMORY, 64 << 10).expect("inside");
        let disks = members.clone();
        let volumes = members.map(|disk| Box::new(DiskVolume::new(disk, false)) as Box<dyn Volume>);
        let how = input.byte();
        let mut mirror = match how % 3 {
            0 => Mirror::assemble(volumes, own),
            1 => Mirror::assemble(volumes, own).force(),
            _ => Mirror::create(volumes, own, [7; 16]),
        };
        let mut now = Instant::from_nanos(1);
        for turn in 0..64u64 {
            now = now + Duration::from_millis(u64::from(input.byte()) * 8);
            mirror.tend(now);
            let sectors = mirror.geometry().sectors;
            if !input.is_empty() {
                if input.byte() > 230 {
                    let disk = &disks[input.below(2)];
                    disk.0.borrow_mut().until_failure = u32::from(input.byte() % 8);
                }
                submit(&mut mirror, &mut input, buffer, turn, sectors);
            }
            mirror.flush_queue();
            for _ in 0..32 {
                if mirror.poll().is_none() && !mirror.wants_turn() {
                    break;
                }
            }
        }
    });
}

/// Bytes of a record: a sector, and a bitmap of 2^15 regions.
const SIZE: usize = 512 + 4096;

fn submit(mirror: &mut Mirror, input: &mut Input<'_>, buffer: Window, tag: u64, sectors: u64) {
    let operation = match input.byte() % 3 {
        0 => What::Read,
        1 => What::Write { durable: false },
        _ => What::Flush,
    };
    let sector = u64::from(input.byte()) % sectors.max(1);
    let len = SECTOR * (1 + input.below(8));
    let data = buffer.slice((tag as usize % 8) * 8192, len).expect("inside");
    let _ = mirror.submit(&VolumeRequest { tag: tag.into(), operation, sector, data });
}

pub fn mirror_corpus() -> Vec<Vec<u8>> {
    let honest = [0, 0, 16, 0, 0, 0, 0, 16, 0, 0];
    let work = [1, 10, 1, 3, 2, 9, 20, 0, 3, 1, 4, 0, 2, 0, 0].repeat(4);
    (0..3u8).map(|how| [&honest[..], &[how], &work].concat()).collect()
}
