//! Volumes: the block devices that the storage gateway exports. A volume completes requests at once (RAM) or later
//! (disks). Data moves between the volume and windows that the caller names. A volume whose
//! data already lies in DMA memory lends that memory instead of copying it.

pub mod catalog;
pub mod channel;
#[cfg(test)]
mod core_disks_tests;
#[cfg(test)]
mod cores_tests;
mod disk;
pub mod extents;
pub mod mirror;
mod nbd;
mod nvme_host;
mod open_counts;
mod queue;
mod ram;
pub mod reservation;
mod set;
mod share;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod user;

pub use channel::Channel;
pub use disk::{DiskVolume, ExtentMap, Extents, OnDisk};
pub use nbd::{NbdVolume, SharedClient};
pub use nvme_host::{NvmeHostVolume, SharedHost};
pub use open_counts::{Hold, OpenCounts, OpenError, StillUsed};
pub use queue::DiskHandle;
pub use ram::{RamMemory, RamVolume};
pub use set::{VolumeId, Volumes};
pub use share::DiskShare;
pub use user::{Tag, User};

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::{Features, Geometry, Instant, Window};

/// Operation of a request. Sectors have 512 bytes; requests are aligned to the logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write {
        /// On stable storage when it completes, as are all writes that completed before it.
        durable: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Deallocates sectors; their contents are undefined afterwards.
    Discard {
        /// Number of sectors.
        sectors: u32,
    },
    /// Zeroes sectors.
    WriteZeroes {
        /// Number of sectors.
        sectors: u32,
    },
    /// Deallocates sectors so that their data cannot be recovered.
    SecureErase {
        /// Number of sectors.
        sectors: u32,
    },
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The caller's tag; the completion has the same.
    pub tag: Tag,
    /// Operation.
    pub operation: Operation,
    /// First sector (unused by flush).
    pub sector: u64,
    /// Memory to read into or write from (unused by the others), a multiple of the logical block.
    pub data: Window,
}

/// Result of submitting a request.
#[derive(Clone, Copy, Debug)]
pub enum Submitted {
    /// The request is complete.
    Done,
    /// The request was a read and is complete. The window has its data, and is valid until the next request
    /// that changes these sectors.
    Lent(Window),
    /// Its completion follows.
    Pending,
}

/// Why a request was refused, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// The volume has the most requests in flight that it can hold: try again after a completion.
    Busy,
    /// Not a whole number of logical blocks, or larger than the volume's maximum.
    Invalid,
    /// Past the end.
    PastEnd,
    /// The volume is read-only.
    ReadOnly,
    /// The volume does not support the operation.
    Unsupported,
    /// The medium failed.
    Io,
    /// The volume may have lost writes that it had acknowledged and that were not flushed.
    Lost,
    /// A reservation excludes the request.
    Reserved,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeError::Busy => "too many requests in flight",
            VolumeError::Invalid => "misaligned or too large",
            VolumeError::PastEnd => "past the end of the volume",
            VolumeError::ReadOnly => "the volume is read-only",
            VolumeError::Unsupported => "the volume does not support this operation",
            VolumeError::Io => "the medium failed",
            VolumeError::Lost => "the volume may have lost unflushed writes",
            VolumeError::Reserved => "a reservation of another host excludes it",
        })
    }
}

/// The end of a request that was pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the request.
    pub tag: Tag,
    /// Result. An error concerns this request alone.
    pub result: Result<(), VolumeError>,
}

/// A volume, owned by one loop. No method blocks or allocates. A completion belongs to one user, which its tag names
/// ([`Tag`]).
pub trait Volume {
    /// Geometry of the volume; its size may change.
    fn geometry(&self) -> Geometry;
    /// Submits a request.
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError>;
    /// Notifies the device, if there is one, of submitted requests.
    fn flush_queue(&mut self);
    /// The next completion, if any.
    fn poll(&mut self) -> Option<Completion>;
    /// Gives up all requests in flight: each ends with an error, without waiting for a device that does not respond.
    /// Until the volume is idle, the device may still execute a given-up request, and may read or
    /// write its memory, unless the volume [releases memory](Volume::releases_memory). A volume that completes requests
    /// at once has none in flight.
    fn give_up(&mut self) {}
    /// Whether the device no longer accesses the memory of a request that has ended, even if it was given up.
    fn releases_memory(&self) -> bool {
        false
    }
    /// Whether no request is in flight, and the device can no longer execute a given-up request.
    /// The loop polls a volume until this is true; the default is that it is always polled.
    fn is_idle(&self) -> bool {
        false
    }
    /// Whether `poll` makes progress without a completion of a device. The loop must not sleep while this is true.
    fn wants_turn(&self) -> bool {
        false
    }
    /// Periodic work; the loop calls it about once a second.
    fn tend(&mut self, _now: Instant) {}
    /// Whether its user has another copy of the data, and so wants to know of lost writes with every request, not only
    /// with the next flush.
    fn has_another_copy(&mut self, _is_there: bool) {}
    /// The memory of the volume, if loops of other cores can access it directly.
    fn shared_memory(&self) -> Option<&Arc<RamMemory>> {
        None
    }
    /// Location of the volume on a disk, if loops of other cores can access that disk directly.
    fn on_disk(&self) -> Option<OnDisk> {
        None
    }
    /// Updates the location of the volume on its disk.
    fn move_to(&mut self, _: &OnDisk) {}
    /// Takes the volume apart once it is not used any more.
    fn into_parts(self: Box<Self>) -> Parts {
        Parts::default()
    }
}

/// Resources of a volume, returned when it is taken apart.
#[derive(Default)]
pub struct Parts {
    /// Memory to return to the arena.
    pub memory: Option<Window>,
    /// Memory that other loops may share, to return to the arena once no other loop has it.
    pub shared: Option<Arc<RamMemory>>,
    /// Volumes that it was made of.
    pub members: Vec<Box<dyn Volume>>,
}

/// Checks a request against the geometry of a volume. Every volume does this first.
#[inline]
pub(crate) fn check(geometry: &Geometry, request: &Request) -> Result<(), VolumeError> {
    let feature = |wanted| match geometry.features.contains(wanted) {
        true => Ok(()),
        false => Err(VolumeError::Unsupported),
    };
    let at_most = |sectors: u32, limit: u32| match sectors <= limit {
        true => Ok(u64::from(sectors)),
        false => Err(VolumeError::Invalid),
    };
    let data = || match request.data.len() % 512 {
        0 => Ok(request.data.len() as u64 / 512),
        _ => Err(VolumeError::Invalid),
    };
    if !matches!(request.operation, Operation::Read | Operation::Flush)
        && geometry.features.contains(Features::READ_ONLY)
    {
        return Err(VolumeError::ReadOnly);
    }
    let sectors = match request.operation {
        Operation::Flush => return Ok(()),
        Operation::Read | Operation::Write { .. } => data()?,
        Operation::Discard { sectors } => {
            feature(Features::DISCARD)?;
            at_most(sectors, geometry.max_discard_sectors)?
        }
        Operation::WriteZeroes { sectors } => {
            feature(Features::WRITE_ZEROES)?;
            at_most(sectors, geometry.max_write_zeroes_sectors)?
        }
        Operation::SecureErase { sectors } => {
            feature(Features::SECURE_ERASE)?;
            at_most(sectors, geometry.max_discard_sectors)?
        }
    };
    let block = u64::from(geometry.logical_block / 512);
    if block > 1 && !(request.sector.is_multiple_of(block) && sectors.is_multiple_of(block)) {
        return Err(VolumeError::Invalid);
    }
    match request.sector.checked_add(sectors) {
        Some(end) if end <= geometry.sectors => Ok(()),
        _ => Err(VolumeError::PastEnd),
    }
}
