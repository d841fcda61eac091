//! Reads and writes of a disk for an upgrade: one at a time, through one buffer.

use crate::config::partitions::Stretch;
use drivers::hal::{Disk, DiskError, Geometry, Operation, Request, SubmitError, Window};
use release::layout::BLOCK;

const SECTOR: u64 = 512;

/// An operation on a range of a disk.
#[derive(Debug)]
pub(super) struct DiskIo {
    geometry: Geometry,
    area: Stretch,
    buffer: Window,
    operation: Operation,
    /// Position of the rest, in bytes from the start of the range.
    at: u64,
    /// The rest in the buffer: from `from` to `to`.
    from: usize,
    to: usize,
    in_flight: usize,
    is_busy: bool,
    completed: u64,
}

impl DiskIo {
    /// Creates it with a buffer whose address and length are multiples of [`BLOCK`]. None if the disk's blocks are
    /// larger.
    pub fn new(geometry: Geometry, area: Stretch, buffer: Window) -> Option<DiskIo> {
        let fits = geometry.logical_block as usize <= BLOCK
            && geometry.max_transfer as usize >= BLOCK
            && (area.first * SECTOR).is_multiple_of(BLOCK as u64);
        let (operation, at, from, to) = (Operation::Flush, 0, 0, 0);
        let idle = DiskIo {
            geometry,
            area,
            buffer,
            operation,
            at,
            from,
            to,
            in_flight: 0,
            is_busy: false,
            completed: 0,
        };
        fits.then_some(idle)
    }

    /// Bytes of the range.
    pub fn length(&self) -> u64 {
        self.area.sectors * SECTOR
    }

    /// The buffer of all transfers.
    pub fn buffer(&self) -> Window {
        self.buffer
    }

    /// Number of completed requests.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether the disk may still use the buffer.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts to move `len` bytes between the start of the buffer and the disk. All numbers are multiples of [`BLOCK`].
    pub fn begin(&mut self, operation: Operation, at: u64, len: usize) {
        (self.operation, self.at, self.from, self.to) = (operation, at, 0, len);
        self.is_busy = true;
    }

    /// Starts a flush, which makes all writes durable.
    pub fn flush(&mut self) {
        self.begin(Operation::Flush, 0, 0);
    }

    /// Continues the operation. Returns its result, once it has ended.
    pub fn poll(&mut self, disk: &mut dyn Disk) -> Option<Result<(), &'static str>> {
        if !self.is_busy {
            return None;
        }
        loop {
            if self.in_flight > 0 {
                let completion = disk.poll()?;
                self.completed += 1;
                if let Err(error) = completion.result {
                    return self.end(Err(match error {
                        DiskError::Io => "reported an I/O error",
                        DiskError::Unsupported => "rejects a request that it has to support",
                        DiskError::Broken => "has failed",
                    }));
                }
                let done = core::mem::take(&mut self.in_flight);
                (self.at, self.from) = (self.at + done as u64, self.from + done);
                if self.is_flush() || self.from >= self.to {
                    return self.end(Ok(()));
                }
            }
            let most = self.geometry.max_transfer as usize / BLOCK * BLOCK;
            let len = (self.to - self.from).min(most);
            let inside = self.at.checked_add(len as u64).is_some_and(|end| end <= self.length());
            let data = self.buffer.slice(self.from, len).filter(|_| inside);
            let Some(data) = data else { return self.end(Err("is too small")) };
            let sector = self.area.first + self.at / SECTOR;
            let sector = if self.is_flush() { 0 } else { sector };
            let request = Request { tag: 0, operation: self.operation, sector, data };
            match disk.submit(&request) {
                Ok(()) => disk.flush_queue(),
                Err(SubmitError::Full) => return None,
                // A disk without a cache need not support a flush.
                Err(_) if self.is_flush() => return self.end(Ok(())),
                Err(_) => return self.end(Err("rejects a request that it has to support")),
            }
            // At least 1, because a flush moves no bytes.
            self.in_flight = len.max(1);
        }
    }

    fn is_flush(&self) -> bool {
        matches!(self.operation, Operation::Flush)
    }

    fn end(&mut self, result: Result<(), &'static str>) -> Option<Result<(), &'static str>> {
        (self.is_busy, self.in_flight) = (false, 0);
        Some(result)
    }
}
