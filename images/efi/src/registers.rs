//! Access to the machine's registers, for its watchdog.

use core::arch::asm;
use core::ptr;

use watchdog::{Function, Io};

/// Registers of this machine. All memory is mapped to itself, and no other code runs.
pub struct Registers;

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;

fn select(function: Function, offset: u8) {
    let Function { device, function } = function;
    let address = 1 << 31
        | u32::from(device & 31) << 11
        | u32::from(function & 7) << 8
        | u32::from(offset & !3);
    // SAFETY: the host bridge's address register, which only selects the register behind its data register.
    unsafe { asm!("out dx, eax", in("dx") CONFIG_ADDRESS, in("eax") address) };
}

impl Io for Registers {
    fn config_read(&mut self, function: Function, offset: u8) -> u32 {
        select(function, offset);
        let value: u32;
        // SAFETY: reading configuration space has no effect.
        unsafe { asm!("in eax, dx", in("dx") CONFIG_DATA, out("eax") value) };
        value
    }

    fn config_write(&mut self, function: Function, offset: u8, value: u32) {
        select(function, offset);
        // SAFETY: crate `watchdog` writes only to functions that it has identified, as their documentation specifies.
        unsafe { asm!("out dx, eax", in("dx") CONFIG_DATA, in("eax") value) };
    }

    fn config_write16(&mut self, function: Function, offset: u8, value: u16) {
        select(function, offset);
        let port = CONFIG_DATA + u16::from(offset & 2);
        // SAFETY: as above.
        unsafe { asm!("out dx, ax", in("dx") port, in("ax") value) };
    }

    fn config_write8(&mut self, function: Function, offset: u8, value: u8) {
        select(function, offset);
        let port = CONFIG_DATA + u16::from(offset & 3);
        // SAFETY: as above.
        unsafe { asm!("out dx, al", in("dx") port, in("al") value) };
    }

    fn port_read(&mut self, port: u16) -> u16 {
        let value: u16;
        // SAFETY: as above.
        unsafe { asm!("in ax, dx", in("dx") port, out("ax") value) };
        value
    }

    fn port_write(&mut self, port: u16, value: u16) {
        // SAFETY: as above.
        unsafe { asm!("out dx, ax", in("dx") port, in("ax") value) };
    }

    fn memory_read(&mut self, address: u64) -> u32 {
        // SAFETY: a register of an existing device, at the address that the firmware has assigned; mapped to itself.
        unsafe { ptr::read_volatile(address as *const u32) }
    }

    fn memory_write(&mut self, address: u64, value: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(address as *mut u32, value) };
    }

    fn memory_write16(&mut self, address: u64, value: u16) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(address as *mut u16, value) };
    }
}
