//! Virtio SCSI host adapter (virtio 1.2, 5.6): every disk behind it is a [`crate::hal::Disk`]. One request queue.

mod crash;
mod queues;
#[cfg(test)]
mod tests;

use super::Opened;
use super::scsi;
use crate::driver::{Device, OpenError};
use crate::hal::{Clock, CrashWriter, Platform};
use crate::virtio;
use alloc::boxed::Box;
use crash::VirtioScsiCrash;
use queues::Queues;

/// Sets a controller and all its disks up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let transport = virtio::attach(device, platform)?;
    let (adapter, limits) = Queues::open(transport, platform.arena())?;
    let crash = |unit: &scsi::Unit| {
        let transport = virtio::attach_polled(device, platform).ok()?;
        let (address, block) = (queues::address(unit.place), unit.geometry.logical_block);
        Some(Box::new(VirtioScsiCrash::new(transport, address, block)) as Box<dyn CrashWriter>)
    };
    Ok(scsi::open(adapter, limits, device.location(), clock, crash)?)
}
