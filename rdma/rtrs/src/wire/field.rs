//! Fields of messages whose length was checked before. Offsets are constants of ours.

use core::ops::Range;

/// The bytes of a field, as an array for `from_le_bytes`.
///
/// # Panics
/// If the message is shorter than that, or the field is not of `N` bytes.
pub fn array<const N: usize>(message: &[u8], field: Range<usize>) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[field]);
    bytes
}

/// Sets the bytes of a field.
///
/// # Panics
/// If the message is shorter than that, or the field is not as long as the bytes.
pub fn put(message: &mut [u8], field: Range<usize>, bytes: &[u8]) {
    message[field].copy_from_slice(bytes);
}
