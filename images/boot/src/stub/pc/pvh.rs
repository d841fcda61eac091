//! Parser for PVH start information (Xen: public/arch-x86/hvm/start_info.h).

use super::firmware;
use crate::stub::fatal;
use crate::{BootInfo, Kind};

/// Magic number of `hvm_start_info`.
pub const MAGIC: u32 = 0x336e_c578;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    // from version 1 on
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// Copies command line, root pointer and memory map.
pub fn read(boot: &mut BootInfo, address: u64) {
    // SAFETY: all fields are integers.
    let info = unsafe { firmware::read::<StartInfo>(address) };
    if info.magic != MAGIC || info.version == 0 {
        fatal("the start information is not of PVH version 1 or later");
    }
    // SAFETY: the loader has put a string there, and does not run any more.
    boot.set_command_line(unsafe { firmware::string(info.command_line) });
    boot.rsdp = info.rsdp;
    for i in 0..u64::from(info.memory_map_entries) {
        // SAFETY: all fields are integers.
        let entry = unsafe { firmware::read::<MemoryMapEntry>(info.memory_map + i * 24) };
        boot.memory.push(entry.address, entry.address.saturating_add(entry.size), Kind(entry.kind));
    }
}
