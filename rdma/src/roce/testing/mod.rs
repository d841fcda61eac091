//! What the tests of this module share: hexadecimal text and captures.

mod pair;

pub use netsim::{Faults, Rng};
pub use pair::{Node, Pair, frame};

use drivers::hal::Window;
use std::vec::Vec;

/// The bytes of hexadecimal text.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Frames of a stock Linux client and a stock Linux server: connect (two queue pairs), INFO,
/// SESS_INFO, OPEN, the first read (kernel 6.12, rdma_rxe, rnbd).
pub fn session() -> Vec<Vec<u8>> {
    frames(include_bytes!("../testdata/rnbd-session.pcap"))
}

/// The end of that session: DREQ and DREP of both queue pairs, and an ACK before them.
pub fn disconnect() -> Vec<Vec<u8>> {
    frames(include_bytes!("../testdata/rnbd-disconnect.pcap"))
}

/// The frames of a pcap file (little-endian, Ethernet).
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        all.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    all
}

/// The bytes of a window.
pub fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = std::vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}
