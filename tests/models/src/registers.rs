//! Registers as bytes: accesses of 1 to 8 bytes, little-endian.

/// The number that was written (at most 8 bytes of it).
pub fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    let count = bytes.len().min(8);
    whole[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(whole)
}

/// Fills `into` with what is at `offset` of a register block, whose bytes `byte` knows.
pub fn read_bytes(offset: u64, into: &mut [u8], byte: impl Fn(u64) -> u8) {
    for (at, place) in (offset..).zip(into) {
        *place = byte(at);
    }
}

/// Byte number `at` of `value`.
pub fn byte_of(value: u64, at: u64) -> u8 {
    value.to_le_bytes().get(at as usize).copied().unwrap_or(0)
}

/// `whole` with one of its halves replaced: the lower one for `at` 0, the upper one for 4.
pub fn with_half(whole: u64, at: u64, half: u32) -> u64 {
    match at {
        0 => whole & !0xffff_ffff | u64::from(half),
        _ => whole & 0xffff_ffff | u64::from(half) << 32,
    }
}
