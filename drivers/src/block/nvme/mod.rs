//! NVMe drives on PCI Express (NVM Express 1.4; differences of 1.0 and 2.0 are handled): every namespace is a [`Disk`].
//! Each core may have a pair of I/O queues, which all namespaces share. Data is transferred without copies, by lists of
//! its pages. No metadata, no zoned namespaces, no fused commands, no firmware updates.

mod admin;
mod command;
mod controller;
mod core_queue;
mod crash;
mod discover;
mod error;
mod identify;
mod life;
mod line;
mod lines;
mod log_page;
mod pair;
mod prp;
mod queue;
mod registers;
mod requests;
mod signal;

pub use error::Error;

use super::{OpenDisk, Opened};
use crate::driver::{Bus, Device, OpenError};
use crate::hal::{
    Clock, Completion, CrashWriter, DeviceLife, Disk, Geometry, Health, Instant, Notice, Platform,
    QueueCount, Request, SubmitError,
};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use controller::Controller;
use core::cell::RefCell;
use core::sync::atomic as atomics;
use crash::NvmeCrash;
use identify::Namespace;
use lines::NvmeQueues;
use registers::ControllerRegisters;

/// PCI class: mass storage, non-volatile memory, NVM Express I/O controller.
pub const CLASS: u32 = 0x01_08_02;

/// Sets a controller and all its namespaces up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let bar = function.bars().get(0).ok_or(Error::NoRegisters)?;
    let mut controller = Controller::attach(function, platform)?;
    let found = match probe(&mut controller, clock) {
        Ok(found) => found,
        Err(error) => {
            // The controller cannot reach memory after this.
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
    controller.pair.share_out(usable.iter().copied());
    let identity = controller.identity.clone().ok_or(Error::InvalidCompletion)?;
    let depths: Vec<usize> = (0..usable.len()).map(|unit| controller.pair.depth(unit)).collect();
    let controller = Rc::new(RefCell::new(controller));
    let mut crash = |nsid, namespace: Namespace| {
        // Registers of its own, for the crash record.
        let registers = ControllerRegisters::map(bar, controller::IO, platform).ok()?;
        let Geometry { logical_block, max_transfer, .. } = namespace.geometry;
        let crash = NvmeCrash::new(registers, nsid, logical_block, max_transfer);
        Some(Box::new(crash) as Box<dyn CrashWriter>)
    };
    let open = |(unit, ((nsid, namespace), depth)): (usize, ((u32, Namespace), usize))| OpenDisk {
        location: location.namespace(nsid),
        serial: identity.serial.clone(),
        model: identity.model.clone(),
        firmware: identity.firmware.clone(),
        disk: Box::new(NvmeDisk { controller: controller.clone(), unit, depth }),
        crash: crash(nsid, namespace),
    };
    let disks = usable.into_iter().zip(depths).enumerate().map(open).collect();
    Ok(Opened { disks, refused, queues: Some(Box::new(NvmeQueues(controller.clone()))) })
}

fn probe(controller: &mut Controller, clock: &dyn Clock) -> Result<Vec<discover::Found>, Error> {
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
    depth: usize,
}

impl Disk for NvmeDisk {
    fn geometry(&self) -> Geometry {
        self.controller.borrow().pair.geometry(self.unit)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.controller.borrow_mut().pair.submit(self.unit, request)
    }

    fn flush_queue(&mut self) {
        self.controller.borrow_mut().pair.ring_doorbell();
    }

    fn poll(&mut self) -> Option<Completion> {
        self.controller.borrow_mut().poll(self.unit)
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let pair = &mut self.controller.borrow_mut().pair;
        pair.signal.set(wanted, &pair.registers);
    }

    fn wakes(&self) -> bool {
        self.controller.borrow().pair.signal.wakes()
    }

    fn capacity_changed(&mut self) -> bool {
        self.controller.borrow_mut().pair.take_changed(self.unit)
    }

    fn pending(&self) -> bool {
        self.controller.borrow().pending(self.unit)
    }

    fn interrupts(&self) -> u64 {
        let controller = self.controller.borrow();
        controller.pair.signal.count() + controller.lines.interrupts()
    }

    fn watch(&mut self, now: Instant) {
        // One namespace watches the controller for all.
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

    fn life(&self) -> DeviceLife {
        self.controller.borrow().life.report()
    }

    fn health(&self) -> Option<Health> {
        Some(self.controller.borrow().health())
    }

    fn queue_counts(&self) -> Vec<QueueCount> {
        let controller = self.controller.borrow();
        let pair = &controller.pair;
        let (requests, interrupts) = (pair.queue.completed(), pair.signal.count());
        let own = QueueCount { core: 0, requests, interrupts };
        core::iter::once(own).chain(controller.lines.counts()).collect()
    }
}
