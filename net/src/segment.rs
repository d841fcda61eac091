//! Parses TCP segments (RFC 9293 section 3.1) for dispatch to their connections, and verifies and writes TCP checksums
//! in place of smoltcp.

use crate::checksum::{fold, pseudo, sum};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Length of a TCP header without options.
const FIXED: usize = 20;
const TCP: u8 = 6;
const CHECKSUM: usize = 16;

/// FIN, SYN, RST and ACK among the flags of a segment.
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// Both ends of a connection. Ordered by ports first, which differ between most connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// Our port comes first: connections of one local port are adjacent.
    pub local_port: u16,
    pub remote_port: u16,
    pub remote: IpAddr,
    pub local: IpAddr,
}

/// A segment in a received frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub ends: Ends,
    /// Sequence number and acknowledgement number.
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub options: &'a [u8],
    /// Offset of the end of its packet in the frame.
    pub end: usize,
}

impl<'a> Segment<'a> {
    /// Parses a frame with TCP over IP without extension headers. None if the segment is truncated or its checksum is
    /// wrong. The filter verifies the IPv4 header checksum.
    #[inline]
    pub fn of(frame: &'a [u8]) -> Option<Self> {
        let packet = frame.get(ETHERNET..)?;
        let (remote, local, header, end): (IpAddr, IpAddr, usize, usize) = match packet.first()?
            >> 4
        {
            4 => {
                let ip = packet.first_chunk::<IPV4>()?;
                let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
                let end = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                if ip[9] != TCP || ip[0] & 15 < 5 {
                    return None;
                }
                (address(12).into(), address(16).into(), usize::from(ip[0] & 15) * 4, end)
            }
            _ => {
                let ip = packet.first_chunk::<IPV6>()?;
                let address = |at: usize| -> Option<Ipv6Addr> {
                    ip.get(at..at + 16)?.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes))
                };
                let end = IPV6 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                if ip[6] != TCP {
                    return None;
                }
                (address(8)?.into(), address(24)?.into(), IPV6, end)
            }
        };
        let bytes = packet.get(header..end)?;
        let tcp = bytes.first_chunk::<FIXED>()?;
        let options = bytes.get(FIXED..usize::from(tcp[12] >> 4) * 4)?;
        if fold(pseudo(remote, local, TCP, bytes.len()) + sum(bytes)) != 0xffff {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let number =
            |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let (remote_port, local_port) = (port(0), port(2));
        if remote_port == 0 || local_port == 0 {
            return None;
        }
        Some(Segment {
            ends: Ends { local_port, remote_port, remote, local },
            sequence: number(4),
            acknowledged: number(8),
            flags: tcp[13],
            options,
            end: ETHERNET + end,
        })
    }

    /// Whether it opens a connection: SYN without ACK, RST and FIN.
    pub fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }
}

/// Extent of a segment that we send: sequence number, length in sequence space (data, SYN and FIN), and length of the
/// packet.
#[inline]
pub fn extent(frame: &[u8]) -> Option<(u32, u32, usize)> {
    let packet = frame.get(ETHERNET..)?;
    let header = if packet.first()? >> 4 == 4 { IPV4 } else { IPV6 };
    let tcp = packet.get(header..)?.first_chunk::<FIXED>()?;
    let data = packet.len().checked_sub(header + usize::from(tcp[12] >> 4) * 4)?;
    let flags = (tcp[13] & (SYN | FIN)).count_ones();
    let first = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    Some((first, data as u32 + flags, packet.len()))
}

/// Writes the TCP checksum of a frame to be sent. Frames without TCP are unchanged.
#[inline]
pub fn seal(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(ETHERNET..) else { return };
    let (header, addresses) = match packet.first().map(|first| first >> 4) {
        Some(4) if packet.get(9) == Some(&TCP) => (usize::from(packet[0] & 15) * 4, 12..20),
        Some(6) if packet.get(6) == Some(&TCP) => (IPV6, 8..40),
        _ => return,
    };
    let Some(addresses) = packet.get(addresses).map(sum) else { return };
    let Some(tcp) = packet.get_mut(header..) else { return };
    if tcp.len() < FIXED {
        return;
    }
    tcp[CHECKSUM..CHECKSUM + 2].fill(0);
    let checksum = !fold(addresses + u64::from(TCP) + tcp.len() as u64 + sum(tcp));
    tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tcp;
    use std::vec::Vec;

    #[test]
    fn segment_is_parsed_and_damage_is_detected() {
        for (from, to) in [("10.0.0.2", "10.0.0.1"), ("fe80::2", "fe80::1")] {
            let (remote, local) = (from.parse().unwrap(), to.parse().unwrap());
            let ends = Ends { local_port: 80, remote_port: 4000, remote, local };
            let frame = tcp(ends, SYN, 7, 0, &[2, 4, 5, 0xb4], b"x");
            let segment = Segment::of(&frame).unwrap();
            assert_eq!((segment.ends, segment.sequence, segment.end), (ends, 7, frame.len()));
            assert!(segment.opens() && segment.options == [2, 4, 5, 0xb4]);
            // Ethernet padding is not part of the segment.
            let padded = [&frame[..], &[0; 9]].concat();
            assert_eq!(Segment::of(&padded).unwrap().end, frame.len());
            for cut in 0..frame.len() {
                assert!(Segment::of(&frame[..cut]).is_none());
            }
            for bit in 40 * 8..frame.len() * 8 {
                let mut damaged = frame.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Segment::of(&damaged).is_none(), "bit {bit}");
            }
            let ip = frame.len() - 14;
            assert_eq!(extent(&frame), Some((7, 2, ip)), "a SYN and a byte");
            assert_eq!(
                extent(&tcp(ends, ACK, 9, 1, &[], b"four")).map(|e| (e.0, e.1)),
                Some((9, 4))
            );
            let mut sealed = frame.clone();
            let at = frame.len() - 9;
            sealed[at..at + 2].fill(0x55);
            seal(&mut sealed);
            assert_eq!(sealed, frame);
        }
    }

    #[test]
    fn other_frames_are_unchanged() {
        let (from, to) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let datagram = crate::testing::udp(from, to, 9, 10, b"data");
        let mut sealed = datagram.clone();
        seal(&mut sealed);
        assert_eq!(sealed, datagram);
        assert!(Segment::of(&datagram).is_none());
        seal(&mut []);
        seal(&mut Vec::from([0x45; 30]));
    }
}
