//! Access to fields of messages whose length is checked. Offsets are constants.

use core::ops::Range;

/// The bytes of a field, as an array for `from_le_bytes`.
///
/// # Panics
/// If the field is beyond the message or does not have `N` bytes.
pub fn array<const N: usize>(message: &[u8], field: Range<usize>) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[field]);
    bytes
}

/// Sets the bytes of a field.
///
/// # Panics
/// If the field is beyond the message or differs from `bytes` in length.
pub fn put(message: &mut [u8], field: Range<usize>, bytes: &[u8]) {
    message[field].copy_from_slice(bytes);
}
