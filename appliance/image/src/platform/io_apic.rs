//! Interrupt lines through the I/O APICs (Intel 82093AA), only for devices without MSI. Lines are edge-triggered, so a
//! device that is not served yet does not interrupt repeatedly.

use super::{apic, interrupts};
use boot::acpi::{IoApic, Tables};
use drivers::hal::Interrupt;

const SELECT: usize = 0;
const WINDOW: usize = 4;
const VERSION: u32 = 1;
const REDIRECTIONS: u32 = 0x10;
/// Default I/O APIC, used if ACPI lists none.
const DEFAULT: IoApic = IoApic { address: 0xfec0_0000, first: 0 };

/// Routes interrupt line `line` (a global system interrupt) to this core, where it ends a halt. None if there is no
/// such line, or no free vector.
pub fn route(line: u32, acpi: Option<&Tables>) -> Option<Interrupt> {
    let io_apics = acpi.into_iter().flat_map(Tables::io_apics);
    let nearest = io_apics.filter(|io_apic| io_apic.first <= line).max_by_key(|a| a.first);
    let io_apic = nearest.unwrap_or(DEFAULT);
    let registers = io_apic.address as usize as *mut u32;
    let input = line - io_apic.first;
    // SAFETY: registers of an I/O APIC, mapped uncached. The vector has a handler; the input's entry is
    // masked (its upper half) until its lower half is written.
    unsafe {
        let write = |register: u32, value: u32| {
            registers.add(SELECT).write_volatile(register);
            registers.add(WINDOW).write_volatile(value);
        };
        registers.add(SELECT).write_volatile(VERSION);
        let last = registers.add(WINDOW).read_volatile() >> 16 & 0xff;
        if input > last {
            return None;
        }
        let interrupt = interrupts::allocate(apic::id())?;
        write(REDIRECTIONS + 2 * input + 1, apic::id() << 24);
        write(REDIRECTIONS + 2 * input, interrupt.data());
        Some(interrupt)
    }
}
