//! Invariant CRC (vol. 1, 7.8.1; annex A17.3.3): CRC-32 of Ethernet over everything that no
//! router changes. What routers may change counts as ones; eight bytes of ones stand in for the
//! local route header. It is stored least significant byte first.

use super::frame::Network;
use drivers::hal::{BLOCK, Crc32, Window};

/// Length in bytes.
pub const LEN: usize = 4;

/// What stands in for the local route header.
const STAND_IN: usize = 8;

/// The byte of the BTH that holds congestion notifications.
const BTH_RESERVED: usize = 4;

/// Blocks that the longest headers with the stand-in and odd bytes take: 8 + 60 + 15 bytes.
const MAX_HEAD: usize = 6;

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

    /// The ICRC of a packet, as it is stored: over `headers`, which begin with network header (IP
    /// and UDP, or GRH) and BTH and go on with as much as lies behind them, over what `rest` holds, and over
    /// `pad` bytes of 0.
    #[inline]
    pub fn compute(
        &self,
        network: Network,
        headers: &[u8],
        rest: &[Window],
        pad: usize,
    ) -> [u8; LEN] {
        let crc = match network {
            Network::Ipv4 => self.over(headers, mask_ipv4, rest, pad),
            Network::Ipv6 => self.over(headers, mask_ipv6_and_udp, rest, pad),
            Network::Grh => self.over(headers, mask_grh, rest, pad),
        };
        crc.to_le_bytes()
    }

    /// With the first `N` bytes of the headers as `mask` leaves them.
    ///
    /// The CRC is cheapest over whole blocks: `headers` are made to end with one, by copying the odd
    /// bytes behind the first `N`, and zeros before the stand-in, which count for nothing.
    #[inline]
    fn over<const N: usize>(
        &self,
        headers: &[u8],
        mask: fn(&mut [u8; N]),
        rest: &[Window],
        pad: usize,
    ) -> u32 {
        let Some(fixed) = headers.first_chunk::<N>() else { return 0 };
        let (front, body) = headers.split_at(N + (headers.len() - N) % BLOCK);
        let mut blocks = [[0; BLOCK]; MAX_HEAD];
        let begin = (STAND_IN + front.len()).wrapping_neg() % BLOCK;
        let count = (begin + STAND_IN + front.len()) / BLOCK;
        // The odd bytes come with what stands before them, and that is written over.
        if let (Some(last), Some(tail)) = (blocks.get_mut(count - 1), front.last_chunk()) {
            *last = *tail;
        }
        let bytes = blocks.as_flattened_mut();
        // Of its ones the first four are inverted, for a register that starts as ones.
        if let Some(place) = bytes.get_mut(begin..begin + STAND_IN) {
            place.copy_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        }
        let place = bytes.get_mut(begin + STAND_IN..).unwrap_or_default();
        if let Some(masked) = place.first_chunk_mut::<N>() {
            *masked = *fixed;
            mask(masked);
        }
        self.crc.compute(blocks.get(..count).unwrap_or_default(), body, rest, pad)
    }
}

fn mask_ipv4(headers: &mut [u8; 40]) {
    headers[1] = 0xff;
    headers[8] = 0xff;
    headers[10..12].fill(0xff);
    headers[26..28].fill(0xff);
    headers[28 + BTH_RESERVED] = 0xff;
}

fn mask_ipv6_and_udp(headers: &mut [u8; 60]) {
    mask_ipv6(headers);
    headers[46..48].fill(0xff);
    headers[48 + BTH_RESERVED] = 0xff;
}

fn mask_grh(headers: &mut [u8; 52]) {
    mask_ipv6(headers);
    headers[40 + BTH_RESERVED] = 0xff;
}

/// Traffic class, flow label and hop limit.
fn mask_ipv6(headers: &mut [u8]) {
    headers[0] |= 0x0f;
    headers[1..4].fill(0xff);
    headers[7] = 0xff;
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
            "0400ffff0000001180000001",
            "68656c6c6f212121"
        ));
        let icrc = Icrc::new().compute(Network::Ipv4, &send, &[], 0);
        assert_eq!(icrc, [0x3b, 0xd3, 0xe2, 0x6c]);

        let ack = hex(concat!(
            "45000030000140004011b968c0a80002c0a80001",
            "c00112b7001c0000",
            "1100ffff0000001200000001",
            "1f000001"
        ));
        let icrc = Icrc::new().compute(Network::Ipv4, &ack, &[], 0);
        assert_eq!(icrc, [0x39, 0xf0, 0x48, 0x02]);
    }
}
