//! Test vectors: messages from captures of Linux peers (version 2), and published ones of version 1.

use std::vec::Vec;

/// The first message with a name.
pub fn vector(name: &str) -> Vec<u8> {
    vectors(name).swap_remove(0)
}

/// All messages with a name, in order.
pub fn vectors(name: &str) -> Vec<Vec<u8>> {
    let text = include_str!("../testdata/linux-6.12.txt");
    let named = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let all: Vec<_> = named.map(netsim::hex).collect();
    assert!(!all.is_empty(), "no vector {name}");
    all
}
