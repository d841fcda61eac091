//! Annotations of DMA memory for AddressSanitizer (`--cfg address_sanitizer`, the build of `./isthmus test fuzz`;
//! otherwise empty functions). Free memory of an arena is poisoned. Copies by assembly, which the sanitizer does not
//! see, are checked explicitly.

use super::Window;

#[cfg(address_sanitizer)]
unsafe extern "C" {
    fn __asan_poison_memory_region(at: *const u8, len: usize);
    fn __asan_unpoison_memory_region(at: *const u8, len: usize);
    fn __asan_loadN(at: *const u8, len: usize);
    fn __asan_storeN(at: *const u8, len: usize);
}

/// Makes every access to this memory an error, until [`unpoison`].
#[inline]
pub fn poison(window: &Window) {
    let _ = window;
    #[cfg(address_sanitizer)]
    // SAFETY: only changes the sanitizer's own records.
    unsafe {
        __asan_poison_memory_region(window.as_ptr().as_ptr(), window.len());
    }
}

/// Allows accesses to this memory.
#[inline]
pub fn unpoison(window: &Window) {
    let _ = window;
    #[cfg(address_sanitizer)]
    // SAFETY: only changes the sanitizer's own records.
    unsafe {
        __asan_unpoison_memory_region(window.as_ptr().as_ptr(), window.len());
    }
}

/// Checks bytes before they are loaded: ends the program with a report if some of them are poisoned.
#[inline]
pub(super) fn about_to_load(at: *const u8, len: usize) {
    let _ = (at, len);
    #[cfg(address_sanitizer)]
    if len > 0 {
        // SAFETY: only reads the sanitizer's own records.
        unsafe { __asan_loadN(at, len) };
    }
}

/// As [`about_to_load`], before bytes are stored.
#[inline]
pub(super) fn about_to_store(at: *const u8, len: usize) {
    let _ = (at, len);
    #[cfg(address_sanitizer)]
    if len > 0 {
        // SAFETY: only reads the sanitizer's own records.
        unsafe { __asan_storeN(at, len) };
    }
}
