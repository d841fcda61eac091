//! A disk as its users see it: many requests in flight, completions polled.

use super::{Arena, Health, Instant, Notice, QueueCount, Window};
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
    /// What it can do.
    pub features: Features,
}

impl Geometry {
    /// Of a disk that is not there.
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
    /// What a disk can do, and how it behaves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u8 {
        /// Writes are refused.
        const READ_ONLY = 1;
        /// A completed write may be lost on power failure until a flush completes.
        const VOLATILE_CACHE = 2;
        /// Takes discards.
        const DISCARD = 4;
        /// Takes write-zeroes.
        const WRITE_ZEROES = 8;
        /// Forgets sectors beyond recovery.
        const SECURE_ERASE = 16;
        /// Takes [`Operation::WriteThrough`].
        const WRITE_THROUGH = 32;
    }
}

/// What a request does. Sectors are of 512 bytes, aligned to the logical block.
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
    /// Forgets `sectors` sectors.
    Discard {
        /// How many.
        sectors: u32,
    },
    /// Zeroes `sectors` sectors.
    WriteZeroes {
        /// How many.
        sectors: u32,
        /// The disk may forget them, as long as they read as zeroes.
        unmap: bool,
    },
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The caller's name for it, given back with its completion.
    pub tag: u64,
    /// What to do.
    pub operation: Operation,
    /// First sector (unused by flush).
    pub sector: u64,
    /// Memory to read into or write from (empty for the others); a multiple of the block size.
    pub data: Window,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many in flight as the disk holds: poll, then try again.
    Full,
    /// Past the end, misaligned, or too large.
    Range,
    /// The disk cannot do this.
    Unsupported,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "as many requests are in flight as the disk takes",
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
    /// The device answered with something that makes no sense; it is not used any more.
    Broken,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskError::Io => "the disk reported an I/O error: check the disk and its cabling",
            DiskError::Unsupported => "the disk does not support this request",
            DiskError::Broken => "the disk answered with something that makes no sense, and is not used any more: restart it, or replace it",
        })
    }
}

impl core::error::Error for DiskError {}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the request.
    pub tag: u64,
    /// How it went.
    pub result: Result<(), DiskError>,
}

/// A disk, owned by one loop. Nothing here blocks or allocates.
pub trait Disk {
    /// Shape of the disk.
    fn geometry(&self) -> Geometry;
    /// Most requests that can be in flight.
    fn depth(&self) -> usize;
    /// Queues a request; the device is told with the next [`Disk::flush_queue`].
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError>;
    /// Tells the device of what was queued.
    fn flush_queue(&mut self);
    /// The next completion, if any.
    fn poll(&mut self) -> Option<Completion>;
    /// Asks for an interrupt at the next completion (before halting), or for none (while polling).
    fn set_interrupts(&mut self, wanted: bool);
    /// Whether it can raise interrupts at all. If not, a loop that halts must look again by timer.
    fn wakes(&self) -> bool {
        true
    }
    /// Looks whether the disk was resized since the last look; if so, [`Disk::geometry`] answers
    /// anew. Reads device registers: for a timer, not for every turn of the loop.
    fn capacity_changed(&mut self) -> bool {
        false
    }
    /// Whether something may have completed that was not polled yet.
    fn pending(&self) -> bool {
        true
    }
    /// Interrupts that the device raised.
    fn interrupts(&self) -> u64;
    /// Sees to what takes time: requests that the device does not complete, whether it is still there, how
    /// it fares. To be called about once a second. Reads device registers.
    fn watch(&mut self, now: Instant) {
        let _ = now;
    }
    /// What has happened to the disk that its operator should know, each thing once.
    fn notice(&mut self) -> Option<Notice> {
        None
    }
    /// Tells the disk that the machine ends. It is not used any more.
    fn shut_down(&mut self) {}
    /// Whether a disk that was told so is ready for it.
    fn is_shut_down(&self) -> bool {
        true
    }
    /// What the disk measures of itself, if it does: as it was a while ago.
    fn health(&self) -> Option<Health> {
        None
    }
    /// What its queues have done, one for each core that has one; as its owner sees it, and of a disk that can have
    /// several.
    fn queue_counts(&self) -> Vec<QueueCount> {
        Vec::new()
    }
}

/// A disk that takes one last write whatever state its driver is in, when nothing else of the machine is to
/// be trusted.
pub trait CrashWriter: Send {
    /// Sets memory aside for one write of up to `bytes` bytes; false if there is none. While the machine
    /// starts.
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool;
    /// Writes `data` (a multiple of the disk's block) from `sector` on (of 512 bytes). When it returns Ok,
    /// the data is durable. Whatever the driver had under way is over, done or not done. Works once. Does
    /// not allocate or wait for a lock. The error says what the device did not do.
    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str>;
}
