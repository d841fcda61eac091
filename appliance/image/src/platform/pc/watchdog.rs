//! The watchdog of a PC's chipset.

use crate::platform::{ConfigSpace, paging};
use appliance::machine;
use drivers::hal::{ConfigRegionAccess, PciAddress, Platform, Registers};
use watchdog::{Function, Io, Watchdog};
use x86_64::instructions::port::Port;

/// The watchdog of a PC.
pub struct PcWatchdog {
    found: Watchdog,
    registers: PcRegisters,
}

/// Finds the machine's watchdog, if there is one.
pub fn find(
    pci: &'static ConfigSpace,
    platform: &mut dyn Platform,
) -> Option<Box<dyn machine::Watchdog>> {
    let registers = PcRegisters { pci, pages: Vec::new() };
    let mut mapping = Mapping { registers, platform };
    let found = Watchdog::find(&mut mapping)?;
    // Map all pages of its registers now: later that is impossible. `see_to` would do that too, but would also start a
    // watchdog that is not configured.
    found.touch(&mut mapping);
    let Mapping { registers, .. } = mapping;
    Some(Box::new(PcWatchdog { found, registers }))
}

impl machine::Watchdog for PcWatchdog {
    fn name(&self) -> &'static str {
        self.found.name()
    }
    fn start(&mut self, seconds: u16) {
        self.found.start(&mut self.registers, seconds);
    }
    fn see_to(&mut self) {
        self.found.see_to(&mut self.registers);
    }
    fn stop(&mut self) {
        self.found.stop(&mut self.registers);
    }
}

const PAGE: u64 = 4096;
/// Range of chipset registers, between I/O APICs and local APICs, where no other device may lie.
const CHIPSET: core::ops::Range<u64> = 0xfec1_0000..0xfee0_0000;

struct PcRegisters {
    pci: &'static ConfigSpace,
    /// Mapped pages of registers, with their addresses.
    pages: Vec<(u64, Box<dyn Registers>)>,
}

impl PcRegisters {
    fn page(&self, address: u64) -> Option<(&dyn Registers, usize)> {
        let (_, page) = self.pages.iter().find(|(at, _)| *at == address / PAGE * PAGE)?;
        Some((&**page, (address % PAGE) as usize))
    }
}

fn place(function: Function) -> PciAddress {
    PciAddress::new(0, 0, function.device, function.function)
}

impl Io for PcRegisters {
    fn config_read(&mut self, function: Function, offset: u8) -> u32 {
        // SAFETY: reading configuration space has no effect.
        unsafe { self.pci.read(place(function), offset.into()) }
    }

    fn config_write(&mut self, function: Function, offset: u8, value: u32) {
        // SAFETY: crate `watchdog` writes only to functions that it has identified and that no driver has, as their
        // data sheets specify.
        unsafe { self.pci.write(place(function), offset.into(), value) };
    }

    fn config_write16(&mut self, function: Function, offset: u8, value: u16) {
        select(function, offset);
        // SAFETY: as above.
        unsafe { Port::new(0xcfc + u16::from(offset & 2)).write(value) };
    }

    fn config_write8(&mut self, function: Function, offset: u8, value: u8) {
        select(function, offset);
        // SAFETY: as above.
        unsafe { Port::new(0xcfc + u16::from(offset & 3)).write(value) };
    }

    fn port_read(&mut self, port: u16) -> u16 {
        // SAFETY: a port of the watchdog, which does not access memory.
        unsafe { Port::new(port).read() }
    }

    fn port_write(&mut self, port: u16, value: u16) {
        // SAFETY: as above.
        unsafe { Port::new(port).write(value) };
    }

    fn memory_read(&mut self, address: u64) -> u32 {
        self.page(address).map_or(u32::MAX, |(page, at)| page.read32(at))
    }

    fn memory_write(&mut self, address: u64, value: u32) {
        if let Some((page, at)) = self.page(address) {
            page.write32(at, value);
        }
    }

    fn memory_write16(&mut self, address: u64, value: u16) {
        if let Some((page, at)) = self.page(address) {
            page.write16(at, value);
        }
    }
}

/// Selects a register at the ports of the host bridge. Writes of less than 32 bits go through these ports, even where
/// configuration space is memory-mapped.
fn select(function: Function, offset: u8) {
    let Function { device, function } = function;
    let address = 1 << 31
        | u32::from(device & 31) << 11
        | u32::from(function & 7) << 8
        | u32::from(offset & !3);
    // SAFETY: the host bridge's address register, which only selects the target of the next access to its data
    // register.
    unsafe { Port::new(0xcf8).write(address) };
}

/// Registers during set-up: an access maps the page first.
struct Mapping<'a> {
    registers: PcRegisters,
    platform: &'a mut dyn Platform,
}

impl Mapping<'_> {
    fn map(&mut self, address: u64) {
        if self.registers.page(address).is_some() {
            return;
        }
        let (start, len) = (address / PAGE * PAGE, PAGE as usize);
        let page: Option<Box<dyn Registers>> = match CHIPSET.contains(&start) {
            true => {
                // SAFETY: registers of the chipset, which nothing else uses.
                let page = unsafe { paging::map_registers(start, len, self.platform.arena()) };
                page.map(|page| Box::new(page) as Box<dyn Registers>)
            }
            false => self.platform.map_registers(start, len),
        };
        self.registers.pages.extend(page.map(|page| (start, page)));
    }
}

impl Io for Mapping<'_> {
    fn config_read(&mut self, function: Function, offset: u8) -> u32 {
        self.registers.config_read(function, offset)
    }

    fn config_write(&mut self, function: Function, offset: u8, value: u32) {
        self.registers.config_write(function, offset, value);
    }

    fn config_write16(&mut self, function: Function, offset: u8, value: u16) {
        self.registers.config_write16(function, offset, value);
    }

    fn config_write8(&mut self, function: Function, offset: u8, value: u8) {
        self.registers.config_write8(function, offset, value);
    }

    fn port_read(&mut self, port: u16) -> u16 {
        self.registers.port_read(port)
    }

    fn port_write(&mut self, port: u16, value: u16) {
        self.registers.port_write(port, value);
    }

    fn memory_read(&mut self, address: u64) -> u32 {
        self.map(address);
        self.registers.memory_read(address)
    }

    fn memory_write(&mut self, address: u64, value: u32) {
        self.map(address);
        self.registers.memory_write(address, value);
    }

    fn memory_write16(&mut self, address: u64, value: u16) {
        self.map(address);
        self.registers.memory_write16(address, value);
    }
}
