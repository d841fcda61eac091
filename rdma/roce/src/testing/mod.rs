//! Test support: hexadecimal text, captures, and a pair of providers.

mod pair;

pub use netsim::{Faults, Rng, contents, hex};
pub use pair::{Node, OverRoce, Pair, frame};

use std::vec::Vec;

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
