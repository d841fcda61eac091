//! Volumes: what the storage gateway exports. A volume answers requests at once (RAM) or later
//! (disks); data moves between the volume and windows that the caller names, and a volume whose
//! data already lies in DMA memory lends it out instead of copying it.

pub mod catalog;
pub mod channel;
#[cfg(test)]
mod core_disks_tests;
#[cfg(test)]
mod cores_tests;
mod disk;
pub mod extents;
pub mod mirror;
mod open_counts;
mod queue;
mod ram;
mod set;
mod share;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod user;

pub use channel::Channel;
pub use disk::{DiskVolume, ExtentMap, Extents, OnDisk};
pub use open_counts::{Hold, NotOpened, OpenCounts, StillUsed};
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

/// What a request does. Sectors are of 512 bytes, aligned to the logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write {
        /// On stable storage when it completes, with everything that completed before.
        durable: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Forgets sectors; what they read as afterwards is open.
    Discard {
        /// How many.
        sectors: u32,
    },
    /// Zeroes sectors.
    WriteZeroes {
        /// How many.
        sectors: u32,
    },
    /// Forgets sectors beyond recovery.
    SecureErase {
        /// How many.
        sectors: u32,
    },
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The caller's name for it.
    pub tag: Tag,
    /// What to do.
    pub operation: Operation,
    /// First sector (unused by flush).
    pub sector: u64,
    /// Memory to read into or write from (unused by the others), a multiple of the logical block.
    pub data: Window,
}

/// How a request was taken.
#[derive(Clone, Copy, Debug)]
pub enum Submitted {
    /// It is done already.
    Done,
    /// It was a read, and its data lies here; valid until the next request on this volume that
    /// changes these sectors.
    Lent(Window),
    /// Its completion follows.
    Pending,
}

/// Why a request was refused, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// As many in flight as the volume holds: try again after a completion.
    Busy,
    /// Not a whole number of logical blocks, or larger than the volume takes at once.
    Invalid,
    /// Past the end.
    PastEnd,
    /// The volume is read-only.
    ReadOnly,
    /// The volume cannot do this.
    Unsupported,
    /// The medium failed.
    Io,
    /// The volume may have lost what it had acknowledged and nobody had flushed.
    Lost,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeError::Busy => "too many requests in flight",
            VolumeError::Invalid => "misaligned or too large",
            VolumeError::PastEnd => "past the end of the volume",
            VolumeError::ReadOnly => "the volume is read-only",
            VolumeError::Unsupported => "the volume cannot do this",
            VolumeError::Io => "the medium failed",
            VolumeError::Lost => "the volume may have lost writes",
        })
    }
}

/// The end of a request that was pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the request.
    pub tag: Tag,
    /// How it went. An error concerns this request alone.
    pub result: Result<(), VolumeError>,
}

/// A volume, owned by one loop. Nothing here blocks or allocates. What comes of a request is its user's alone:
/// the tag says whose ([`Tag`]).
pub trait Volume {
    /// Shape of the volume; its size may change.
    fn geometry(&self) -> Geometry;
    /// Takes a request.
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError>;
    /// Tells the device, if there is one, of what was submitted.
    fn flush_queue(&mut self);
    /// The next completion, if any.
    fn poll(&mut self) -> Option<Completion>;
    /// Gives up all requests in flight: each ends with an error, without waiting for a device that does not answer.
    /// Whether it was done, or will be, is open until the volume is idle; until then the device may also read or
    /// write its memory, unless the volume [releases memory](Volume::releases_memory). A volume whose requests
    /// are done at once has none in flight.
    fn give_up(&mut self) {}
    /// Whether nothing touches the memory of a request that has ended, even if it was given up.
    fn releases_memory(&self) -> bool {
        false
    }
    /// Whether nothing is in flight, and nothing that was given up can still be done.
    /// One that does not say is polled for ever.
    fn is_idle(&self) -> bool {
        false
    }
    /// Whether it goes on when it is polled again, though nothing ends meanwhile: a loop that would
    /// sleep must not.
    fn wants_turn(&self) -> bool {
        false
    }
    /// Looks after what has no other occasion; to be called about once a second.
    fn tend(&mut self, _now: Instant) {}
    /// The memory that it is, if loops of other cores can work on that by themselves.
    fn shared_memory(&self) -> Option<&Arc<RamMemory>> {
        None
    }
    /// Where it lies on a disk, if loops of other cores can work on that by themselves.
    fn on_disk(&self) -> Option<OnDisk> {
        None
    }
    /// Takes note of where it lies now.
    fn move_to(&mut self, _: &OnDisk) {}
    /// Takes it apart, when nothing uses it any more.
    fn into_parts(self: Box<Self>) -> Parts {
        Parts::default()
    }
}

/// What a volume was made from.
#[derive(Default)]
pub struct Parts {
    /// Memory, to be given back to the arena.
    pub memory: Option<Window>,
    /// Memory that other loops may have as well, to be given back to the arena once nobody else has it.
    pub shared: Option<Arc<RamMemory>>,
    /// Other volumes.
    pub members: Vec<Box<dyn Volume>>,
}

/// Whether a request makes sense for a volume of that shape: what every volume checks first.
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
