//! Completes the entry point's page tables: uncached device registers, and the arena above 4 GiB.

use super::fatal;
use crate::memory_map::LARGE_PAGE;
use crate::{BootInfo, MemoryMap};

const PRESENT_WRITABLE: u64 = 3;
const LARGE: u64 = 1 << 7;
/// PCD and PWT: strong uncacheable, regardless of the MTRRs.
const UNCACHED: u64 = 3 << 3;
const ENTRIES: u64 = 512;
const GIB: u64 = 1 << 30;

unsafe extern "C" {
    static mut isthmus_page_directories: [u64; 4 * 512];
    static mut isthmus_directory_pointers: [u64; 512];
}

/// Disables caching for large pages below 4 GiB without memory, which contain device registers.
pub fn uncache_devices(memory: &MemoryMap) {
    let directories = &raw mut isthmus_page_directories;
    for i in 1..4 * ENTRIES {
        let (start, end) = (i * LARGE_PAGE, (i + 1) * LARGE_PAGE);
        let holds_memory = |r: &crate::Region| r.kind.is_memory() && r.start < end && r.end > start;
        if !memory.regions().iter().any(holds_memory) {
            // SAFETY: the only processor; the entry still maps the same frame.
            unsafe { (*directories)[i as usize] |= UNCACHED };
        }
    }
    flush();
}

/// Maps the arena one to one if it lies above 4 GiB, with page tables in memory below.
pub fn map_arena(boot: &mut BootInfo) {
    let arena = boot.arena;
    if arena.end <= 4 * GIB {
        return;
    }
    let (first, last) = (arena.start / GIB, (arena.end - 1) / GIB);
    let Some(tables) = boot.memory.keep_pages_below_4g(last - first + 1) else {
        fatal("no memory below 4 GiB for page tables");
    };
    let pointers = &raw mut isthmus_directory_pointers;
    for gib in first..=last {
        let table = (tables + (gib - first) * 4096) as usize as *mut u64;
        for i in 0..ENTRIES {
            let frame = gib * GIB + i * LARGE_PAGE;
            let inside = frame >= arena.start && frame < arena.end;
            let entry = if inside { frame | PRESENT_WRITABLE | LARGE } else { 0 };
            // SAFETY: the table is a page of RAM that was just removed from the memory map.
            unsafe { table.add(i as usize).write(entry) };
        }
        // SAFETY: the arena ends below 512 GiB, so the index is inside; the only processor.
        unsafe { (*pointers)[gib as usize] = table as u64 | PRESENT_WRITABLE };
    }
    flush();
}

fn flush() {
    x86_64::instructions::tlb::flush_all();
}
