//! Patterns of messages, as in `peer/riocm.py`.

/// `size` bytes of the pattern of `seed`.
pub fn bytes(seed: usize, size: usize) -> Vec<u8> {
    (0..size).map(|i| (seed * 31 + i * 7 + (i >> 8) * 3) as u8).collect()
}

/// Length and CRC-32 of bytes, in the form of the peer's log.
pub fn summary(bytes: &[u8]) -> String {
    format!("{} {:08x}", bytes.len(), crc32fast::hash(bytes))
}
