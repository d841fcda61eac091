//! Initial sequence numbers that we choose: SYN cookies, and the numbers of RFC 6528 ([`crate::isn`]).
//!
//! smoltcp draws its sequence numbers from a small generator, which is predictable after a few of them. [`seed`]
//! returns the seed from which that generator draws a given number.

/// The seed of a smoltcp interface whose first connection has the initial sequence number `number`.
pub fn seed(number: u32) -> u64 {
    // `smoltcp::rand` is sPCG32: a linear congruential generator of 64 bits. A draw returns 32 bits of the state, from
    // bit 29 on if the three highest bits are 0. An interface first draws its IP identification, repeatedly while that
    // is 0, and then the sequence number.
    const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
    const INCREMENT: u64 = 0x7590_ef39;
    const INVERSE: u64 = inverse(MULTIPLIER);
    let back = |state: u64| state.wrapping_sub(INCREMENT).wrapping_mul(INVERSE);
    let mut state = u64::from(number) << 29;
    loop {
        let before = back(state);
        let drawn = (before >> (29 - (before >> 61))) as u32;
        if (drawn ^ drawn >> 16) as u16 != 0 {
            return back(before);
        }
        state += 1;
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's method.
const fn inverse(number: u64) -> u64 {
    let mut inverse = number;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(number.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}
