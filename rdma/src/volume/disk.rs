//! A whole disk as a volume. Requests larger than the disk takes are done in parts, one after the
//! other; a durable write is followed by a flush if the disk has a volatile cache.

use super::{Completion, Operation, Request, Submitted, Volume, VolumeError, check};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::{self, Disk, DiskError, Features, Geometry, SubmitError, Window};

/// A request in flight. `step` is what the disk does now, or is to do once it has room.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    tag: u64,
    operation: hal::Operation,
    sector: u64,
    /// What is left of the data, from the part that is under way.
    data: Window,
    part: usize,
    then_flush: bool,
}

/// A disk as a volume. As many requests are in flight as the disk holds.
#[derive(Debug)]
pub struct DiskVolume<D> {
    disk: D,
    read_only: bool,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// Requests whose next step found no room.
    stalled: VecDeque<u32>,
}

impl<D: Disk> DiskVolume<D> {
    /// A volume of the whole of `disk`.
    pub fn new(disk: D, read_only: bool) -> Self {
        let depth = disk.depth().max(1);
        DiskVolume {
            disk,
            read_only,
            in_flight: alloc::vec![None; depth],
            free: (0..depth as u32).rev().collect(),
            stalled: VecDeque::with_capacity(depth),
        }
    }

    /// The disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The disk, for its interrupts.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Gives the next step of a request to the disk.
    fn step(&mut self, slot: u32) -> Result<(), SubmitError> {
        let Some(Some(request)) = self.in_flight.get_mut(slot as usize) else { return Ok(()) };
        let block = self.disk.geometry().logical_block.max(512) as usize;
        let most = (self.disk.geometry().max_transfer as usize / block * block).max(block);
        request.part = request.data.len().min(most);
        let data = request.data.slice(0, request.part).unwrap_or(Window::empty());
        self.disk.submit(&hal::Request {
            tag: u64::from(slot),
            operation: request.operation,
            sector: request.sector,
            data,
        })
    }

    /// Takes a request that has ended out of the table.
    fn end(&mut self, slot: u32, result: Result<(), VolumeError>) -> Option<Completion> {
        let request = self.in_flight.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(Completion { tag: request.tag, result })
    }

    /// What follows a step that succeeded: true if the request goes on.
    fn advance(request: &mut InFlight) -> bool {
        if request.data.len() > request.part {
            let rest = request.data.len() - request.part;
            request.sector += request.part as u64 / 512;
            request.data = request.data.slice(request.part, rest).unwrap_or(Window::empty());
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
        geometry.features.remove(Features::SECURE_ERASE);
        geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let geometry = self.geometry();
        check(&geometry, request)?;
        let cached = geometry.features.contains(Features::VOLATILE_CACHE);
        let mut data = Window::empty();
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
                then_flush = durable && cached;
                hal::Operation::Write
            }
            Operation::Discard { sectors } => hal::Operation::Discard { sectors },
            Operation::WriteZeroes { sectors } => {
                hal::Operation::WriteZeroes { sectors, unmap: true }
            }
            Operation::SecureErase { .. } => return Err(VolumeError::Unsupported),
        };
        let slot = self.free.pop().ok_or(VolumeError::Busy)?;
        self.in_flight[slot as usize] = Some(InFlight {
            tag: request.tag,
            operation,
            // Linux says the largest number with a flush; disks are not to be bothered with it.
            sector: if request.operation == Operation::Flush { 0 } else { request.sector },
            data,
            part: 0,
            then_flush,
        });
        match self.step(slot) {
            Ok(()) => Ok(Submitted::Pending),
            Err(error) => {
                self.end(slot, Ok(()));
                Err(refused(error))
            }
        }
    }

    fn flush_queue(&mut self) {
        self.disk.flush_queue();
    }

    fn poll(&mut self) -> Option<Completion> {
        loop {
            let mut stepped = false;
            let end = self.go_on(&mut stepped);
            // The caller tells the disk of what it submits itself; of further steps it knows nothing.
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
    /// Lets requests take their next steps until one ends; notes whether any did.
    fn go_on(&mut self, stepped: &mut bool) -> Option<Completion> {
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
