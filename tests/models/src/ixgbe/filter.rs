//! Receive filters and queue selection (82599, 7.1.1 to 7.1.2.8). Flow filters are accepted, and match no frame.

use super::Ixgbe;
use super::receive::Known;
use super::registers as r;
use crate::offload::{self, IPV4, IPV6, Layers, TCP, UDP};

const RSS: u32 = 1;
/// Hash types: enable bit in MRQC, RSS type in descriptors.
const IPV4_TCP: (u32, u32) = (1 << 16, 1);
const IPV4_ONLY: (u32, u32) = (1 << 17, 2);
const IPV6_ONLY: (u32, u32) = (1 << 20, 5);
const IPV6_TCP: (u32, u32) = (1 << 21, 3);
const IPV4_UDP: (u32, u32) = (1 << 22, 7);
const IPV6_UDP: (u32, u32) = (1 << 23, 8);

impl Ixgbe {
    /// Whether a frame passes the layer 2 filters.
    pub(super) fn passes(&self, frame: &[u8]) -> bool {
        let Some(to) = frame.get(..6) else { return false };
        let control = self.get(r::FCTRL);
        let address = match (to == [0xff; 6], to[0] & 1 == 1) {
            (true, _) => control & r::FCTRL_BROADCAST != 0,
            (false, true) => control & r::FCTRL_MULTICAST != 0 || self.is_in_table(to),
            (false, false) => control & r::FCTRL_UNICAST != 0 || self.is_own(to),
        };
        address && self.passes_tag(frame)
    }

    fn is_own(&self, to: &[u8]) -> bool {
        (0..r::ADDRESSES).any(|n| {
            let (low, high) = (self.get(r::RAL + 8 * n), self.get(r::RAL + 8 * n + 4));
            high & r::RAH_VALID != 0
                && to[..4] == low.to_le_bytes()
                && to[4..] == high.to_le_bytes()[..2]
        })
    }

    /// Whether the multicast table contains the address, by 12 of its upper bits.
    fn is_in_table(&self, to: &[u8]) -> bool {
        let control = self.get(r::MCSTCTRL);
        let shift = 4 - (control & 3);
        let hash = (u32::from(to[5]) << 8 | u32::from(to[4])) >> shift & 0xfff;
        let set = self.get(r::MTA + 4 * u64::from(hash >> 5)) >> (hash & 31) & 1 == 1;
        control & r::MCSTCTRL_ENABLE != 0 && set
    }

    fn passes_tag(&self, frame: &[u8]) -> bool {
        if self.get(r::VLNCTRL) & r::VLNCTRL_FILTER == 0
            || frame.get(12..14) != Some(&[0x81, 0x00])
            || frame.len() < 18
        {
            return true;
        }
        let id = u32::from(u16::from_be_bytes([frame[14], frame[15]]) & 0xfff);
        self.get(r::VFTA + 4 * u64::from(id >> 5)) >> (id & 31) & 1 == 1
    }

    /// Selects the queue of a frame by its RSS hash.
    pub(super) fn spread(&self, frame: &[u8]) -> Known {
        let control = self.get(r::MRQC);
        let layers = Layers::of(frame);
        let protocol = layers.transport.filter(|_| !layers.fragment).map(|(protocol, _)| protocol);
        let kinds: &[((u32, u32), bool)] = match (layers.ethertype, protocol) {
            (IPV4, Some(TCP)) => &[(IPV4_TCP, true), (IPV4_ONLY, false)],
            (IPV4, Some(UDP)) => &[(IPV4_UDP, true), (IPV4_ONLY, false)],
            (IPV4, _) => &[(IPV4_ONLY, false)],
            (IPV6, Some(TCP)) => &[(IPV6_TCP, true), (IPV6_ONLY, false)],
            (IPV6, Some(UDP)) => &[(IPV6_UDP, true), (IPV6_ONLY, false)],
            (IPV6, _) => &[(IPV6_ONLY, false)],
            _ => &[],
        };
        let kind = kinds.iter().find(|((field, _), _)| control & field != 0);
        let Some(((_, name), ports)) = kind.filter(|_| control & 0xf == RSS) else {
            return Known::default();
        };
        let mut key = [0; 40];
        for (n, part) in (0..).zip(key.chunks_exact_mut(4)) {
            part.copy_from_slice(&self.get(r::RSSRK + 4 * n).to_le_bytes());
        }
        let hash = offload::toeplitz(&key, frame, if *ports { 15 } else { 3 });
        let index = u64::from(hash & 0x7f);
        let entry = self.get(r::RETA + (index & !3)) >> (8 * (index & 3));
        // Without PCSD the descriptor has a checksum in the hash's place.
        let shown = self.get(r::RXCSUM) & r::RXCSUM_HASH != 0;
        Known { queue: (entry & 0xf) as usize, hash: shown.then_some((hash, *name)) }
    }
}
