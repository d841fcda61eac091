//! Test vectors: messages from captures of Linux peers.

use std::vec::Vec;

/// The message with a name.
pub fn vector(name: &str) -> Vec<u8> {
    let text = include_str!("../testdata/linux-6.12.txt");
    let hex = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("no vector {name}"));
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}
