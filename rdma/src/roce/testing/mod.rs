//! What the tests of this module share: hexadecimal text and captures.

mod pair;

pub use pair::{Faults, Pair, frame};

use drivers::hal::Window;
use rand_core::RngCore;
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

/// A seeded generator (SplitMix64): good enough to test with, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Whether something with that probability (in thousandths) happens.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.next_u64() % 1000 < per_mille as u64
    }
}

impl RngCore for Rng {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn fill_bytes(&mut self, into: &mut [u8]) {
        for byte in into {
            *byte = self.next_u64() as u8;
        }
    }
}

/// The bytes of a window.
pub fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = std::vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}
