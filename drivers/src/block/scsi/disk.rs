//! The disks behind an adapter, as the rest of the program uses them.

use super::adapter::{Adapter, Limits};
use super::command;
use super::controller::Controller;
use super::discover::{self, Unit};
use crate::block::{OpenDisk, Opened, blocks};
use crate::hal::{
    Clock, Completion, CrashWriter, Disk, Features, Geometry, Health, Instant, Location, Notice,
    Operation, Request, SubmitError,
};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

const SECTOR: u32 = 512;

/// The adapter does not answer, or answers with invalid data.
#[derive(Debug)]
pub struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SCSI controller does not answer a command in 2 s, or answers invalidly: its host is to blame")
    }
}

impl core::error::Error for Silent {}

/// Finds the disks behind an adapter at `location`. `crash` makes the writer of the crash record to a unit.
pub fn open<A: Adapter + 'static>(
    adapter: A,
    limits: Limits,
    location: Location,
    clock: &dyn Clock,
    mut crash: impl FnMut(&Unit) -> Option<Box<dyn CrashWriter>>,
) -> Result<Opened, Silent> {
    let mut controller = Controller::new(adapter);
    let units = discover::units(&mut controller, limits, clock);
    if controller.is_broken() {
        return Err(Silent);
    }
    let depth = controller.share_out(&units, limits);
    let controller = Rc::new(RefCell::new(controller));
    let open = |(index, unit): (usize, Unit)| OpenDisk {
        location: location.unit(unit.place.target, unit.place.lun),
        crash: crash(&unit),
        serial: unit.serial,
        model: String::new(),
        firmware: String::new(),
        disk: Box::new(ScsiDisk { controller: controller.clone(), unit: index, depth }),
    };
    Ok(units.into_iter().enumerate().map(open).collect::<Vec<_>>().into())
}

/// A disk behind an adapter.
struct ScsiDisk<A: Adapter> {
    /// Shared with the adapter's other disks, all of the same loop.
    controller: Rc<RefCell<Controller<A>>>,
    unit: usize,
    depth: usize,
}

impl<A: Adapter> Disk for ScsiDisk<A> {
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
        let (cdb, data, flushes) = match request.operation {
            Operation::Read => {
                let (lba, count) = within(data_sectors()?, u32::MAX)?;
                (command::read(lba, count), Some((request.data, true)), false)
            }
            Operation::Write => {
                let (lba, count) = within(data_sectors()?, u32::MAX)?;
                (command::write(lba, count), Some((request.data, false)), false)
            }
            Operation::WriteThrough => return Err(SubmitError::Unsupported),
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
        match controller.start(self.unit, request.tag, &cdb, data, flushes) {
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
    fn health(&self) -> Option<Health> {
        Some(self.controller.borrow().health())
    }
}
