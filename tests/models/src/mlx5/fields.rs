//! Fields of the device's big-endian structures. A field is named by its first bit and its width. Bit 0 is the top bit
//! of the first word, as in the manual.

pub use crate::big_endian::{be16, be32, be64, put16, put32, put64};

/// Reads the field of `width` bits (at most 32, within a word; or 64) at `bit`. Bytes beyond the end are 0.
pub fn get(bytes: &[u8], bit: usize, width: usize) -> u64 {
    if width == 64 {
        return get(bytes, bit, 32) << 32 | get(bytes, bit + 32, 32);
    }
    let word = u64::from(be32(bytes, bit / 32 * 4));
    word >> (32 - bit % 32 - width) & ((1 << width) - 1)
}

/// Writes a field. Bytes beyond the end are ignored.
pub fn set(bytes: &mut [u8], bit: usize, width: usize, value: u64) {
    if width == 64 {
        set(bytes, bit, 32, value >> 32);
        return set(bytes, bit + 32, 32, value & 0xffff_ffff);
    }
    let at = bit / 32 * 4;
    let (shift, old) = (32 - bit % 32 - width, be32(bytes, at));
    let mask = (((1u64 << width) - 1) << shift) as u32;
    if bytes.len() >= at + 4 {
        put32(bytes, at, old & !mask | ((value << shift) as u32) & mask);
    }
}
