//! CRC-32 of Ethernet (IEEE 802.3, reflected 0x04c11db7) over private bytes and over windows where
//! they lie. Every RoCE packet carries one, so it is most of what a packet costs.
//!
//! It folds by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Intel 2009) where the CPU has PCLMULQDQ and AVX, and
//! is crate crc32fast elsewhere. Done here because the crates take half as many instructions
//! again for packets of 1 KiB, begin anew for each part of a packet, and cannot read windows.

use super::Window;
use crc32fast::Hasher;

/// Bytes that are folded at a time.
pub const BLOCK: usize = 16;

/// How CRCs are computed on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Crc32 {
    folds: bool,
}

impl Default for Crc32 {
    fn default() -> Self {
        Self::detect()
    }
}

impl Crc32 {
    /// Asks the CPU what it can do.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let folds = fold::available();
        #[cfg(not(target_arch = "x86_64"))]
        let folds = false;
        Crc32 { folds }
    }

    /// The CRC over `head`, then `body`, then what `windows` hold, then up to three bytes of 0.
    ///
    /// The register starts as 0 and not, as Ethernet's does, as ones: whoever wants those inverts
    /// the first four bytes. Bytes of 0 before them then count for nothing, so that they can be put
    /// there until all blocks are whole, which makes it cheapest.
    #[inline]
    pub fn compute(
        &self,
        head: &[[u8; BLOCK]],
        body: &[u8],
        windows: &[Window],
        zeros: usize,
    ) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.folds {
            // SAFETY: `folds` says that the CPU can do it.
            return unsafe { fold::compute(head, body, windows, zeros) };
        }
        by_table(head, body, windows, zeros)
    }
}

/// See `Crc32::compute`.
#[cold]
fn by_table(head: &[[u8; BLOCK]], body: &[u8], windows: &[Window], zeros: usize) -> u32 {
    // What it is told is a CRC so far: the register, inverted.
    let mut hasher = Hasher::new_with_initial(!0);
    hasher.update(head.as_flattened());
    hasher.update(body);
    for window in windows {
        window.for_each_block(|block| hasher.update(block));
    }
    hasher.update(&[0; 3][..zeros.min(3)]);
    hasher.finalize()
}

#[cfg(target_arch = "x86_64")]
mod fold {
    use super::{BLOCK, Window};
    use core::arch::x86_64::*;

    /// Blocks that are folded side by side, so that multiplications overlap.
    const LANES: usize = 8;

    // Remainders of powers of x, bit-reflected: to fold a block over a distance of d bits takes
    // x^(d+32) for its first half and x^(d-32) for its second.
    const OVER_1: [i64; 2] = [0x1_7519_97d0, 0x0_ccaa_009e];
    const OVER_8: [i64; 2] = [0x1_e88e_f372, 0x1_4a7f_e880];
    /// x^64.
    const TO_64: i64 = 0x1_63cd_6124;
    /// The polynomial, and the quotient of x^64 by it (for Barrett reduction).
    const POLYNOMIAL: i64 = 0x1_db71_0641;
    const QUOTIENT: i64 = 0x1_f701_1641;

    /// Remainders of single bytes.
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut value = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };

    /// Whether the CPU has PCLMULQDQ and AVX, and the operating system keeps AVX's registers.
    pub fn available() -> bool {
        const PCLMULQDQ: u32 = 1 << 1;
        const OSXSAVE: u32 = 1 << 27;
        const AVX: u32 = 1 << 28;
        const SSE_AND_AVX_STATE: u64 = 6;
        let wanted = PCLMULQDQ | OSXSAVE | AVX;
        if __cpuid(1).ecx & wanted != wanted {
            return false;
        }
        // SAFETY: OSXSAVE says that XGETBV may be used.
        unsafe { _xgetbv(0) & SSE_AND_AVX_STATE == SSE_AND_AVX_STATE }
    }

    /// See `Crc32::compute`.
    ///
    /// # Safety
    /// The CPU has PCLMULQDQ and AVX (see `available`).
    #[target_feature(enable = "avx,pclmulqdq")]
    pub unsafe fn compute(
        head: &[[u8; BLOCK]],
        body: &[u8],
        windows: &[Window],
        zeros: usize,
    ) -> u32 {
        let over_1 = _mm_set_epi64x(OVER_1[1], OVER_1[0]);
        // What the bytes so far come to: 16 bytes that leave the same remainder as all blocks, or a
        // CRC register. The other one is 0.
        let mut x = _mm_setzero_si128();
        let mut register = 0;
        if let Some((first, rest)) = head.split_first() {
            // SAFETY: a block can be read for its length.
            let load = |block: &[u8; BLOCK]| unsafe { _mm_loadu_si128(block.as_ptr().cast()) };
            x = load(first);
            for block in rest {
                x = fold(x, over_1, load(block));
            }
        }
        let (mut from, mut len) = (body.as_ptr(), body.len());
        let mut windows = windows.iter();
        loop {
            // SAFETY: a slice can be read for its length. A window is mapped for its length for
            // ever, and each byte of it is read once, through the pointer, as by `Window::read`.
            (x, register) = unsafe { update(x, register, from, len) };
            let Some(window) = windows.next() else { break };
            (from, len) = (window.as_ptr().as_ptr().cast_const(), window.len());
        }
        let register = reduce(x) ^ register;
        if zeros == 0 {
            return !register;
        }
        // SAFETY: an array can be read for its length.
        !unsafe { bytes(register, [0; 3].as_ptr(), zeros.min(3)) }
    }

    /// Goes on over `len` bytes at `from`.
    ///
    /// # Safety
    /// The bytes are mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn update(
        mut x: __m128i,
        mut register: u32,
        from: *const u8,
        len: usize,
    ) -> (__m128i, u32) {
        // SAFETY: only called for blocks that end within `len`.
        let load =
            |block: usize| unsafe { _mm_loadu_si128(from.add(block * BLOCK).cast::<__m128i>()) };
        let blocks = len / BLOCK;
        if blocks > 0 {
            let over_1 = _mm_set_epi64x(OVER_1[1], OVER_1[0]);
            x = fold(x, over_1, _mm_xor_si128(load(0), _mm_cvtsi32_si128(register as i32)));
            register = 0;
            let mut at = 1;
            if blocks >= 2 * LANES {
                let over_8 = _mm_set_epi64x(OVER_8[1], OVER_8[0]);
                let mut lanes = [x; LANES];
                for (n, lane) in lanes.iter_mut().enumerate().skip(1) {
                    *lane = load(n);
                }
                at = LANES;
                // Twice in a round: what a round costs by itself is a tenth of what it does.
                while blocks - at >= 2 * LANES {
                    for (n, lane) in lanes.iter_mut().enumerate() {
                        *lane = fold(*lane, over_8, load(at + n));
                    }
                    at += LANES;
                    for (n, lane) in lanes.iter_mut().enumerate() {
                        *lane = fold(*lane, over_8, load(at + n));
                    }
                    at += LANES;
                }
                if blocks - at >= LANES {
                    for (n, lane) in lanes.iter_mut().enumerate() {
                        *lane = fold(*lane, over_8, load(at + n));
                    }
                    at += LANES;
                }
                x = lanes[0];
                for lane in &lanes[1..] {
                    x = fold(x, over_1, *lane);
                }
            }
            while at < blocks {
                x = fold(x, over_1, load(at));
                at += 1;
            }
        }
        let odd = len % BLOCK;
        if odd > 0 {
            // SAFETY: the last of the `len` bytes.
            register = unsafe { bytes(reduce(x) ^ register, from.add(len - odd), odd) };
            x = _mm_setzero_si128();
        }
        (x, register)
    }

    /// The CRC register after `len` more bytes at `from`.
    ///
    /// # Safety
    /// The bytes are mapped.
    #[cold]
    unsafe fn bytes(mut register: u32, from: *const u8, len: usize) -> u32 {
        for at in 0..len {
            // SAFETY: within `len` bytes.
            let byte = unsafe { from.add(at).read() };
            register = register >> 8 ^ TABLE[(register as u8 ^ byte) as usize];
        }
        register
    }

    /// Carries `x` over to the place of `next`, and adds that.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn fold(x: __m128i, over: __m128i, next: __m128i) -> __m128i {
        let first = _mm_clmulepi64_si128::<0x00>(x, over);
        let second = _mm_clmulepi64_si128::<0x11>(x, over);
        _mm_xor_si128(_mm_xor_si128(next, first), second)
    }

    /// The CRC register after blocks that come to `x`.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn reduce(x: __m128i) -> u32 {
        let low = _mm_set_epi32(0, 0, 0, !0);
        let over_1 = _mm_set_epi64x(OVER_1[1], OVER_1[0]);
        // 128 bits to 96, to 64, and then to 32.
        let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(x, over_1), _mm_srli_si128::<8>(x));
        let to_64 = _mm_set_epi64x(0, TO_64);
        let folded = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(x, low), to_64);
        let x = _mm_xor_si128(folded, _mm_srli_si128::<4>(x));
        let barrett = _mm_set_epi64x(QUOTIENT, POLYNOMIAL);
        let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low), barrett);
        let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low), barrett);
        _mm_extract_epi32::<1>(_mm_xor_si128(product, x)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// As Ethernet computes it.
    fn preset(crc: Crc32, head: &[u8], body: &[u8], windows: &[Window], zeros: usize) -> u32 {
        let mut head = head.to_vec();
        head.iter_mut().take(4).for_each(|byte| *byte = !*byte);
        let mut blocks = std::vec![0; head.len().next_multiple_of(BLOCK) - head.len()];
        blocks.extend(head);
        crc.compute(blocks.as_chunks().0, body, windows, zeros)
    }

    #[test]
    fn the_known_check_value() {
        for crc in [Crc32::detect(), Crc32 { folds: false }] {
            assert_eq!(preset(crc, b"123456789", b"", &[], 0), 0xcbf4_3926);
            assert_eq!(preset(crc, b"1234", b"56789", &[], 0), 0xcbf4_3926);
        }
    }

    proptest! {
        /// Pieces of any length give what crc32fast gives for the whole.
        #[test]
        fn pieces_are_as_good_as_the_whole(
            head in proptest::collection::vec(any::<u8>(), 4..100),
            body in proptest::collection::vec(any::<u8>(), 0..400),
            pieces in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..600), 0..6),
            offset in 0..16usize,
            zeros in 0..4usize,
        ) {
            let mut arena = Arena::on_heap(8192);
            let mut whole = [head.as_slice(), &body].concat();
            let windows: Vec<Window> = pieces
                .iter()
                .map(|piece| {
                    whole.extend(piece);
                    let window = arena.alloc(700, 64).unwrap().slice(offset, piece.len()).unwrap();
                    window.write(0, piece).unwrap();
                    window
                })
                .collect();
            whole.resize(whole.len() + zeros, 0);
            for crc in [Crc32::detect(), Crc32 { folds: false }] {
                prop_assert_eq!(preset(crc, &head, &body, &windows, zeros), crc32fast::hash(&whole));
            }
        }
    }
}
