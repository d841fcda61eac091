//! Limits the MSS option of SYNs (RFC 9293 section 3.7.1) to the link's MTU for the address family.
//!
//! smoltcp offers the MSS of the card's MTU, and limits its segments to the peer's offer. If a DHCP server or a router
//! announces a smaller MTU, the option is rewritten in SYNs of both directions, so that neither side sends larger
//! packets. When the MTU changes later, our segments on open connections follow (`connections/paths`); peers keep the
//! offered MSS.

use crate::link::ETHERNET_HEADER;
use crate::segment::{self, SYN};
use alloc::vec::Vec;

const TCP: u8 = 6;
/// Length of a TCP header without options, and offsets of its data offset and flags.
const FIXED: usize = 20;
const OFFSET: usize = 12;
const FLAGS: usize = 13;
/// Options of TCP.
const END: u8 = 0;
const PADDING: u8 = 1;
const MSS: u8 = 2;

/// Length of the IP header and of the whole packet, if the frame has a SYN.
#[inline]
fn extent(frame: &[u8]) -> Option<(usize, usize)> {
    let packet = frame.get(ETHERNET_HEADER..)?;
    let word = |at: usize| Some(usize::from(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
    let (protocol, header, length) = match packet.first()? {
        first if first >> 4 == 4 => (*packet.get(9)?, usize::from(first & 15) * 4, word(2)?),
        _ => (*packet.get(6)?, 40, 40 + word(4)?),
    };
    let flags = packet.get(header + FLAGS)?;
    (protocol == TCP && flags & SYN != 0).then_some((header, length))
}

/// A copy of the frame with a smaller MSS, if it has a SYN whose MSS exceeds packets of `mtu` bytes.
#[inline]
pub fn clamp(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let (header, length) = extent(frame)?;
    clamped(frame.get(..ETHERNET_HEADER + length)?, header, mtu)
}

#[cold]
fn clamped(frame: &[u8], header: usize, mtu: usize) -> Option<Vec<u8>> {
    let limit = u16::try_from(mtu.saturating_sub(header + FIXED)).ok()?;
    let tcp = frame.get(ETHERNET_HEADER + header..)?;
    let options = tcp.get(FIXED..usize::from(tcp.get(OFFSET)? >> 4) * 4)?;
    let mut at = 0;
    let place = loop {
        match *options.get(at..)? {
            [PADDING, ..] => at += 1,
            [MSS, 4, a, b, ..] => {
                let larger = u16::from_be_bytes([a, b]) > limit;
                break larger.then_some(ETHERNET_HEADER + header + FIXED + at + 2)?;
            }
            [END, ..] | [_, 0 | 1, ..] | [_] | [] => return None,
            [_, length, ..] => at += usize::from(length),
        }
    };
    let mut frame = Vec::from(frame);
    frame.get_mut(place..)?.first_chunk_mut::<2>()?.copy_from_slice(&limit.to_be_bytes());
    segment::seal(&mut frame);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{ACK, Ends, Segment};
    use crate::testing::tcp;

    fn ends(from: &str, to: &str) -> Ends {
        let (remote, local) = (from.parse().unwrap(), to.parse().unwrap());
        Ends { local_port: 80, remote_port: 4000, remote, local }
    }

    #[test]
    fn mss_of_a_syn_is_limited_by_the_family_mtu() {
        for (ends, mtu, limit) in
            [(ends("10.0.0.2", "10.0.0.1"), 1400, 1360), (ends("fd00::2", "fd00::1"), 1280, 1220)]
        {
            for flags in [SYN, SYN | ACK] {
                let options = [1, 1, 4, 2, 2, 4, 5, 0xb4, 3, 3, 7, 0];
                let frame = tcp(ends, flags, 7, 0, &options, &[]);
                assert_eq!(clamp(&frame, 1600), None, "it offers less");
                let padded = [&frame[..], &[0; 6]].concat();
                let clamped = clamp(&padded, mtu).unwrap();
                let segment = Segment::of(&clamped).expect("its checksum is right");
                let [a, b] = u16::to_be_bytes(limit);
                assert_eq!(segment.options, [1, 1, 4, 2, 2, 4, a, b, 3, 3, 7, 0]);
                assert_eq!((segment.ends, segment.sequence), (ends, 7));
            }
        }
    }

    #[test]
    fn segment_without_syn_or_option_is_unchanged() {
        let ends = ends("10.0.0.2", "10.0.0.1");
        let mss = [2, 4, 5, 0xb4];
        assert_eq!(clamp(&tcp(ends, ACK, 7, 1, &mss, &[]), 576), None);
        for options in [&[][..], &[0, 0, 0, 0], &[2, 3, 5, 0], &[8, 0, 5, 0], &[8, 250, 5, 0]] {
            assert_eq!(clamp(&tcp(ends, SYN, 7, 1, options, &[]), 576), None, "{options:?}");
        }
        let frame = tcp(ends, SYN, 7, 1, &mss, &[]);
        for cut in 0..frame.len() {
            assert_eq!(clamp(&frame[..cut], 576), None);
        }
        let (from, to) = (ends.remote, ends.local);
        assert_eq!(clamp(&crate::testing::udp(from, to, 9, 10, &[255; 40]), 576), None);
    }
}
