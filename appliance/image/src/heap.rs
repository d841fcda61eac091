//! The heap, with a count of bytes in use, which reports show to an operator when memory is short.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

/// The system's allocator, with a count of bytes in use.
struct Counted;

#[global_allocator]
static HEAP: Counted = Counted;
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request is passed to the system allocator; the count does not touch memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed to the system allocator unchanged.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            USED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
    }
}

/// Bytes in use.
pub fn used() -> usize {
    USED.load(Ordering::Relaxed)
}
