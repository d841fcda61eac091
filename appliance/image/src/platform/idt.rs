//! Replaces handlers in the kernel's interrupt descriptor table (Intel SDM vol. 3A, 6.14.1).
//! Selector, type and interrupt stack of a gate are kept.

use core::ptr::write_volatile;

const GATE: usize = 16;

/// Points the gate of `vector` at `handler`.
///
/// # Safety
/// `handler` is the address of code that follows the CPU's conventions for this vector.
pub unsafe fn set_handler(vector: u8, handler: u64) {
    let table = x86_64::instructions::tables::sidt().base.as_u64() as usize;
    let gate = (table + usize::from(vector) * GATE) as *mut u16;
    // SAFETY: the kernel's table has all 256 gates and is never freed. The handler's address is in words 0 and 3 and
    // in the double word at 8. Interrupts are off, so the CPU uses no half-written gate.
    unsafe {
        write_volatile(gate, handler as u16);
        write_volatile(gate.add(3), (handler >> 16) as u16);
        write_volatile(gate.add(4).cast::<u32>(), (handler >> 32) as u32);
    }
}
