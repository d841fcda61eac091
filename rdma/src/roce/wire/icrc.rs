//! Invariant CRC (vol. 1, 7.8.1; annex A17.3.3): CRC-32 of Ethernet over everything that no
//! router changes. What routers may change counts as ones; eight bytes of ones stand in for the
//! local route header. It is stored least significant byte first.

use super::frame::Network;
use drivers::hal::{Crc32, Part};

/// Length in bytes.
pub const LEN: usize = 4;

/// What stands in for the local route header.
const STAND_IN: usize = 8;

/// The byte of the BTH that holds congestion notifications.
const BTH_RESERVED: usize = 4;

/// Computes ICRCs. The kind of computation (carry-less multiplication or tables) is chosen once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Icrc {
    crc: Crc32,
}

impl Icrc {
    /// Chooses the kind of computation.
    pub fn new() -> Self {
        Icrc { crc: Crc32::detect() }
    }

    /// The ICRC of a packet, as it is stored: over network header (IP and UDP, or GRH) and BTH,
    /// with which `headers` begins, and over what follows them up to the ICRC.
    #[inline]
    pub fn compute(&self, network: Network, headers: &[u8], rest: &[Part<'_>]) -> [u8; LEN] {
        let crc = match network {
            Network::Ipv4 => {
                let mut masked = stand_in_and::<40, 48>(headers);
                masked[STAND_IN + 1] = 0xff;
                masked[STAND_IN + 8] = 0xff;
                masked[STAND_IN + 10..STAND_IN + 12].fill(0xff);
                masked[STAND_IN + 26..STAND_IN + 28].fill(0xff);
                masked[STAND_IN + 28 + BTH_RESERVED] = 0xff;
                self.crc.compute(&masked, rest)
            }
            Network::Ipv6 => {
                let mut masked = stand_in_and::<60, 68>(headers);
                mask_ipv6(&mut masked);
                masked[STAND_IN + 46..STAND_IN + 48].fill(0xff);
                masked[STAND_IN + 48 + BTH_RESERVED] = 0xff;
                self.crc.compute(&masked, rest)
            }
            Network::Grh => {
                let mut masked = stand_in_and::<52, 60>(headers);
                mask_ipv6(&mut masked);
                masked[STAND_IN + 40 + BTH_RESERVED] = 0xff;
                self.crc.compute(&masked, rest)
            }
        };
        crc.to_le_bytes()
    }
}

/// The stand-in, and the first `N` bytes of the headers (ones, if there are fewer: no such packet
/// gets here).
#[inline]
fn stand_in_and<const N: usize, const ALL: usize>(headers: &[u8]) -> [u8; ALL] {
    let mut all = [0xff; ALL];
    if let (Some(from), Some(into)) = (headers.first_chunk::<N>(), all.last_chunk_mut()) {
        *into = *from;
    }
    all
}

/// Traffic class, flow label and hop limit.
fn mask_ipv6(masked: &mut [u8]) {
    masked[STAND_IN] |= 0x0f;
    masked[STAND_IN + 1..STAND_IN + 4].fill(0xff);
    masked[STAND_IN + 7] = 0xff;
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
        let icrc = Icrc::new().compute(Network::Ipv4, &send, &[Part::Bytes(b"hello!!!")]);
        assert_eq!(icrc, [0x3b, 0xd3, 0xe2, 0x6c]);

        let ack = hex(concat!(
            "45000030000140004011b968c0a80002c0a80001",
            "c00112b7001c0000",
            "1100ffff0000001200000001"
        ));
        let icrc = Icrc::new().compute(Network::Ipv4, &ack, &[Part::Bytes(&[0x1f, 0, 0, 1])]);
        assert_eq!(icrc, [0x39, 0xf0, 0x48, 0x02]);
    }
}
