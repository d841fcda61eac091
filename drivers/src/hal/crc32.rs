//! CRC-32 of Ethernet (IEEE 802.3, reflected 0x04c11db7) over private bytes and over windows in place. Every RoCE
//! packet carries one, and computing it is most of a packet's cost.
//!
//! It folds by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", Intel 2009) if the CPU has PCLMULQDQ and AVX, and uses crate crc32fast otherwise. The crates are not
//! used throughout because they take half as many instructions again for packets of 1 KiB, start over for each part of
//! a packet, and cannot read windows.

use super::Window;
use crc32fast::Hasher;

/// Computes CRCs, by the method that this machine's CPU supports.
#[derive(Clone, Copy, Debug)]
pub struct Crc32 {
    #[cfg_attr(any(miri, portable_copy), expect(dead_code, reason = "no assembly is used"))]
    folds: bool,
}

impl Default for Crc32 {
    fn default() -> Self {
        Self::detect()
    }
}

impl Crc32 {
    /// Chooses the method by the CPU's features.
    pub fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
        let folds = fold::available();
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(portable_copy))))]
        let folds = false;
        Crc32 { folds }
    }

    /// The CRC over eight bytes of ones, then `bytes`, then the contents of `windows`, then up to three bytes of 0. The
    /// bits that are set in `ones` count as ones in the first `N` bytes of `bytes`. None if there are fewer than `N`
    /// bytes.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn compute<const N: usize>(
        &self,
        ones: &[u8; N],
        bytes: &[u8],
        windows: &[Window],
        zeros: usize,
    ) -> Option<u32> {
        if bytes.len() < N {
            return None;
        }
        #[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
        if self.folds {
            // SAFETY: `folds` is set only if the CPU has PCLMULQDQ and AVX, and there are `N` bytes.
            return Some(unsafe { fold::compute(ones, bytes, windows, zeros) });
        }
        Some(by_table(ones, bytes, windows, zeros))
    }
}

/// See `Crc32::compute`.
#[cold]
fn by_table(ones: &[u8], bytes: &[u8], windows: &[Window], zeros: usize) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&[0xff; 8]);
    let (head, body) = bytes.split_at(ones.len());
    for (byte, ones) in head.iter().zip(ones) {
        hasher.update(&[byte | ones]);
    }
    hasher.update(body);
    for window in windows {
        window.for_each_block(|block| hasher.update(block));
    }
    hasher.update(&[0; 3][..zeros.min(3)]);
    hasher.finalize()
}

#[cfg(all(target_arch = "x86_64", not(miri), not(portable_copy)))]
mod fold {
    use super::Window;
    use crate::hal::copy;
    use core::arch::x86_64::*;

    /// Bytes per fold.
    const BLOCK: usize = 16;
    /// Blocks that are folded in parallel, so that multiplications overlap.
    const LANES: usize = 8;

    /// A constant in the layout of an SSE register.
    #[repr(align(16))]
    struct Constant([u64; 2]);

    // Remainders of powers of x, bit-reflected: to fold a block over a distance of d bits takes
    // x^(d+32) for its first half and x^(d-32) for its second.
    static OVER_1: Constant = Constant([0x1_7519_97d0, 0x0_ccaa_009e]);
    static OVER_8: Constant = Constant([0x1_e88e_f372, 0x1_4a7f_e880]);
    /// The quotient of x^95 by the polynomial, and the polynomial, for Barrett reduction.
    static BARRETT: Constant = Constant([0xb4e5_b025_f701_1641, 0x1_db71_0641]);

    /// Masks for PSHUFB. The 16 bytes from `BLOCK + n` on move a block `n` bytes towards its beginning, those from
    /// `BLOCK - n` on move it `n` bytes towards its end. A mask byte whose high bit is set yields a 0.
    static MOVES: [u8; 3 * BLOCK] = {
        let mut moves = [0x80; 3 * BLOCK];
        let mut n = 0;
        while n < BLOCK {
            moves[BLOCK + n] = n as u8;
            n += 1;
        }
        moves
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
        // SAFETY: OSXSAVE is set, so XGETBV may be used.
        unsafe { _xgetbv(0) & SSE_AND_AVX_STATE == SSE_AND_AVX_STATE }
    }

    /// See `Crc32::compute`.
    ///
    /// # Safety
    /// The CPU has PCLMULQDQ and AVX (see `available`), and there are `N` bytes.
    #[target_feature(enable = "avx,pclmulqdq")]
    pub unsafe fn compute<const N: usize>(
        ones: &[u8; N],
        bytes: &[u8],
        windows: &[Window],
        zeros: usize,
    ) -> u32 {
        let over_1 = constant(&OVER_1);
        // SAFETY: there are `N` bytes.
        let mut x = unsafe { fold_head(over_1, ones, bytes.as_ptr()) };
        // SAFETY: as above.
        let mut from = unsafe { bytes.as_ptr().add(N) };
        let mut len = bytes.len() - N;
        // How many bytes before the end of the current part can be read.
        let mut readable = bytes.len();
        let mut windows = windows.iter();
        loop {
            // SAFETY: a slice can be read for its length. A window is mapped for its length, for ever. It is read as by
            // `Window::read`, and no byte is counted twice.
            x = unsafe { fold_blocks::<N>(over_1, x, from, len) };
            let odd = len % BLOCK;
            if odd > 0 {
                // SAFETY: as above.
                x = unsafe { fold_tail(over_1, x, odd, last_block(from.add(len), readable)) };
            }
            let Some(window) = windows.next() else { break };
            (from, len) = (window.as_ptr().as_ptr().cast_const(), window.len());
            readable = len;
        }
        if zeros > 0 {
            // SAFETY: less than a block.
            x = unsafe { fold_tail(over_1, x, zeros.min(3), _mm_setzero_si128()) };
        }
        !reduce(over_1, x)
    }

    /// Folds the first `N` bytes, with the eight bytes of ones before them, into 16 bytes that leave the same
    /// remainder.
    ///
    /// The first four of the eight become 0, because the CRC register starts as ones. Leading zero bytes do not change
    /// the remainder: as many are put in front as make the `N` bytes end with a block.
    ///
    /// # Safety
    /// There are `N` bytes.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn fold_head<const N: usize>(
        over_1: __m128i,
        ones: &[u8; N],
        bytes: *const u8,
    ) -> __m128i {
        const { assert!(N > BLOCK && matches!(N % BLOCK, 1..=12), "the first block has four ones") };
        let four_ones = const {
            let mut block = [0; BLOCK];
            let mut n = 0;
            while n < 4 {
                block[BLOCK - N % BLOCK - 4 + n] = 0xff;
                n += 1;
            }
            block
        };
        // SAFETY: only called for blocks that end within `N` bytes.
        let masked =
            |at: usize| unsafe { _mm_or_si128(load(bytes.add(at)), load(ones.as_ptr().add(at))) };
        let mut at = N % BLOCK;
        // SAFETY: an array can be read for its length, and `at` is less than a block.
        let (four_ones, towards_end) = unsafe { (load(four_ones.as_ptr()), moves(at)) };
        let mut x = _mm_or_si128(_mm_shuffle_epi8(masked(0), towards_end), four_ones);
        while at < N {
            x = fold(x, over_1, masked(at));
            at += BLOCK;
        }
        x
    }

    /// Folds the whole blocks of the `len` bytes at `from` into `x`. Generic only because `compute` is, so that each
    /// instance of `compute` inlines its own copy.
    ///
    /// # Safety
    /// The bytes are mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn fold_blocks<const N: usize>(
        over_1: __m128i,
        mut x: __m128i,
        mut from: *const u8,
        mut len: usize,
    ) -> __m128i {
        if len >= 2 * LANES * BLOCK {
            let over_8 = constant(&OVER_8);
            let mut lanes = [_mm_setzero_si128(); LANES];
            /// Applies `$one` to one block per lane, the first of which lies at `$from`.
            macro_rules! each {
                ($from:expr, $one:ident) => {
                    each!($from, $one, 0 1 2 3 4 5 6 7)
                };
                ($from:expr, $one:ident, $($n:literal)*) => {
                    // SAFETY: there are as many blocks left as lanes.
                    $(lanes[$n] = unsafe { $one::<{ $n * BLOCK }>(lanes[$n], over_8, $from) };)*
                };
            }
            lanes[0] = pieces(x, over_1);
            each!(from, add);
            from = from.wrapping_add(LANES * BLOCK);
            len -= LANES * BLOCK;
            // Unrolled twice: the loop's overhead is a tenth of its work.
            while len >= 2 * LANES * BLOCK {
                each!(from, fold_at);
                each!(from.wrapping_add(LANES * BLOCK), fold_at);
                from = from.wrapping_add(2 * LANES * BLOCK);
                len -= 2 * LANES * BLOCK;
            }
            if len >= LANES * BLOCK {
                each!(from, fold_at);
                from = from.wrapping_add(LANES * BLOCK);
                len -= LANES * BLOCK;
            }
            x = lanes[0];
            for lane in &lanes[1..] {
                x = fold(x, over_1, *lane);
            }
        }
        let end = from.wrapping_add(len - len % BLOCK);
        while from < end {
            // SAFETY: there is a block left.
            x = unsafe { fold_at::<0>(x, over_1, from) };
            from = step(from, BLOCK);
        }
        x
    }

    /// Folds the last `odd` bytes of the block `last` into `x`.
    ///
    /// # Safety
    /// `odd` is at most a block.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn fold_tail(over_1: __m128i, x: __m128i, odd: usize, last: __m128i) -> __m128i {
        // The first `odd` bytes of `x` are folded over the next block: the rest of `x`, then the new bytes.
        // SAFETY: the caller's promise.
        let (towards_end, towards_beginning) = unsafe { (moves(odd), moves(BLOCK + odd)) };
        let before = _mm_shuffle_epi8(x, towards_end);
        let behind = _mm_shuffle_epi8(x, towards_beginning);
        // The mask's high bits mark the bytes that the shuffle has set to 0.
        let block = _mm_blendv_epi8(behind, last, towards_beginning);
        fold(before, over_1, block)
    }

    /// The block that ends at `to`. Bytes more than `readable` before `to` are not read, and are 0.
    ///
    /// # Safety
    /// The `readable` bytes before `to` are mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn last_block(to: *const u8, readable: usize) -> __m128i {
        if readable >= BLOCK {
            // SAFETY: the caller's promise.
            return unsafe { load_shared(to.sub(BLOCK)) };
        }
        let (mut from, mut block) = (to.wrapping_sub(readable), _mm_setzero_si128());
        while from < to {
            // SAFETY: the caller's promise.
            let byte = unsafe {
                let mut byte = 0u8;
                copy::array_from_shared::<1>(&raw mut byte, from);
                byte
            };
            block = _mm_insert_epi8::<15>(_mm_srli_si128::<1>(block), byte.into());
            from = step(from, 1);
        }
        block
    }

    /// `from` plus `by` bytes. The assembly hides the distance, so that the compiler does not unroll the loop:
    /// unrolled, it would save more registers even when the loop is skipped.
    #[inline]
    fn step(from: *const u8, by: usize) -> *const u8 {
        let mut to = from.wrapping_add(by);
        // SAFETY: the assembly is only a comment.
        unsafe { core::arch::asm!("/* {} */", inout(reg) to, options(pure, readonly, nostack)) };
        to
    }

    /// Loads a constant. Volatile, so that it is one instruction: the compiler would split it, because multiplications
    /// use one half at a time.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn constant(of: &'static Constant) -> __m128i {
        // SAFETY: a `Constant` has the size and the alignment of a block.
        unsafe { of.0.as_ptr().cast::<__m128i>().read_volatile() }
    }

    /// The block of `MOVES` that begins at `from`.
    ///
    /// # Safety
    /// `from` is at most two blocks.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn moves(from: usize) -> __m128i {
        debug_assert!(from <= 2 * BLOCK);
        // SAFETY: all of it lies in `MOVES`.
        unsafe { load(MOVES.as_ptr().add(from)) }
    }

    /// Loads a block of memory that devices may write at the same time: by assembly, not by a Rust load (see [`copy`]).
    ///
    /// # Safety
    /// The block is mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn load_shared(from: *const u8) -> __m128i {
        let block: __m128i;
        // SAFETY: the caller's promise.
        unsafe {
            core::arch::asm!("vmovdqu {}, [{}]", out(xmm_reg) block, in(reg) from,
                options(nostack, preserves_flags, readonly));
        }
        block
    }

    /// Adds the block `AT` bytes behind `from` to `x`, loaded as by [`load_shared`]. The unused argument gives it the
    /// signature of [`fold_at`].
    ///
    /// # Safety
    /// The block is mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn add<const AT: usize>(x: __m128i, _: __m128i, from: *const u8) -> __m128i {
        let mut sum = x;
        // SAFETY: the caller's promise.
        unsafe {
            core::arch::asm!("vpxor {x}, {x}, [{from} + {at}]", x = inout(xmm_reg) sum,
                from = in(reg) from, at = const AT, options(nostack, preserves_flags, readonly));
        }
        sum
    }

    /// Folds `x` over the distance `over`, and adds the block `AT` bytes behind `from`.
    ///
    /// # Safety
    /// The block is mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn fold_at<const AT: usize>(x: __m128i, over: __m128i, from: *const u8) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { add::<AT>(pieces(x, over), over, from) }
    }

    /// Loads a block of memory that is not written meanwhile.
    ///
    /// # Safety
    /// The block is mapped.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    unsafe fn load(from: *const u8) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    /// Folds `x` over the distance `over`, and adds `next`.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn fold(x: __m128i, over: __m128i, next: __m128i) -> __m128i {
        _mm_xor_si128(pieces(x, over), next)
    }

    /// `x` multiplied by the constants of a distance: its equivalent that many blocks later.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn pieces(x: __m128i, over: __m128i) -> __m128i {
        let first = _mm_clmulepi64_si128::<0x00>(x, over);
        _mm_xor_si128(first, _mm_clmulepi64_si128::<0x11>(x, over))
    }

    /// The CRC register after blocks that were folded into `x`.
    #[inline]
    #[target_feature(enable = "avx,pclmulqdq")]
    fn reduce(over_1: __m128i, x: __m128i) -> u32 {
        let barrett = constant(&BARRETT);
        // Folds 128 bits to 96. Barrett reduction removes 64 of them.
        let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(x, over_1), _mm_srli_si128::<8>(x));
        let quotient = _mm_clmulepi64_si128::<0x00>(x, barrett);
        let product = _mm_clmulepi64_si128::<0x10>(quotient, barrett);
        _mm_extract_epi32::<2>(_mm_xor_si128(product, x)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Compares both methods with crc32fast over the concatenation.
    fn check<const N: usize>(ones: &[u8], bytes: &[u8], windows: &[Window], zeros: usize) {
        let ones: &[u8; N] = ones.first_chunk().unwrap();
        let mut whole = std::vec![0xff; 8];
        whole.extend(bytes);
        whole[8..].iter_mut().zip(ones).for_each(|(byte, ones)| *byte |= ones);
        for window in windows {
            let at = whole.len();
            whole.resize(at + window.len(), 0);
            window.read(0, &mut whole[at..]).unwrap();
        }
        whole.resize(whole.len() + zeros, 0);
        for crc in [Crc32::detect(), Crc32 { folds: false }] {
            let computed = crc.compute(ones, bytes, windows, zeros);
            let lengths: Vec<usize> = windows.iter().map(Window::len).collect();
            let n = bytes.len();
            assert_eq!(computed, Some(crc32fast::hash(&whole)), "{N} of {n}, {lengths:?}, {zeros}");
        }
    }

    /// Checks the masked lengths of the headers of IPv4, IPv6 and RoCEv1.
    fn check_all(ones: &[u8], bytes: &[u8], windows: &[Window], zeros: usize) {
        check::<40>(ones, bytes, windows, zeros);
        check::<52>(ones, bytes, windows, zeros);
        check::<60>(ones, bytes, windows, zeros);
    }

    #[test]
    fn crc_of_every_length_matches_crc32fast() {
        let bytes: Vec<u8> = (0..1200).map(|n| ((n * 31) >> 2) as u8).collect();
        let memory = Arena::on_heap(4096).alloc(1200, 64).unwrap();
        memory.write(0, &bytes).unwrap();
        for len in 60..1200 {
            check_all(&bytes[7..], &bytes[..len], &[], 0);
        }
        for len in 0..600 {
            let windows = [memory.slice(3, len).unwrap(), memory.slice(700, 20).unwrap()];
            check_all(&[0; 60], &bytes[..60 + len % 20], &windows, len % 4);
        }
    }

    #[test]
    fn crc_of_fewer_bytes_than_the_mask_is_none() {
        for crc in [Crc32::detect(), Crc32 { folds: false }] {
            assert_eq!(crc.compute(&[0; 40], &[0; 39], &[], 0), None);
        }
    }

    proptest! {
        #[test]
        fn crc_of_pieces_of_any_length_matches_crc32fast(
            ones in proptest::collection::vec(any::<u8>(), 60),
            bytes in proptest::collection::vec(any::<u8>(), 60..500),
            pieces in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..600), 0..6),
            offset in 0..16usize,
            zeros in 0..4usize,
        ) {
            let mut arena = Arena::on_heap(8192);
            let windows: Vec<Window> = pieces
                .iter()
                .map(|piece| {
                    let window = arena.alloc(700, 64).unwrap().slice(offset, piece.len()).unwrap();
                    window.write(0, piece).unwrap();
                    window
                })
                .collect();
            check_all(&ones, &bytes, &windows, zeros);
        }
    }
}
