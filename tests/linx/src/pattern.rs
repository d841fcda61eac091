//! What messages are made of, as `peer/riocm.py` makes them.

/// `size` bytes by `seed`.
pub fn bytes(seed: usize, size: usize) -> Vec<u8> {
    (0..size).map(|i| (seed * 31 + i * 7 + (i >> 8) * 3) as u8).collect()
}

/// How the peer tells of bytes: their number and CRC-32.
pub fn told(bytes: &[u8]) -> String {
    format!("{} {:08x}", bytes.len(), crc32fast::hash(bytes))
}
