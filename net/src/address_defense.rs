//! Says which addresses are ours: unasked when we get them, so that nobody goes on sending to
//! whoever had them before (RFC 5227 section 2.3, RFC 4861 section 7.2.6), to those who ask because
//! they want them for themselves (RFC 5227 section 2.1.1, RFC 4862 section 5.4.3), and to those who
//! look for us (RFC 826, RFC 4861 section 7.2.4). Addresses are not given up for others, only defended.

use crate::filter::Kind;
use crate::link::Queue;
use crate::messages::{self, ALL_NODES};
use crate::port_addresses::{self, PortAddresses};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, Icmpv6Packet, Icmpv6Repr,
    Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
};

/// Announces all our addresses, as far as there is room.
pub fn announce(local: &PortAddresses, queue: &mut Queue) {
    for &ip in &local.v4 {
        messages::push_arp_request(queue, local.mac, ip, ip);
    }
    for &ip in &local.v6 {
        advertise(local.mac, ip, queue);
    }
}

fn advertise(mac: [u8; 6], ip: Ipv6Addr, queue: &mut Queue) {
    let advertisement = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::OVERRIDE,
        target_addr: ip,
        lladdr: Some(EthernetAddress(mac).into()),
    });
    messages::push_icmpv6(queue, mac, ip, ALL_NODES, &advertisement);
}

/// Answers a frame of somebody who looks for one of our addresses.
pub fn answer(frame: &[u8], kind: Kind, local: &PortAddresses, queue: &mut Queue) {
    let _ = match kind {
        Kind::Arp => answer_v4(frame, local, queue),
        Kind::NeighbourDiscovery => answer_v6(frame, local, queue),
        _ => None,
    };
}

fn answer_v4(frame: &[u8], local: &PortAddresses, queue: &mut Queue) -> Option<()> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let packet = ArpPacket::new_checked(ethernet.payload()).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let asks =
        port_addresses::is_host(source.into()) && !local.has_v4(source) && local.has_v4(target);
    if asks && port_addresses::unicast_mac(mac.0).is_some() {
        messages::push_arp_reply(queue, local.mac, target, mac, source);
    }
    Some(())
}

fn answer_v6(frame: &[u8], local: &PortAddresses, queue: &mut Queue) -> Option<()> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let checksums = ChecksumCapabilities::default();
    let message = Icmpv6Repr::parse(&source, &destination, &icmp, &checksums).ok()?;
    let Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr }) = message
    else {
        return None;
    };
    let for_us = local.has_v6(destination) || destination == messages::solicited_node(target);
    if !local.has_v6(target) || !for_us || !port_addresses::is_host(source.into()) {
        return None;
    }
    let named = lladdr.and_then(|mac| mac.as_bytes().first_chunk().copied());
    let mac = port_addresses::unicast_mac(named.unwrap_or(ethernet.src_addr().0))?;
    let advertisement = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
        target_addr: target,
        lladdr: Some(EthernetAddress(local.mac).into()),
    });
    messages::push_icmpv6_to(queue, local.mac, target, (mac, source), &advertisement);
    Some(())
}

/// An address of ours, and the hardware address of another station that has it, too.
pub type Conflict = (IpAddr, [u8; 6]);

/// Answers a frame of somebody who wants one of our addresses. A frame that says that somebody else
/// has one already is a conflict: the operator has to be told.
pub fn defend(
    frame: &[u8],
    kind: Kind,
    local: &PortAddresses,
    queue: &mut Queue,
) -> Option<Conflict> {
    match kind {
        Kind::Arp => defend_v4(frame, local, queue),
        Kind::NeighbourDiscovery => defend_v6(frame, local, queue),
        _ => None,
    }
}

fn defend_v4(frame: &[u8], local: &PortAddresses, queue: &mut Queue) -> Option<Conflict> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let packet = ArpPacket::new_checked(ethernet.payload()).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let probe = operation == ArpOperation::Request && source == Ipv4Addr::UNSPECIFIED;
    if probe && local.has_v4(target) && mac.is_unicast() {
        messages::push_arp_reply(queue, local.mac, target, mac, source);
    }
    (local.has_v4(source) && mac.0 != local.mac).then_some((source.into(), mac.0))
}

fn defend_v6(frame: &[u8], local: &PortAddresses, queue: &mut Queue) -> Option<Conflict> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let checksums = ChecksumCapabilities::default();
    let message = Icmpv6Repr::parse(&source, &destination, &icmp, &checksums).ok()?;
    match message {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) => {
            if source == Ipv6Addr::UNSPECIFIED && local.has_v6(target_addr) {
                advertise(local.mac, target_addr, queue);
            }
            None
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, .. }) => {
            let mac = ethernet.src_addr().0;
            (local.has_v6(target_addr) && mac != local.mac).then_some((target_addr.into(), mac))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{OUR_MAC, PEER_MAC};

    fn local() -> PortAddresses {
        let v4 = [Ipv4Addr::new(10, 0, 0, 1)].into();
        PortAddresses { mac: OUR_MAC, v4, v6: [crate::port_addresses::link_local(OUR_MAC)].into() }
    }

    fn peer() -> PortAddresses {
        PortAddresses { mac: PEER_MAC, ..local() }
    }

    /// The frames that `f` queues, handed to `defend`: conflicts seen, frames answered.
    fn conflicts(from: impl Fn(&mut Queue)) -> (usize, usize) {
        let (mut sent, mut answers, mut conflicts) = (Queue::new(8, 128), Queue::new(8, 128), 0);
        from(&mut sent);
        while let Some(frame) = sent.front() {
            let kind = if frame[13] == 6 { Kind::Arp } else { Kind::NeighbourDiscovery };
            if let Some((address, mac)) = defend(frame, kind, &local(), &mut answers) {
                let PortAddresses { v4, v6, .. } = local();
                assert!([v4[0].into(), v6[0].into()].contains(&address) && mac == PEER_MAC);
                conflicts += 1;
            }
            sent.pop();
        }
        let mut answered = 0;
        while answers.front().is_some() {
            answers.pop();
            answered += 1;
        }
        (conflicts, answered)
    }

    #[test]
    fn an_announcement_is_a_conflict_for_whoever_has_the_address() {
        assert_eq!(conflicts(|queue| announce(&peer(), queue)), (2, 0));
        assert_eq!(conflicts(|queue| announce(&local(), queue)), (0, 0), "our own, come back");
        let other =
            PortAddresses { v4: [Ipv4Addr::new(10, 0, 0, 9)].into(), v6: [].into(), ..peer() };
        assert_eq!(conflicts(|queue| announce(&other, queue)), (0, 0));
    }

    #[test]
    fn probes_for_our_addresses_are_answered() {
        let probe = |ip: [u8; 4]| {
            conflicts(|queue| {
                let nobody = Ipv4Addr::UNSPECIFIED;
                messages::push_arp_request(queue, PEER_MAC, nobody, ip.into());
            })
        };
        assert_eq!(probe([10, 0, 0, 1]), (0, 1));
        assert_eq!(probe([10, 0, 0, 2]), (0, 0));
        let solicit = |target_addr: Ipv6Addr| {
            conflicts(|queue| {
                let question =
                    Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr: None });
                let group = messages::solicited_node(target_addr);
                let nobody = Ipv6Addr::UNSPECIFIED;
                messages::push_icmpv6(queue, PEER_MAC, nobody, group, &question);
            })
        };
        assert_eq!(solicit(local().v6[0]), (0, 1));
        assert_eq!(solicit("fe80::77".parse().unwrap()), (0, 0));
    }
}
