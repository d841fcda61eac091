//! Replacing gates of the interrupt descriptor table that the kernel set up (Intel SDM vol. 3A, 6.14.1).
//! Selector, type and interrupt stack of a gate stay what they are.

use core::ptr::write_volatile;

const GATE: usize = 16;

/// Points the gate of `vector` at `handler`.
///
/// # Safety
/// `handler` is the address of code that follows the CPU's conventions for this vector.
pub unsafe fn set_handler(vector: u8, handler: u64) {
    let table = x86_64::instructions::tables::sidt().base.as_u64() as usize;
    let gate = (table + usize::from(vector) * GATE) as *mut u16;
    // SAFETY: the kernel's table has all 256 gates and is never freed; the offset is spread over
    // words 0 and 3 and the double word at 8. Interrupts are off, so nobody uses a half-written gate.
    unsafe {
        write_volatile(gate, handler as u16);
        write_volatile(gate.add(3), (handler >> 16) as u16);
        write_volatile(gate.add(4).cast::<u32>(), (handler >> 32) as u32);
    }
}
