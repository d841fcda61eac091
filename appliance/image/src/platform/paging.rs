//! Page tables (Intel SDM vol. 3A, 4.5): maps device registers, and gives each page only the rights it needs. The stub
//! and the kernel map all pages writable and executable.
//!
//! All tables lie in memory that is mapped one to one. Only the first core changes them.

use super::image::{Access, Segment};
use core::ops::Range;
use core::ptr::NonNull;
use drivers::hal::{Arena, Mmio, Window};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr3, Efer, EferFlags};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const UNCACHED: u64 = 3 << 3;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;
/// The kernel's own addresses begin here (64 TiB). Devices above, as in servers whose BIOS has a high MMIO base, are not
/// mapped one to one but from [`HIGH`] on.
const KERNEL_ADDRESSES: u64 = 0x4000_0000_0000;
/// The upper half of the address space, which the kernel does not use, but for its last 512 GiB.
const HIGH: u64 = 0xffff_8000_0000_0000;
const HIGH_LEN: u64 = 127 << 40;
/// End of the range that the stub has mapped one to one.
const MAPPED: u64 = 4 << 30;

type Table = [u64; 512];

fn top() -> *mut Table {
    Cr3::read().0.start_address().as_u64() as *mut Table
}

/// Index of `address` in a table of `level` (4 is the top).
fn index(address: u64, level: u32) -> usize {
    (address >> (3 + 9 * level) & 511) as usize
}

/// The entry for `address` in the table of `level`. Allocates missing tables above it. `None` if there is no memory for
/// one, or a larger page maps the address.
fn entry(address: u64, level: u32, arena: &mut Arena) -> Option<*mut u64> {
    let mut table = top();
    for above in (level + 1..=4).rev() {
        // SAFETY: tables are mapped one to one, and only this core changes them.
        let entry = unsafe { &mut (*table)[index(address, above)] };
        if *entry & PRESENT == 0 {
            let table = arena.alloc(PAGE as usize, PAGE as usize)?;
            // A reset does not clear memory.
            table.fill(0);
            *entry = table.bus_address() | PRESENT | WRITABLE;
        } else if above < 4 && *entry & LARGE != 0 {
            return None;
        }
        table = (*entry & FRAME) as *mut Table;
    }
    // SAFETY: as above.
    Some(unsafe { &raw mut (*table)[index(address, level)] })
}

/// Maps device registers for ever, uncached. `None` if the address is out of reach or memory is short.
///
/// # Safety
/// Registers of a device lie there. The range holds no memory of the machine, and nothing else uses it.
pub unsafe fn map_registers(address: u64, len: usize, arena: &mut Arena) -> Option<Mmio> {
    let start = map(address, len, UNCACHED, arena)?;
    // SAFETY: mapped uncached for ever: above 4 GiB just now, below by the stub (frames without memory).
    Some(unsafe { Mmio::new(start, len) })
}

/// Maps a device's memory for ever, cached. Parts below 4 GiB that fill no large page stay uncached, as the stub has
/// mapped them. `None` if the address is out of reach or memory is short.
///
/// # Safety
/// Memory of a device lies there, which is not in use yet.
pub unsafe fn map_memory(address: u64, len: usize, arena: &mut Arena) -> Option<Window> {
    let start = map(address, len, 0, arena)?;
    let end = address + len as u64;
    let mut at = address.next_multiple_of(LARGE_PAGE);
    while at + LARGE_PAGE <= end.min(MAPPED) {
        let entry = entry(at, 2, arena)?;
        // SAFETY: `entry` is in one of our page tables. The caller promises that no part of the range is in use, and
        // the whole large page is inside the range.
        unsafe {
            if *entry & (PRESENT | LARGE) == PRESENT | LARGE {
                *entry &= !UNCACHED;
            }
        }
        at += LARGE_PAGE;
    }
    x86_64::instructions::tlb::flush_all();
    // SAFETY: mapped writable for ever, and memory of a device: no Rust object lies there.
    Some(unsafe { Window::from_raw(start, address, len) })
}

/// Maps another machine's memory behind a bridge for ever, uncached. `None` if the address is out of reach or memory is
/// short.
///
/// # Safety
/// A bridge's window lies there, which is not in use yet.
pub unsafe fn map_window(address: u64, len: usize, arena: &mut Arena) -> Option<Window> {
    let start = map(address, len, UNCACHED, arena)?;
    // SAFETY: mapped writable for ever, and no memory of this machine: no Rust object lies there.
    Some(unsafe { Window::from_raw(start, address, len) })
}

/// Difference between the virtual and the bus address of a device's range; None if it is out of reach.
fn shift_of(address: u64, end: u64) -> Option<u64> {
    if end <= KERNEL_ADDRESSES {
        return Some(0);
    }
    let is_high = address >= KERNEL_ADDRESSES && end <= KERNEL_ADDRESSES + HIGH_LEN;
    is_high.then_some(HIGH - KERNEL_ADDRESSES)
}

/// Maps the unmapped pages of a range with `flags`: one to one, or from [`HIGH`] on. Returns the start of the range.
fn map(address: u64, len: usize, flags: u64, arena: &mut Arena) -> Option<NonNull<u8>> {
    let end = address.checked_add(len as u64).filter(|_| address != 0)?;
    let Some(shift) = shift_of(address, end) else {
        log::error!(
            "a device at {address:#x} is out of reach: set a lower base for MMIO above 4 GiB in the BIOS"
        );
        return None;
    };
    let mut at = address.max(MAPPED) & !(PAGE - 1);
    while at < end {
        let whole = at.is_multiple_of(LARGE_PAGE) && end - at >= LARGE_PAGE;
        let (level, size, large) = if whole { (2, LARGE_PAGE, LARGE) } else { (1, PAGE, 0) };
        match entry(at.wrapping_add(shift), level, arena) {
            // SAFETY: an entry of one of our tables. No TLB caches a page that was not mapped.
            Some(entry) => unsafe {
                if *entry & PRESENT == 0 {
                    *entry = at | PRESENT | WRITABLE | flags | NO_EXECUTE | large;
                }
            },
            // Already mapped by a large page, for another range of the same device.
            None if is_mapped(at.wrapping_add(shift)) => {}
            None => return None,
        }
        at += size;
    }
    NonNull::new(address.wrapping_add(shift) as *mut u8)
}

/// Whether an address is mapped.
pub fn is_mapped(address: u64) -> bool {
    let mut table = top();
    for level in (1..=4).rev() {
        // SAFETY: tables are mapped one to one, and only this core changes them.
        let entry = unsafe { (*table)[index(address, level)] };
        if entry & PRESENT == 0 {
            return false;
        }
        if level == 1 || (level < 4 && entry & LARGE != 0) {
            return true;
        }
        table = (entry & FRAME) as *mut Table;
    }
    unreachable!("level 1 returns")
}

/// Calls `visit` with the addresses and the entry of every page that is mapped.
fn for_each_page(mut visit: impl FnMut(Range<u64>, u64)) {
    // SAFETY: no entry is changed.
    unsafe { change_each_page(|pages, entry| visit(pages, *entry)) };
}

/// Calls `visit` with the addresses and the entry of every page that is mapped. `visit` may change the entry.
///
/// # Safety
/// After the changes every page that Rust uses has the access that Rust needs. The caller flushes the TLB afterwards.
unsafe fn change_each_page(mut visit: impl FnMut(Range<u64>, &mut u64)) {
    walk(top(), 4, 0, &mut visit);
}

fn walk(table: *mut Table, level: u32, base: u64, visit: &mut impl FnMut(Range<u64>, &mut u64)) {
    let size = 1u64 << (3 + 9 * level);
    for i in 0..512 {
        // SAFETY: tables are mapped one to one, and only this core changes them.
        let entry = unsafe { &mut (*table)[i] };
        if *entry & PRESENT == 0 {
            continue;
        }
        let mut start = base + i as u64 * size;
        if level == 4 && i >= 256 {
            start |= 0xffff_0000_0000_0000;
        }
        if level == 1 || (level < 4 && *entry & LARGE != 0) {
            visit(start..start.wrapping_add(size), entry);
        } else {
            walk((*entry & FRAME) as *mut Table, level - 1, start, visit);
        }
    }
}

/// Removes unneeded rights from every page: only the image's code stays executable, its code and constants become
/// read-only, page 0 and `unmapped` are unmapped. `None` if the arena is too small.
pub fn tighten(image: &[Segment], unmapped: &[u64], arena: &mut Arena) -> Option<()> {
    let end = image.iter().map(|s| s.pages.end).max().unwrap_or(0);
    let start = image.iter().map(|s| s.pages.start).min().unwrap_or(0);
    let mut large = start & !(LARGE_PAGE - 1);
    while large < end {
        split(large, arena)?;
        large += LARGE_PAGE;
    }
    let tighten = |pages: Range<u64>, entry: &mut u64| {
        *entry |= NO_EXECUTE;
        if let Some(segment) = image.iter().rfind(|s| s.pages.contains(&pages.start)) {
            match segment.access {
                Access::Code => *entry &= !(NO_EXECUTE | WRITABLE),
                Access::ReadOnly => *entry &= !WRITABLE,
                Access::Data => {}
            }
        }
        if pages.start == 0 || unmapped.contains(&pages.start) {
            *entry = 0;
        }
    };
    // SAFETY: the image's code stays executable, its data writable, and memory mapped. Page 0 and the guards are not
    // used. The TLB is flushed below.
    unsafe { change_each_page(tighten) };
    x86_64::instructions::tlb::flush_all();
    Some(())
}

/// Splits a large page into small pages with the same mapping.
fn split(address: u64, arena: &mut Arena) -> Option<()> {
    let entry = entry(address, 2, arena)?;
    // SAFETY: an entry of one of our tables. The new table maps the same addresses with the same rights as the large
    // page, and is complete before the entry points to it.
    unsafe {
        if *entry & (PRESENT | LARGE) != PRESENT | LARGE {
            return Some(());
        }
        let table = arena.alloc(PAGE as usize, PAGE as usize)?.as_ptr().cast::<Table>().as_ptr();
        let flags = *entry & !FRAME & !LARGE;
        for i in 0..512 {
            (*table)[i] = ((*entry & FRAME) + i as u64 * PAGE) | flags;
        }
        *entry = table as u64 | PRESENT | WRITABLE;
    }
    Some(())
}

/// Protection of all mapped pages, counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Protection {
    /// Mapped pages, of any size.
    pub pages: usize,
    /// Executable pages.
    pub executable: usize,
    /// Read-only pages.
    pub read_only: usize,
}

/// Checks that write and execute protection are enabled on the running core.
pub fn check_core() -> Result<(), &'static str> {
    if !Cr0::read().contains(Cr0Flags::WRITE_PROTECT) {
        return Err("ignores write protection (CR0.WP)");
    }
    if !Efer::read().contains(EferFlags::NO_EXECUTE_ENABLE) {
        return Err("ignores execute protection (EFER.NXE)");
    }
    Ok(())
}

/// Checks the rights of every page. The error names a page that violates a rule.
pub fn check(image: &[Segment], unmapped: &[u64]) -> Result<Protection, String> {
    let mut found = Protection::default();
    let mut wrong = None;
    for_each_page(|pages, entry| {
        let (writable, executable) = (entry & WRITABLE != 0, entry & NO_EXECUTE == 0);
        found.pages += 1;
        found.executable += usize::from(executable);
        found.read_only += usize::from(!writable);
        let overlaps = |s: &&Segment| s.pages.start < pages.end && s.pages.end > pages.start;
        let access = image.iter().rfind(overlaps).map(|s| s.access);
        let why = match access {
            _ if writable && executable => "is both writable and executable",
            Some(Access::Code | Access::ReadOnly) if writable => "is the image's and writable",
            Some(Access::ReadOnly | Access::Data) | None if executable => "is executable data",
            _ if pages.start == 0 => "is page 0",
            _ if unmapped.contains(&pages.start) => "should guard a stack",
            _ => return,
        };
        wrong = Some(format!("the page at {:#x} {why}", pages.start));
    });
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok(found),
    }
}

/// Whether the current stack ends with an unmapped page.
pub fn stack_is_guarded() -> bool {
    /// Larger than any stack.
    const LARGEST: u64 = 4 << 20;
    let local = 0u8;
    let mut page = (&raw const local) as u64 & !(PAGE - 1);
    let bottom = page.saturating_sub(LARGEST);
    while is_mapped(page) {
        page -= PAGE;
        if page < bottom {
            return false;
        }
    }
    true
}
