//! From the entry point to the kernel, in order. The stub is alone on the machine and has no heap.
//!
//! What the kernel wants (hermit-kernel 0.11): long mode, memory mapped one to one and writable, a
//! memory map in ascending order as a device tree, and no interrupt before its own set-up.

mod clock;
mod handover;
mod interrupts;
mod paging;
mod physical;
mod pvh;
mod uart;

use crate::acpi::Tables;
use crate::multiboot2::{self, RootPointer};
use crate::{ArenaRequest, BootInfo, Protocol};
use core::ptr::addr_of_mut;

core::arch::global_asm!(include_str!("entry.s"), options(att_syntax));

/// What a Multiboot2 loader leaves in EAX (Multiboot2 specification 2.0, 3.3).
const MULTIBOOT2: u32 = 0x36d7_6289;
/// The kernel's lists of free memory hold 16 ranges before they want a heap; each region can be split.
const MAX_REGIONS: usize = 8;

static mut BOOT_INFO: BootInfo = BootInfo::new();

/// What the image asks for by [`crate::boot_info`].
#[unsafe(no_mangle)]
extern "C" fn isthmus_boot_info() -> Option<&'static BootInfo> {
    // SAFETY: written only by the stub, which ended before anybody could call this.
    Some(unsafe { &*addr_of_mut!(BOOT_INFO) })
}

/// Called by the entry point in long mode, with the magic number of the boot protocol and the address
/// of its information.
#[unsafe(no_mangle)]
extern "C" fn isthmus_stub(magic: u32, information: u32) -> ! {
    // SAFETY: the only processor, and this function is entered once.
    let boot = unsafe { &mut *addr_of_mut!(BOOT_INFO) };
    match magic {
        pvh::MAGIC => {
            boot.protocol = Protocol::Pvh;
            pvh::read(boot, information.into());
        }
        MULTIBOOT2 => {
            boot.protocol = Protocol::Multiboot2;
            // SAFETY: the loader's information begins with its size. The loader is gone, and the stub
            // writes only to the image, which the loader kept apart from it.
            let information = unsafe {
                let size: u32 = physical::read(information.into());
                physical::bytes(information.into(), size.into())
            };
            if let Some(copy) = multiboot2::read(boot, information) {
                boot.rsdp = keep_root_pointer(copy);
            }
        }
        _ => fatal("entered by something that is neither PVH nor Multiboot2"),
    }
    if boot.memory.regions().is_empty() {
        fatal("the boot loader gave no memory map");
    }
    if boot.rsdp == 0 {
        boot.rsdp = physical::find_rsdp();
    }
    paging::uncache_devices(&boot.memory);
    // SAFETY: the entry point mapped the first 4 GiB one to one; firmware is done with its tables.
    let acpi = unsafe { Tables::new(boot.rsdp) };

    let (image_start, image_end) = handover::image();
    boot.memory.keep(image_start, image_end);
    let asked = boot.command_line().split_ascii_whitespace();
    let bytes = asked.filter_map(|w| w.strip_prefix("isthmus.memory.arena=")).next_back();
    let bytes = bytes.map(|b| b.trim_matches('"')).and_then(crate::parse_size);
    match boot.memory.keep_arena(&ArenaRequest { bytes, image_end }) {
        Some(arena) => boot.arena = arena,
        None => fatal("not enough memory: give the machine at least 24 MiB"),
    }
    paging::map_arena(boot);
    boot.memory.hand_over(MAX_REGIONS);
    boot.stack_guard = handover::stack_guard();

    interrupts::mask_all(acpi.as_ref());
    clock::measure(boot, acpi.as_ref());
    handover::enter_kernel(boot)
}

/// The loader's copy of the root pointer lies in memory that the kernel will use, so it moves here.
fn keep_root_pointer(copy: RootPointer) -> u64 {
    static mut ROOT_POINTER: RootPointer = RootPointer([0; 36]);
    let place = &raw mut ROOT_POINTER;
    // SAFETY: the only processor, and nobody has read it yet.
    unsafe { place.write(copy) };
    place as u64
}

/// Says why the machine cannot boot, and ends. Tests see exit code 37 (as `power_off(2)` of the image).
fn fatal(reason: &str) -> ! {
    uart::print("isthmus: cannot boot: ");
    uart::print(reason);
    uart::print("\r\n");
    // SAFETY: QEMU's isa-debug-exit, if it is there; the port is unused elsewhere.
    unsafe { x86_64::instructions::port::Port::<u32>::new(0xf4).write(0x12) };
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
