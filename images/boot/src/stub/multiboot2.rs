//! Multiboot2 boot information (Multiboot2 specification 2.0, section 3.6).

use super::physical;
use crate::{BootInfo, Kind};

/// What a Multiboot2 loader leaves in EAX.
pub const MAGIC: u32 = 0x36d7_6289;

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MEMORY_MAP: u32 = 6;
const ACPI_OLD: u32 = 14;
const ACPI_NEW: u32 = 15;

/// A root pointer is 36 bytes.
#[repr(align(16))]
struct RootPointer([u8; 36]);

/// The loader's copy of the root pointer lies in memory that the kernel will use, so it moves here.
static mut ROOT_POINTER: RootPointer = RootPointer([0; 36]);

/// Takes over command line, root pointer and memory map.
pub fn read(boot: &mut BootInfo, address: u64) {
    let end = address + u64::from(u32_at(address));
    let mut tag = address + 8;
    while tag < end {
        let (kind, size) = (u32_at(tag), u64::from(u32_at(tag + 4)));
        match kind {
            END => break,
            COMMAND_LINE => boot.set_command_line(physical::string(tag + 8)),
            MEMORY_MAP => read_memory_map(boot, tag, size),
            ACPI_OLD if boot.rsdp == 0 => boot.rsdp = keep_root_pointer(tag + 8, 20),
            ACPI_NEW => boot.rsdp = keep_root_pointer(tag + 8, size.saturating_sub(8)),
            _ => {}
        }
        tag += size.max(8).next_multiple_of(8);
    }
}

fn read_memory_map(boot: &mut BootInfo, tag: u64, size: u64) {
    let entry_size = u64::from(u32_at(tag + 8)).max(24);
    let mut entry = tag + 16;
    while entry + 24 <= tag + size {
        let (address, length) = (u64_at(entry), u64_at(entry + 8));
        boot.memory.push(address, address.saturating_add(length), Kind(u32_at(entry + 16)));
        entry += entry_size;
    }
}

fn keep_root_pointer(address: u64, size: u64) -> u64 {
    let copy = &raw mut ROOT_POINTER;
    for i in 0..size.min(36) {
        // SAFETY: the only processor, and inside the array; any byte is a u8.
        unsafe { (*copy).0[i as usize] = physical::read(address + i) };
    }
    copy as u64
}

fn u32_at(address: u64) -> u32 {
    // SAFETY: any four bytes are a u32.
    unsafe { physical::read(address) }
}

fn u64_at(address: u64) -> u64 {
    // SAFETY: any eight bytes are a u64.
    unsafe { physical::read(address) }
}
