//! Offloads of network cards: checksums, TCP segmentation, hashes.

use crate::big_endian::{be16, be32, put16, put32};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
pub const VLAN: u16 = 0x8100;
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Headers of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// The VLAN tag.
    pub tag: Option<u16>,
    /// The type of layer 3.
    pub ethertype: u16,
    /// Offset of layer 3.
    pub network: usize,
    /// Protocol and offset of layer 4, if the frame is IP.
    pub transport: Option<(u8, usize)>,
    /// The packet is a fragment.
    pub fragment: bool,
}

impl Layers {
    /// Parses a frame.
    pub fn of(frame: &[u8]) -> Layers {
        let mut layers =
            Layers { ethertype: be16(frame, 12), network: ETHERNET, ..Layers::default() };
        if layers.ethertype == VLAN && frame.len() >= 18 {
            layers.tag = Some(be16(frame, 14));
            (layers.ethertype, layers.network) = (be16(frame, 16), 18);
        }
        let at = layers.network;
        match layers.ethertype {
            IPV4 if frame.len() >= at + 20 => {
                layers.fragment = be16(frame, at + 6) & 0x3fff != 0;
                layers.transport = Some((frame[at + 9], at + usize::from(frame[at] & 15) * 4));
            }
            IPV6 if frame.len() >= at + 40 => layers.transport = Some((frame[at + 6], at + 40)),
            _ => {}
        }
        layers
    }
}

/// Adds the ones' complement sum of big-endian words to `seed`, not inverted (RFC 1071).
pub fn sum(bytes: &[u8], seed: u32) -> u16 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    let words = words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = u64::from(seed) + last + words.sum::<u64>();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo header of a packet whose layer 4 has `length` bytes.
pub fn pseudo(frame: &[u8], layers: &Layers, protocol: u8, length: usize) -> u16 {
    let at = layers.network;
    let addresses = if layers.ethertype == IPV4 { at + 12..at + 20 } else { at + 8..at + 40 };
    sum(&frame[addresses], length as u32 + u32::from(protocol))
}

/// Fills in the checksums of a frame.
pub fn fill_sums(frame: &mut [u8], (network, transport): (bool, bool)) {
    let layers = Layers::of(frame);
    let Some((protocol, at)) = layers.transport else { return };
    if at > frame.len() {
        return;
    }
    if network && layers.ethertype == IPV4 {
        put16(frame, layers.network + 10, 0);
        let value = !sum(&frame[layers.network..at], 0);
        put16(frame, layers.network + 10, value);
    }
    let field = match protocol {
        TCP => at + 16,
        UDP => at + 6,
        _ => return,
    };
    let end = match layers.ethertype {
        IPV4 => layers.network + usize::from(be16(frame, layers.network + 2)),
        _ => at + usize::from(be16(frame, layers.network + 4)),
    };
    let end = end.min(frame.len());
    if !transport || field + 2 > end || layers.fragment {
        return;
    }
    put16(frame, field, 0);
    let seed = pseudo(frame, &layers, protocol, end - at);
    let value = match !sum(&frame[at..end], seed.into()) {
        0 if protocol == UDP => 0xffff,
        value => value,
    };
    put16(frame, field, value);
}

/// Whether a frame's checksums of layer 3 and of layer 4 are right.
pub fn check_sums(frame: &[u8]) -> (bool, bool) {
    let mut copy = frame.to_vec();
    let layers = Layers::of(frame);
    let Some((protocol, at)) = layers.transport.filter(|(_, at)| *at <= frame.len()) else {
        return (false, false);
    };
    fill_sums(&mut copy, (true, false));
    let network = copy == frame;
    copy.copy_from_slice(frame);
    fill_sums(&mut copy, (false, true));
    let none = protocol == UDP && be16(frame, at + 6) == 0;
    (network, matches!(protocol, TCP | UDP) && (copy == frame || none) && !layers.fragment)
}

/// Splits a long TCP segment into frames. The first `header` bytes are its headers.
pub fn segment(frame: &[u8], header: usize, mss: usize) -> Option<Vec<Vec<u8>>> {
    let layers = Layers::of(frame);
    let (TCP, at) = layers.transport? else { return None };
    if header < at + 20 || header > frame.len() || mss == 0 {
        return None;
    }
    let (start, payload) = frame.split_at(header);
    let mut all = Vec::new();
    let count = payload.len().div_ceil(mss);
    for (index, part) in payload.chunks(mss).enumerate() {
        let mut one = start.to_vec();
        let sequence = be32(start, at + 4).wrapping_add((index * mss) as u32);
        put32(&mut one, at + 4, sequence);
        if index + 1 < count {
            one[at + 13] &= !9; // only the last has FIN and PSH
        }
        let network = layers.network;
        if layers.ethertype == IPV6 {
            put16(&mut one, network + 4, (header - network - 40 + part.len()) as u16);
        } else {
            put16(&mut one, network + 2, (header - network + part.len()) as u16);
            let identification = be16(start, network + 4).wrapping_add(index as u16);
            put16(&mut one, network + 4, identification);
        }
        one.extend_from_slice(part);
        fill_sums(&mut one, (true, true));
        all.push(one);
    }
    Some(all)
}

/// The Toeplitz hash of the frame's fields in the mask `fields`: 1 source, 2 destination, 4 source port, 8 destination
/// port.
pub fn toeplitz(key: &[u8; 40], frame: &[u8], fields: u32) -> u32 {
    let layers = Layers::of(frame);
    let at = layers.network;
    let (source, length) = if layers.ethertype == IPV4 { (at + 12, 4) } else { (at + 8, 16) };
    let mut input = Vec::new();
    let mut take = |bit: u32, from: usize, length: usize| {
        if fields >> bit & 1 == 1 {
            input.extend_from_slice(frame.get(from..from + length).unwrap_or(&[]));
        }
    };
    take(0, source, length);
    take(1, source + length, length);
    if let Some((TCP | UDP, ports)) = layers.transport.filter(|_| !layers.fragment) {
        take(2, ports, 2);
        take(3, ports + 2, 2);
    }
    let mut hash = 0;
    let mut window = be32(key, 0);
    for (byte, next) in input.iter().zip(key[4..].iter()) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verification suite of Microsoft's specification of receive side scaling.
    #[test]
    fn toeplitz_hash_matches_the_specification() {
        let key: [u8; 40] = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0]);
        frame.extend([66, 9, 149, 187, 161, 142, 100, 80]);
        frame.extend(2794u16.to_be_bytes());
        frame.extend(1766u16.to_be_bytes());
        assert_eq!(toeplitz(&key, &frame, 15), 0x51cc_c178);
        assert_eq!(toeplitz(&key, &frame, 3), 0x323e_8fc2);
    }

    #[test]
    fn segments_have_correct_checksums() {
        let mut frame = vec![1; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0, 81, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
        frame.extend((0..2500).map(|n| n as u8));
        let all = segment(&frame, 54, 1000).unwrap();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
        for (n, one) in all.iter().enumerate() {
            assert_eq!(check_sums(one), (true, true));
            assert_eq!(be32(one, 38), 5 + 1000 * n as u32);
            assert_eq!(one[47] & 9 != 0, n == 2);
        }
    }
}
