//! CRC-32C (Castagnoli, reflected 0x1edc6f41; RFC 3720, appendix B.4), part by part. The digests of NVMe/TCP are such
//! CRCs. The CPU's CRC32 instruction (SSE4.2) computes it if there is one, and otherwise eight tables of 256 entries.
//!
//! Crate `crc` takes a byte a step, and `crc32c` needs `std` to choose between the two methods.

/// A CRC-32C in progress.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    state: u32,
    /// The CPU has the instruction.
    #[cfg_attr(
        any(miri, not(target_arch = "x86_64")),
        expect(dead_code, reason = "no instruction is used")
    )]
    fast: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// A CRC over no bytes. Detects the method: keep a copy of a new value where many are begun.
    pub fn new() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let fast = instruction::available();
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let fast = false;
        Crc32c { state: u32::MAX, fast }
    }

    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.fast {
            // SAFETY: `fast` is set only if the CPU has SSE4.2.
            self.state = unsafe { instruction::update(self.state, bytes) };
            return;
        }
        self.state = by_tables(self.state, bytes);
    }

    /// The CRC of all bytes so far. On the wire its least significant byte is first.
    #[inline]
    pub const fn finish(self) -> u32 {
        !self.state
    }
}

/// Entry `i` of table `n` is the CRC register after byte `i` and `n` zeroes, from a register of zero.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut entry = i as u32;
        let mut bit = 0;
        while bit < 8 {
            entry = (entry >> 1) ^ (0x82f6_3b78 & (entry & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][i] = entry;
        i += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[n - 1][i];
            tables[n][i] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            i += 1;
        }
        n += 1;
    }
    tables
};

fn by_tables(mut state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(state);
        state = 0;
        for (n, byte) in word.to_le_bytes().into_iter().enumerate() {
            state ^= TABLES[7 - n][usize::from(byte)];
        }
    }
    for &byte in rest {
        state = (state >> 8) ^ TABLES[0][usize::from(state as u8 ^ byte)];
    }
    state
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod instruction {
    use core::arch::x86_64::{__cpuid, _mm_crc32_u8, _mm_crc32_u64};

    /// Whether the CPU has SSE4.2.
    pub fn available() -> bool {
        __cpuid(1).ecx & 1 << 20 != 0
    }

    /// Adds bytes to a CRC register.
    ///
    /// # Safety
    /// The CPU has SSE4.2 (see `available`).
    #[target_feature(enable = "sse4.2")]
    pub unsafe fn update(state: u32, bytes: &[u8]) -> u32 {
        let (lines, rest) = bytes.as_chunks::<64>();
        let mut wide = u64::from(state);
        for line in lines {
            // Unrolled: a loop over words doubles the instructions.
            let (words, _) = line.as_chunks::<8>();
            for word in words {
                wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
        }
        let mut state = wide as u32;
        for &byte in rest {
            state = _mm_crc32_u8(state, byte);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.finish()
    }

    /// RFC 3720, appendix B.4.
    #[test]
    fn crc_of_the_vectors_of_rfc_3720_is_as_published() {
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&ascending), 0x46dd_794e);
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(b""), 0);
    }

    #[test]
    fn crc_in_parts_by_either_method_is_the_same() {
        let bytes: [u8; 1000] = core::array::from_fn(|i| (i * 31 + i / 7) as u8);
        let whole = of(&bytes);
        assert_eq!(!by_tables(u32::MAX, &bytes), whole);
        for cut in [0, 1, 7, 8, 63, 64, 65, 500, 999, 1000] {
            let (first, second) = bytes.split_at(cut);
            let mut crc = Crc32c::new();
            crc.update(first);
            crc.update(second);
            assert_eq!(crc.finish(), whole, "{cut}");
            let tables = by_tables(by_tables(u32::MAX, first), second);
            assert_eq!(!tables, whole, "{cut}");
        }
    }
}
