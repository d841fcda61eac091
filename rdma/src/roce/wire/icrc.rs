//! Invariant CRC (vol. 1, 7.8.1; annex A17.3.3): CRC-32 of Ethernet over everything that no
//! router changes. What routers may change counts as ones; eight bytes of ones stand in for the
//! local route header. It is stored least significant byte first.

use super::bth;
use super::frame::Network;
use crc32fast::Hasher;

/// Length in bytes.
pub const LEN: usize = 4;

/// CRC-32 of eight bytes of ones.
const ALL_ONES: u32 = 0x2144_df1c;

/// Longest network header: IPv6 and UDP.
const MAX_NETWORK: usize = 48;

/// A copy of network header and BTH in which everything that routers may change is ones.
#[derive(Debug)]
pub struct Masked {
    bytes: [u8; MAX_NETWORK + bth::LEN],
    len: usize,
}

impl Masked {
    /// From `headers`: the network header (IP and UDP, or GRH) and the BTH, and no more than that.
    #[inline]
    pub fn new(network: Network, headers: &[u8]) -> Self {
        let mut masked = Masked { bytes: [0; MAX_NETWORK + bth::LEN], len: 0 };
        let len = network.len() + bth::LEN;
        let (Some(into), Some(from)) = (masked.bytes.get_mut(..len), headers.get(..len)) else {
            return masked;
        };
        into.copy_from_slice(from);
        match network {
            Network::Ipv4 => {
                into[1] = 0xff;
                into[8] = 0xff;
                into[10..12].fill(0xff);
                into[26..28].fill(0xff);
            }
            Network::Ipv6 => {
                mask_ipv6(into);
                into[46..48].fill(0xff);
            }
            Network::Grh => mask_ipv6(into),
        }
        into[network.len() + 4] = 0xff;
        masked.len = len;
        masked
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Traffic class, flow label and hop limit.
fn mask_ipv6(header: &mut [u8]) {
    header[0] |= 0x0f;
    header[1..4].fill(0xff);
    header[7] = 0xff;
}

/// Computes ICRCs. The kind of computation (carry-less multiplication or tables) is chosen once.
#[derive(Clone, Debug)]
pub struct Icrc {
    seed: Hasher,
}

impl Default for Icrc {
    fn default() -> Self {
        Self::new()
    }
}

impl Icrc {
    /// Chooses the kind of computation.
    pub fn new() -> Self {
        Icrc { seed: Hasher::new_with_initial(ALL_ONES) }
    }

    /// The ICRC over masked headers and what follows them up to the ICRC, in order.
    #[inline]
    pub fn compute(&self, parts: &[&[u8]]) -> [u8; LEN] {
        let mut hasher = self.seed.clone();
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::testing::hex;

    #[test]
    fn published_vectors() {
        let send = hex(concat!(
            "45000034123440004011a731c0a80001c0a80002",
            "c00012b700200000",
            "0400ffff0000001180000001"
        ));
        let masked = Masked::new(Network::Ipv4, &send);
        let icrc = Icrc::new().compute(&[masked.as_slice(), b"hello!!!"]);
        assert_eq!(icrc, [0x3b, 0xd3, 0xe2, 0x6c]);

        let ack = hex(concat!(
            "45000030000140004011b968c0a80002c0a80001",
            "c00112b7001c0000",
            "1100ffff0000001200000001"
        ));
        let masked = Masked::new(Network::Ipv4, &ack);
        let icrc = Icrc::new().compute(&[masked.as_slice(), &[0x1f, 0, 0, 1]]);
        assert_eq!(icrc, [0x39, 0xf0, 0x48, 0x02]);
    }

    #[test]
    fn seed_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), ALL_ONES);
    }
}
