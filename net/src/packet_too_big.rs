//! Parses routers' reports that a TCP segment of ours was too large: ICMP "fragmentation needed" (RFC 1191) and ICMPv6
//! "packet too big" (RFC 4443 section 3.2). Reports can be forged, so the caller must compare the quoted segment with
//! the connection.

use crate::checksum::{fold, pseudo, sum};
use crate::port_addresses::PortAddresses;
use crate::segment::Ends;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;
const IPV6: usize = 40;
/// Length of an ICMP header; the quoted packet follows.
const ICMP: usize = 8;
const ICMP_PROTOCOL: u8 = 1;
const ICMPV6_PROTOCOL: u8 = 58;
const TCP: u8 = 6;

/// A report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBig {
    /// Ends of the quoted segment's connection.
    pub ends: Ends,
    /// Sequence number of the quoted segment.
    pub sequence: u32,
    /// MTU that the router reports; 0 if it reports none.
    pub mtu: usize,
    /// Length of the dropped packet.
    pub length: usize,
}

impl PacketTooBig {
    /// Parses a frame that the filter has accepted. None unless it is a report to an address of ours.
    pub fn of(frame: &[u8], local: &PortAddresses) -> Option<Self> {
        let packet = frame.get(ETHERNET..)?;
        match packet.first()? >> 4 {
            4 if packet.get(9) == Some(&ICMP_PROTOCOL) => Self::of_v4(packet, local),
            6 if packet.get(6) == Some(&ICMPV6_PROTOCOL) => Self::of_v6(packet, local),
            _ => None,
        }
    }

    fn of_v4(packet: &[u8], local: &PortAddresses) -> Option<Self> {
        let header = usize::from(packet.first()? & 15) * 4;
        let message = packet.get(header..usize::from(word(packet, 2)?))?;
        let icmp = message.first_chunk::<ICMP>()?;
        if icmp[..2] != [3, 4] || !local.has_v4(v4(packet, 16)?) || fold(sum(message)) != 0xffff {
            return None;
        }
        let quoted = message.get(ICMP..)?;
        if quoted.first()? >> 4 != 4 || *quoted.get(9)? != TCP {
            return None;
        }
        let segment = quoted.get(usize::from(quoted[0] & 15) * 4..)?;
        let (from, to) = (v4(quoted, 12)?.into(), v4(quoted, 16)?.into());
        Self::about(segment, from, to, word(icmp, 6)?.into(), word(quoted, 2)?.into())
    }

    fn of_v6(packet: &[u8], local: &PortAddresses) -> Option<Self> {
        let end = IPV6 + usize::from(word(packet, 4)?);
        let message = packet.get(IPV6..end)?;
        let icmp = message.first_chunk::<ICMP>()?;
        let (source, destination) = (v6(packet, 8)?, v6(packet, 24)?);
        if icmp[..2] != [2, 0] || !local.has_v6(destination) {
            return None;
        }
        let addresses = pseudo(source.into(), destination.into(), ICMPV6_PROTOCOL, message.len());
        if fold(addresses + sum(message)) != 0xffff {
            return None;
        }
        let quoted = message.get(ICMP..)?;
        if quoted.first()? >> 4 != 6 || *quoted.get(6)? != TCP {
            return None;
        }
        let mtu = u32::from(word(icmp, 4)?) << 16 | u32::from(word(icmp, 6)?);
        let length = IPV6 + usize::from(word(quoted, 4)?);
        let (from, to) = (v6(quoted, 8)?.into(), v6(quoted, 24)?.into());
        Self::about(quoted.get(IPV6..)?, from, to, mtu as usize, length)
    }

    /// The report about a quoted segment, of which at least eight bytes are needed.
    fn about(
        segment: &[u8],
        local: IpAddr,
        remote: IpAddr,
        mtu: usize,
        length: usize,
    ) -> Option<Self> {
        let (local_port, remote_port) = (word(segment, 0)?, word(segment, 2)?);
        let sequence = u32::from(word(segment, 4)?) << 16 | u32::from(word(segment, 6)?);
        let ends = Ends { local_port, remote_port, remote, local };
        Some(PacketTooBig { ends, sequence, mtu, length })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn v4(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?))
}

fn v6(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::ACK;
    use crate::testing::{OUR_MAC, tcp, too_big};
    use std::vec::Vec;

    fn local() -> PortAddresses {
        let v4 = Vec::from([Ipv4Addr::new(10, 0, 0, 1)]);
        PortAddresses { mac: OUR_MAC, v4, v6: Vec::from(["fe80::1".parse().unwrap()]) }
    }

    fn ends(v6: bool) -> Ends {
        let (from, to) = if v6 { ("fe80::2", "fe80::1") } else { ("10.0.0.2", "10.0.0.1") };
        let (remote, local) = (from.parse().unwrap(), to.parse().unwrap());
        Ends { local_port: 80, remote_port: 4000, remote, local }
    }

    #[test]
    fn report_is_parsed_and_damage_is_detected() {
        for v6 in [false, true] {
            let ends = ends(v6);
            let frame = too_big(ends, 77, 1400, 1500);
            let report = PacketTooBig { ends, sequence: 77, mtu: 1400, length: 1500 };
            assert_eq!(PacketTooBig::of(&frame, &local()), Some(report));
            for cut in 0..frame.len() {
                assert_eq!(PacketTooBig::of(&frame[..cut], &local()), None, "{cut}");
            }
            for bit in 14 * 8 + if v6 { 320 } else { 160 }..frame.len() * 8 {
                let mut damaged = frame.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(PacketTooBig::of(&damaged, &local()), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn other_packets_are_not_reports() {
        for v6 in [false, true] {
            assert_eq!(PacketTooBig::of(&tcp(ends(v6), ACK, 1, 1, &[], b"x"), &local()), None);
            let others = PortAddresses { mac: OUR_MAC, ..PortAddresses::default() };
            assert_eq!(PacketTooBig::of(&too_big(ends(v6), 1, 1400, 1500), &others), None);
        }
        assert_eq!(PacketTooBig::of(&[], &local()), None);
    }
}
