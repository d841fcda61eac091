//! Fields of the device's structures. All are big-endian; a field is named by the bit it begins with and its width, as
//! the manual counts: bit 0 is the top bit of the first word.

/// The field of `width` bits (32 at most, within a word; or 64) at `bit`; 0 where there are no bytes.
pub fn get(bytes: &[u8], bit: usize, width: usize) -> u64 {
    if width == 64 {
        return get(bytes, bit, 32) << 32 | get(bytes, bit + 32, 32);
    }
    let word = u64::from(be32(bytes, bit / 32 * 4));
    word >> (32 - bit % 32 - width) & ((1 << width) - 1)
}

/// Sets the field; nothing where there are no bytes.
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

/// Bytes as a number; 0 where there are none.
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

/// See [`be16`].
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// See [`be16`].
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Sets bytes to a number.
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// See [`put16`].
pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// See [`put16`].
pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
