//! Masks all interrupts, because none may reach the kernel before its own set-up.

use crate::acpi::Tables;
use x86_64::instructions::port::Port;

const SELECT: usize = 0;
const WINDOW: usize = 4;
const VERSION: u32 = 1;
const REDIRECTIONS: u32 = 0x10;
const MASKED: u32 = 1 << 16;

/// Masks both 8259s and every input of every I/O APIC.
pub fn mask_all(acpi: Option<&Tables>) {
    // SAFETY: the mask registers of the two 8259; a machine without them ignores the write.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
    for io_apic in acpi.into_iter().flat_map(Tables::io_apics) {
        let registers = io_apic.address as usize as *mut u32;
        // SAFETY: ACPI names this as an I/O APIC; device registers below 4 GiB are mapped uncached.
        unsafe {
            registers.add(SELECT).write_volatile(VERSION);
            let last = registers.add(WINDOW).read_volatile() >> 16 & 0xff;
            for input in 0..=last {
                registers.add(SELECT).write_volatile(REDIRECTIONS + 2 * input);
                registers.add(WINDOW).write_volatile(MASKED);
            }
        }
    }
}
