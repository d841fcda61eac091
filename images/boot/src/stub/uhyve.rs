//! Entry from uhyve (0.10, its interface version 1): boot information, and error messages by hypercalls.
//!
//! An image with a fixed address gets memory from address 0 on, less than 3 GiB. uhyve puts boot information and a
//! device tree below the image. Devices are above memory.

use super::{enter, fatal, handover, physical};
use crate::acpi::Tables;
use crate::{BootInfo, ClockSource, Kind, Protocol, device_tree};
use core::arch::asm;
use core::ptr::addr_of_mut;
use hermit_entry::boot_info::{BootInfo as HermitBootInfo, PlatformInfo, RawBootInfo};

core::arch::global_asm!(
    include_str!("tables.s"),
    include_str!("entry_uhyve.s"),
    options(att_syntax)
);

// Ports of hypercalls; the value written is the address of the parameters.
const EXIT: u16 = 0x540;
const SERIAL_WRITE: u16 = 0x880;
/// Frequency of KVM's local APIC timer: 1 GHz.
const APIC_TIMER_KHZ: u64 = 1_000_000;
/// Longest device tree: uhyve reserves this many bytes for it.
const LONGEST_TREE: u64 = 0x4000;
/// Exit code, as `power::REFUSED` of the image.
const REFUSED: i32 = 2;

unsafe extern "C" {
    static mut isthmus_first_is_done: u32;
}

/// Called by the entry point on the first processor.
#[unsafe(no_mangle)]
extern "C" fn isthmus_stub_uhyve(raw: &RawBootInfo) -> ! {
    // SAFETY: the only processor that is not waiting, and this function is entered once.
    let boot = unsafe { &mut *addr_of_mut!(super::BOOT_INFO) };
    boot.protocol = Protocol::Uhyve;
    let info = HermitBootInfo::from(*raw);
    let memory = info.hardware_info.phys_addr_range;
    if memory.start != 0 {
        fatal("uhyve did not put memory at address 0");
    }
    boot.memory.push(memory.start, memory.end, Kind::RAM);
    let PlatformInfo::Uhyve { cpu_freq, .. } = info.platform_info else {
        fatal("the loader is not uhyve");
    };
    let Some(khz) = cpu_freq else {
        fatal("uhyve passed no frequency of the time-stamp counter (KVM_GET_TSC_KHZ)");
    };
    boot.clock_source = ClockSource::Cpuid;
    (boot.tsc_khz, boot.apic_timer_khz) = (khz.get().into(), APIC_TIMER_KHZ);
    if let Some(tree) = info.hardware_info.device_tree {
        // SAFETY: uhyve has put its tree there, in memory that is not written before the kernel runs.
        let tree = unsafe {
            let header = physical::bytes(tree.get(), 8);
            let len = device_tree::total_size(header).map_or(0, u64::from).min(LONGEST_TREE);
            physical::bytes(tree.get(), len)
        };
        boot.set_command_line(device_tree::boot_arguments(tree).unwrap_or_default());
    }
    enter(boot, info.platform_info)
}

/// Lets the other processors enter the kernel.
pub fn prepare(_: &mut BootInfo, _: Option<&Tables>) {
    // SAFETY: a word that the other processors poll. Stores are ordered, so a processor that reads it also sees all
    // earlier stores.
    unsafe { addr_of_mut!(isthmus_first_is_done).write_volatile(1) };
}

/// Parameters of a hypercall. They are in the image, whose virtual addresses are physical ones.
#[repr(C, packed)]
struct Text {
    address: u64,
    len: u64,
}

/// Prints; `text` lies in the image.
pub fn print(text: &str) {
    let parameters = Text { address: text.as_ptr() as u64, len: text.len() as u64 };
    call(SERIAL_WRITE, (&raw const parameters) as u64);
}

/// Ends the machine.
pub fn exit() {
    let code = REFUSED;
    call(EXIT, (&raw const code) as u64);
}

/// `parameters` lie on the stub's stack, which is in the image.
fn call(port: u16, parameters: u64) {
    // SAFETY: a hypercall, which reads its parameters, and the text that they refer to, before this returns. (`Port` is
    // not used, because it promises the compiler that memory is not accessed.)
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") parameters as u32, options(nostack, preserves_flags));
    }
}
