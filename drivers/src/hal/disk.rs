//! A disk as its users see it: many requests in flight, completions polled.

use super::{Arena, DeviceLife, DeviceState, Health, Instant, Notice, QueueCount, Window};
use alloc::vec::Vec;
use core::fmt;

/// Shape of a disk. Sizes in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in sectors of 512 bytes (whatever the block size is).
    pub sectors: u64,
    /// Smallest unit of transfer.
    pub logical_block: u32,
    /// Smallest unit that is written without read-modify-write.
    pub physical_block: u32,
    /// Largest read or write.
    pub max_transfer: u32,
    /// Largest discard, in sectors; 0 if the disk cannot discard.
    pub max_discard_sectors: u32,
    /// Granularity of discards.
    pub discard_granularity: u32,
    /// Largest write-zeroes, in sectors; 0 if the disk cannot.
    pub max_write_zeroes_sectors: u32,
    /// Optional operations, and properties of the disk.
    pub features: Features,
}

impl Geometry {
    /// Geometry of a disk that is absent.
    pub const ABSENT: Geometry = Geometry {
        sectors: 0,
        logical_block: 512,
        physical_block: 512,
        max_transfer: 512,
        max_discard_sectors: 0,
        discard_granularity: 0,
        max_write_zeroes_sectors: 0,
        features: Features::empty(),
    };
}

bitflags::bitflags! {
    /// Operations that a disk supports, and its properties.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u8 {
        /// Writes are refused.
        const READ_ONLY = 1;
        /// A completed write may be lost on power failure until a flush completes.
        const VOLATILE_CACHE = 2;
        /// Supports discard.
        const DISCARD = 4;
        /// Supports write-zeroes.
        const WRITE_ZEROES = 8;
        /// Erases sectors beyond recovery.
        const SECURE_ERASE = 16;
        /// Supports [`Operation::WriteThrough`].
        const WRITE_THROUGH = 32;
    }
}

/// Operation of a request. Sectors are of 512 bytes, aligned to the logical block.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Reads into `Request::data`.
    Read,
    /// Writes from `Request::data`.
    Write,
    /// As `Write`, and completes when the data is durable.
    WriteThrough,
    /// Makes all completed writes durable.
    Flush,
    /// Discards `sectors` sectors.
    Discard {
        /// Number of sectors.
        sectors: u32,
    },
    /// Zeroes `sectors` sectors.
    WriteZeroes {
        /// Number of sectors.
        sectors: u32,
        /// The disk may deallocate them, as long as they read as zeroes.
        unmap: bool,
    },
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The caller's cookie, returned with the completion.
    pub tag: u64,
    /// Operation.
    pub operation: Operation,
    /// First sector (unused by flush).
    pub sector: u64,
    /// Memory to read into or write from, a multiple of the block size. Empty for other operations.
    pub data: Window,
}

/// Why [`Disk::submit`] refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue is full: poll, then try again.
    Full,
    /// Past the end, misaligned, or too large.
    Range,
    /// The disk does not support the operation.
    Unsupported,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "the disk's queue is full",
            SubmitError::Range => {
                "the request is misaligned, too large, or past the end of the disk"
            }
            SubmitError::Unsupported => "the disk does not support this request",
        })
    }
}

impl core::error::Error for SubmitError {}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The device reported an I/O error.
    Io,
    /// The device does not support the request after all.
    Unsupported,
    /// The device returned an invalid response. The driver has stopped using it.
    Broken,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskError::Io => "the disk reported an I/O error: check the disk and its cabling",
            DiskError::Unsupported => "the disk does not support this request",
            DiskError::Broken => "invalid response: the disk is out of use, restart or replace it",
        })
    }
}

impl core::error::Error for DiskError {}

/// Completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the request.
    pub tag: u64,
    /// Result of the request.
    pub result: Result<(), DiskError>,
}

/// A disk, owned by one loop. Nothing here blocks or allocates.
pub trait Disk {
    /// Shape of the disk.
    fn geometry(&self) -> Geometry;
    /// Maximum number of requests in flight.
    fn depth(&self) -> usize;
    /// Queues a request. The next [`Disk::flush_queue`] notifies the device.
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError>;
    /// Notifies the device of queued requests.
    fn flush_queue(&mut self);
    /// The next completion, if any.
    fn poll(&mut self) -> Option<Completion>;
    /// Enables the interrupt for the next completion (before halting), or disables it (while polling).
    fn set_interrupts(&mut self, wanted: bool);
    /// Whether the disk can raise interrupts. If not, a loop that halts must poll it by timer.
    fn wakes(&self) -> bool {
        true
    }
    /// Whether the disk was resized since the last call; [`Disk::geometry`] then returns the new size. Reads device
    /// registers: call it by timer, not in every round of the loop.
    fn capacity_changed(&mut self) -> bool {
        false
    }
    /// Whether completions may be waiting for [`Disk::poll`].
    fn pending(&self) -> bool {
        true
    }
    /// Interrupts that the device raised.
    fn interrupts(&self) -> u64;
    /// Periodic work: times out requests, checks that the device is present, and reads its health. Call it about once a
    /// second. Reads device registers.
    fn watch(&mut self, now: Instant) {
        let _ = now;
    }
    /// Takes the steps of a recovery that are due by the clock. [`Disk::watch`] does so too; a caller that waits for a
    /// request without a loop calls this, as often as it likes.
    fn advance(&mut self, now: Instant) {
        let _ = now;
    }
    /// The next event for the operator, if any. Each is returned once.
    fn notice(&mut self) -> Option<Notice> {
        None
    }
    /// Begins the disk's shutdown, before the machine ends. The disk is not used afterwards.
    fn shut_down(&mut self) {}
    /// Whether the disk has completed [`Disk::shut_down`].
    fn is_shut_down(&self) -> bool {
        true
    }
    /// Health as the disk last reported it; None if the disk does not report it.
    fn health(&self) -> Option<Health> {
        None
    }
    /// State of the device. By default as its health tells: one that accepts no more requests has failed.
    fn life(&self) -> DeviceLife {
        match self.health() {
            Some(health) if health.gone => {
                DeviceLife::new(DeviceState::Failed, "it accepts no more requests; see `show log`")
            }
            _ => DeviceLife::default(),
        }
    }
    /// Counters of the device's queues, one entry per core that has a queue. Only the owner of a device that supports
    /// several queues returns any.
    fn queue_counts(&self) -> Vec<QueueCount> {
        Vec::new()
    }
}

/// Writes the crash record to a disk, in any state of the disk's driver. Relies on no other part of the program.
pub trait CrashWriter: Send {
    /// Allocates memory for one write of up to `bytes` bytes; false if there is none. Called at start-up.
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool;
    /// Writes `data` (a multiple of the disk's block) from `sector` (of 512 bytes) on. The data is durable when it
    /// returns Ok. The driver's requests in flight end, completed or not. Works once. Neither allocates nor waits for a
    /// lock. The error names the step that the device failed.
    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str>;
}
