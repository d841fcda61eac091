//! Copies in and out of memory that devices and other threads may write at the same time.
//!
//! Plain Rust loads and stores of such memory would be data races. The compiler sees calls of assembly instead, whose
//! loads and stores are those of the machine: on x86-64 every byte is loaded or stored whole, at any access width
//! (Intel SDM vol. 3A, 9.1: a wider access may be torn into smaller ones, a byte is not), as by relaxed atomics. A copy
//! that races with a write gets a mixture of old and new bytes, and nothing worse.
//!
//! Without the assembly ([`portable`]) the copies use relaxed atomics, a byte at a time: on other CPUs, under Miri, and
//! with `--cfg portable_copy` for ThreadSanitizer. Neither tool sees into assembly.

use super::poison::{about_to_load, about_to_store};

/// Copies by assembly.
#[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
mod machine {
    use core::arch::asm;

    unsafe extern "C" {
        fn isthmus_memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
        fn isthmus_memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
    }

    /// See [`super::from_shared`].
    ///
    /// # Safety
    /// As [`super::from_shared`].
    #[inline]
    pub unsafe fn from_shared(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promises.
        unsafe { isthmus_memmove(to, from, len) };
    }

    /// See [`super::to_shared`].
    ///
    /// # Safety
    /// As [`super::to_shared`].
    #[inline]
    pub unsafe fn to_shared(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promises.
        unsafe { isthmus_memmove(to, from, len) };
    }

    /// See [`super::within_shared`].
    ///
    /// # Safety
    /// As [`super::within_shared`].
    #[inline]
    pub unsafe fn within_shared(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promises.
        unsafe { isthmus_memmove(to, from, len) };
    }

    /// See [`super::fill_shared`].
    ///
    /// # Safety
    /// As [`super::fill_shared`].
    #[inline]
    pub unsafe fn fill_shared(to: *mut u8, byte: u8, len: usize) {
        // SAFETY: the caller's promises.
        unsafe { isthmus_memset(to, byte.into(), len) };
    }

    /// Copies an array without a call. One of source and destination is shared memory.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes and `from` for reads of `N` bytes, and the two do not overlap.
    // `N` is a constant: a few loads and stores instead of a call of memmove.
    #[inline(always)]
    pub unsafe fn array<const N: usize>(to: *mut u8, from: *const u8) {
        let mut at = 0;
        // Constant offsets, so that the two addresses are computed once.
        while at + 48 <= N {
            // SAFETY: both are valid for `N` bytes (the caller's promise).
            unsafe {
                asm!(
                    "movups {x}, [{from}]", "movups {y}, [{from} + 16]", "movups {z}, [{from} + 32]",
                    "movups [{to}], {x}", "movups [{to} + 16], {y}", "movups [{to} + 32], {z}",
                    x = out(xmm_reg) _, y = out(xmm_reg) _, z = out(xmm_reg) _,
                    from = in(reg) from.add(at), to = in(reg) to.add(at),
                    options(nostack, preserves_flags));
            }
            at += 48;
        }
        while at + 16 <= N {
            // SAFETY: as above.
            unsafe {
                asm!("movups {x}, [{from}]", "movups [{to}], {x}", x = out(xmm_reg) _,
                    from = in(reg) from.add(at), to = in(reg) to.add(at),
                    options(nostack, preserves_flags));
            }
            at += 16;
        }
        while at + 8 <= N {
            // SAFETY: as above.
            unsafe {
                asm!("mov {x}, [{from}]", "mov [{to}], {x}", x = out(reg) _,
                    from = in(reg) from.add(at), to = in(reg) to.add(at),
                    options(nostack, preserves_flags));
            }
            at += 8;
        }
        while at + 4 <= N {
            // SAFETY: as above.
            unsafe {
                asm!("mov {x:e}, [{from}]", "mov [{to}], {x:e}", x = out(reg) _,
                    from = in(reg) from.add(at), to = in(reg) to.add(at),
                    options(nostack, preserves_flags));
            }
            at += 4;
        }
        while at < N {
            // SAFETY: as above.
            unsafe {
                asm!("mov {x}, [{from}]", "mov [{to}], {x}", x = out(reg_byte) _,
                    from = in(reg) from.add(at), to = in(reg) to.add(at),
                    options(nostack, preserves_flags));
            }
            at += 1;
        }
    }
}

/// Copies by relaxed atomics.
#[cfg(not(all(target_arch = "x86_64", not(miri), not(portable_copy))))]
mod portable {
    use core::sync::atomic::{AtomicU8, Ordering};

    /// # Safety
    /// `at` is mapped for ever, and only accessed by atomics.
    unsafe fn shared<'a>(at: *mut u8) -> &'a AtomicU8 {
        // SAFETY: mapped, and only accessed by atomics (the callers' promises).
        unsafe { AtomicU8::from_ptr(at) }
    }

    /// See [`super::from_shared`].
    ///
    /// # Safety
    /// As [`super::from_shared`].
    pub unsafe fn from_shared(to: *mut u8, from: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promises.
            unsafe { to.add(i).write(shared(from.add(i).cast_mut()).load(Ordering::Relaxed)) };
        }
    }

    /// See [`super::to_shared`].
    ///
    /// # Safety
    /// As [`super::to_shared`].
    pub unsafe fn to_shared(to: *mut u8, from: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promises.
            unsafe { shared(to.add(i)).store(from.add(i).read(), Ordering::Relaxed) };
        }
    }

    /// See [`super::within_shared`].
    ///
    /// # Safety
    /// As [`super::within_shared`].
    pub unsafe fn within_shared(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promises.
        let one = |i: usize| unsafe {
            let byte = shared(from.add(i).cast_mut()).load(Ordering::Relaxed);
            shared(to.add(i)).store(byte, Ordering::Relaxed);
        };
        // From the end at which no byte is overwritten before it is read.
        if to.addr() <= from.addr() { (0..len).for_each(one) } else { (0..len).rev().for_each(one) }
    }

    /// See [`super::fill_shared`].
    ///
    /// # Safety
    /// As [`super::fill_shared`].
    pub unsafe fn fill_shared(to: *mut u8, byte: u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller's promises.
            unsafe { shared(to.add(i)).store(byte, Ordering::Relaxed) };
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
use machine as backend;
#[cfg(not(all(target_arch = "x86_64", not(miri), not(portable_copy))))]
use portable as backend;

/// Copies `len` bytes of shared memory to private memory.
///
/// # Safety
/// Both are valid for `len` bytes. No other code accesses those at `to`. Those at `from` are only accessed by functions
/// of this module, by atomics, and by devices.
#[inline]
pub unsafe fn from_shared(to: *mut u8, from: *const u8, len: usize) {
    about_to_load(from, len);
    about_to_store(to, len);
    // SAFETY: the caller's promises.
    unsafe { backend::from_shared(to, from, len) }
}

/// Copies `len` bytes of private memory to shared memory.
///
/// # Safety
/// As [`from_shared`], with source and destination swapped.
#[inline]
pub unsafe fn to_shared(to: *mut u8, from: *const u8, len: usize) {
    about_to_load(from, len);
    about_to_store(to, len);
    // SAFETY: the caller's promises.
    unsafe { backend::to_shared(to, from, len) }
}

/// Copies `len` bytes within shared memory; the two stretches may overlap.
///
/// # Safety
/// As [`from_shared`], with both in shared memory.
#[inline]
pub unsafe fn within_shared(to: *mut u8, from: *const u8, len: usize) {
    about_to_load(from, len);
    about_to_store(to, len);
    // SAFETY: the caller's promises.
    unsafe { backend::within_shared(to, from, len) }
}

/// Sets `len` bytes of shared memory.
///
/// # Safety
/// As [`to_shared`].
#[inline]
pub unsafe fn fill_shared(to: *mut u8, byte: u8, len: usize) {
    about_to_store(to, len);
    // SAFETY: the caller's promises.
    unsafe { backend::fill_shared(to, byte, len) }
}

/// Copies an array out of shared memory, without a call.
///
/// # Safety
/// As [`from_shared`], for `N` bytes.
// `N` is a constant: a few loads and stores instead of a call of memmove.
#[inline(always)]
pub unsafe fn array_from_shared<const N: usize>(to: *mut u8, from: *const u8) {
    about_to_load(from, N);
    about_to_store(to, N);
    #[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
    // SAFETY: the caller's promises.
    unsafe {
        machine::array::<N>(to, from)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(portable_copy))))]
    // SAFETY: the caller's promises.
    unsafe {
        portable::from_shared(to, from, N)
    }
}

/// Copies an array to shared memory, without a call.
///
/// # Safety
/// As [`to_shared`], for `N` bytes.
// `N` is a constant: a few loads and stores instead of a call of memmove.
#[inline(always)]
pub unsafe fn array_to_shared<const N: usize>(to: *mut u8, from: *const u8) {
    about_to_load(from, N);
    about_to_store(to, N);
    #[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
    // SAFETY: the caller's promises.
    unsafe {
        machine::array::<N>(to, from)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(portable_copy))))]
    // SAFETY: the caller's promises.
    unsafe {
        portable::to_shared(to, from, N)
    }
}
