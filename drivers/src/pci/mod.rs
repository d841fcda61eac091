//! PCI functions: finding them, their base address registers, capabilities and MSI-X.
//!
//! PCI Local Bus Specification 3.0, chapter 6. Configuration space is accessed through [`ConfigRegionAccess`]. The
//! firmware assigns addresses, and they are never changed here. The walks of the `pci_types` crate are not used,
//! because they trust the device: a circular capability list never ends, a base address register of size 0 overflows.

mod bar;
mod capability;
mod ecam;
mod express;
#[cfg(test)]
pub(crate) mod model;
mod msi;
mod msix;
mod own_register;
pub mod reset;

pub use bar::{Bar, Bars};
pub use capability::{Capabilities, Capability};
pub use ecam::Ecam;
pub use msix::Msix;
pub(crate) use own_register::OwnRegister;

use crate::hal::{ConfigRegionAccess, PciAddress};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

const COMMAND: u16 = 0x04;
const CLASS: u16 = 0x08;
const HEADER_TYPE: u16 = 0x0c;
const BUSES: u16 = 0x18;

const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_MASTER: u32 = 1 << 2;
const COMMAND_NO_INTX: u32 = 1 << 10;

/// One function of a device, through its configuration space.
#[derive(Clone, Copy)]
pub struct Function<'a> {
    address: PciAddress,
    access: &'a (dyn ConfigRegionAccess + Sync),
}

impl<'a> Function<'a> {
    /// The function at `address`, or None if no function responds.
    pub fn new(address: PciAddress, access: &'a (dyn ConfigRegionAccess + Sync)) -> Option<Self> {
        let function = Function { address, access };
        (function.vendor() != 0xffff).then_some(function)
    }

    /// Address of the function.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Reads 32 bits of configuration space at `offset` (rounded down to a multiple of 4).
    pub fn read32(&self, offset: u16) -> u32 {
        // SAFETY: any function and any aligned offset below 4096 may be read; an absent register reads as all ones.
        unsafe { self.access.read(self.address, offset & 0xffc) }
    }

    /// Writes 32 bits of configuration space at `offset` (rounded down to a multiple of 4). Private to this module,
    /// because writes to some registers would be unsafe.
    fn write32(&self, offset: u16, value: u32) {
        // SAFETY: an aligned offset below 4096 of a function that responded; the registers written in this module
        // (command, base addresses while memory is off, MSI, MSI-X and device control, and those of `OwnRegister`) move
        // no memory of this program.
        unsafe { self.access.write(self.address, offset & 0xffc, value) }
    }

    /// Writes a device-specific register. False, without a write, if the function is another device, which may use the
    /// offset for anything.
    pub(crate) fn write_own32(&self, register: OwnRegister, value: u32) -> bool {
        let is_own = register.is_of(self);
        if is_own {
            self.write32(register.offset(), value);
        }
        is_own
    }

    /// Vendor ID.
    pub fn vendor(&self) -> u16 {
        self.read32(0) as u16
    }

    /// Device ID.
    pub fn device(&self) -> u16 {
        (self.read32(0) >> 16) as u16
    }

    /// Base class, subclass and programming interface, as 0xCCSSPP.
    pub fn class(&self) -> u32 {
        self.read32(CLASS) >> 8
    }

    fn header_type(&self) -> u8 {
        (self.read32(HEADER_TYPE) >> 16) as u8
    }

    /// Bus behind the function, if it is a bridge.
    fn secondary_bus(&self) -> Option<u8> {
        (self.header_type() & 0x7f == 1).then(|| (self.read32(BUSES) >> 8) as u8)
    }

    /// Prepares the function for its driver: memory is decoded, legacy interrupts (INTx) are off, accesses keep their
    /// order, errors of an earlier system are cleared. Bus mastering is off until [`Function::enable_bus_master`], so
    /// that a device which an earlier system has left running cannot access memory.
    pub fn prepare(&self) {
        self.change_command(COMMAND_MASTER, COMMAND_MEMORY | COMMAND_NO_INTX);
        self.order_strictly();
        self.clear_errors();
    }

    /// Enables bus mastering. To be called last, once the device is stopped or reset.
    pub fn enable_bus_master(&self) {
        self.change_command(0, COMMAND_MASTER);
    }

    /// Enables the legacy interrupt. Returns its line at the interrupt controller, as the firmware has noted it; None
    /// if the function has no line.
    pub(crate) fn allow_line(&self) -> Option<u8> {
        const LINE: u16 = 0x3c;
        let [line, pin, ..] = self.read32(LINE).to_le_bytes();
        if pin == 0 || line == 0xff {
            return None;
        }
        self.change_command(COMMAND_NO_INTX, 0);
        Some(line)
    }

    /// Disables bus mastering, so that the function can no longer access memory.
    pub fn disable(&self) {
        self.change_command(COMMAND_MASTER, 0);
    }

    /// Stops the decoding of memory, so that base addresses may be changed.
    fn stop_decoding(&self) {
        self.change_command(COMMAND_MEMORY, 0);
    }

    /// Changes bits of the command register. A function that is absent or in a reset reads as all ones. Should it answer
    /// again by the time of the write, everything is off, as after a reset.
    fn change_command(&self, clear: u32, set: u32) {
        let command = self.read32(COMMAND) & 0xffff;
        let (clear, set) = if command == 0xffff { (0xffff, 0) } else { (clear, set) };
        self.write32(COMMAND, command & !clear | set);
    }
}

/// All functions of `segment` on the buses `roots` and behind their bridges, in the order of their addresses on each
/// bus. A root that lies behind a bridge of an earlier root is scanned once.
pub fn scan(
    segment: u16,
    roots: RangeInclusive<u8>,
    access: &(dyn ConfigRegionAccess + Sync),
) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut buses = Vec::new();
    let mut next = 0;
    let mut roots = roots;
    loop {
        let Some(&bus) = buses.get(next) else {
            let Some(root) = roots.find(|root| !buses.contains(root)) else { return found };
            buses.push(root);
            continue;
        };
        next += 1;
        for device in 0..32 {
            for number in 0..8 {
                let address = PciAddress::new(segment, bus, device, number);
                let Some(function) = Function::new(address, access) else {
                    if number == 0 {
                        break;
                    }
                    continue;
                };
                if let Some(behind) = function.secondary_bus().filter(|b| !buses.contains(b)) {
                    buses.push(behind);
                }
                found.push(function);
                if number == 0 && function.header_type() & 0x80 == 0 {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model::ConfigSpaces;
    use super::*;

    #[test]
    fn scan_follows_bridges_once_and_skips_absent_functions() {
        let mut spaces = ConfigSpaces::default();
        spaces.function(PciAddress::new(0, 0, 0, 0), 0x8086, 0x29c0);
        let bridge = spaces.function(PciAddress::new(0, 0, 3, 0), 0x1b36, 0x000c);
        bridge.set8(0x0e, 0x81);
        bridge.set8(0x19, 1);
        let second = spaces.function(PciAddress::new(0, 0, 3, 5), 0x1b36, 0x000c);
        second.set8(0x0e, 0x81);
        second.set8(0x19, 0); // points back at bus 0
        spaces.function(PciAddress::new(0, 1, 0, 0), 0x1af4, 0x1041);
        spaces.function(PciAddress::new(0, 1, 0, 1), 0x1af4, 0x1042); // function 0 is alone: hidden
        let found: Vec<_> =
            scan(0, 0..=0, &spaces).iter().map(|f| (f.address(), f.device())).collect();
        let at = |bus, device, function| PciAddress::new(0, bus, device, function);
        assert_eq!(
            found,
            [(at(0, 0, 0), 0x29c0), (at(0, 3, 0), 0xc), (at(0, 3, 5), 0xc), (at(1, 0, 0), 0x1041)]
        );
    }

    #[test]
    fn buses_of_other_host_bridges_and_segments_are_found_once() {
        let mut spaces = ConfigSpaces::default();
        let at = |segment, bus, device| PciAddress::new(segment, bus, device, 0);
        spaces.function(at(0, 0, 0), 0x8086, 0x29c0);
        let bridge = spaces.function(at(0, 0, 1), 0x1b36, 0xc);
        bridge.set8(0x0e, 1);
        bridge.set8(0x19, 3);
        spaces.function(at(0, 3, 0), 0x8086, 0x10d3);
        spaces.function(at(0, 0x40, 5), 0x8086, 0x0a54);
        spaces.function(at(0, 0xff, 31), 0x8086, 0x2021);
        spaces.function(at(2, 0x80, 0), 0x8086, 0x10fb);
        let found = |segment, roots| -> Vec<_> {
            scan(segment, roots, &spaces).iter().map(Function::address).collect()
        };
        assert_eq!(found(0, 0..=0), [at(0, 0, 0), at(0, 0, 1), at(0, 3, 0)]);
        let behind = [at(0, 0x40, 5), at(0, 0xff, 31)];
        assert_eq!(found(0, 0..=255), [&found(0, 0..=0)[..], &behind].concat());
        assert_eq!(found(2, 0x80..=0xff), [at(2, 0x80, 0)]);
        assert_eq!(found(2, 0x81..=0xff), []);
    }

    #[test]
    fn nothing_is_enabled_in_a_function_that_does_not_answer() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x1af4, 0x1041).set32(4, u32::MAX);
        let function = Function::new(address, &spaces).unwrap();
        assert_eq!(function.bars().get(0), None);
        for act in [Function::prepare, Function::enable_bus_master, Function::disable] {
            act(&function);
            assert_eq!(function.read32(4) & 0xffff, 0);
            spaces.0.get(&address).unwrap().lock().unwrap().set32(4, u32::MAX);
        }
    }

    #[test]
    fn bus_mastering_touches_only_its_bit() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x1af4, 0x1041).set8(4, 0x01);
        let function = Function::new(address, &spaces).unwrap();
        function.prepare();
        assert_eq!(function.read32(4) & 0xffff, 0x403);
        function.enable_bus_master();
        assert_eq!(function.read32(4) & 0xffff, 0x407);
        function.disable();
        assert_eq!(function.read32(4) & 0xffff, 0x403);
    }
}
