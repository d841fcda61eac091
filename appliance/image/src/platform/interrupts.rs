//! Interrupt handlers. An interrupt ends a halt and is counted; a handler does nothing else. Loops poll with interrupts
//! off, except while they halt.

use super::apic::Apic;
use super::idt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use drivers::hal::Interrupt;

/// Vector of the timer that ends a halt.
pub const TIMER_VECTOR: u32 = 0xf0;

/// Vector by which one loop ends the halt of another.
pub const BELL_VECTOR: u32 = 0xf1;

/// Vectors to which the kernel has routed the interrupt lines of its I/O APIC.
const FIRST_OF_LINES: u8 = 32;
const END_OF_LINES: u8 = FIRST_OF_LINES + 24;
/// Vectors that stay with the kernel: TLB flush, wake-up of an idle core, its timer.
const KERNEL_VECTORS: [u8; 3] = [112, 121, 123];
/// The local APIC's spurious interrupt, as the kernel has configured it. Its handler must not write EOI.
const SPURIOUS_VECTOR: u8 = 127;
/// Vectors for devices.
const FIRST_FOR_DEVICES: u8 = 0x40;
const END_FOR_DEVICES: u8 = 0x70;

/// Interrupts counted per vector.
static RAISED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static NEXT: AtomicU8 = AtomicU8::new(FIRST_FOR_DEVICES);
/// Whether EOI is written by MSR.
static BY_MSR: AtomicU8 = AtomicU8::new(0);

core::arch::global_asm!(
    // One entry of 16 bytes for each vector from 32 on.
    ".balign 16",
    "isthmus_interrupts:",
    ".set vector, 32",
    ".rept 224",
    ".balign 16",
    "push vector",
    "jmp 2f",
    ".set vector, vector + 1",
    ".endr",
    ".balign 16",
    "2:",
    "push rax",
    "push rcx",
    "push rdx",
    "mov rax, [rsp + 24]",
    "movzx eax, al", // the push above extended the sign
    "lea rcx, [rip + {raised}]",
    "lock inc qword ptr [rcx + rax * 8]",
    "cmp byte ptr [rip + {by_msr}], 0",
    "je 3f",
    "mov ecx, 0x80b",
    "xor eax, eax",
    "xor edx, edx",
    "wrmsr",
    "jmp 4f",
    "3:",
    "mov eax, 0xfee000b0",
    "mov dword ptr [rax], 0",
    "4:",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "add rsp, 8",
    "isthmus_ignore_interrupt:",
    "iretq",
    raised = sym RAISED,
    by_msr = sym BY_MSR,
);

unsafe extern "C" {
    safe fn isthmus_interrupts();
    safe fn isthmus_ignore_interrupt();
}

/// Takes the interrupts over from the kernel, except those that it needs. Interrupts must be off.
pub fn take(apic: Apic) {
    BY_MSR.store(u8::from(apic == Apic::Msr), Ordering::Relaxed);
    let first = isthmus_interrupts as *const () as u64;
    for vector in (32..=255).filter(|vector| !KERNEL_VECTORS.contains(vector)) {
        let handler = match vector {
            SPURIOUS_VECTOR => isthmus_ignore_interrupt as *const () as u64,
            // Lines are counted together.
            FIRST_OF_LINES..END_OF_LINES => first,
            _ => first + (u64::from(vector) - 32) * 16,
        };
        // SAFETY: these handlers save what they use, end the interrupt and return.
        unsafe { idt::set_handler(vector, handler) };
    }
}

/// Interrupts counted over all interrupt lines. Of the devices served here only the serial port has a line.
pub fn line_interrupts() -> u64 {
    RAISED[usize::from(FIRST_OF_LINES)].load(Ordering::Relaxed)
}

/// Allocates a device interrupt, delivered to the core whose APIC has the ID `target`. `None` if all vectors are in
/// use, or if an MSI cannot address the core: its destination has 8 bits, because interrupts are not remapped.
pub fn allocate(target: u32) -> Option<Interrupt> {
    const ALL: u32 = 0xff;
    if target >= ALL {
        return None;
    }
    let take = |next: u8| (next < END_FOR_DEVICES).then_some(next + 1);
    let vector = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let address = 0xfee0_0000 | u64::from(target) << 12;
    // SAFETY: the local APIC's address, and a vector whose handler only counts (`take`).
    Some(unsafe { Interrupt::new(address, vector.into(), &RAISED[usize::from(vector)]) })
}
