//! The Internet checksum (RFC 1071), at less than half an instruction per byte.

use core::net::IpAddr;

/// Sum of the big-endian 16-bit words of `bytes`, not negated. An odd last byte is padded with 0. Partial sums are
/// added as integers, then [`fold`]ed.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    // The sum is independent of byte order (section 2 B), and 2^16 = 1 modulo 2^16 - 1. So 64-bit words in native
    // byte order give the same sum if carries are added back. Unrolled by four, because the final build of the image
    // does not vectorise loops.
    let mut sum = 0;
    let mut add = |word: u64| {
        let (all, carry) = u64::overflowing_add(sum, word);
        sum = all + u64::from(carry);
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let (blocks, words) = words.as_chunks::<4>();
    for [one, two, three, four] in blocks {
        add(u64::from_ne_bytes(*one));
        add(u64::from_ne_bytes(*two));
        add(u64::from_ne_bytes(*three));
        add(u64::from_ne_bytes(*four));
    }
    for word in words {
        add(u64::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        add(u32::from_ne_bytes(*word).into());
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    add(u32::from_ne_bytes(last).into());
    u64::from(u16::from_be(fold(sum)))
}

/// The sum in 16 bits, carries added back. A packet that includes its own checksum gives 0xffff.
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Sum of the pseudo-header of a packet of `length` bytes over `protocol`.
pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u64 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    address(source) + address(destination) + u64::from(protocol) + length as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The algorithm as RFC 1071 states it.
    fn reference(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let mut sum: u32 = bytes.chunks(2).map(word).sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn sum_matches_rfc_1071(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(fold(sum(&bytes)), reference(&bytes));
        }
    }

    #[test]
    fn all_ones_stay_all_ones() {
        assert_eq!(fold(sum(&[0xff; 9000])), 0xffff);
        assert_eq!(fold(sum(&[0; 9000])), 0);
        assert_eq!(fold(u64::MAX), 0xffff);
    }
}
