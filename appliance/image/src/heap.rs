//! The heap of the standard library, with a count of what is in use, so that an operator sees growth.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static HEAP: Counted = Counted;

/// Bytes that are in use.
pub fn used() -> usize {
    USED.load(Ordering::Relaxed)
}

struct Counted;

// SAFETY: every call goes to the system's allocator as it is; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that are asked for.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            USED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            USED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            USED.fetch_add(size, Ordering::Relaxed);
            USED.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        moved
    }
}
