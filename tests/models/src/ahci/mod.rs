//! Model of an AHCI controller (Serial ATA AHCI 1.3.1) with two to four ports, and SATA drives (ACS-4) with a volatile
//! cache that a power cut empties, and with faults to inject.
//!
//! Not modelled: port multipliers (only their signature), packet devices (likewise), power management, enclosures,
//! coalesced completions, scatter lists of more than one entry.

mod command;
mod drive;
mod port;
#[cfg(test)]
mod tests;

use crate::registers::{byte_of, number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
pub use drive::{Drive, Shape};
use port::Port;

const BAR: Bar = Bar { index: 5, size: 0x1000 };

const RESET: u32 = 1;
const INTERRUPTS: u32 = 1 << 1;
const AHCI: u32 = 1 << 31;

const BIOS_OWNS: u32 = 1;
const SYSTEM_OWNS: u32 = 1 << 1;
const BIOS_BUSY: u32 = 1 << 4;

const MILLISECOND: Nanoseconds = 1_000_000;

/// Faults to inject at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The link does not come up.
    NoLink,
    /// The drive stays busy after a reset.
    NeverReady,
    /// PxCMD.CR stays 1.
    NeverStops,
    /// The next command with data does not complete until the link is reset.
    NeverCompletes,
    /// Commands that touch this block fail: the medium is bad.
    BadBlock(u64),
    /// The next command with data fails with an error of the interface.
    Cable,
    /// READ LOG EXT fails.
    NoLog,
    /// The log page names this tag.
    LogNames(u8),
    /// FLUSH CACHE EXT fails.
    NoFlush,
    /// FLUSH CACHE EXT fails once, and the drive stays busy until the link is reset.
    NoFlushBusy,
    /// The log page is all zeroes.
    EmptyLog,
    /// SET FEATURES has no effect.
    NoFeatures,
    /// IDENTIFY DEVICE fails.
    NoIdentify,
    /// IDENTIFY DEVICE does not complete.
    DeafIdentify,
    /// No interrupts are raised.
    NoInterrupts,
}

/// What is at a port.
#[derive(Clone, Debug)]
pub enum Plugged {
    /// Nothing.
    Nothing,
    /// A drive.
    Disk(Box<Drive>),
    /// A device with this signature.
    Other(u32),
}

/// Properties of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Command slots of a port.
    pub slots: u8,
    /// Supports native command queuing.
    pub queues: bool,
    /// Reaches memory above 4 GiB.
    pub has_64_bits: bool,
    /// Drives are spun up one after the other.
    pub staggers: bool,
    /// Milliseconds that the firmware keeps the controller; None: for ever.
    pub handoff: Option<u64>,
    /// The firmware owns the controller at first.
    pub firmware: bool,
    /// What is at each port.
    pub ports: Vec<Plugged>,
}

impl Default for Config {
    /// A controller with all features, a drive of 4,096 blocks of 512 bytes at port 0, and an empty port 1.
    fn default() -> Self {
        Config {
            slots: 32,
            queues: true,
            has_64_bits: true,
            staggers: false,
            handoff: Some(0),
            firmware: false,
            ports: vec![Plugged::Disk(Box::default()), Plugged::Nothing],
        }
    }
}

/// The controller.
pub struct Ahci {
    settings: Config,
    config: ConfigSpace,
    control: u32,
    status: u32,
    handoff: u32,
    handoff_due: Nanoseconds,
    ports: Vec<Port>,
    /// The driver's violations of the specification.
    pub complaints: Vec<String>,
    resets: u64,
}

impl Ahci {
    /// Creates a controller in its power-on state.
    pub fn new(settings: Config) -> Self {
        let config = ConfigSpace::new(0x8086, 0x2922, 0x01_06_01, 2)
            .memory_bar_32(BAR.index, BAR.size as u32)
            .msi(0)
            .express(PortType::IntegratedEndpoint);
        let staggers = settings.staggers;
        let ports = settings.ports.iter().map(|plugged| Port::new(plugged.clone(), staggers));
        let handoff = if settings.firmware { BIOS_OWNS } else { 0 };
        Ahci {
            ports: ports.collect(),
            settings,
            config,
            control: 0,
            status: 0,
            handoff,
            handoff_due: 0,
            complaints: Vec::new(),
            resets: 0,
        }
    }

    /// Injects a fault at a port.
    pub fn inject(&mut self, port: usize, fault: Fault) {
        self.ports[port].faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.ports.iter_mut().for_each(|port| port.faults.clear());
    }

    /// Plugs something into a port, or pulls it out.
    pub fn plug(&mut self, port: usize, plugged: Plugged) -> Plugged {
        self.ports[port].plug(plugged)
    }

    /// The drive at a port.
    pub fn drive(&mut self, port: usize) -> &mut Drive {
        match &mut self.ports[port].plugged {
            Plugged::Disk(drive) => drive,
            _ => panic!("no drive at port {port}"),
        }
    }

    /// Ports whose drives were spun up, in order, with the time.
    pub fn spun_up(&self) -> Vec<(usize, Nanoseconds)> {
        let mut all: Vec<_> = self
            .ports
            .iter()
            .enumerate()
            .filter_map(|(n, port)| Some((n, port.spun_up?)))
            .collect();
        all.sort_by_key(|(_, when)| *when);
        all
    }

    /// Resets of a port's link.
    pub fn link_resets(&self, port: usize) -> u64 {
        self.ports[port].link_resets
    }

    fn capabilities(&self) -> u32 {
        let Config { slots, queues, has_64_bits, staggers, ref ports, .. } = self.settings;
        let flag = |set: bool, bit: u32| u32::from(set) << bit;
        (ports.len() as u32 - 1)
            | (u32::from(slots) - 1) << 8
            | 1 << 18
            | 1 << 20
            | flag(staggers, 27)
            | flag(queues, 30)
            | flag(has_64_bits, 31)
    }

    fn host(&self, at: u64) -> u32 {
        match at {
            0x00 => self.capabilities(),
            0x04 => self.control,
            0x08 => self.status,
            0x0c => (1 << self.ports.len()) - 1,
            0x10 => 0x0001_0300,
            0x24 => u32::from(self.settings.firmware),
            0x28 => self.handoff,
            _ => 0,
        }
    }

    fn read32(&self, at: u64) -> u32 {
        match at.checked_sub(0x100) {
            None => self.host(at),
            Some(at) => {
                let port = self.ports.get((at / 0x80) as usize);
                port.map_or(0, |port| port.read(at % 0x80))
            }
        }
    }

    fn write_host(&mut self, at: u64, value: u32, now: Nanoseconds) {
        match at {
            0x04 if value & RESET != 0 => {
                self.resets += 1;
                self.control = 0;
                let staggers = self.settings.staggers;
                self.ports.iter_mut().for_each(|port| port.reset(staggers));
            }
            0x04 => self.control = value & (AHCI | INTERRUPTS),
            0x08 => self.status &= !value,
            0x28 if value & SYSTEM_OWNS != 0 && self.handoff & BIOS_OWNS != 0 => {
                self.handoff |= SYSTEM_OWNS;
                match self.settings.handoff {
                    Some(time) => self.handoff_due = now + time * MILLISECOND,
                    None => self.handoff |= BIOS_BUSY,
                }
                if self.handoff_due > now + 20 * MILLISECOND {
                    self.handoff |= BIOS_BUSY;
                }
            }
            _ => {}
        }
    }
}

impl Function for Ahci {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[BAR]
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msi: 1, ..Interrupts::default() }
    }

    fn read(&mut self, _: u8, offset: u64, into: &mut [u8]) {
        if into.len() != 4 || !offset.is_multiple_of(4) {
            self.complaints.push(format!("{} bytes are read at {offset:#x}", into.len()));
        }
        let value = self.read32(offset & !3);
        read_bytes(offset, into, |at| byte_of(value.into(), at & 3));
    }

    fn write(&mut self, _: u8, offset: u64, bytes: &[u8], now: Nanoseconds, _: &mut dyn Machine) {
        if bytes.len() != 4 || !offset.is_multiple_of(4) {
            return self.complaints.push(format!("{} bytes go to {offset:#x}", bytes.len()));
        }
        let value = number(bytes) as u32;
        let owned = self.handoff & BIOS_OWNS != 0 && self.handoff & BIOS_BUSY != 0;
        if owned && offset != 0x28 {
            self.complaints.push(format!("{offset:#x} is written while the firmware is busy"));
        }
        match offset.checked_sub(0x100) {
            None => self.write_host(offset, value, now),
            Some(at) => {
                if self.control & AHCI == 0 {
                    self.complaints.push(format!("{offset:#x} is written without GHC.AE"));
                }
                let Some(port) = self.ports.get_mut((at / 0x80) as usize) else { return };
                port.write(at % 0x80, value, now);
            }
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if self.handoff & SYSTEM_OWNS != 0
            && self.settings.handoff.is_some()
            && now >= self.handoff_due
        {
            self.handoff &= !(BIOS_OWNS | BIOS_BUSY);
        }
        let master = self.config.is_bus_master();
        let mut raise = false;
        for (n, port) in self.ports.iter_mut().enumerate() {
            port.poll(now, master, machine);
            self.complaints
                .extend(port.complaints.drain(..).map(|what| format!("port {n}: {what}")));
            let pending = port.pending_interrupts();
            raise |= pending && self.status & 1 << n == 0;
            self.status |= u32::from(pending) << n;
        }
        if raise && self.control & INTERRUPTS != 0 {
            machine.interrupt(Interrupt::Msi(0));
        }
        None
    }

    fn reset(&mut self) {
        self.control = 0;
        let staggers = self.settings.staggers;
        self.ports.iter_mut().for_each(|port| port.reset(staggers));
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let commands = self.ports.iter().map(|port| port.commands).sum();
        let counted = [
            ("commands", commands),
            ("resets", self.resets),
            ("complaints", self.complaints.len() as u64),
        ];
        counted.map(|(name, count)| (name.to_string(), count)).into()
    }
}
