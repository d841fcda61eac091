//! Disks ([`crate::hal::Disk`]).

pub mod nvme;
pub mod virtio_blk;
pub mod virtio_scsi;

use crate::hal::{CrashWriter, Disk, Location, MoreQueues};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// A disk that was set up.
pub struct OpenDisk {
    /// Where it is.
    pub location: Location,
    /// As whoever made the machine gave it; empty if it has none.
    pub serial: String,
    /// What its maker calls it; empty if it does not say.
    pub model: String,
    /// Revision of its firmware; empty if it does not say.
    pub firmware: String,
    /// The disk.
    pub disk: Box<dyn Disk>,
    /// A second way to it, for a last write.
    pub crash: Option<Box<dyn CrashWriter>>,
}

/// What a device turned out to hold.
pub struct Opened {
    /// Its disks.
    pub disks: Vec<OpenDisk>,
    /// Units behind it that cannot be used, and why.
    pub refused: Vec<(Location, String)>,
    /// More queues to all of its disks, if it may have any.
    pub queues: Option<Box<dyn MoreQueues>>,
}

impl From<Vec<OpenDisk>> for Opened {
    fn from(disks: Vec<OpenDisk>) -> Self {
        Opened { disks, refused: Vec::new(), queues: None }
    }
}
