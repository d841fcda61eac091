//! CPU exceptions. The handler reports the exception and ends or restarts the machine (see [`last_words`]).
//! The kernel's own handlers only end the task, which would leave a machine that idles for ever.

use super::{idt, last_words, power};
use core::fmt::Write;

/// Device not available. It stays with the kernel, which switches the FPU's registers lazily by it.
const LAZY_FPU: u8 = 7;
/// Vectors at which the CPU pushes an error code.
const WITH_ERROR_CODE: u32 = 1 << 8 | 0x7c00 | 1 << 17 | 1 << 21 | 1 << 29 | 1 << 30;

core::arch::global_asm!(
    // One entry of 16 bytes for each vector.
    ".balign 16",
    "isthmus_exceptions:",
    ".set vector, 0",
    ".rept 32",
    ".balign 16",
    ".if ({with_error_code} >> vector) & 1 == 0",
    "push 0",
    ".endif",
    "push vector",
    "jmp 2f",
    ".set vector, vector + 1",
    ".endr",
    ".balign 16",
    "2:",
    "push r15", "push r14", "push r13", "push r12", "push r11", "push r10", "push r9", "push r8",
    "push rbp", "push rdi", "push rsi", "push rdx", "push rcx", "push rbx", "push rax",
    // The report uses the FPU's registers. Without `clts` that would raise exception 7, on the same stack, at its top.
    "clts",
    "cld",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {report}",
    "ud2",
    with_error_code = const WITH_ERROR_CODE,
    report = sym report,
);

unsafe extern "C" {
    safe fn isthmus_exceptions();
}

/// Registers and vector that the entry code pushed, then the CPU's exception frame.
#[repr(C)]
struct Frame {
    rax: u64,
    rbx: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    rbp: u64,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Takes the exceptions over from the kernel. Interrupts must be off.
pub fn take() {
    let first = isthmus_exceptions as *const () as u64;
    for vector in (0..32).filter(|&vector| vector != LAZY_FPU) {
        // SAFETY: these handlers never return, so they need not preserve anything.
        unsafe { idt::set_handler(vector, first + u64::from(vector) * 16) };
    }
}

extern "C" fn report(frame: &Frame) -> ! {
    /// The core with the fatal error stops the others by it.
    const NMI: u64 = 2;
    if frame.vector == NMI && last_words::is_stopped() {
        last_words::halt();
    }
    let address = x86_64::registers::control::Cr2::read_raw();
    let vector = frame.vector as u8;
    last_words::report(power::EXCEPTION + vector, frame.rsp, |out| {
        write_exception(frame, address, out)
    })
}

/// Writes the exception, its cause and the registers.
fn write_exception(frame: &Frame, address: u64, out: &mut dyn Write) -> core::fmt::Result {
    let vector = frame.vector as u8;
    write!(out, "isthmus: CPU exception {vector} ({}) at {:#x}", name(vector), frame.rip)?;
    match vector {
        14 => writeln!(out, ": {}", Cause { frame, address })?,
        _ => writeln!(out, ", error code {:#x}", frame.error)?,
    }
    let f = frame;
    let rows: [[(&str, u64); 4]; 5] = [
        [("rax", f.rax), ("rbx", f.rbx), ("rcx", f.rcx), ("rdx", f.rdx)],
        [("rsi", f.rsi), ("rdi", f.rdi), ("rbp", f.rbp), ("rsp", f.rsp)],
        [("r8 ", f.r8), ("r9 ", f.r9), ("r10", f.r10), ("r11", f.r11)],
        [("r12", f.r12), ("r13", f.r13), ("r14", f.r14), ("r15", f.r15)],
        [("cr2", address), ("flg", f.rflags), ("cs ", f.cs), ("ss ", f.ss)],
    ];
    for row in rows {
        for (name, value) in row {
            write!(out, "  {name} {value:016x}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Displays the cause of a page fault.
struct Cause<'a> {
    frame: &'a Frame,
    address: u64,
}

impl core::fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const PRESENT: u64 = 1;
        const WRITE: u64 = 1 << 1;
        const FETCH: u64 = 1 << 4;
        let error = self.frame.error;
        let access = match (error & FETCH != 0, error & WRITE != 0) {
            (true, _) => "executing",
            (_, true) => "writing",
            _ => "reading",
        };
        let why = match (error & PRESENT != 0, self.address) {
            (false, 0..4096) => "a null pointer",
            (false, a) if a.abs_diff(self.frame.rsp) < 8192 => "past the end of the stack",
            (false, _) => "not mapped",
            (true, _) => "not allowed",
        };
        write!(f, "{access} {:#x}, {why}", self.address)
    }
}

fn name(vector: u8) -> &'static str {
    match vector {
        0 => "#DE, division",
        1 => "#DB, debug",
        2 => "NMI",
        3 => "#BP, breakpoint",
        4 => "#OF, overflow",
        5 => "#BR, bound range",
        6 => "#UD, invalid opcode",
        8 => "#DF, double fault",
        10 => "#TS, invalid TSS",
        11 => "#NP, segment not present",
        12 => "#SS, stack segment",
        13 => "#GP, general protection",
        14 => "#PF, page fault",
        16 => "#MF, x87 error",
        17 => "#AC, alignment",
        18 => "#MC, machine check",
        19 => "#XM, SIMD error",
        20 => "#VE, virtualization",
        21 => "#CP, control protection",
        _ => "reserved",
    }
}
