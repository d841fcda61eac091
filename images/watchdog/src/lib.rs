//! Watchdogs of PCs, which reset the machine if they are not reloaded in time: Intel's 6300ESB (QEMU's `i6300esb`), and
//! TCO in the chipsets of Intel's PCs and servers up to Broadwell (QEMU's `q35`).
//!
//! All access to the machine is through [`Io`].

#![cfg_attr(not(test), no_std)]

mod i6300esb;
mod tco;

/// Access to registers.
pub trait Io {
    /// Reads 32 bits of the configuration space of a function of bus 0, at a multiple of 4.
    fn config_read(&mut self, function: Function, offset: u8) -> u32;
    /// Writes 32 bits of the configuration space of a function of bus 0, at a multiple of 4.
    fn config_write(&mut self, function: Function, offset: u8, value: u32);
    /// Writes 16 bits, at a multiple of 2.
    fn config_write16(&mut self, function: Function, offset: u8, value: u16);
    /// Writes a byte.
    fn config_write8(&mut self, function: Function, offset: u8, value: u8);
    /// Reads a port of 16 bits.
    fn port_read(&mut self, port: u16) -> u16;
    /// Writes a port of 16 bits.
    fn port_write(&mut self, port: u16, value: u16);
    /// Reads a register of 32 bits in memory.
    fn memory_read(&mut self, address: u64) -> u32;
    /// Writes a register of 32 bits in memory.
    fn memory_write(&mut self, address: u64, value: u32);
    /// Writes a register of 16 bits in memory.
    fn memory_write16(&mut self, address: u64, value: u16);
}

/// A PCI function of bus 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

/// A watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    I6300esb(i6300esb::Device),
    Tco(tco::Device),
}

/// Longest time, in seconds, that all of the watchdogs support.
pub const LONGEST: u16 = 600;

impl Watchdog {
    /// Finds the first watchdog of the machine that can reset it.
    pub fn find(io: &mut dyn Io) -> Option<Watchdog> {
        let functions = (0..32).map(|device| Function { device, function: 0 });
        for function in functions {
            if io.config_read(function, 0) == u32::MAX {
                continue;
            }
            // Check all functions of a device with several.
            let several = io.config_read(function, 0x0c) >> 16 & 0x80 != 0;
            for number in 0..if several { 8 } else { 1 } {
                let function = Function { function: number, ..function };
                let id = io.config_read(function, 0);
                let found = i6300esb::open(io, function, id).map(Kind::I6300esb);
                let found = found.or_else(|| tco::open(io, function, id).map(Kind::Tco));
                if let Some(kind) = found {
                    return Some(Watchdog(kind));
                }
            }
        }
        None
    }

    /// Name of Linux's driver for it.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::I6300esb(_) => "i6300esb",
            Kind::Tco(_) => "iTCO_wdt",
        }
    }

    /// Reads from each page of its registers in memory, without an effect.
    pub fn touch(&self, io: &mut dyn Io) {
        match self.0 {
            Kind::I6300esb(device) => device.touch(io),
            Kind::Tco(device) => device.touch(io),
        }
    }

    /// Starts it: the machine is reset if it is not reloaded for so many seconds, 1 to [`LONGEST`], or up to twice as
    /// many.
    pub fn start(&self, io: &mut dyn Io, seconds: u16) {
        let seconds = seconds.clamp(1, LONGEST);
        match self.0 {
            Kind::I6300esb(device) => device.start(io, seconds),
            Kind::Tco(device) => device.start(io, seconds),
        }
    }

    /// Reloads it: its time begins again.
    pub fn see_to(&self, io: &mut dyn Io) {
        match self.0 {
            Kind::I6300esb(device) => device.see_to(io),
            Kind::Tco(device) => device.see_to(io),
        }
    }

    /// Stops it: it no longer resets the machine.
    pub fn stop(&self, io: &mut dyn Io) {
        match self.0 {
            Kind::I6300esb(device) => device.stop(io),
            Kind::Tco(device) => device.stop(io),
        }
    }
}

#[cfg(test)]
mod testing;
