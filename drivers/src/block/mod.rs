//! Drivers of disks ([`crate::hal::Disk`]).

mod age;
pub mod ahci;
pub mod nvme;
pub mod pvscsi;
mod scsi;
pub mod virtio_blk;
pub mod virtio_scsi;

use crate::hal::{CrashWriter, Disk, Geometry, Location, MoreQueues, SubmitError};
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

/// First logical block and number of blocks, if `sectors` sectors from `sector` are on the disk and in whole blocks.
#[inline(always)]
fn blocks(geometry: &Geometry, sector: u64, sectors: u64) -> Result<(u64, u32), SubmitError> {
    const SECTOR_SHIFT: u32 = 9;
    let shift = geometry.logical_block.trailing_zeros() - SECTOR_SHIFT;
    let aligned = (sector | sectors) & ((1 << shift) - 1) == 0;
    let end = sector.checked_add(sectors).ok_or(SubmitError::Range)?;
    if sectors == 0 || !aligned || end > geometry.sectors {
        return Err(SubmitError::Range);
    }
    let count = u32::try_from(sectors >> shift).map_err(|_| SubmitError::Range)?;
    Ok((sector >> shift, count))
}
