//! `memcpy`, `memmove` and `memset` for x86-64. [`super::copy`] uses them, and in the image also code that the compiler
//! generates. (The kernel has versions of its own, made for a CPU without SIMD.)
//!
//! A header is copied in a dozen instructions, and payload 32 bytes at a time if the CPU has AVX and the kernel saves
//! the AVX registers.
//!
//! Up to 64 bytes everything is loaded before anything is stored, so that source and destination may overlap. Longer
//! copies go in steps of 64 bytes (128 or twice 256 with AVX) from the lower end, or from the upper end if the
//! destination begins inside the source. The last step stores the bytes of the other end, which were loaded first.

use core::arch::x86_64::{__cpuid, _xgetbv};
use core::sync::atomic::{AtomicU8, Ordering};

/// Whether AVX may be used.
static AVX: AtomicU8 = AtomicU8::new(0);

/// Lets copies use AVX if the CPU and the kernel support it. Before this call they do not use it.
pub fn detect() {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    const SSE_AND_AVX_STATE: u64 = 6;
    if __cpuid(1).ecx & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX {
        // SAFETY: OSXSAVE is set, so the instruction exists.
        let enabled = unsafe { state_components() };
        AVX.store(u8::from(enabled & SSE_AND_AVX_STATE == SSE_AND_AVX_STATE), Ordering::Relaxed);
    }
}

/// Parts of the CPU's state that the kernel saves.
#[target_feature(enable = "xsave")]
fn state_components() -> u64 {
    // SAFETY: the caller has checked that XSAVE exists and is enabled; register 0 always exists.
    unsafe { _xgetbv(0) }
}

core::arch::global_asm!(
    ".macro copy_few", // rdx below 16
    "cmp edx, 8",
    "jae 18f",
    "cmp edx, 4",
    "jae 14f",
    "test edx, edx",
    "je 10f",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "shr edx, 1", // index of a middle byte: 0 for 1, 1 for 2 and 3
    "movzx r9d, byte ptr [rsi + rdx]",
    "mov byte ptr [rdi + rdx], r9b",
    "mov byte ptr [rdi], cl",
    "mov byte ptr [r10 - 1], r8b",
    "10:",
    "ret",
    "14:",
    "mov ecx, dword ptr [rsi]",
    "mov r8d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [r10 - 4], r8d",
    "ret",
    "18:",
    "mov rcx, qword ptr [rsi]",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [r10 - 8], r8",
    "ret",
    ".endm",
    "",
    ".section .text.isthmus_memory, \"ax\", @progbits",
    ".balign 64",
    ".global isthmus_memcpy",
    ".global isthmus_memmove",
    "isthmus_memcpy:",
    "isthmus_memmove:",
    "mov rax, rdi",
    "lea r10, [rdi + rdx]", // end of the destination
    "cmp rdx, 32",
    "ja 3f",
    "cmp rdx, 16",
    "jb 2f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [r10 - 16], xmm1",
    "ret",
    "2:",
    "copy_few",
    "3:",
    "cmp rdx, 64",
    "ja 4f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [r10 - 32], xmm2",
    "movups [r10 - 16], xmm3",
    "ret",
    "4:",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 30f", // the destination begins inside the source
    "cmp rdx, 128",
    "jb 5f",
    "cmp byte ptr [rip + {avx}], 0",
    "jne 19f",
    // upwards, 64 bytes at a time
    "5:",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "6:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 6b",
    "movups [r10 - 64], xmm4",
    "movups [r10 - 48], xmm5",
    "movups [r10 - 32], xmm6",
    "movups [r10 - 16], xmm7",
    "ret",
    // upwards, twice 256 bytes at a time
    "19:",
    "lea r8, [rsi + rdx]", // end of the source
    "cmp rdx, 512",
    "jb 20f",
    "vmovups ymm8, [r8 - 256]",
    "vmovups ymm9, [r8 - 224]",
    "vmovups ymm10, [r8 - 192]",
    "vmovups ymm11, [r8 - 160]",
    "vmovups ymm12, [r8 - 128]",
    "vmovups ymm13, [r8 - 96]",
    "vmovups ymm14, [r8 - 64]",
    "vmovups ymm15, [r8 - 32]",
    "mov ecx, 256",
    "sub rcx, rdx", // negative while more than the last step is left
    "lea r9d, [rdx - 1]",
    "test r9d, 256",
    "je 23f",
    "sub rcx, 256", // an odd number of steps before the last
    "jmp 24f",
    "23:",
    "vmovups ymm0, [r8 + rcx - 256]",
    "vmovups ymm1, [r8 + rcx - 224]",
    "vmovups ymm2, [r8 + rcx - 192]",
    "vmovups ymm3, [r8 + rcx - 160]",
    "vmovups ymm4, [r8 + rcx - 128]",
    "vmovups ymm5, [r8 + rcx - 96]",
    "vmovups ymm6, [r8 + rcx - 64]",
    "vmovups ymm7, [r8 + rcx - 32]",
    "vmovups [r10 + rcx - 256], ymm0",
    "vmovups [r10 + rcx - 224], ymm1",
    "vmovups [r10 + rcx - 192], ymm2",
    "vmovups [r10 + rcx - 160], ymm3",
    "vmovups [r10 + rcx - 128], ymm4",
    "vmovups [r10 + rcx - 96], ymm5",
    "vmovups [r10 + rcx - 64], ymm6",
    "vmovups [r10 + rcx - 32], ymm7",
    "24:",
    "vmovups ymm0, [r8 + rcx]",
    "vmovups ymm1, [r8 + rcx + 32]",
    "vmovups ymm2, [r8 + rcx + 64]",
    "vmovups ymm3, [r8 + rcx + 96]",
    "vmovups ymm4, [r8 + rcx + 128]",
    "vmovups ymm5, [r8 + rcx + 160]",
    "vmovups ymm6, [r8 + rcx + 192]",
    "vmovups ymm7, [r8 + rcx + 224]",
    "vmovups [r10 + rcx], ymm0",
    "vmovups [r10 + rcx + 32], ymm1",
    "vmovups [r10 + rcx + 64], ymm2",
    "vmovups [r10 + rcx + 96], ymm3",
    "vmovups [r10 + rcx + 128], ymm4",
    "vmovups [r10 + rcx + 160], ymm5",
    "vmovups [r10 + rcx + 192], ymm6",
    "vmovups [r10 + rcx + 224], ymm7",
    "add rcx, 512",
    "js 23b",
    "vmovups [r10 - 256], ymm8",
    "vmovups [r10 - 224], ymm9",
    "vmovups [r10 - 192], ymm10",
    "vmovups [r10 - 160], ymm11",
    "vmovups [r10 - 128], ymm12",
    "vmovups [r10 - 96], ymm13",
    "vmovups [r10 - 64], ymm14",
    "vmovups [r10 - 32], ymm15",
    "vzeroupper",
    "ret",
    // upwards, 128 bytes at a time
    "20:",
    "vmovups ymm4, [rsi + rdx - 128]",
    "vmovups ymm5, [rsi + rdx - 96]",
    "vmovups ymm6, [rsi + rdx - 64]",
    "vmovups ymm7, [rsi + rdx - 32]",
    "mov ecx, 128",
    "sub rcx, rdx", // negative while more than the last step is left
    "jns 22f",
    "21:",
    "vmovups ymm0, [r8 + rcx - 128]",
    "vmovups ymm1, [r8 + rcx - 96]",
    "vmovups ymm2, [r8 + rcx - 64]",
    "vmovups ymm3, [r8 + rcx - 32]",
    "vmovups [r10 + rcx - 128], ymm0",
    "vmovups [r10 + rcx - 96], ymm1",
    "vmovups [r10 + rcx - 64], ymm2",
    "vmovups [r10 + rcx - 32], ymm3",
    "add rcx, 128",
    "js 21b",
    "22:",
    "vmovups [r10 - 128], ymm4",
    "vmovups [r10 - 96], ymm5",
    "vmovups [r10 - 64], ymm6",
    "vmovups [r10 - 32], ymm7",
    "vzeroupper",
    "ret",
    // downwards, 64 bytes at a time
    "30:",
    "test rcx, rcx",
    "je 32f", // onto itself
    "movups xmm4, [rsi]",
    "movups xmm5, [rsi + 16]",
    "movups xmm6, [rsi + 32]",
    "movups xmm7, [rsi + 48]",
    "31:",
    "movups xmm0, [rsi + rdx - 16]",
    "movups xmm1, [rsi + rdx - 32]",
    "movups xmm2, [rsi + rdx - 48]",
    "movups xmm3, [rsi + rdx - 64]",
    "movups [rdi + rdx - 16], xmm0",
    "movups [rdi + rdx - 32], xmm1",
    "movups [rdi + rdx - 48], xmm2",
    "movups [rdi + rdx - 64], xmm3",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 31b",
    "movups [rdi], xmm4",
    "movups [rdi + 16], xmm5",
    "movups [rdi + 32], xmm6",
    "movups [rdi + 48], xmm7",
    "32:",
    "ret",
    "",
    ".balign 64",
    ".global isthmus_memset",
    "isthmus_memset:",
    "mov rax, rdi",
    "lea r10, [rdi + rdx]",
    "movzx esi, sil",
    "mov rcx, 0x0101010101010101",
    "imul rcx, rsi",
    "cmp rdx, 16",
    "jb 3f",
    "movq xmm0, rcx",
    "punpcklqdq xmm0, xmm0",
    "cmp rdx, 128",
    "jb 2f",
    "cmp byte ptr [rip + {avx}], 0",
    "jne 6f",
    "1:",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm0",
    "movups [rdi + 32], xmm0",
    "movups [rdi + 48], xmm0",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 1b",
    "cmp rdx, 16",
    "jb 5f",
    "2:",
    "movups [rdi], xmm0",
    "add rdi, 16",
    "sub rdx, 16",
    "cmp rdx, 16",
    "jae 2b",
    "5:",
    "movups [r10 - 16], xmm0",
    "ret",
    "3:",
    "cmp edx, 8",
    "jae 4f",
    "cmp edx, 4",
    "jae 8f",
    "test edx, edx",
    "je 9f",
    "mov byte ptr [rdi], cl",
    "shr edx, 1",
    "mov byte ptr [rdi + rdx], cl",
    "mov byte ptr [r10 - 1], cl",
    "9:",
    "ret",
    "8:",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [r10 - 4], ecx",
    "ret",
    "4:",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [r10 - 8], rcx",
    "ret",
    "6:",
    "vinsertf128 ymm0, ymm0, xmm0, 1",
    "cmp rdx, 256",
    "jb 71f",
    "7:",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm0",
    "vmovups [rdi + 64], ymm0",
    "vmovups [rdi + 96], ymm0",
    "vmovups [rdi + 128], ymm0",
    "vmovups [rdi + 160], ymm0",
    "vmovups [rdi + 192], ymm0",
    "vmovups [rdi + 224], ymm0",
    "add rdi, 256",
    "sub rdx, 256",
    "cmp rdx, 256",
    "jae 7b",
    "cmp rdx, 32",
    "jb 72f",
    "71:",
    "vmovups [rdi], ymm0",
    "add rdi, 32",
    "sub rdx, 32",
    "cmp rdx, 32",
    "jae 71b",
    "72:",
    "vmovups [r10 - 32], ymm0",
    "vzeroupper",
    "ret",
    avx = sym AVX,
);

// The names that the compiler calls. The kernel's versions are hidden in its bundle.
#[cfg(target_os = "hermit")]
core::arch::global_asm!(
    ".global memcpy",
    ".global memmove",
    ".global memset",
    ".set memcpy, isthmus_memcpy",
    ".set memmove, isthmus_memmove",
    ".set memset, isthmus_memset",
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    unsafe extern "C" {
        fn isthmus_memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
        fn isthmus_memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
    }

    /// Runs the test without AVX, then with AVX if the CPU has it.
    fn both_ways(test: impl Fn()) {
        AVX.store(0, Ordering::Relaxed);
        test();
        detect();
        test();
    }

    #[test]
    fn every_length_and_overlap_moves_as_the_library_does() {
        both_ways(|| {
            for len in (0..=300).chain([511, 512, 513, 767, 768, 769, 1024, 1500, 4096, 4099]) {
                for distance in
                    [-200isize, -65, -64, -17, -16, -3, -1, 0, 1, 2, 15, 16, 63, 64, 130]
                {
                    let mut expected: Vec<u8> =
                        (0..5000).map(|i| (i * 7 + i / 256) as u8).collect();
                    let mut moved = expected.clone();
                    let (from, to) = (300usize, 300usize.wrapping_add_signed(distance));
                    expected.copy_within(from..from + len, to);
                    // SAFETY: both stretches lie inside the vector.
                    let end = unsafe {
                        let base = moved.as_mut_ptr();
                        isthmus_memmove(base.add(to), base.add(from), len)
                    };
                    assert_eq!(end, moved[to..].as_mut_ptr(), "{len} by {distance}");
                    assert!(moved == expected, "{len} bytes by {distance}");
                }
            }
        });
    }

    #[test]
    fn every_length_is_set_and_nothing_beside_it() {
        both_ways(|| {
            for len in (0..=600).chain([1023, 1024, 4097]) {
                for at in [0usize, 1, 31] {
                    let mut set = std::vec![3u8; 5000];
                    // SAFETY: the stretch lies inside the vector.
                    unsafe { isthmus_memset(set[at..].as_mut_ptr(), 0x1a5, len) };
                    let good = |(i, &byte): (usize, &u8)| {
                        byte == if (at..at + len).contains(&i) { 0xa5 } else { 3 }
                    };
                    assert!(set.iter().enumerate().all(good), "{len} bytes at {at}");
                }
            }
        });
    }
}
