//! Entropy from the CPU: RDSEED and RDRAND (Intel SDM vol. 1, 7.3.17), both if the CPU has both. A machine with neither
//! needs a virtio-rng device.

use core::arch::x86_64::{__cpuid, __cpuid_count, _rdrand64_step, _rdseed64_step};

/// Tries after which the CPU's generator counts as broken.
const TRIES: u32 = 10_000;

/// 256 bits; `None` if the CPU has no generator that works.
pub fn from_cpu() -> Option<[u8; 32]> {
    // Not `is_x86_feature_detected!`: Hermit's target assumes both.
    let has_rdseed = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 18 != 0;
    let has_rdrand = __cpuid(1).ecx & 1 << 30 != 0;
    let rdseed = has_rdseed.then(|| {
        random_bytes(|value| {
            // SAFETY: the CPU has the instruction (checked).
            unsafe { _rdseed64_step(value) }
        })
    });
    let rdrand = has_rdrand.then(|| {
        random_bytes(|value| {
            // SAFETY: the CPU has the instruction (checked).
            unsafe { _rdrand64_step(value) }
        })
    });
    // If one source fails, the other's bits are used alone.
    match (rdseed.flatten(), rdrand.flatten()) {
        (Some(mut one), Some(other)) => {
            one.iter_mut().zip(other).for_each(|(byte, more)| *byte ^= more);
            Some(one)
        }
        (one, other) => one.or(other),
    }
}

fn random_bytes(step: unsafe fn(&mut u64) -> i32) -> Option<[u8; 32]> {
    let mut seed = [0; 32];
    for word in seed.chunks_exact_mut(8) {
        word.copy_from_slice(&random_word(step)?.to_le_bytes());
    }
    Some(seed)
}

fn random_word(step: unsafe fn(&mut u64) -> i32) -> Option<u64> {
    for _ in 0..TRIES {
        let mut value = 0;
        // SAFETY: the caller passes an instruction that the CPU has.
        let ready = unsafe { step(&mut value) } == 1;
        // Some AMD CPUs always report "ready" and return all ones or zero.
        if ready && value != 0 && value != u64::MAX {
            return Some(value);
        }
        core::hint::spin_loop();
    }
    None
}
