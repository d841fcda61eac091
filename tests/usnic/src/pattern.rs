//! Patterns of messages and PUTs, as in `btlpeer`.

/// Byte `i` of the pattern of `seed`.
fn byte(seed: u32, i: usize) -> u8 {
    (seed.wrapping_mul(31) as usize).wrapping_add(i * 7).wrapping_add(i >> 8) as u8
}

/// Message `number` of `length` bytes. The first eight bytes are number and length, little-endian, as far as they fit.
pub fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = put(number, length);
    let head = [number.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    let reaches = length.min(head.len());
    bytes[..reaches].copy_from_slice(&head[..reaches]);
    bytes
}

/// Checks a message, and returns the part of its number that it contains.
pub fn check(message: &[u8]) -> Option<u32> {
    let mut head = [0; 4];
    let known = message.len().min(head.len());
    head[..known].copy_from_slice(&message[..known]);
    let number = u32::from_le_bytes(head);
    (self::message(number, message.len()) == message).then_some(number)
}

/// The pattern of a PUT.
pub fn put(seed: u32, length: usize) -> Vec<u8> {
    (0..length).map(|i| byte(seed, i)).collect()
}
