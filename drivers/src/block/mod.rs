//! Drivers of disks ([`crate::hal::Disk`]).

pub mod nvme;
pub mod virtio_blk;
pub mod virtio_scsi;

use crate::hal::{CrashWriter, Disk, Location, MoreQueues};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// An open disk.
pub struct OpenDisk {
    /// Where the disk is.
    pub location: Location,
    /// Serial number as the device reports it; empty if it has none.
    pub serial: String,
    /// Model name; empty if the device reports none.
    pub model: String,
    /// Firmware revision; empty if the device reports none.
    pub firmware: String,
    /// The disk.
    pub disk: Box<dyn Disk>,
    /// Writes the crash record, independently of the driver.
    pub crash: Option<Box<dyn CrashWriter>>,
}

/// Disks of an opened device.
pub struct Opened {
    /// Usable disks.
    pub disks: Vec<OpenDisk>,
    /// Units that cannot be used, and why.
    pub refused: Vec<(Location, String)>,
    /// Further queues to all of its disks, if the driver supports them.
    pub queues: Option<Box<dyn MoreQueues>>,
}

impl From<Vec<OpenDisk>> for Opened {
    fn from(disks: Vec<OpenDisk>) -> Self {
        Opened { disks, refused: Vec::new(), queues: None }
    }
}
