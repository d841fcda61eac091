//! Disks ([`crate::hal::Disk`]).

pub mod virtio_blk;
pub mod virtio_scsi;

use crate::hal::{CrashWriter, Disk, Location};
use alloc::boxed::Box;
use alloc::string::String;

/// A disk that was set up.
pub struct OpenDisk {
    /// Where it is.
    pub location: Location,
    /// As whoever made the machine gave it; empty if it has none.
    pub serial: String,
    /// The disk.
    pub disk: Box<dyn Disk>,
    /// A second way to it, for a last write.
    pub crash: Option<Box<dyn CrashWriter>>,
}
