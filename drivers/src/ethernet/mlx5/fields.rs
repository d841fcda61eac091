//! Fields of the device's structures, which are big-endian. A field is given by its first bit and its width, as in
//! `mlx5_ifc.h`. Bit 0 is the top bit of the first word.

/// Reads a field of `width` bits, at most 32 within a word; 0 beyond the end of `bytes`.
pub fn get(bytes: &[u8], bit: usize, width: usize) -> u32 {
    let word = u64::from(word(bytes, bit / 32 * 4));
    (word >> (32 - bit % 32 - width) & ((1 << width) - 1)) as u32
}

/// Writes a field. Panics beyond the end of `bytes`: the driver makes the structures itself.
pub fn set(bytes: &mut [u8], bit: usize, width: usize, value: u32) {
    let at = bit / 32 * 4;
    let shift = 32 - bit % 32 - width;
    let mask = (((1u64 << width) - 1) << shift) as u32;
    let old = word(bytes, at);
    put(bytes, at, old & !mask | (u64::from(value) << shift) as u32 & mask);
}

/// The word at byte `at`; 0 beyond the end of `bytes`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map_or(0, |four| u32::from_be_bytes(*four))
}

/// Writes the word at byte `at`. Panics as [`set`].
pub fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes 64 bits at byte `at`. Panics as [`set`].
pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
