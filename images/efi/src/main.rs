//! The UEFI front end: loads the appliance that it contains into memory, exits the firmware's boot services
//! and enters the appliance through its PVH entry, as a hypervisor would.
//!
//! Protocol of the entry: Xen docs/misc/pvh.pandoc, `hvm_start_info` version 1. UEFI 2.10 sections 4.1, 7.
//! It does not read files: the appliance is part of this program, so one file boots from a disk, from a
//! network, or by hand. Its disk may have two slots with releases that were installed later. Then it
//! boots the slot of their record, or the appliance that it contains if the record cannot be read.
#![no_std]
#![no_main]
extern crate alloc;

mod own_disk;
mod registers;
mod slots;

use alloc::format;
use alloc::string::String;
use core::arch::global_asm;
use core::ops::Range;
use core::{mem, ptr};

use efi::command_line;
use efi::elf::Image;
use efi::memory::{self, Entry, Kind};
use own_disk::OwnDisk;
use uefi::boot::{
    self, AllocateType, MemoryDescriptor, MemoryType, OpenProtocolAttributes, OpenProtocolParams,
    PAGE_SIZE,
};
use uefi::mem::memory_map::MemoryMap;
use uefi::prelude::*;
use uefi::println;
use uefi::proto::console::gop::{GraphicsOutput, PixelFormat};
use uefi::proto::loaded_image::LoadedImage;
use uefi::table::cfg::ConfigTableEntry;

/// The appliance's ELF file.
static APPLIANCE: &[u8] = include_bytes!(env!("ISTHMUS_ELF"));

global_asm!(include_str!("entry.s"));

unsafe extern "C" {
    static efi_enter_pvh: u8;
    static efi_enter_pvh_end: u8;
}

const START_MAGIC: u32 = 0x336e_c578;

/// `struct hvm_start_info`, version 1.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// Data that outlives the firmware and this program, in pages below 4 GiB.
#[repr(C, align(4096))]
struct Handover {
    code: [u8; 512],
    stack: [u64; 64],
    start: StartInfo,
    command_line: [u8; 2048],
    memory: [Entry; 1024],
}

#[entry]
fn main() -> Status {
    match prepare() {
        Ok((handover, entry)) => enter(handover, entry),
        Err(error) => {
            println!("isthmus: cannot start: {error}");
            Status::LOAD_ERROR
        }
    }
}

/// All steps that may fail, while the firmware can still show an error.
fn prepare() -> Result<(&'static mut Handover, u32), &'static str> {
    let disk = OwnDisk::find();
    let from_slot = disk.as_ref().and_then(slots::chosen);
    let image = match &from_slot {
        Some(booted) => booted.image.clone(),
        None => Image::parse(APPLIANCE).inspect_err(|_| {
            println!("isthmus: the appliance in this file is damaged:");
        })?,
    };
    load(&image)?;
    let below_4_gib = AllocateType::MaxAddress(u64::from(u32::MAX));
    let pages = size_of::<Handover>().div_ceil(PAGE_SIZE);
    let memory = boot::allocate_pages(below_4_gib, MemoryType::LOADER_DATA, pages)
        .map_err(|_| "the firmware has no free memory below 4 GiB")?;
    // SAFETY: the pages are newly allocated, exclusively owned, page aligned, large enough, and never freed. All zeros
    // is a valid Handover, because it consists of integers only.
    let handover = unsafe {
        memory.write_bytes(0, pages * PAGE_SIZE);
        memory.cast::<Handover>().as_mut()
    };
    let (code, code_end) = (&raw const efi_enter_pvh, &raw const efi_enter_pvh_end);
    // SAFETY: both symbols delimit one run of code in this program.
    let code = unsafe { core::slice::from_raw_parts(code, code_end.offset_from_unsigned(code)) };
    let place =
        handover.code.get_mut(..code.len()).ok_or("the entry code is larger than its buffer")?;
    place.copy_from_slice(code);
    let mut length = read_load_options(&mut handover.command_line);
    let slot = from_slot.as_ref().map(|slot| slot.word().into());
    let words = [disk.map(|disk| disk.word()), slot, smbios()];
    for word in words.into_iter().flatten() {
        length = command_line::append(&mut handover.command_line, length, &word)
            .ok_or("the load options are too long")?;
    }
    if let Some(screen) = screen() {
        // If the word does not fit, the screen is not used.
        let _ = command_line::append(&mut handover.command_line, length, &screen);
    }
    handover.start = StartInfo {
        magic: START_MAGIC,
        version: 1,
        flags: 0,
        modules: 0,
        module_list: 0,
        command_line: handover.command_line.as_ptr() as u64,
        rsdp: rsdp().ok_or("the firmware names no ACPI tables")?,
        memory_map: handover.memory.as_ptr() as u64,
        memory_map_entries: 0,
        reserved: 0,
    };
    Ok((handover, image.entry))
}

/// Copies the segments to the addresses to which the image is linked.
fn load(image: &Image) -> Result<(), &'static str> {
    let page = PAGE_SIZE as u64;
    let memory = image.memory.start / page * page..image.memory.end.next_multiple_of(page);
    let pages = ((memory.end - memory.start) / page) as usize;
    if boot::allocate_pages(AllocateType::Address(memory.start), MemoryType::LOADER_DATA, pages)
        .is_err()
    {
        print_conflicts(&memory);
        return Err("the firmware uses memory at the appliance's fixed address");
    }
    for segment in image.segments() {
        let place = segment.address as *mut u8;
        let size = segment.size as usize;
        // SAFETY: the segment lies in the pages just allocated (`memory` spans all segments), which have
        // no other contents and are mapped to themselves, as all memory is under UEFI; `bytes` is not longer
        // than `size`, and lies in this program, not in those pages.
        unsafe {
            ptr::copy_nonoverlapping(segment.bytes.as_ptr(), place, segment.bytes.len());
            ptr::write_bytes(place.add(segment.bytes.len()), 0, size - segment.bytes.len());
        }
    }
    Ok(())
}

/// Prints the firmware's ranges that overlap the wanted memory.
fn print_conflicts(wanted: &Range<u64>) {
    println!(
        "isthmus: the appliance needs {:#x} to {:#x}, where the firmware has:",
        wanted.start, wanted.end
    );
    let Ok(map) = boot::memory_map(MemoryType::LOADER_DATA) else { return };
    for descriptor in map.entries() {
        let range = range(descriptor);
        if range.start < wanted.end && wanted.start < range.end {
            println!("  {:#x} to {:#x} {:?}", range.start, range.end, descriptor.ty);
        }
    }
}

/// Writes the load options to `line`; returns its length.
fn read_load_options(line: &mut [u8]) -> usize {
    let Ok(image) = boot::open_protocol_exclusive::<LoadedImage>(boot::image_handle()) else {
        return 0;
    };
    let options = image.load_options_as_bytes().unwrap_or_default();
    command_line::from_load_options(options, line).unwrap_or_else(|error| {
        println!("isthmus: {error}");
        if command_line::is_for_appliance(options) {
            return command_line::append(line, 0, command_line::CUT).unwrap_or(0);
        }
        0
    })
}

/// The screen, as a word of the command line: address, bytes of a row, width and height. The firmware writes to it
/// until its boot services are exited.
fn screen() -> Option<String> {
    let handle = boot::get_handle_for_protocol::<GraphicsOutput>().ok()?;
    let params = OpenProtocolParams { handle, agent: boot::image_handle(), controller: None };
    // SAFETY: it is used while the firmware runs, and the protocol is not removed meanwhile. Opening it exclusively
    // would take the console from the firmware.
    let mut output = unsafe {
        boot::open_protocol::<GraphicsOutput>(params, OpenProtocolAttributes::GetProtocol)
    }
    .ok()?;
    let mode = output.current_mode_info();
    if mode.pixel_format() == PixelFormat::BltOnly {
        return None;
    }
    let ((width, height), pitch) = (mode.resolution(), mode.stride() * 4);
    let address = output.frame_buffer().as_mut_ptr() as u64;
    Some(format!("isthmus-screen={address},{pitch},{width},{height}"))
}

/// The SMBIOS entry point, as a word of the command line: its physical address, of the newest version available.
fn smbios() -> Option<String> {
    uefi::system::with_config_table(|tables| {
        let find = |guid| tables.iter().find(|table| table.guid == guid);
        let table =
            find(ConfigTableEntry::SMBIOS3_GUID).or_else(|| find(ConfigTableEntry::SMBIOS_GUID))?;
        Some(format!("isthmus-smbios={}", table.address as u64))
    })
}

/// The physical address of the ACPI root pointer, of the newest version available.
fn rsdp() -> Option<u64> {
    uefi::system::with_config_table(|tables| {
        let find = |guid| tables.iter().find(|table| table.guid == guid);
        let table =
            find(ConfigTableEntry::ACPI2_GUID).or_else(|| find(ConfigTableEntry::ACPI_GUID))?;
        Some(table.address as u64)
    })
}

fn range(descriptor: &MemoryDescriptor) -> Range<u64> {
    let size = descriptor.page_count.saturating_mul(PAGE_SIZE as u64);
    descriptor.phys_start..descriptor.phys_start.saturating_add(size)
}

fn kind(ty: MemoryType) -> Kind {
    match ty {
        MemoryType::CONVENTIONAL
        | MemoryType::BOOT_SERVICES_CODE
        | MemoryType::BOOT_SERVICES_DATA
        | MemoryType::LOADER_CODE
        | MemoryType::LOADER_DATA => Kind::Ram,
        MemoryType::ACPI_RECLAIM => Kind::AcpiTables,
        MemoryType::ACPI_NON_VOLATILE => Kind::AcpiNonVolatile,
        _ => Kind::Reserved,
    }
}

/// Exits the boot services and enters the appliance. From here on no step can fail, and no output is possible.
fn enter(handover: &'static mut Handover, entry: u32) -> ! {
    // SAFETY: no reference into the firmware's memory is left: the needed data was copied, and the
    // ACPI tables stay.
    let map = unsafe { boot::exit_boot_services(Some(MemoryType::LOADER_DATA)) };
    let ranges = map.entries().map(|descriptor| (range(descriptor), kind(descriptor.ty)));
    handover.start.memory_map_entries = memory::fill(&mut handover.memory, ranges) as u32;
    mem::forget(map);
    // SAFETY: the code was copied from entry.s, which expects its stack, the start info and
    // the entry in these registers, all of them below 4 GiB and mapped to themselves.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}",
            "jmp {code}",
            stack = in(reg) handover.stack.as_ptr_range().end,
            code = in(reg) handover.code.as_ptr(),
            in("esi") &raw const handover.start as u32,
            in("edx") entry,
            options(noreturn)
        )
    }
}
