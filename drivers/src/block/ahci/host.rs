//! Bring-up of a controller: takes it from the firmware, stops its ports, and starts the drives: all at once, or one
//! after the other where the controller wants their spin-up staggered. Every wait has a deadline by the clock.

use super::controller::Controller;
use super::error::Error;
use super::memory::PortMemory;
use super::port::{Limits, Port};
use super::registers::{HostRegisters, Link, Owner, PortRegisters};
use super::signal::Signal;
use crate::hal::{Clock, Instant, Platform};
use crate::pci::Function;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;

/// Time for the firmware to hand the controller over, and more if it has commands in flight (AHCI 1.3.1, 10.6.3).
const HANDOFF: Duration = Duration::from_millis(25);
const BUSY_HANDOFF: Duration = Duration::from_secs(2);
/// Time for ports to stop (10.1.2), and for the controller to come out of its reset (10.4.3).
const STOP: Duration = Duration::from_millis(500);
const RESET: Duration = Duration::from_secs(1);
/// Time after which a port that was just powered on, or was offline, has seen its drive.
const PRESENCE: Duration = Duration::from_millis(20);
/// Time for all drives to become ready; for each one, if they spin up one after the other.
const START: Duration = Duration::from_secs(10);

/// A port with a drive: its number, and why the drive cannot be used.
pub type Found = (u8, Result<Port, Error>);

/// Waits until a condition holds. False once the time has passed.
fn wait(clock: &dyn Clock, time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = clock.now() + time;
    while !holds() {
        if clock.now() > deadline {
            return false;
        }
        crate::hal::relax();
    }
    true
}

/// Takes the controller over, and brings up the drives at its ports. Ports without a drive, and with drives of packets
/// (CD), are left out.
pub fn bring_up(
    function: Function<'static>,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<(HostRegisters, Vec<Found>), Error> {
    let bar = function.bars().get(5).ok_or(Error::NoRegisters)?;
    function.prepare();
    let host = HostRegisters::map(bar, platform)?;
    take_over(&host, clock)?;
    let ports: Vec<PortRegisters> =
        host.ports().filter_map(|number| host.port(number, platform)).collect();
    let was_reset = stop(&host, &ports, clock)?;
    let controller = Rc::new(Controller::new(function));
    let capabilities = host.capabilities;
    let reach = if capabilities.has_64_bits() { u64::MAX } else { 1 << 32 };
    let limits = Limits { slots: capabilities.slots(), queues: capabilities.queues(), reach };
    let mut setup = Setup { function, controller, limits, signal: None };
    let mut found = Vec::new();
    if capabilities.staggers() {
        for port in ports {
            let mut one = present(Vec::from([port]), was_reset, clock);
            found.extend(setup.start(&mut one, platform, clock));
        }
    } else {
        found = setup.start(&mut present(ports, was_reset, clock), platform, clock);
    }
    if setup.signal.is_some_and(|signal| signal.wakes()) {
        host.allow_interrupts();
    }
    Ok((host, found))
}

/// Takes the controller from the firmware, and selects AHCI.
fn take_over(host: &HostRegisters, clock: &dyn Clock) -> Result<(), Error> {
    let mut owner = host.take_from_firmware();
    wait(clock, HANDOFF, || {
        owner = host.take_from_firmware();
        owner == Owner::System
    });
    if owner == Owner::BusyFirmware {
        wait(clock, BUSY_HANDOFF, || {
            owner = host.take_from_firmware();
            owner == Owner::System
        });
    }
    // Firmware that does not answer at all has no code that runs, as Linux assumes; one that is still busy has.
    if owner == Owner::BusyFirmware {
        return Err(Error::KeptByFirmware);
    }
    host.select();
    Ok(())
}

/// Stops all ports as the firmware left them. Resets the controller if one does not stop, and returns whether it did.
fn stop(host: &HostRegisters, ports: &[PortRegisters], clock: &dyn Clock) -> Result<bool, Error> {
    ports.iter().for_each(PortRegisters::stop);
    wait(clock, STOP, || ports.iter().all(PortRegisters::is_stopped));
    ports.iter().for_each(PortRegisters::stop_receiving);
    if wait(clock, STOP, || ports.iter().all(PortRegisters::is_quiet)) {
        return Ok(false);
    }
    if host.is_absent() {
        return Err(Error::Absent);
    }
    host.reset();
    if !wait(clock, RESET, || host.is_reset()) {
        return Err(Error::NoReset);
    }
    host.select();
    match ports.iter().all(PortRegisters::is_quiet) {
        true => Ok(true),
        false => Err(Error::NoStop),
    }
}

/// The ports that have a drive. `fresh`: the controller was just reset.
fn present(
    mut ports: Vec<PortRegisters>,
    mut fresh: bool,
    clock: &dyn Clock,
) -> Vec<PortRegisters> {
    // A port that the firmware has used knows its drive. Others need some milliseconds.
    for port in &ports {
        if port.is_offline() {
            port.end_link_reset();
            fresh = true;
        }
        if !port.is_spun_up() {
            port.spin_up();
            fresh = true;
        }
    }
    let is_there =
        |port: &PortRegisters| !matches!(port.link(), Link::Nothing | Link::NoController);
    if fresh {
        wait(clock, PRESENCE, || ports.iter().all(is_there));
    }
    ports.retain(is_there);
    ports
}

struct Setup {
    function: Function<'static>,
    controller: Rc<Controller>,
    limits: Limits,
    /// Of all ports, once there is a drive.
    signal: Option<Signal>,
}

impl Setup {
    /// Brings the drives at these ports up, together.
    fn start(
        &mut self,
        present: &mut Vec<PortRegisters>,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Found> {
        let (mut ports, mut found) = (Vec::new(), Vec::new());
        for registers in present.drain(..) {
            let signal = *self.signal.get_or_insert_with(|| Signal::open(self.function, platform));
            let memory = match self.memory(platform) {
                Ok(memory) => memory,
                Err(why) => {
                    found.push((registers.number(), Err(why)));
                    continue;
                }
            };
            let controller = self.controller.clone();
            let mut port = Port::new(registers, memory, controller, signal, self.limits);
            port.begin();
            ports.push(port);
        }
        let deadline = clock.now() + START;
        loop {
            let now: Instant = clock.now();
            ports.iter_mut().filter(|port| !port.is_settled()).for_each(|port| port.tick(now));
            if now > deadline || ports.iter().all(Port::is_settled) {
                break;
            }
            crate::hal::relax();
        }
        found.extend(ports.into_iter().filter_map(|port| self.settle(port, platform)));
        found
    }

    fn memory(&self, platform: &mut dyn Platform) -> Result<PortMemory, Error> {
        let arena = platform.arena();
        let memory = PortMemory::alloc(arena).map_err(|bytes| Error::NoMemory { bytes })?;
        let window = memory.window();
        if window.bus_address() + window.len() as u64 > self.limits.reach {
            arena.free(window);
            return Err(Error::NarrowAddresses);
        }
        Ok(memory)
    }

    /// A port with its drive, or why the drive is not used. None for a drive of packets.
    fn settle(&self, mut port: Port, platform: &mut dyn Platform) -> Option<Found> {
        let number = port.registers.number();
        if port.life.is_live() {
            return Some((number, Ok(port)));
        }
        let why = port.life.error().unwrap_or(Error::NotReady);
        port.retire(platform.arena());
        match why {
            Error::NoDrive | Error::Unknown(0xeb14_0101) => None,
            why => Some((number, Err(why))),
        }
    }
}
