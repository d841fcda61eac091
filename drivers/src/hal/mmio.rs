//! Device registers that are mapped into the program's address space.

use super::Registers;
use core::ptr::NonNull;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use core::sync::atomic::{AtomicU8, Ordering};

/// `len` bytes of mapped device registers.
#[derive(Debug)]
pub struct Mmio {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: registers are only accessed by volatile reads and writes, which any core may do; the mapping holds for ever
// (promise of `new`).
unsafe impl Send for Mmio {}
// SAFETY: as above; each access is whole, and several cores may access a device at once.
unsafe impl Sync for Mmio {}

impl Mmio {
    /// Registers at `start`.
    ///
    /// # Safety
    /// `len` bytes from `start` are mapped, uncached, for the rest of the program, and are device
    /// registers: no Rust object lies there.
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Mmio { start, len }
    }

    /// Pointer to the `T` at `offset`, if it is inside and aligned.
    #[inline]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        let at = self.start.as_ptr().wrapping_add(offset).cast::<T>();
        (end <= self.len && at.is_aligned()).then_some(at)
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $t:ty) => {
        fn $read(&self, offset: usize) -> $t {
            // SAFETY: `at` checked bounds and alignment; mapped for ever (promise of `new`).
            self.at::<$t>(offset).map_or(<$t>::MAX, |at| unsafe { at.read_volatile() })
        }

        fn $write(&self, offset: usize, value: $t) {
            if let Some(at) = self.at::<$t>(offset) {
                // SAFETY: as for reading.
                unsafe { at.write_volatile(value) };
            }
        }
    };
}

/// Whether the CPU has MOVDIR64B: 0 unknown, 1 no, 2 yes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
static MOVDIR64B: AtomicU8 = AtomicU8::new(0);

/// Cached, because CPUID traps in a virtual machine.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_movdir64b() -> bool {
    let mut known = MOVDIR64B.load(Ordering::Relaxed);
    if known == 0 {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << 28 != 0;
        known = if has { 2 } else { 1 };
        MOVDIR64B.store(known, Ordering::Relaxed);
    }
    known == 2
}

impl Registers for Mmio {
    fn len(&self) -> usize {
        self.len
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn writes_64_bytes(&self) -> bool {
        has_movdir64b()
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn write_64_bytes(&self, offset: usize, words: &[u64; 8]) {
        let Some(at) = self.at::<[u64; 8]>(offset) else { return };
        if !at.addr().is_multiple_of(64) || !has_movdir64b() {
            return;
        }
        // MOVDIR64B is not ordered behind earlier stores.
        // SAFETY: SSE, which every x86-64 has.
        unsafe { core::arch::x86_64::_mm_sfence() };
        // SAFETY: `movdir64b rax, [rcx]`, which the CPU has, reads 64 bytes of `words` and writes as many to `at`,
        // which is inside (checked), aligned, and mapped for ever (promise of `new`).
        unsafe {
            core::arch::asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x01", in("rax") at, in("rcx") words.as_ptr(),
                options(nostack, preserves_flags));
        }
    }
    access!(read8, write8, u8);
    access!(read16, write16, u16);
    access!(read32, write32, u32);
    access!(read64, write64, u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_outside_or_misaligned_do_nothing() {
        let memory = NonNull::from(alloc::vec![0u64; 2].leak()).cast::<u8>();
        // SAFETY: leaked, so mapped for ever, and the only reference was just given up.
        let registers = unsafe { Mmio::new(memory, 16) };
        registers.write32(4, 0x1122_3344);
        assert_eq!(registers.read64(0), 0x1122_3344 << 32);
        assert_eq!(registers.read8(7), 0x11);
        registers.write16(5, 9);
        registers.write32(14, 9);
        registers.write64(16, 9);
        registers.write8(usize::MAX, 9);
        assert_eq!(registers.read32(14), u32::MAX);
        assert_eq!(registers.read64(usize::MAX - 3), u64::MAX);
        assert_eq!(registers.read64(8), 0);
    }
}
