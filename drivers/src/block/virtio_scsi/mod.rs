//! Virtio SCSI host adapter (virtio 1.2, 5.6): every disk behind it is a [`Disk`]. One request queue; no task
//! management, no protection information, no hotplug of units.

mod command;
mod controller;
mod crash;
mod discover;
#[cfg(test)]
mod tests;

use super::{OpenDisk, Opened};
use crate::driver::{Device, OpenError};
use crate::hal::{
    Clock, Completion, CrashWriter, Disk, Features, Geometry, Instant, Notice, Operation, Platform,
    Request, SubmitError,
};
use crate::virtio;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use controller::Controller;
use core::cell::RefCell;
use core::fmt;
use crash::VirtioScsiCrash;

const SECTOR: u32 = 512;

/// The controller does not answer, or answers with invalid data.
#[derive(Debug)]
struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SCSI controller does not answer a command in 2 s, or answers invalidly: its host is to blame")
    }
}

impl core::error::Error for Silent {}

/// Sets a controller and all its disks up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let transport = virtio::attach(device, platform)?;
    let (mut controller, limits) = Controller::open(transport, platform.arena())?;
    let units = discover::units(&mut controller, limits, clock);
    if controller.is_broken() {
        return Err(Silent.into());
    }
    let depth = controller.share_out(&units, limits);
    let controller = Rc::new(RefCell::new(controller));
    let open = |(index, unit): (usize, discover::Unit)| {
        let polled = virtio::attach_polled(device, platform).ok();
        let crash = polled.map(|it| {
            let block = unit.geometry.logical_block;
            Box::new(VirtioScsiCrash::new(it, unit.address, block)) as Box<dyn CrashWriter>
        });
        OpenDisk {
            location: device.location().unit(unit.target, unit.lun),
            serial: unit.serial,
            model: String::new(),
            firmware: String::new(),
            disk: Box::new(ScsiDisk { controller: controller.clone(), unit: index, depth }),
            crash,
        }
    };
    Ok(units.into_iter().enumerate().map(open).collect::<Vec<_>>().into())
}

/// A disk behind a controller.
struct ScsiDisk {
    /// Shared with the controller's other disks, all of the same loop.
    controller: Rc<RefCell<Controller>>,
    unit: usize,
    depth: usize,
}

/// First logical block and number of blocks, if `sectors` sectors from `sector` are on the disk and in whole blocks.
fn blocks(geometry: &Geometry, sector: u64, sectors: u64) -> Result<(u64, u32), SubmitError> {
    let per_block = u64::from(geometry.logical_block / SECTOR);
    let end = sector.checked_add(sectors);
    let good = sectors > 0
        && end.is_some_and(|end| end <= geometry.sectors)
        && sector.is_multiple_of(per_block)
        && sectors.is_multiple_of(per_block);
    let count = u32::try_from(sectors / per_block).ok().filter(|_| good);
    count.map(|count| (sector / per_block, count)).ok_or(SubmitError::Range)
}

impl Disk for ScsiDisk {
    fn geometry(&self) -> Geometry {
        self.controller.borrow().geometry(self.unit)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let mut controller = self.controller.borrow_mut();
        let geometry = controller.geometry(self.unit);
        let can = |feature| match geometry.features.contains(feature) {
            true => Ok(()),
            false => Err(SubmitError::Unsupported),
        };
        if geometry.features.contains(Features::READ_ONLY)
            && !matches!(request.operation, Operation::Read | Operation::Flush)
        {
            return Err(SubmitError::Unsupported);
        }
        let within = |sectors: u32, most| match sectors <= most {
            true => blocks(&geometry, request.sector, sectors.into()),
            false => Err(SubmitError::Range),
        };
        let bytes = request.data.len();
        let data_sectors = || match bytes.is_multiple_of(SECTOR as usize) {
            true if bytes <= geometry.max_transfer as usize => Ok(bytes as u32 / SECTOR),
            _ => Err(SubmitError::Range),
        };
        let (cdb, data, may_be_unknown) = match request.operation {
            Operation::Read => {
                let (lba, count) = within(data_sectors()?, u32::MAX)?;
                (command::read(lba, count), Some((request.data, true)), false)
            }
            Operation::Write => {
                let (lba, count) = within(data_sectors()?, u32::MAX)?;
                (command::write(lba, count), Some((request.data, false)), false)
            }
            Operation::WriteThrough => return Err(SubmitError::Unsupported),
            // A unit without a cache may not support the command.
            Operation::Flush => (command::synchronize_cache(), None, true),
            Operation::Discard { sectors } => {
                can(Features::DISCARD)?;
                let (lba, count) = within(sectors, geometry.max_discard_sectors)?;
                let list = controller.parameters(self.unit).ok_or(SubmitError::Full)?;
                let list = list.slice(0, command::UNMAP_LIST).ok_or(SubmitError::Full)?;
                let written = list.write(0, &command::unmap_list(lba, count));
                debug_assert!(written.is_ok());
                (command::unmap(), Some((list, false)), false)
            }
            Operation::WriteZeroes { sectors, unmap } => {
                can(Features::WRITE_ZEROES)?;
                let (lba, count) = within(sectors, geometry.max_write_zeroes_sectors)?;
                let zeroes = controller.zeroes(geometry.logical_block as usize);
                (command::write_same(lba, count, unmap), Some((zeroes, false)), false)
            }
        };
        match controller.start(self.unit, request.tag, &cdb, data, may_be_unknown) {
            true => Ok(()),
            false => Err(SubmitError::Full),
        }
    }

    fn flush_queue(&mut self) {
        self.controller.borrow_mut().kick();
    }

    fn poll(&mut self) -> Option<Completion> {
        self.controller.borrow_mut().poll(self.unit)
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.controller.borrow_mut().set_interrupts(wanted);
    }

    fn wakes(&self) -> bool {
        self.controller.borrow().wakes()
    }

    fn capacity_changed(&mut self) -> bool {
        self.controller.borrow_mut().capacity_changed(self.unit)
    }

    fn pending(&self) -> bool {
        self.controller.borrow().pending(self.unit)
    }

    fn watch(&mut self, _: Instant) {
        self.controller.borrow_mut().watch(self.unit);
    }

    fn notice(&mut self) -> Option<Notice> {
        self.controller.borrow_mut().notice(self.unit)
    }

    fn interrupts(&self) -> u64 {
        self.controller.borrow().interrupts()
    }
}
