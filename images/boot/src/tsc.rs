//! Decides whether the time-stamp counter can be the clock: it has to run at a constant rate in all power states
//! (Intel SDM volume 3, "Invariant TSC"; AMD APM volume 3, CPUID 8000_0007).

use core::arch::x86_64::__cpuid;

/// Properties of the counter, from CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tsc {
    /// Leaf 0x8000_0007, EDX bit 8.
    pub is_invariant: bool,
    /// Leaf 1, ECX bit 31: there is a hypervisor, which may hide the invariant bit because it migrates machines.
    pub under_hypervisor: bool,
    /// The hypervisor is QEMU without KVM, which derives the counter from its own clock and sets no invariant bit.
    pub is_emulated: bool,
}

/// Signature of QEMU without KVM, in EBX, ECX and EDX of leaf 0x4000_0000.
const EMULATOR: [u32; 3] =
    [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")];

/// Suitability of the counter as the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is suitable.
    Good,
    /// It is suitable only as long as the hypervisor keeps its rate constant.
    Doubtful,
    /// Timers would be wrong by any factor: the appliance must not start.
    Unusable,
}

impl Tsc {
    /// Reads the properties from this CPU.
    pub fn ask() -> Tsc {
        let power = match __cpuid(0x8000_0000).eax {
            0x8000_0007.. => __cpuid(0x8000_0007).edx,
            _ => 0,
        };
        let under_hypervisor = __cpuid(1).ecx & 1 << 31 != 0;
        let name = __cpuid(0x4000_0000);
        let is_emulated = under_hypervisor && [name.ebx, name.ecx, name.edx] == EMULATOR;
        Tsc { is_invariant: power & 1 << 8 != 0, under_hypervisor, is_emulated }
    }

    /// Decides its suitability.
    pub fn verdict(self) -> Verdict {
        match self {
            Tsc { is_invariant: true, .. } | Tsc { is_emulated: true, .. } => Verdict::Good,
            Tsc { under_hypervisor: true, .. } => Verdict::Doubtful,
            _ => Verdict::Unusable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsc_without_the_invariant_bit_needs_a_hypervisor() {
        let verdict = |is_invariant, under_hypervisor, is_emulated| {
            Tsc { is_invariant, under_hypervisor, is_emulated }.verdict()
        };
        assert_eq!(verdict(true, false, false), Verdict::Good);
        assert_eq!(verdict(true, true, false), Verdict::Good);
        assert_eq!(verdict(false, true, true), Verdict::Good);
        assert_eq!(verdict(false, true, false), Verdict::Doubtful);
        assert_eq!(verdict(false, false, false), Verdict::Unusable);
    }
}
