//! Entry from PVH and Multiboot2, on a PC or a hypervisor's model of one.

mod clock;
mod firmware;
mod pvh;
mod screen;
mod uart;

pub use clock::measure as prepare;

use super::{BOOT_INFO, enter, fatal, physical};
use crate::Protocol;
use crate::multiboot2::{self, RootPointer};
use crate::processor;
use core::ptr::addr_of_mut;
use hermit_entry::boot_info::PlatformInfo;

core::arch::global_asm!(
    include_str!("../tables.s"),
    include_str!("../entry.s"),
    options(att_syntax)
);

/// Magic number of a Multiboot2 loader in EAX (Multiboot2 specification 2.0, 3.3).
const MULTIBOOT2: u32 = 0x36d7_6289;

/// Called by the entry point in long mode, with the magic number of the boot protocol and the address
/// of its information.
#[unsafe(no_mangle)]
extern "C" fn isthmus_stub(magic: u32, information: u32) -> ! {
    if let Some(lack) = processor::lack() {
        fatal(lack);
    }
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
                let size: u32 = firmware::read(information.into());
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
        boot.rsdp = firmware::find_rsdp();
    }
    enter(boot, PlatformInfo::Fdt)
}

/// Copies the root pointer to the image, because the loader's copy lies in memory that the kernel will use.
fn keep_root_pointer(copy: RootPointer) -> u64 {
    static mut ROOT_POINTER: RootPointer = RootPointer([0; 36]);
    let place = &raw mut ROOT_POINTER;
    // SAFETY: the only processor, and no reference to it exists yet.
    unsafe { place.write(copy) };
    place as u64
}

/// Prints on COM1, and on a screen in text mode.
pub fn print(text: &str) {
    uart::print(text);
    screen::print(text);
}

/// Ends QEMU, if it has an isa-debug-exit device.
pub fn exit() {
    // SAFETY: QEMU's isa-debug-exit, if it is there; the port is unused elsewhere.
    unsafe { x86_64::instructions::port::Port::<u32>::new(0xf4).write(0x12) };
}
