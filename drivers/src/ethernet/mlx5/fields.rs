//! Fields of the device's structures, which are big-endian: named by the bit they begin with and their width, as
//! `mlx5_ifc.h` counts. Bit 0 is the top bit of the first word.

/// The field of `width` bits, at most 32 within a word; 0 where there are no bytes.
pub fn get(bytes: &[u8], bit: usize, width: usize) -> u32 {
    let word = u64::from(word(bytes, bit / 32 * 4));
    (word >> (32 - bit % 32 - width) & ((1 << width) - 1)) as u32
}

/// Sets the field. Panics where there are no bytes: structures are as long as we made them.
pub fn set(bytes: &mut [u8], bit: usize, width: usize, value: u32) {
    let at = bit / 32 * 4;
    let shift = 32 - bit % 32 - width;
    let mask = (((1u64 << width) - 1) << shift) as u32;
    let old = word(bytes, at);
    put(bytes, at, old & !mask | (u64::from(value) << shift) as u32 & mask);
}

/// The word at this byte; 0 where there is none.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map_or(0, |four| u32::from_be_bytes(*four))
}

/// Sets the word at this byte. Panics as [`set`].
pub fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Likewise, 64 bits.
pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
