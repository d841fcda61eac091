//! Little-endian register accesses of 1 to 8 bytes.

/// The number in the first 8 bytes at most.
pub fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    let count = bytes.len().min(8);
    whole[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(whole)
}

/// Fills `into` with the bytes from `offset` on. `byte` returns the byte at an offset.
pub fn read_bytes(offset: u64, into: &mut [u8], byte: impl Fn(u64) -> u8) {
    for (at, place) in (offset..).zip(into) {
        *place = byte(at);
    }
}

/// Byte number `at` of `value`.
pub fn byte_of(value: u64, at: u64) -> u8 {
    value.to_le_bytes().get(at as usize).copied().unwrap_or(0)
}

/// Replaces a half of `whole`: the lower one if `at` is 0, else the upper one.
pub fn with_half(whole: u64, at: u64, half: u32) -> u64 {
    match at {
        0 => whole & !0xffff_ffff | u64::from(half),
        _ => whole & 0xffff_ffff | u64::from(half) << 32,
    }
}
