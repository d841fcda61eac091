//! NVMe drives on PCI Express (NVM Express 1.4, with what 1.0 lacks and 2.0 changed minded): every namespace is a
//! [`Disk`]. One pair of I/O queues, which the namespaces share; data is read and written where it lies, by lists of
//! its pages. No metadata, no zoned namespaces, no fused commands, no firmware updates.

mod admin;
mod command;
mod controller;
mod crash;
mod discover;
mod error;
mod identify;
mod life;
mod log_page;
mod prp;
mod queue;
mod registers;
mod requests;
mod signal;

pub use error::Error;

use super::{OpenDisk, Opened};
use crate::device::{Bus, Device};
use crate::hal::{
    Clock, Completion, CrashWriter, Disk, Features, Geometry, Health, Instant, Notice, Operation,
    Platform, Request, SubmitError,
};
use crate::registry::OpenError;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use command::Transfer;
use controller::Controller;
use core::cell::RefCell;
use crash::NvmeCrash;
use identify::Namespace;
use registers::ControllerRegisters;

/// PCI class: mass storage, non-volatile memory, NVM Express I/O controller.
pub const CLASS: u32 = 0x01_08_02;

const SECTOR_SHIFT: u32 = 9;

/// Sets a controller up, and every namespace of it.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let bar = function.bars().get(0).ok_or(Error::NoRegisters)?;
    let mut controller = Controller::attach(function, platform)?;
    let found = match look(&mut controller, clock) {
        Ok(found) => found,
        Err(error) => {
            // From here on it cannot reach memory.
            controller.give_up(error);
            controller.free_memory(platform.arena());
            return Err(error.into());
        }
    };
    let location = device.location();
    let mut usable: Vec<(u32, Namespace)> = Vec::new();
    let mut refused = Vec::new();
    for (nsid, found) in found {
        match found {
            Ok(namespace) => usable.push((nsid, namespace)),
            Err(why) => refused.push((location.namespace(nsid), why)),
        }
    }
    controller.share_out(usable.iter().copied());
    let identity = controller.identity.clone().ok_or(Error::Nonsense)?;
    let depths: Vec<usize> = (0..usable.len()).map(|unit| controller.depth(unit)).collect();
    let controller = Rc::new(RefCell::new(controller));
    let mut crash = |nsid, namespace: Namespace| {
        // A second way to the registers, for the last act.
        let registers = ControllerRegisters::map(bar, platform).ok()?;
        let Geometry { logical_block, max_transfer, .. } = namespace.geometry;
        let crash = NvmeCrash::new(registers, nsid, logical_block, max_transfer);
        Some(Box::new(crash) as Box<dyn CrashWriter>)
    };
    let open = |(unit, ((nsid, namespace), depth)): (usize, ((u32, Namespace), usize))| OpenDisk {
        location: location.namespace(nsid),
        serial: identity.serial.clone(),
        model: identity.model.clone(),
        firmware: identity.firmware.clone(),
        disk: Box::new(NvmeDisk { controller: controller.clone(), unit, nsid, depth }),
        crash: crash(nsid, namespace),
    };
    let disks = usable.into_iter().zip(depths).enumerate().map(open).collect();
    Ok(Opened { disks, refused })
}

fn look(controller: &mut Controller, clock: &dyn Clock) -> Result<Vec<discover::Found>, Error> {
    discover::bring_up(controller, clock)?;
    let found = discover::namespaces(controller, clock)?;
    if found.is_empty() {
        return Err(Error::NoNamespace);
    }
    discover::health(controller, clock)?;
    Ok(found)
}

/// A namespace.
struct NvmeDisk {
    /// Shared with the controller's other namespaces, all of the same loop.
    controller: Rc<RefCell<Controller>>,
    unit: usize,
    nsid: u32,
    depth: usize,
}

/// First block and number of blocks, if `sectors` sectors from `sector` on are on the disk and in whole blocks.
#[inline(always)]
fn blocks(geometry: &Geometry, sector: u64, sectors: u64) -> Result<(u64, u32), SubmitError> {
    let shift = geometry.logical_block.trailing_zeros() - SECTOR_SHIFT;
    let aligned = (sector | sectors) & ((1 << shift) - 1) == 0;
    let end = sector.checked_add(sectors).ok_or(SubmitError::Range)?;
    if sectors == 0 || !aligned || end > geometry.sectors {
        return Err(SubmitError::Range);
    }
    let count = u32::try_from(sectors >> shift).map_err(|_| SubmitError::Range)?;
    Ok((sector >> shift, count))
}

impl NvmeDisk {
    /// A request with data.
    #[inline(always)]
    fn transfer(&self, request: &Request, kind: Transfer) -> Result<(), SubmitError> {
        let controller = &mut *self.controller.borrow_mut();
        let unit = controller.unit(self.unit).ok_or(SubmitError::Unsupported)?;
        let geometry = &unit.namespace.geometry;
        if kind != Transfer::Read && geometry.features.contains(Features::READ_ONLY) {
            return Err(SubmitError::Unsupported);
        }
        let bytes = request.data.len();
        if !bytes.is_multiple_of(1 << SECTOR_SHIFT) || bytes > geometry.max_transfer as usize {
            return Err(SubmitError::Range);
        }
        let (block, count) = blocks(geometry, request.sector, (bytes >> SECTOR_SHIFT) as u64)?;
        let place = controller.place(self.unit).ok_or(SubmitError::Full)?;
        let prps = controller.lists().describe(place.into(), request.data.bus_address(), bytes);
        let prps = prps.ok_or(SubmitError::Range)?;
        let command = command::transfer(kind, self.nsid, block, count, prps);
        controller.start(self.unit, request.tag, command);
        Ok(())
    }

    /// A request without data.
    fn other(&self, request: &Request) -> Result<(), SubmitError> {
        let controller = &mut *self.controller.borrow_mut();
        let namespace = controller.unit(self.unit).ok_or(SubmitError::Unsupported)?.namespace;
        let geometry = &namespace.geometry;
        let features = geometry.features;
        let can =
            |feature| match features.contains(feature) && !features.contains(Features::READ_ONLY) {
                true => Ok(()),
                false => Err(SubmitError::Unsupported),
            };
        let within = |sectors: u32, most: u32| match sectors <= most {
            true => blocks(geometry, request.sector, sectors.into()),
            false => Err(SubmitError::Range),
        };
        let place = controller.place(self.unit).ok_or(SubmitError::Full);
        let command = match request.operation {
            // What it completes is durable.
            Operation::Flush if !features.contains(Features::VOLATILE_CACHE) => {
                place?;
                controller.end_at_once(self.unit, request.tag);
                return Ok(());
            }
            Operation::Flush => command::flush(self.nsid),
            Operation::Discard { sectors } => {
                can(Features::DISCARD)?;
                let (block, count) = within(sectors, geometry.max_discard_sectors)?;
                let (place, lists) = (usize::from(place?), controller.lists());
                lists.put(place, &command::range(block, count));
                command::deallocate(self.nsid, lists.address(place))
            }
            Operation::WriteZeroes { sectors, unmap } => {
                can(Features::WRITE_ZEROES)?;
                let (block, count) = within(sectors, geometry.max_write_zeroes_sectors)?;
                let deallocate = unmap && namespace.deallocates_zeroes;
                command::write_zeroes(self.nsid, block, count, deallocate)
            }
            Operation::Read | Operation::Write | Operation::WriteThrough => {
                return Err(SubmitError::Unsupported);
            }
        };
        place?;
        controller.start(self.unit, request.tag, command);
        Ok(())
    }
}

impl Disk for NvmeDisk {
    fn geometry(&self) -> Geometry {
        self.controller.borrow().geometry(self.unit)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        match request.operation {
            Operation::Read => self.transfer(request, Transfer::Read),
            Operation::Write => self.transfer(request, Transfer::Write),
            Operation::WriteThrough => self.transfer(request, Transfer::WriteThrough),
            _ => self.other(request),
        }
    }

    fn flush_queue(&mut self) {
        self.controller.borrow_mut().tell();
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
        let mut controller = self.controller.borrow_mut();
        let unit = controller.units.get_mut(self.unit);
        unit.is_some_and(|unit| core::mem::take(&mut unit.changed))
    }

    fn pending(&self) -> bool {
        self.controller.borrow().pending(self.unit)
    }

    fn interrupts(&self) -> u64 {
        self.controller.borrow().interrupts()
    }

    fn watch(&mut self, now: Instant) {
        // Once for all namespaces.
        if self.unit == 0 {
            self.controller.borrow_mut().watch(now);
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.controller.borrow_mut().notice()
    }

    fn shut_down(&mut self) {
        self.controller.borrow_mut().shut_down();
    }

    fn is_shut_down(&self) -> bool {
        self.controller.borrow().is_shut_down()
    }

    fn health(&self) -> Option<Health> {
        Some(self.controller.borrow().health())
    }
}
