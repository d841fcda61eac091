//! Engine for the table of a disk: reads it, claims disks, and writes changes so that a
//! power cut leaves the old table or the new one.

use super::table::COPY_LEN;
use super::{Change, Extent, Table, TableError};
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::{
    Arena, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError, Window,
};

const MAGIC: &[u8; 16] = b"ISTHMUS VOLUMES1";
/// The head of a disk whose table is being erased.
const WIPING: &[u8; 16] = b"ISTHMUS WIPING 1";
/// Sectors that a wipe erases: all before the first extent.
pub const WIPED: u64 = super::UNIT_SECTORS;
/// Length of the head, which identifies the disk: a whole block, whatever the block size.
const HEAD_LEN: usize = 4096;
/// Where each copy starts, in bytes.
const COPIES: [u64; 2] = [32 << 10, 64 << 10];
const SECTOR: u64 = 512;
/// Most sectors in one write-zeroes request.
const MAX_ZEROES: u64 = 1 << 16;
/// Bytes that a wipe erases behind the head.
const ERASED_LEN: usize = super::UNIT as usize - HEAD_LEN;

/// State of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It is being read.
    Loading,
    /// It is blank and can be claimed.
    Blank,
    /// It holds other data, and is claimed only by force.
    Foreign,
    /// It has a valid table.
    Ready,
    /// A wipe was interrupted. It has no table.
    HalfWiped,
    /// Its head is valid, but neither copy of the table is. It is not written to.
    Damaged,
    /// It cannot be used: it is too small, or its blocks are too large.
    Unusable,
    /// A read failed, so its contents are unknown.
    Unreadable(DiskError),
}

impl fmt::Display for StoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreState::Unreadable(error) => return write!(f, "cannot be read: {error}"),
            StoreState::Loading => "is being read; try again",
            StoreState::Blank => "is blank",
            StoreState::Foreign => "holds something else",
            StoreState::Ready => "has a table of volumes",
            StoreState::HalfWiped => "has a wipe unfinished: repeat `wipe`",
            StoreState::Damaged => "has a damaged table of volumes; it is not written to",
            StoreState::Unusable => "is too small for volumes, or has blocks of more than 4 KiB",
        })
    }
}

/// End of a load, a claim or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// The disk was read.
    Loaded {
        /// Only one copy of the table is valid, because of a power cut or a defect of the disk.
        one_copy: bool,
    },
    /// The change, the claim or the wipe is durable.
    Done,
    /// A wipe has read back something else than zeroes.
    Kept {
        /// The first such sector of the disk.
        sector: u64,
    },
    /// The disk failed. A change in progress may be on the disk at the next start.
    Failed(DiskError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ReadHead,
    ReadCopy(usize),
    ReadEnd,
    /// Zeroes the new extents.
    Zero,
    Flush,
    ClearCopy(usize),
    WriteCopy(usize),
    WriteHead,
    MarkWipe,
    /// Erases what is behind the head.
    Erase,
    CheckErased,
    ClearHead,
    CheckHead,
    /// Ends a wipe, without a request to the disk.
    Wiped,
    /// Ends the operation, without a request to the disk.
    Finish,
}

/// The engine of one disk.
#[derive(Debug)]
pub struct Store {
    geometry: Geometry,
    /// Buffer for a copy of the table.
    buffer: Window,
    state: StoreState,
    /// Remaining steps, the current one first.
    steps: &'static [Step],
    /// Progress of the current step: bytes, or sectors of zeroes.
    done: u64,
    /// Bytes, or sectors of zeroes, of the request in flight.
    in_flight: Option<u64>,
    table: Table,
    generation: u64,
    /// The copy that holds the table.
    current: usize,
    whole_copies: usize,
    /// Whether all data read so far is zeroes.
    blank: bool,
    next: Table,
    /// Contents of the next copy; empty while loading.
    image: Vec<u8>,
    zero: Vec<Extent>,
    zero_by_writing: bool,
}

const LOAD: &[Step] =
    &[Step::ReadHead, Step::ReadCopy(0), Step::ReadCopy(1), Step::ReadEnd, Step::Finish];
const CLAIM: &[Step] = &[
    Step::ClearCopy(1),
    Step::WriteCopy(0),
    Step::Flush,
    Step::WriteHead,
    Step::Flush,
    Step::Finish,
];
const WIPE: &[Step] = &[
    Step::Flush,
    Step::MarkWipe,
    Step::Flush,
    Step::Erase,
    Step::Flush,
    Step::CheckErased,
    Step::ClearHead,
    Step::Flush,
    Step::CheckHead,
    Step::Wiped,
];
const CHANGE: [&[Step]; 2] = [
    &[Step::Zero, Step::Flush, Step::WriteCopy(0), Step::Flush, Step::Finish],
    &[Step::Zero, Step::Flush, Step::WriteCopy(1), Step::Flush, Step::Finish],
];

impl Store {
    /// Starts to read a disk of this geometry. None if the arena lacks the 32 KiB for a copy of the table.
    pub fn new(geometry: Geometry, arena: &mut Arena) -> Option<Store> {
        let block = geometry.logical_block as usize;
        let fits = geometry.sectors >= 2 * super::UNIT_SECTORS
            && block.is_power_of_two()
            && (512..=HEAD_LEN).contains(&block)
            && geometry.max_transfer as usize >= HEAD_LEN;
        Some(Store {
            geometry,
            buffer: arena.alloc(COPY_LEN, HEAD_LEN)?,
            state: if fits { StoreState::Loading } else { StoreState::Unusable },
            steps: if fits { LOAD } else { &[Step::Finish] },
            done: 0,
            in_flight: None,
            table: Table::default(),
            generation: 0,
            current: 0,
            whole_copies: 0,
            blank: true,
            next: Table::default(),
            image: Vec::new(),
            zero: Vec::new(),
            zero_by_writing: false,
        })
    }

    /// The memory to return to the arena. No operation may be in progress.
    pub fn into_buffer(self) -> Window {
        self.buffer
    }

    /// State of the disk.
    pub fn state(&self) -> StoreState {
        self.state
    }

    /// The table that is on the disk.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether an operation is in progress.
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Progress of the operation; changes whenever a request to the disk has ended.
    pub fn position(&self) -> (usize, u64) {
        (self.steps.len(), self.done)
    }

    /// Updates the geometry of the disk.
    pub fn set_geometry(&mut self, geometry: Geometry) {
        self.geometry = geometry;
    }

    /// Starts to claim the disk for volumes. A blank disk needs no `force`. With `force`, a disk with other data or a
    /// damaged table is claimed too, and its data is lost. False if the disk cannot be claimed, or an operation is in
    /// progress.
    pub fn claim(&mut self, force: bool) -> bool {
        let claimable = match self.state {
            StoreState::Blank => true,
            StoreState::Foreign | StoreState::Damaged | StoreState::HalfWiped => force,
            StoreState::Loading
            | StoreState::Ready
            | StoreState::Unusable
            | StoreState::Unreadable(_) => false,
        };
        if !claimable || self.is_busy() || self.is_read_only() {
            return false;
        }
        (self.next, self.generation) = (Table::default(), 1);
        self.image = self.next.encode(1);
        self.steps = CLAIM;
        true
    }

    /// Starts to erase the table, and all before the first extent. The caller has closed the volumes. False if there is
    /// no table, or an operation is in progress.
    pub fn wipe(&mut self) -> bool {
        let has_table =
            matches!(self.state, StoreState::Ready | StoreState::Damaged | StoreState::HalfWiped);
        if !has_table || self.is_busy() || self.is_read_only() {
            return false;
        }
        self.steps = WIPE;
        true
    }

    /// Starts a change.
    pub fn change(&mut self, change: Change<'_>) -> Result<(), TableError> {
        debug_assert!(self.state == StoreState::Ready && !self.is_busy(), "the caller checks both");
        let (next, zero) = self.table.changed(change, self.geometry.sectors)?;
        // 2^64 changes are out of reach.
        self.generation = self.generation.saturating_add(1);
        self.image = next.encode(self.generation);
        (self.next, self.zero) = (next, zero);
        self.zero_by_writing = !self.geometry.features.contains(Features::WRITE_ZEROES);
        self.steps = CHANGE[1 - self.current];
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.geometry.features.contains(Features::READ_ONLY)
    }

    /// Advances the operation without blocking; returns an event when it has ended.
    pub fn poll(&mut self, disk: &mut dyn Disk) -> Option<StoreEvent> {
        loop {
            let step = *self.steps.first()?;
            if let Some(amount) = self.in_flight {
                let completion = disk.poll()?;
                self.in_flight = None;
                match completion.result {
                    Ok(()) => {
                        self.done += amount;
                        if let Some(event) = self.check_zeroes(step, amount) {
                            return Some(event);
                        }
                    }
                    Err(DiskError::Unsupported) if step == Step::Zero && !self.zero_by_writing => {
                        self.zero_by_writing = true;
                    }
                    Err(error) => return Some(self.fail(error)),
                }
                if step == Step::Flush {
                    self.finish(step);
                    self.done = 0;
                    self.steps = self.steps.get(1..).unwrap_or_default();
                }
                continue;
            }
            if let Some((request, amount)) = self.request(step) {
                match disk.submit(&request) {
                    Ok(()) => disk.flush_queue(),
                    Err(SubmitError::Full) => return None,
                    Err(SubmitError::Unsupported)
                        if step == Step::Zero && !self.zero_by_writing =>
                    {
                        self.zero_by_writing = true;
                        continue;
                    }
                    Err(_) => return Some(self.fail(DiskError::Unsupported)),
                }
                self.in_flight = Some(amount);
                continue;
            }
            let event = self.finish(step);
            self.done = 0;
            self.steps = self.steps.get(1..).unwrap_or_default();
            if event.is_some() {
                return event;
            }
        }
    }

    /// The next request of a step, and its share of the step's progress; None if the step is complete.
    fn request(&mut self, step: Step) -> Option<(Request, u64)> {
        let (operation, at, length) = match step {
            Step::Finish | Step::Wiped => return None,
            Step::Flush => {
                let volatile = self.geometry.features.contains(Features::VOLATILE_CACHE);
                let data = Window::empty();
                let flush = Request { tag: 0, operation: Operation::Flush, sector: 0, data };
                return volatile.then_some((flush, 0));
            }
            Step::Zero => return self.zero_request(),
            Step::ReadHead => (Operation::Read, 0, HEAD_LEN),
            Step::ReadCopy(copy) => (Operation::Read, COPIES[copy], COPY_LEN),
            Step::ReadEnd => {
                let end = self.geometry.sectors.saturating_mul(SECTOR) / HEAD_LEN as u64
                    * HEAD_LEN as u64;
                (Operation::Read, end - COPY_LEN as u64, COPY_LEN)
            }
            Step::WriteHead | Step::MarkWipe | Step::ClearHead => (Operation::Write, 0, HEAD_LEN),
            Step::CheckHead => (Operation::Read, 0, HEAD_LEN),
            Step::Erase => (Operation::Write, HEAD_LEN as u64, ERASED_LEN),
            Step::CheckErased => (Operation::Read, HEAD_LEN as u64, ERASED_LEN),
            Step::ClearCopy(copy) | Step::WriteCopy(copy) => {
                (Operation::Write, COPIES[copy], COPY_LEN)
            }
        };
        let done = self.done as usize;
        if done >= length {
            return None;
        }
        if done == 0 {
            self.fill_buffer(step);
        }
        let most = (self.geometry.max_transfer as usize / HEAD_LEN * HEAD_LEN).max(HEAD_LEN);
        let part = (length - done).min(most).min(COPY_LEN);
        // What is erased is longer than the buffer.
        let from = if matches!(step, Step::Erase | Step::CheckErased) { 0 } else { done };
        let data = self.buffer.slice(from, part)?;
        let sector = (at + self.done) / SECTOR;
        Some((Request { tag: 0, operation, sector, data }, part as u64))
    }

    /// Fills the buffer with the data that a step writes.
    fn fill_buffer(&self, step: Step) {
        let write = |bytes: &[u8]| {
            self.buffer.fill(0);
            // Never longer than the buffer.
            let _ = self.buffer.write(0, bytes);
        };
        match step {
            Step::WriteCopy(_) => write(&self.image),
            Step::WriteHead => write(MAGIC),
            Step::MarkWipe => write(WIPING),
            Step::ClearCopy(_) | Step::Zero | Step::Erase | Step::ClearHead => write(&[]),
            _ => {}
        }
    }

    fn zero_request(&mut self) -> Option<(Request, u64)> {
        let mut skip = self.done;
        let extent = self.zero.iter().find(|extent| {
            let here = skip < extent.sectors;
            if !here {
                skip -= extent.sectors;
            }
            here
        });
        let extent = *extent?;
        let (sector, left) = (extent.start + skip, extent.sectors - skip);
        if self.zero_by_writing {
            self.fill_buffer(Step::Zero);
            let most = self.geometry.max_transfer as usize / HEAD_LEN * HEAD_LEN;
            let most = most.clamp(HEAD_LEN, COPY_LEN);
            let sectors = left.min(most as u64 / SECTOR);
            let data = self.buffer.slice(0, (sectors * SECTOR) as usize)?;
            return Some((Request { tag: 0, operation: Operation::Write, sector, data }, sectors));
        }
        let most = u64::from(self.geometry.max_write_zeroes_sectors).clamp(1, MAX_ZEROES);
        let block = u64::from(self.geometry.logical_block) / SECTOR;
        let sectors = left.min((most / block.max(1) * block.max(1)).max(block));
        let operation = Operation::WriteZeroes { sectors: sectors as u32, unmap: true };
        Some((Request { tag: 0, operation, sector, data: Window::empty() }, sectors))
    }

    /// Handles the end of a step.
    fn finish(&mut self, step: Step) -> Option<StoreEvent> {
        match step {
            Step::ReadHead => {
                let bytes = self.contents(HEAD_LEN);
                if bytes.starts_with(MAGIC) {
                    self.state = StoreState::Damaged;
                } else if bytes.starts_with(WIPING) {
                    self.state = StoreState::HalfWiped;
                }
                self.blank = bytes.iter().all(|&byte| byte == 0);
            }
            Step::ReadCopy(copy) => {
                let bytes = self.contents(COPY_LEN);
                let found = Table::decode(&bytes);
                // A claim that a power cut interrupted leaves an empty table without a head.
                let unfinished = found == Some((1, Table::default()));
                self.blank &= unfinished || bytes.iter().all(|&byte| byte == 0);
                if let (StoreState::Damaged | StoreState::Ready, Some((generation, table))) =
                    (self.state, found)
                {
                    self.whole_copies += 1;
                    if self.state == StoreState::Damaged || generation > self.generation {
                        (self.generation, self.table, self.current) = (generation, table, copy);
                    }
                    self.state = StoreState::Ready;
                }
            }
            Step::ReadEnd => {
                self.blank &= self.contents(COPY_LEN).iter().all(|&byte| byte == 0);
                if self.state == StoreState::Loading {
                    self.state = if self.blank { StoreState::Blank } else { StoreState::Foreign };
                }
            }
            Step::Finish if self.image.is_empty() => {
                // The first generation has only one copy, which is no fault.
                let one_copy = self.state == StoreState::Ready
                    && self.whole_copies == 1
                    && self.generation > 1;
                return Some(StoreEvent::Loaded { one_copy });
            }
            Step::Finish => {
                self.table = core::mem::take(&mut self.next);
                self.current = match self.state {
                    StoreState::Ready => 1 - self.current,
                    _ => 0,
                };
                self.state = StoreState::Ready;
                self.image = Vec::new();
                self.zero = Vec::new();
                return Some(StoreEvent::Done);
            }
            Step::MarkWipe => {
                // The table is not used any more, whatever follows.
                (self.state, self.table, self.generation) =
                    (StoreState::HalfWiped, Table::default(), 0);
            }
            Step::Wiped => {
                self.state = StoreState::Blank;
                return Some(StoreEvent::Done);
            }
            Step::Zero
            | Step::Erase
            | Step::CheckErased
            | Step::ClearHead
            | Step::CheckHead
            | Step::Flush
            | Step::ClearCopy(_)
            | Step::WriteCopy(_)
            | Step::WriteHead => {}
        }
        None
    }

    /// Checks what a wipe has read back: the last `amount` bytes of the step. The event, if they are not zeroes.
    fn check_zeroes(&mut self, step: Step, amount: u64) -> Option<StoreEvent> {
        let start = match step {
            Step::CheckErased => HEAD_LEN as u64,
            Step::CheckHead => 0,
            _ => return None,
        };
        let bytes = self.contents(amount as usize);
        let at = bytes.iter().position(|&byte| byte != 0)?;
        let sector = (start + self.done - amount + at as u64) / SECTOR;
        (self.steps, self.done) = (&[], 0);
        Some(StoreEvent::Kept { sector })
    }

    fn contents(&self, length: usize) -> Vec<u8> {
        let mut bytes = alloc::vec![0; length];
        // Never longer than the buffer.
        let _ = self.buffer.read(0, &mut bytes);
        bytes
    }

    fn fail(&mut self, error: DiskError) -> StoreEvent {
        if self.steps.first() == Some(&Step::MarkWipe) {
            // The mark may be on the disk.
            self.finish(Step::MarkWipe);
        }
        (self.steps, self.done) = (&[], 0);
        self.image = Vec::new();
        self.zero = Vec::new();
        if self.state == StoreState::Loading {
            self.state = StoreState::Unreadable(error);
        }
        StoreEvent::Failed(error)
    }
}
