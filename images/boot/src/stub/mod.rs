//! The steps from the entry point to the kernel, in order. The stub runs alone on the machine and has no heap.
//!
//! The kernel (hermit-kernel 0.11) requires long mode, memory mapped one to one and writable, a
//! memory map in ascending order as a device tree, and no interrupt before its own set-up.

// The only condition on uhyve: `board` has the entry point, and everything else calls its functions.
#[cfg_attr(not(feature = "uhyve"), path = "pc/mod.rs")]
#[cfg_attr(feature = "uhyve", path = "uhyve.rs")]
mod board;
mod handover;
mod interrupts;
mod paging;
mod physical;

use crate::acpi::Tables;
use crate::{ArenaRequest, BootInfo};
use core::arch::x86_64::__cpuid;
use core::ptr::addr_of_mut;
use hermit_entry::boot_info::PlatformInfo;

/// Most regions for the kernel. Its free lists hold 16 ranges without a heap, and each region can be split.
const MAX_REGIONS: usize = 8;
/// With less the kernel cannot allocate its heap, and panics. A machine of 27 MiB has about 26.5 MiB of RAM, because of
/// what firmware keeps.
const LEAST_MEMORY: u64 = 26 << 20;
const TOO_SMALL: &str = "not enough memory: give the machine at least 27 MiB";

static mut BOOT_INFO: BootInfo = BootInfo::new();

/// Accessor for [`crate::boot_info`].
#[unsafe(no_mangle)]
extern "C" fn isthmus_boot_info() -> &'static BootInfo {
    // SAFETY: only the stub writes it, and the stub ended before any caller of this runs.
    unsafe { &*addr_of_mut!(BOOT_INFO) }
}

/// Completes the boot information and enters the kernel, with `platform` as its platform.
fn enter(boot: &mut BootInfo, platform: PlatformInfo) -> ! {
    check_processor();
    paging::uncache_devices(&boot.memory);
    // SAFETY: the entry point mapped the first 4 GiB one to one; the firmware no longer writes its tables.
    let acpi = unsafe { Tables::new(boot.rsdp) };

    if boot.memory.total() < LEAST_MEMORY {
        fatal(TOO_SMALL);
    }
    let (image_start, image_end) = handover::image();
    boot.memory.keep(image_start, image_end);
    let words = boot.command_line().split_ascii_whitespace();
    let bytes = words.filter_map(|w| w.strip_prefix("isthmus.memory.arena=")).next_back();
    let bytes = bytes.map(|b| b.trim_matches('"')).and_then(crate::parse_size);
    match boot.memory.keep_arena(&ArenaRequest { bytes, image_end }) {
        Some(arena) => boot.arena = arena,
        None => fatal(TOO_SMALL),
    }
    paging::map_arena(boot);
    boot.memory.hand_over(MAX_REGIONS);
    boot.stack_guard = handover::stack_guard();

    interrupts::mask_all(acpi.as_ref());
    board::prepare(boot, acpi.as_ref());
    handover::enter_kernel(boot, platform)
}

/// The kernel panics on a CPU without extended features, before it has a console.
fn check_processor() {
    if __cpuid(0).eax < 7 {
        fatal("this CPU is too old: it does not report extended features (CPUID leaf 7)");
    }
}

/// Prints why the machine cannot boot, and stops. Tests see exit code 37 (as with `power_off(2)` of the image).
fn fatal(reason: &str) -> ! {
    use board::print;
    print("isthmus: cannot boot: ");
    print(reason);
    print("\r\n");
    board::exit();
    stop()
}

/// Halts for ever.
fn stop() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
