//! VMware's paravirtual SCSI host adapter (Linux: `drivers/scsi/vmw_pvscsi.h`): every disk behind it is a
//! [`crate::hal::Disk`]. Data is transferred without copies. One request ring; no task management, and no messages about
//! units that come and go.

mod adapter;
mod crash;
mod error;
mod registers;
mod rings;
mod signal;

pub use error::Error;

use super::Opened;
use super::scsi;
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, CrashWriter, Platform};
use adapter::Pvscsi;
use alloc::boxed::Box;
use crash::PvscsiCrash;
use registers::AdapterRegisters;

/// Devices that the driver matches.
pub const IDS: [Id; 1] = [Id::Pci(0x15ad, 0x07c0)];

/// Sets an adapter and all its disks up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let bars = function.bars();
    let (adapter, limits) = Pvscsi::open(function, &bars, platform)?;
    let crash = |unit: &scsi::Unit| {
        let registers = AdapterRegisters::map(&bars, platform).ok()?;
        let crash = PvscsiCrash::new(registers, function, unit.place, unit.geometry.logical_block);
        Some(Box::new(crash) as Box<dyn CrashWriter>)
    };
    Ok(scsi::open(adapter, limits, device.location(), clock, crash)?)
}
