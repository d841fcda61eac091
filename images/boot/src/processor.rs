//! What the kernel and the program need of the processor, checked before anything uses it. The entry point has checked
//! for 64-bit mode.

use core::arch::x86_64::{__cpuid, CpuidResult};

/// Leaf of structured extended features, and of address sizes.
const EXTENDED_FEATURES: u32 = 7;
const ADDRESS_SIZES: u32 = 0x8000_0008;

/// Features of leaf 1 in EDX: FPU, TSC, MSR, APIC, CMOV, FXSR, SSE, SSE2.
const BASIC: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 9 | 1 << 15 | 1 << 24 | 1 << 25 | 1 << 26;

/// What the processor lacks, if it cannot run the image.
pub fn lack() -> Option<&'static str> {
    lack_of(&|leaf| __cpuid(leaf))
}

fn lack_of(cpuid: &dyn Fn(u32) -> CpuidResult) -> Option<&'static str> {
    if cpuid(0).eax < EXTENDED_FEATURES {
        return Some(
            "the processor is too old: CPUID has no leaf 7; give the machine a newer one (Intel from Nehalem, AMD from \
             EPYC)",
        );
    }
    if cpuid(0x8000_0000).eax < ADDRESS_SIZES {
        return Some(
            "the processor is too old: CPUID has no leaf 80000008h; give the machine a newer one",
        );
    }
    if cpuid(1).edx & BASIC != BASIC {
        return Some(
            "the processor lacks FPU, TSC, MSR, APIC, CMOV, FXSR, SSE or SSE2; give the machine another one",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_processors_are_refused_by_what_they_lack() {
        let with = |leaves: u32, extended: u32, features: u32| {
            lack_of(&|leaf| {
                let (eax, edx) = match leaf {
                    0 => (leaves, 0),
                    0x8000_0000 => (extended, 0),
                    1 => (0, features),
                    _ => (0, 0),
                };
                CpuidResult { eax, ebx: 0, ecx: 0, edx }
            })
        };
        assert_eq!(lack(), None, "this processor");
        assert_eq!(with(0xd, 0x8000_001e, u32::MAX), None);
        assert!(with(5, 0x8000_001e, u32::MAX).unwrap().contains("leaf 7"));
        assert!(with(0xd, 0x8000_0004, u32::MAX).unwrap().contains("80000008h"));
        assert!(with(0xd, 0x8000_0008, !(1 << 26)).unwrap().contains("SSE2"));
    }
}
