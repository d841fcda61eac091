//! SATA drives behind an AHCI controller (Serial ATA AHCI 1.3.1): the drive at every port is a [`Disk`]. Native command
//! queuing where controller and drive have it; data is transferred without copies. Drives that are pulled out and put
//! back are used again. No port multipliers, no packet devices (CD, tape), no power management of links, no drives at
//! ports that were empty at start.

mod command;
mod controller;
mod crash;
mod error;
mod host;
mod identify;
mod life;
mod memory;
mod port;
mod recovery;
mod registers;
mod signal;
mod slots;

pub use error::Error;

use super::{OpenDisk, Opened};
use crate::driver::{Bus, Device, OpenError};
use crate::hal::{
    Clock, Completion, CrashWriter, DeviceLife, Disk, Geometry, Health, Instant, Notice, Platform,
    Request, SubmitError,
};
use alloc::boxed::Box;
use alloc::string::ToString;
use crash::AhciCrash;
use port::Port;

/// PCI class: mass storage, serial ATA, AHCI.
pub const CLASS: u32 = 0x01_06_01;

/// Sets a controller and the drives at its ports up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let (registers, ports) = host::bring_up(function, platform, clock)?;
    let mut opened = Opened::from(alloc::vec::Vec::new());
    for (number, result) in ports {
        let location = device.location().port(number);
        let port = match result {
            Ok(port) => port,
            Err(why) => {
                opened.refused.push((location, why.to_string()));
                continue;
            }
        };
        let Some(identity) = port.identity.clone() else { continue };
        // Registers of its own, for the crash record.
        let crash = registers.port(number, platform).map(|own| {
            let block = port.geometry().logical_block;
            Box::new(AhciCrash::new(own, function, block, port.geometry().max_transfer))
                as Box<dyn CrashWriter>
        });
        opened.disks.push(OpenDisk {
            location,
            serial: identity.serial,
            model: identity.model,
            firmware: identity.firmware,
            disk: Box::new(port),
            crash,
        });
    }
    Ok(opened)
}

impl Disk for Port {
    fn geometry(&self) -> Geometry {
        Port::geometry(self)
    }

    fn depth(&self) -> usize {
        Port::depth(self)
    }

    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        Port::submit(self, request)
    }

    fn flush_queue(&mut self) {
        self.kick();
    }

    fn poll(&mut self) -> Option<Completion> {
        Port::poll(self)
    }

    fn set_interrupts(&mut self, wanted: bool) {
        Port::set_interrupts(self, wanted);
    }

    fn wakes(&self) -> bool {
        self.signal.wakes()
    }

    fn capacity_changed(&mut self) -> bool {
        self.take_changed()
    }

    fn pending(&self) -> bool {
        Port::pending(self)
    }

    fn interrupts(&self) -> u64 {
        self.signal.count()
    }

    fn watch(&mut self, now: Instant) {
        Port::watch(self, now);
    }

    fn advance(&mut self, now: Instant) {
        self.tick(now);
    }

    fn notice(&mut self) -> Option<Notice> {
        Port::notice(self)
    }

    fn shut_down(&mut self) {
        Port::shut_down(self);
    }

    fn is_shut_down(&self) -> bool {
        Port::is_shut_down(self)
    }

    fn life(&self) -> DeviceLife {
        self.life.report()
    }

    fn health(&self) -> Option<Health> {
        Some(Port::health(self))
    }
}
