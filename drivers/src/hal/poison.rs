//! What AddressSanitizer is told of DMA memory (`--cfg address_sanitizer`, the build of `./isthmus test fuzz`;
//! otherwise nothing): memory of an arena that nobody has is not to be touched, and copies that are made in
//! assembly, which it does not see, are announced to it.

use super::Window;

#[cfg(address_sanitizer)]
unsafe extern "C" {
    fn __asan_poison_memory_region(at: *const u8, len: usize);
    fn __asan_unpoison_memory_region(at: *const u8, len: usize);
    fn __asan_loadN(at: *const u8, len: usize);
    fn __asan_storeN(at: *const u8, len: usize);
}

/// Whoever touches this memory is wrong, until [`unpoison`].
#[inline(always)]
pub fn poison(window: &Window) {
    let _ = window;
    #[cfg(address_sanitizer)]
    // SAFETY: changes the sanitizer's own books alone.
    unsafe {
        __asan_poison_memory_region(window.as_ptr().as_ptr(), window.len());
    }
}

/// This memory may be used.
#[inline(always)]
pub fn unpoison(window: &Window) {
    let _ = window;
    #[cfg(address_sanitizer)]
    // SAFETY: changes the sanitizer's own books alone.
    unsafe {
        __asan_unpoison_memory_region(window.as_ptr().as_ptr(), window.len());
    }
}

/// Ends the program with a report if some of these bytes are not to be touched; they are about to be loaded.
#[inline(always)]
pub(super) fn about_to_load(at: *const u8, len: usize) {
    let _ = (at, len);
    #[cfg(address_sanitizer)]
    if len > 0 {
        // SAFETY: only looks into the sanitizer's own books.
        unsafe { __asan_loadN(at, len) };
    }
}

/// As [`about_to_load`], of bytes that are about to be stored.
#[inline(always)]
pub(super) fn about_to_store(at: *const u8, len: usize) {
    let _ = (at, len);
    #[cfg(address_sanitizer)]
    if len > 0 {
        // SAFETY: only looks into the sanitizer's own books.
        unsafe { __asan_storeN(at, len) };
    }
}
