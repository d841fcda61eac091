//! Random changes of inputs.

use netsim::Rng;
use rand_core::Rng as _;

/// Boundary values at which code tends to fail.
const EDGES: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0x40];

/// An input of `corpus` with a few changes.
pub fn mutate(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let any = |rng: &mut Rng| &corpus[rng.within(0..corpus.len() as u64) as usize];
    let mut bytes = any(rng).clone();
    for _ in 0..rng.within(0..6) {
        let len = bytes.len() as u64;
        let at = rng.within(0..len + 1) as usize;
        let some = at..(at + rng.within(0..20) as usize).min(bytes.len());
        match rng.within(0..9) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(some)),
            2 => {
                let copy = bytes[some].to_vec();
                bytes.splice(at..at, copy);
            }
            3 => {
                // The rest of another input.
                let other = any(rng);
                let from = rng.within(0..other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            4 => bytes.insert(at, rng.next_u32() as u8),
            5 => bytes[some].iter_mut().for_each(|byte| *byte = rng.next_u32() as u8),
            what if (at as u64) < len => match what {
                6 => bytes[at] ^= 1 << rng.within(0..8),
                7 => bytes[at] = rng.pick(&EDGES),
                _ => bytes[at] = bytes[at].wrapping_add(rng.pick(&[1, 0xff])),
            },
            _ => (),
        }
    }
    bytes.truncate(1 << 16);
    bytes
}
