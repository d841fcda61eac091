//! A volume on a disk: the whole disk, or extents of it. Requests that are larger than the disk's maximum, or that
//! cross extents, are split into parts, which are submitted one after the other. On a disk with a volatile cache, a
//! durable write is a write-through if the disk supports it, and otherwise a write and a flush.

use super::extents::Extent;
use super::{Completion, Operation, Request, Submitted, Tag, Volume, VolumeError, check};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use drivers::hal::{self, Disk, DiskError, Features, Geometry, SubmitError, Window};

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    tag: Tag,
    operation: hal::Operation,
    sector: u64,
    /// Remaining data, beginning with the current part.
    data: Window,
    /// Remaining sectors of a discard or write-zeroes, beginning with the current part.
    sectors: u32,
    /// Length of the current part in sectors.
    part: u32,
    then_flush: bool,
    /// The user has its completion, which is a failure; the disk still has the request.
    given_up: bool,
}

/// Maps sectors of a volume to sectors of its disk, by binary search.
#[derive(Clone, Debug, Default)]
pub struct ExtentMap {
    /// Each extent, with the volume's sector that follows its end.
    extents: Vec<(u64, Extent)>,
}

impl From<Vec<Extent>> for ExtentMap {
    fn from(extents: Vec<Extent>) -> Self {
        let mut end = 0u64;
        let extents = extents.into_iter().map(|extent| {
            end = end.saturating_add(extent.sectors);
            (end, extent)
        });
        ExtentMap { extents: extents.collect() }
    }
}

impl ExtentMap {
    /// Sectors of the volume.
    pub fn sectors(&self) -> u64 {
        self.extents.last().map_or(0, |(end, _)| *end)
    }

    /// The disk's sector for a sector of the volume, and the number of contiguous sectors from there.
    fn locate(&self, sector: u64) -> Option<(u64, u64)> {
        let place = self.extents.partition_point(|(end, _)| *end <= sector);
        let (end, extent) = self.extents.get(place)?;
        let left = end - sector;
        Some((extent.start.checked_add(extent.sectors.checked_sub(left)?)?, left))
    }
}

/// Location of a volume, for loops of other cores that have queues of their own to its disk.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// Number of the disk.
    pub disk: usize,
    /// None if the volume is the whole disk.
    pub extents: Option<ExtentMap>,
    /// Whether writes are rejected.
    pub read_only: bool,
}

/// The extents of a volume, shared with the engine that grows it.
pub type Extents = Rc<RefCell<ExtentMap>>;

/// A volume on a disk. It holds as many requests in flight as the disk.
#[derive(Debug)]
pub struct DiskVolume<D> {
    disk: D,
    /// None if the volume is the whole disk.
    extents: Option<Extents>,
    read_only: bool,
    /// The disk's number, if loops of other cores may have queues of their own to it.
    number: Option<usize>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// Requests whose next step the disk refused because its queue was full.
    stalled: VecDeque<u32>,
    /// Completions of requests that were given up.
    given_up: VecDeque<Completion>,
}

impl<D: Disk> DiskVolume<D> {
    /// A volume of the whole of `disk`.
    pub fn new(disk: D, read_only: bool) -> Self {
        Self::over(disk, None, read_only)
    }

    /// A volume of extents of `disk`.
    pub fn of_extents(disk: D, extents: Extents, read_only: bool) -> Self {
        Self::over(disk, Some(extents), read_only)
    }

    fn over(disk: D, extents: Option<Extents>, read_only: bool) -> Self {
        let depth = disk.depth().max(1);
        DiskVolume {
            disk,
            extents,
            read_only,
            number: None,
            in_flight: alloc::vec![None; depth],
            free: (0..depth as u32).rev().collect(),
            stalled: VecDeque::with_capacity(depth),
            given_up: VecDeque::with_capacity(depth),
        }
    }

    /// Sets the number by which loops of other cores know the disk.
    pub fn of_number(mut self, number: usize) -> Self {
        self.number = Some(number);
        self
    }

    /// The disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The disk, for its interrupts.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// The disk's sector for a sector of the volume, and the number of contiguous sectors from there.
    fn locate(&self, sector: u64) -> Option<(u64, u64)> {
        let Some(extents) = &self.extents else { return Some((sector, u64::MAX)) };
        extents.borrow().locate(sector)
    }

    /// Submits the next step of a request to the disk.
    fn step(&mut self, slot: u32) -> Result<(), SubmitError> {
        let Some(&Some(request)) = self.in_flight.get(slot as usize) else { return Ok(()) };
        let geometry = self.disk.geometry();
        let (sector, run) = match request.operation {
            hal::Operation::Flush => (0, 0),
            _ => self.locate(request.sector).ok_or(SubmitError::Range)?,
        };
        let run = u32::try_from(run).unwrap_or(u32::MAX);
        let block = geometry.logical_block.max(512);
        let most = (geometry.max_transfer / block * block).max(block) / 512;
        let left = (request.data.len() / 512) as u32;
        let (part, operation) = match request.operation {
            hal::Operation::Discard { .. } => {
                let sectors = request.sectors.min(run);
                (sectors, hal::Operation::Discard { sectors })
            }
            hal::Operation::WriteZeroes { unmap, .. } => {
                let sectors = request.sectors.min(run);
                (sectors, hal::Operation::WriteZeroes { sectors, unmap })
            }
            other => (left.min(most).min(run), other),
        };
        let length = part as usize * 512;
        let data = match request.data.is_empty() {
            true => Window::empty(),
            false => request.data.slice(0, length).ok_or(SubmitError::Range)?,
        };
        if let Some(Some(request)) = self.in_flight.get_mut(slot as usize) {
            request.part = part;
        }
        self.disk.submit(&hal::Request { tag: u64::from(slot), operation, sector, data })
    }

    /// Removes a request that has ended from the table.
    fn end(&mut self, slot: u32, result: Result<(), VolumeError>) -> Option<Completion> {
        let request = self.in_flight.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(Completion { tag: request.tag, result })
    }

    /// Prepares the next step of a request after a step succeeded; false if the request is complete.
    fn advance(request: &mut InFlight) -> bool {
        let done = request.part as usize * 512;
        if request.data.len() > done {
            let rest = request.data.len() - done;
            request.sector += u64::from(request.part);
            request.data = request.data.slice(done, rest).unwrap_or(Window::empty());
            return true;
        }
        if request.sectors > request.part {
            request.sectors -= request.part;
            request.sector += u64::from(request.part);
            return true;
        }
        if request.then_flush {
            request.then_flush = false;
            request.operation = hal::Operation::Flush;
            request.sector = 0;
            request.data = Window::empty();
            return true;
        }
        false
    }
}

impl<D: Disk> Volume for DiskVolume<D> {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.disk.geometry();
        geometry.features.set(
            Features::READ_ONLY,
            self.read_only || geometry.features.contains(Features::READ_ONLY),
        );
        geometry.features.remove(Features::SECURE_ERASE | Features::WRITE_THROUGH);
        if let Some(extents) = &self.extents {
            geometry.sectors = extents.borrow().sectors();
        }
        geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let geometry = self.geometry();
        check(&geometry, request)?;
        let cached = geometry.features.contains(Features::VOLATILE_CACHE);
        let mut data = Window::empty();
        let mut left = 0;
        let mut then_flush = false;
        let operation = match request.operation {
            Operation::Flush if !cached => return Ok(Submitted::Done),
            Operation::Flush => hal::Operation::Flush,
            Operation::Read => {
                data = request.data;
                hal::Operation::Read
            }
            Operation::Write { durable } => {
                data = request.data;
                let through = self.disk.geometry().features.contains(Features::WRITE_THROUGH);
                then_flush = durable && cached && !through;
                match durable && cached && through {
                    true => hal::Operation::WriteThrough,
                    false => hal::Operation::Write,
                }
            }
            Operation::Discard { sectors } => {
                left = sectors;
                hal::Operation::Discard { sectors }
            }
            Operation::WriteZeroes { sectors } => {
                left = sectors;
                hal::Operation::WriteZeroes { sectors, unmap: true }
            }
            Operation::SecureErase { .. } => return Err(VolumeError::Unsupported),
        };
        let slot = self.free.pop().ok_or(VolumeError::Busy)?;
        self.in_flight[slot as usize] = Some(InFlight {
            tag: request.tag,
            operation,
            // Linux's flush has the largest sector number; disks get zero.
            sector: if request.operation == Operation::Flush { 0 } else { request.sector },
            data,
            sectors: left,
            part: 0,
            then_flush,
            given_up: false,
        });
        match self.step(slot) {
            Ok(()) => Ok(Submitted::Pending),
            Err(SubmitError::Full) => {
                // Other users may fill the disk's queue: the step is retried after their completions.
                self.stalled.push_back(slot);
                Ok(Submitted::Pending)
            }
            Err(error) => {
                self.end(slot, Ok(()));
                Err(refused(error))
            }
        }
    }

    fn flush_queue(&mut self) {
        self.disk.flush_queue();
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.in_flight.len() && self.given_up.is_empty()
    }

    /// A disk cannot cancel requests: a submitted request keeps its slot and its memory until the disk completes it.
    fn give_up(&mut self) {
        while let Some(slot) = self.stalled.pop_front() {
            let ended = self.end(slot, Err(VolumeError::Io));
            self.given_up.extend(ended);
        }
        for request in self.in_flight.iter_mut().flatten().filter(|request| !request.given_up) {
            request.given_up = true;
            self.given_up.push_back(Completion { tag: request.tag, result: Err(VolumeError::Io) });
        }
    }

    fn on_disk(&self) -> Option<OnDisk> {
        let extents = self.extents.as_ref().map(|extents| extents.borrow().clone());
        self.number.map(|disk| OnDisk { disk, extents, read_only: self.read_only })
    }

    fn move_to(&mut self, place: &OnDisk) {
        if let (Some(extents), Some(now)) = (&self.extents, &place.extents) {
            *extents.borrow_mut() = now.clone();
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.given_up.pop_front() {
            return Some(completion);
        }
        loop {
            let mut stepped = false;
            let end = self.advance_requests(&mut stepped);
            // The caller notifies the disk only after it has submitted requests; it does not know of further steps.
            if stepped {
                self.disk.flush_queue();
            }
            if end.is_some() || !stepped {
                return end;
            }
        }
    }
}

impl<D: Disk> DiskVolume<D> {
    /// Submits the next steps of requests until a request ends. Sets `stepped` if it submitted any.
    fn advance_requests(&mut self, stepped: &mut bool) -> Option<Completion> {
        while let Some(&slot) = self.stalled.front() {
            match self.step(slot) {
                Err(SubmitError::Full) => break,
                Ok(()) => {
                    self.stalled.pop_front();
                    *stepped = true;
                }
                Err(error) => {
                    self.stalled.pop_front();
                    return self.end(slot, Err(refused(error)));
                }
            }
        }
        while let Some(done) = self.disk.poll() {
            let slot = u32::try_from(done.tag).unwrap_or(u32::MAX);
            let Some(Some(request)) = self.in_flight.get_mut(slot as usize) else { continue };
            if request.given_up {
                self.end(slot, Ok(()));
                continue;
            }
            let ended = match done.result {
                Ok(()) if Self::advance(request) => match self.step(slot) {
                    Ok(()) => {
                        *stepped = true;
                        continue;
                    }
                    Err(SubmitError::Full) => {
                        self.stalled.push_back(slot);
                        continue;
                    }
                    Err(error) => Err(refused(error)),
                },
                Ok(()) => Ok(()),
                Err(DiskError::Unsupported) => Err(VolumeError::Unsupported),
                Err(DiskError::Io | DiskError::Broken) => Err(VolumeError::Io),
            };
            return self.end(slot, ended);
        }
        None
    }
}

fn refused(error: SubmitError) -> VolumeError {
    match error {
        SubmitError::Full => VolumeError::Busy,
        SubmitError::Range => VolumeError::PastEnd,
        SubmitError::Unsupported => VolumeError::Unsupported,
    }
}
