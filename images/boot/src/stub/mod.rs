//! The steps from the entry point to the kernel, in order. The stub runs alone on the machine and has no heap.
//!
//! The kernel (hermit-kernel 0.11) requires long mode, memory mapped one to one and writable, a
//! memory map in ascending order as a device tree, and no interrupt before its own set-up.

#[cfg(not(feature = "uhyve"))]
mod clock;
mod handover;
mod interrupts;
mod paging;
mod physical;
#[cfg(not(feature = "uhyve"))]
mod pvh;
#[cfg(not(feature = "uhyve"))]
mod uart;
#[cfg(feature = "uhyve")]
mod uhyve;

#[cfg(not(feature = "uhyve"))]
use crate::Protocol;
use crate::acpi::Tables;
#[cfg(not(feature = "uhyve"))]
use crate::multiboot2::{self, RootPointer};
use crate::{ArenaRequest, BootInfo};
use core::ptr::addr_of_mut;
use hermit_entry::boot_info::PlatformInfo;

#[cfg(not(feature = "uhyve"))]
core::arch::global_asm!(include_str!("tables.s"), include_str!("entry.s"), options(att_syntax));
#[cfg(feature = "uhyve")]
core::arch::global_asm!(
    include_str!("tables.s"),
    include_str!("entry_uhyve.s"),
    options(att_syntax)
);

#[cfg(not(feature = "uhyve"))]
/// Magic number of a Multiboot2 loader in EAX (Multiboot2 specification 2.0, 3.3).
const MULTIBOOT2: u32 = 0x36d7_6289;
/// Most regions for the kernel. Its free lists hold 16 ranges without a heap, and each region can be split.
const MAX_REGIONS: usize = 8;

static mut BOOT_INFO: BootInfo = BootInfo::new();

/// Accessor for [`crate::boot_info`].
#[unsafe(no_mangle)]
extern "C" fn isthmus_boot_info() -> &'static BootInfo {
    // SAFETY: only the stub writes it, and the stub ended before any caller of this runs.
    unsafe { &*addr_of_mut!(BOOT_INFO) }
}

/// Called by the entry point in long mode, with the magic number of the boot protocol and the address
/// of its information.
#[cfg(not(feature = "uhyve"))]
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
            // SAFETY: the loader's information begins with its size. The loader does not run any more, and the stub
            // writes only to the image, which does not overlap the information.
            let information = unsafe {
                let size: u32 = physical::read(information.into());
                physical::bytes(information.into(), size.into())
            };
            if let Some(copy) = multiboot2::read(boot, information) {
                boot.rsdp = keep_root_pointer(copy);
            }
        }
        _ => fatal("the boot loader uses neither PVH nor Multiboot2"),
    }
    if boot.memory.regions().is_empty() {
        fatal("the boot loader passed no memory map");
    }
    if boot.rsdp == 0 {
        boot.rsdp = physical::find_rsdp();
    }
    enter(boot, PlatformInfo::Fdt)
}

/// Completes the boot information and enters the kernel, with `platform` as its platform.
fn enter(boot: &mut BootInfo, platform: PlatformInfo) -> ! {
    paging::uncache_devices(&boot.memory);
    // SAFETY: the entry point mapped the first 4 GiB one to one; the firmware no longer writes its tables.
    let acpi = unsafe { Tables::new(boot.rsdp) };

    let (image_start, image_end) = handover::image();
    boot.memory.keep(image_start, image_end);
    let words = boot.command_line().split_ascii_whitespace();
    let bytes = words.filter_map(|w| w.strip_prefix("isthmus.memory.arena=")).next_back();
    let bytes = bytes.map(|b| b.trim_matches('"')).and_then(crate::parse_size);
    match boot.memory.keep_arena(&ArenaRequest { bytes, image_end }) {
        Some(arena) => boot.arena = arena,
        None => fatal("not enough memory: give the machine at least 27 MiB"),
    }
    paging::map_arena(boot);
    boot.memory.hand_over(MAX_REGIONS);
    boot.stack_guard = handover::stack_guard();

    interrupts::mask_all(acpi.as_ref());
    #[cfg(not(feature = "uhyve"))]
    clock::measure(boot, acpi.as_ref());
    #[cfg(feature = "uhyve")]
    uhyve::release_other_processors();
    handover::enter_kernel(boot, platform)
}

/// Copies the root pointer to the image, because the loader's copy lies in memory that the kernel will use.
#[cfg(not(feature = "uhyve"))]
fn keep_root_pointer(copy: RootPointer) -> u64 {
    static mut ROOT_POINTER: RootPointer = RootPointer([0; 36]);
    let place = &raw mut ROOT_POINTER;
    // SAFETY: the only processor, and no reference to it exists yet.
    unsafe { place.write(copy) };
    place as u64
}

/// Prints why the machine cannot boot, and stops. Tests see exit code 37 (as with `power_off(2)` of the image).
fn fatal(reason: &str) -> ! {
    #[cfg(not(feature = "uhyve"))]
    use uart::print;
    #[cfg(feature = "uhyve")]
    use uhyve::print;
    print("isthmus: cannot boot: ");
    print(reason);
    print("\r\n");
    #[cfg(not(feature = "uhyve"))]
    // SAFETY: QEMU's isa-debug-exit, if it is there; the port is unused elsewhere.
    unsafe {
        x86_64::instructions::port::Port::<u32>::new(0xf4).write(0x12)
    };
    #[cfg(feature = "uhyve")]
    uhyve::exit();
    stop()
}

/// Halts for ever.
fn stop() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
