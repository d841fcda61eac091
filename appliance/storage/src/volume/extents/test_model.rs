//! A disk for tests of the table, whose power can be cut.

use super::store::{Store, StoreEvent};
use super::*;
use drivers::hal::{
    Arena, Completion, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError,
};
use std::vec::Vec;

pub(super) const SECTORS: u64 = 16 * UNIT / 512;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unsupported {
    Nothing,
    Zeroes,
    ZeroesAtOnce,
    Writes,
    Reads,
}

/// A disk whose cache reaches the medium only by a flush, and that fails after so many writes and
/// flushes.
pub(super) struct Model {
    pub(super) cache: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) zeroes: bool,
    /// Requests that it answers with `Unsupported`: none, WRITE ZEROES although it advertises it (on completion, or on
    /// submission), or every write.
    pub(super) unsupported: Unsupported,
    pub(super) life: usize,
    /// Sectors that keep what they have.
    pub(super) stuck: Vec<usize>,
    pub(super) done: Option<Completion>,
    pub(super) broken: bool,
    /// Sectors of each request that zeroes, or writes outside of the table.
    pub(super) zeroed: Vec<u64>,
}

impl Model {
    pub(super) fn new(fill: u8, zeroes: bool) -> Self {
        let bytes = std::vec![fill; SECTORS as usize * 512];
        let (cache, durable) = (bytes.clone(), bytes);
        let (unsupported, life) = (Unsupported::Nothing, usize::MAX);
        Model {
            cache,
            durable,
            zeroes,
            unsupported,
            life,
            stuck: Vec::new(),
            done: None,
            broken: false,
            zeroed: Vec::new(),
        }
    }

    /// The power fails: some of the unflushed sectors are on the medium, and one
    /// sector is torn.
    pub(super) fn cut(&mut self, seed: u64) {
        let mut random = netsim::Rng::new(seed);
        let mut torn = false;
        for sector in 0..SECTORS as usize {
            let at = sector * 512..sector * 512 + 512;
            if self.cache[at.clone()] == self.durable[at.clone()] {
                continue;
            }
            match random.within(0..4) {
                0 if !torn => {
                    torn = true;
                    let half = sector * 512..sector * 512 + 100;
                    self.durable[half.clone()].copy_from_slice(&self.cache[half]);
                }
                0 | 1 => {}
                _ => self.durable[at.clone()].copy_from_slice(&self.cache[at]),
            }
        }
        self.cache = self.durable.clone();
        (self.life, self.done, self.broken) = (usize::MAX, None, false);
    }
}

impl Disk for Model {
    fn geometry(&self) -> Geometry {
        let mut features = Features::VOLATILE_CACHE;
        features.set(Features::WRITE_ZEROES, self.zeroes);
        Geometry {
            sectors: SECTORS,
            logical_block: 512,
            physical_block: 4096,
            max_transfer: 16 << 10,
            max_discard_sectors: 0,
            discard_granularity: 512,
            max_write_zeroes_sectors: 1024,
            features,
        }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        assert!(self.done.is_none() && request.sector < SECTORS);
        let zeroes = matches!(request.operation, Operation::WriteZeroes { .. });
        if zeroes && self.unsupported == Unsupported::ZeroesAtOnce {
            return Err(SubmitError::Unsupported);
        }
        let at = request.sector as usize * 512;
        match request.operation {
            Operation::WriteZeroes { sectors, .. } => self.zeroed.push(sectors.into()),
            Operation::Write if request.sector >= UNIT_SECTORS => {
                self.zeroed.push(request.data.len() as u64 / 512);
            }
            _ => {}
        }
        let mut result = Ok(());
        if !matches!(request.operation, Operation::Read) {
            match self.life.checked_sub(1) {
                Some(life) => self.life = life,
                None => (self.broken, result) = (true, Err(DiskError::Broken)),
            }
        }
        match request.operation {
            _ if self.broken => {}
            Operation::Read if self.unsupported == Unsupported::Reads => {
                result = Err(DiskError::Unsupported);
            }
            Operation::Read => {
                request.data.write(0, &self.cache[at..at + request.data.len()]).unwrap();
            }
            Operation::Write if self.unsupported == Unsupported::Writes => {
                result = Err(DiskError::Unsupported);
            }
            Operation::WriteZeroes { .. } if self.unsupported == Unsupported::Zeroes => {
                result = Err(DiskError::Unsupported);
            }
            Operation::Write => {
                let kept = self.stuck.iter().map(|sector| (sector * 512, self.cache[sector * 512]));
                let kept: Vec<(usize, u8)> = kept.collect();
                request.data.read(0, &mut self.cache[at..at + request.data.len()]).unwrap();
                kept.into_iter().for_each(|(at, byte)| self.cache[at] = byte);
            }
            Operation::Flush => self.durable.copy_from_slice(&self.cache),
            Operation::WriteZeroes { sectors, .. } => {
                self.cache[at..at + sectors as usize * 512].fill(0);
            }
            Operation::Discard { .. } | Operation::WriteThrough => unreachable!("not offered"),
        }
        self.done = Some(Completion { tag: request.tag, result });
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.done.take()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

pub(super) fn run(store: &mut Store, disk: &mut Model) -> StoreEvent {
    core::iter::from_fn(|| Some(store.poll(disk))).take(100_000).flatten().next().expect("an end")
}

pub(super) fn load(disk: &mut Model) -> Store {
    let mut arena = Arena::on_heap(64 << 10);
    let mut store = Store::new(disk.geometry(), &mut arena).unwrap();
    assert!(matches!(run(&mut store, disk), StoreEvent::Loaded { .. }));
    store
}

pub(super) fn claimed(fill: u8, zeroes: bool) -> (Model, Store) {
    let mut disk = Model::new(fill, zeroes);
    let mut store = load(&mut disk);
    assert!(store.claim(fill != 0));
    assert_eq!(run(&mut store, &mut disk), StoreEvent::Done);
    (disk, store)
}

pub(super) fn make(store: &mut Store, disk: &mut Model, change: Change<'_>) -> StoreEvent {
    store.change(change).unwrap();
    run(store, disk)
}

pub(super) fn bytes<'a>(disk: &'a Model, entry: &VolumeEntry) -> Vec<&'a [u8]> {
    let part =
        |e: &Extent| &disk.durable[e.start as usize * 512..(e.start + e.sectors) as usize * 512];
    entry.extents.iter().map(part).collect()
}
