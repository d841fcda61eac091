//! Input filter of the control plane: drops frames that no honest host sends to us, and unsupported features. smoltcp
//! sees only accepted frames.
//!
//! Sources: RFC 1122 section 3.2.1.3 (addresses that must not appear on the wire), RFC 4861 section 6.1 and 7.1 (hop
//! limit of neighbour discovery). Dropped: IPv6 extension headers other than those of fragments and MLD queries, and
//! multicast or broadcast packets other than ICMP and DHCP.

use crate::port_addresses::PortAddresses;
use core::net::{IpAddr, Ipv6Addr};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv6Message, IpProtocol, Ipv4Packet, Ipv6Packet,
};

const DHCP_CLIENT_PORT: [u8; 2] = 68u16.to_be_bytes();

/// Kind of an accepted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ARP packet.
    Arp,
    /// Neighbour discovery from this link, other than a router advertisement.
    NeighbourDiscovery,
    /// Advertisement of a router on this link.
    RouterAdvertisement,
    /// Possibly an MLD query; other packets with hop-by-hop options are dropped later.
    ListenerQuery,
    /// TCP, for an address of ours.
    Tcp,
    /// A DHCP server's message.
    Dhcp,
    /// A fragment of a packet for an address of ours.
    Fragment,
    /// Anything else.
    Other,
}

/// Kind of a frame, or None if it is dropped.
pub fn accept(frame: &[u8], local: &PortAddresses) -> Option<Kind> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let destination = ethernet.dst_addr();
    if destination.0 != local.mac && !destination.is_multicast() {
        return None;
    }
    crate::port_addresses::unicast_mac(ethernet.src_addr().0)?;
    let kind = match ethernet.ethertype() {
        EthernetProtocol::Arp => Some(Kind::Arp),
        EthernetProtocol::Ipv4 => accept_v4(ethernet.payload(), local),
        EthernetProtocol::Ipv6 => accept_v6(ethernet.payload(), local),
        EthernetProtocol::Unknown(_) => None,
    };
    // RFC 1122 section 3.3.6.
    let unicast = [Some(Kind::Tcp), Some(Kind::Fragment)].contains(&kind);
    kind.filter(|_| !unicast || destination.0 == local.mac)
}

fn accept_v4(packet: &[u8], local: &PortAddresses) -> Option<Kind> {
    let packet = Ipv4Packet::new_checked(packet).ok()?;
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let udp = packet.next_header() == IpProtocol::Udp;
    let dhcp = udp && packet.payload().get(2..4) == Some(&DHCP_CLIENT_PORT);
    let fragment = packet.more_frags() || packet.frag_offset() != 0;
    if destination.is_loopback() {
        return None;
    }
    // smoltcp's DHCP client would renew a lease at the source address of the server's reply.
    if !local.admits(source.into()) {
        return None;
    }
    // smoltcp does not verify the header checksum again.
    if packet.header_len() < 20 || !packet.verify_checksum() {
        return None;
    }
    if fragment {
        return local.has_v4(destination).then_some(Kind::Fragment);
    }
    match packet.next_header() {
        IpProtocol::Tcp => local.has(IpAddr::V4(destination)).then_some(Kind::Tcp),
        IpProtocol::Udp if dhcp => Some(Kind::Dhcp),
        IpProtocol::Icmp => Some(Kind::Other),
        _ => local.has(IpAddr::V4(destination)).then_some(Kind::Other),
    }
}

fn accept_v6(packet: &[u8], local: &PortAddresses) -> Option<Kind> {
    let packet = Ipv6Packet::new_checked(packet).ok()?;
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    if destination.is_loopback() {
        return None;
    }
    if source == Ipv6Addr::UNSPECIFIED {
        // A host without an address may probe whether one of ours is free.
        let icmp = packet.next_header() == IpProtocol::Icmpv6 && packet.hop_limit() == 255;
        let probes = packet.payload().first() == Some(&Icmpv6Message::NeighborSolicit.into());
        return (icmp && probes).then_some(Kind::NeighbourDiscovery);
    }
    // An advertisement from one of our addresses shows a duplicate address.
    let message = packet.payload().first().copied().map(Icmpv6Message::from);
    let claims = packet.next_header() == IpProtocol::Icmpv6
        && message == Some(Icmpv6Message::NeighborAdvert)
        && local.has_v6(source);
    if !claims && !local.admits(source.into()) {
        return None;
    }
    match packet.next_header() {
        IpProtocol::Icmpv6 => {
            let message = Icmpv6Message::from(*packet.payload().first()?);
            let from_link = packet.hop_limit() == 255;
            match message {
                Icmpv6Message::RouterAdvert => from_link.then_some(Kind::RouterAdvertisement),
                _ if message.is_ndisc() => from_link.then_some(Kind::NeighbourDiscovery),
                _ => Some(Kind::Other),
            }
        }
        IpProtocol::Tcp => local.has_v6(destination).then_some(Kind::Tcp),
        IpProtocol::Udp => local.has_v6(destination).then_some(Kind::Other),
        IpProtocol::HopByHop => Some(Kind::ListenerQuery),
        IpProtocol::Ipv6Frag => local.has_v6(destination).then_some(Kind::Fragment),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Ends;
    use crate::testing::{OUR_MAC, tcp, udp as udp_of};
    use core::net::Ipv4Addr;
    use std::vec::Vec;

    fn local() -> PortAddresses {
        PortAddresses {
            mac: [2, 0, 0, 0, 0, 1],
            v4: [Ipv4Addr::new(10, 0, 0, 1)].into(),
            v6: Vec::new(),
        }
    }

    /// A frame with an IPv4 UDP header without data.
    fn udp(source: [u8; 4], destination: [u8; 4], flags: u16, port: u16) -> Vec<u8> {
        let mut frame = Vec::from([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        frame.extend([0x45, 0, 0, 28, 0, 0]);
        frame.extend(flags.to_be_bytes());
        frame.extend([64, 17, 0, 0]);
        frame.extend(source);
        frame.extend(destination);
        frame.extend([0, 67]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        frame
    }

    /// TCP, UDP and the echo service share the address check.
    #[test]
    fn frames_from_special_addresses_are_dropped_by_all_consumers() {
        let v6 = "fd00::1".parse().unwrap();
        let local = PortAddresses { mac: OUR_MAC, v6: [v6].into(), ..local() };
        let ours = |from: IpAddr| match from {
            IpAddr::V4(_) => IpAddr::from(local.v4[0]),
            IpAddr::V6(_) => v6.into(),
        };
        let taken = |from: IpAddr| {
            let to = ours(from);
            let ends = Ends { local_port: 80, remote_port: 4000, remote: from, local: to };
            let segment = accept(&tcp(ends, 2, 1, 0, &[], &[]), &local).is_some();
            let datagram = accept(&udp_of(from, to, 9999, 53, b"data"), &local).is_some();
            let mut reply = [0; 200];
            let echo = udp_of(from, to, 9999, 7, b"data");
            let echo = crate::echo::answer(&echo, &local, &mut reply).is_some();
            [segment, datagram, echo]
        };
        for from in ["10.0.0.2", "fd00::2", "fe80::2"] {
            assert_eq!(taken(from.parse().unwrap()), [true; 3], "{from}");
        }
        let special = [
            "::ffff:10.0.0.2",
            "::10.0.0.2",
            "::ffff:0:10.0.0.2",
            "64:ff9b::10.0.0.2",
            "::1",
            "ff02::1",
            "fd00::1",
            "0.0.0.2",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "10.0.0.1",
        ];
        for from in special {
            assert_eq!(taken(from.parse().unwrap()), [false; 3], "{from}");
        }
    }

    #[test]
    fn filter_drops_invalid_frames() {
        let (peer, us) = ([10, 0, 0, 2], [10, 0, 0, 1]);
        let taken = |f: &[u8]| accept(f, &local()).is_some();
        assert!(taken(&udp(peer, us, 0x4000, 9)));
        assert!(taken(&udp(peer, [255; 4], 0, 68)), "an offer before there is an address");
        assert!(!taken(&udp([0; 4], [255; 4], 0, 68)), "an offer without a source address");
        assert!(!taken(&udp([0; 4], us, 0, 9)), "no source");
        assert!(!taken(&udp(us, us, 0, 9)), "from ourselves");
        assert!(!taken(&udp([127, 0, 0, 1], us, 0, 9)), "loopback on the wire");
        for fragment in [0x2000, 0x0001] {
            let kind = |to| accept(&udp(peer, to, fragment, 9), &local());
            assert_eq!((kind(us), kind([10, 0, 0, 255])), (Some(Kind::Fragment), None));
        }
        assert!(!taken(&udp(peer, [10, 0, 0, 255], 0, 9)), "broadcast");
        let mut other = udp(peer, us, 0, 9);
        other[5] = 9;
        assert!(!taken(&other), "for another station");
        assert!(!taken(&udp(peer, us, 0, 9)[..30]), "truncated");
        let mut damaged = udp(peer, us, 0, 9);
        damaged[22] ^= 1;
        assert!(!taken(&damaged), "a wrong checksum");
    }
}
