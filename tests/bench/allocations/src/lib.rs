//! A counting allocator, for programs that report their allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with counters.
pub struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; counting accesses only two atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, which is that of `System.dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations so far.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Bytes allocated now.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}
