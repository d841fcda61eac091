//! The heap, counted: how much of it is in use is what an operator asks when memory is short.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

/// The system's allocator, with a count of the bytes that are in use.
struct Counted;

#[global_allocator]
static HEAP: Counted = Counted;
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's doing; the count does not touch memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on as they are.
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

/// Bytes that are in use.
pub fn used() -> usize {
    USED.load(Ordering::Relaxed)
}
