//! Helpers for bytes in tests.

use drivers::hal::Window;

/// Parses hexadecimal text. Characters that are not digits are skipped.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The bytes of a window.
///
/// # Panics
/// Never, because the read has the window's length.
pub fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}
