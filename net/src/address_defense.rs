//! Announces, answers for and defends the addresses of a port.
//!
//! * A new address is announced, so that hosts replace the previous owner's MAC address (RFC 5227 section 2.3,
//!   RFC 4861 section 7.2.6).
//! * Probes for an address of ours are answered (RFC 5227 section 2.1.1, RFC 4862 section 5.4.3).
//! * Requests for an address of ours are answered (RFC 826, RFC 4861 section 7.2.4).
//! * An address in use is never given up after a conflict. It is defended at most once in ten seconds
//!   (RFC 5227 section 2.4).

use crate::filter::Kind;
use crate::link::Queue;
use crate::messages::{self, ALL_NODES};
use crate::port_addresses::{self, PortAddresses};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, Icmpv6Packet, Icmpv6Repr,
    Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
};

/// Interval between two defences of our addresses (RFC 5227 section 1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// An address of ours, and the MAC address of another station that uses it.
pub type Conflict = (IpAddr, [u8; 6]);

/// Another station's claim to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub ip: IpAddr,
    /// The station's MAC address.
    pub mac: [u8; 6],
    /// The station is probing: it does not use the address yet.
    pub probes: bool,
}

/// Announces all our addresses, as far as there is room.
pub fn announce(local: &PortAddresses, queue: &mut Queue) {
    let v4 = local.v4.iter().map(|&ip| IpAddr::V4(ip));
    let v6 = local.v6.iter().map(|&ip| IpAddr::V6(ip));
    v4.chain(v6).for_each(|ip| announce_one(local.mac, ip, queue));
}

/// Announces one address.
pub fn announce_one(mac: [u8; 6], ip: IpAddr, queue: &mut Queue) {
    match ip {
        IpAddr::V4(ip) => messages::push_arp_request(queue, mac, ip, ip),
        IpAddr::V6(ip) => advertise(mac, ip, queue),
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

/// Answers a request for one of our addresses.
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
    let for_us =
        port_addresses::is_host(source.into()) && !local.has_v4(source) && local.has_v4(target);
    if for_us && port_addresses::unicast_mac(mac.0).is_some() {
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

/// The address claim in an accepted frame, if it has one. Our own frames that come back are ignored.
pub fn claim(frame: &[u8], kind: Kind, ours: [u8; 6]) -> Option<Claim> {
    let claim = match kind {
        Kind::Arp => claim_v4(frame),
        Kind::NeighbourDiscovery => claim_v6(frame),
        _ => None,
    };
    claim.filter(|claim| claim.mac != ours && port_addresses::unicast_mac(claim.mac).is_some())
}

fn claim_v4(frame: &[u8]) -> Option<Claim> {
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
    let probes = operation == ArpOperation::Request && source == Ipv4Addr::UNSPECIFIED;
    let ip = if probes { target } else { source };
    Some(Claim { ip: ip.into(), mac: mac.0, probes })
}

fn claim_v6(frame: &[u8]) -> Option<Claim> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let checksums = ChecksumCapabilities::default();
    let mac = ethernet.src_addr().0;
    match Icmpv6Repr::parse(&source, &destination, &icmp, &checksums).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. }) => {
            let probes = source == Ipv6Addr::UNSPECIFIED;
            probes.then_some(Claim { ip: target_addr.into(), mac, probes })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, .. }) => {
            Some(Claim { ip: target_addr.into(), mac, probes: false })
        }
        _ => None,
    }
}

/// Defends our addresses.
#[derive(Debug, Default)]
pub struct Defence {
    last: Option<Instant>,
}

impl Defence {
    /// Answers another station's claim to an address of ours that is in use.
    pub fn defend(&mut self, claim: Claim, local: &PortAddresses, queue: &mut Queue, now: Instant) {
        match claim.ip {
            IpAddr::V4(ip) if claim.probes => {
                let target = Ipv4Addr::UNSPECIFIED;
                messages::push_arp_reply(queue, local.mac, ip, EthernetAddress(claim.mac), target);
            }
            IpAddr::V6(ip) if claim.probes => advertise(local.mac, ip, queue),
            ip if self.last.is_none_or(|last| now.since(last) >= DEFEND_INTERVAL) => {
                self.last = Some(now);
                announce_one(local.mac, ip, queue);
            }
            _ => {}
        }
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

    /// Conflicts and answers that the frames queued by `from` cause when they are received at time 0.
    fn conflicts(from: impl Fn(&mut Queue)) -> (usize, usize) {
        let (mut sent, mut answers, mut conflicts) = (Queue::new(8, 128), Queue::new(8, 128), 0);
        let mut defence = Defence::default();
        from(&mut sent);
        while let Some(frame) = sent.front() {
            let kind = if frame[13] == 6 { Kind::Arp } else { Kind::NeighbourDiscovery };
            if let Some(claim) = claim(frame, kind, OUR_MAC).filter(|claim| local().has(claim.ip)) {
                conflicts += usize::from(!claim.probes);
                defence.defend(claim, &local(), &mut answers, Instant::ZERO);
            }
            sent.pop();
        }
        (conflicts, answers.len())
    }

    #[test]
    fn announcement_of_our_address_is_a_conflict_and_defended_once_in_ten_seconds() {
        assert_eq!(conflicts(|queue| announce(&peer(), queue)), (2, 1));
        assert_eq!(
            conflicts(|queue| announce(&local(), queue)),
            (0, 0),
            "our own frames, reflected"
        );
        let other =
            PortAddresses { v4: [Ipv4Addr::new(10, 0, 0, 9)].into(), v6: [].into(), ..peer() };
        assert_eq!(conflicts(|queue| announce(&other, queue)), (0, 0));
        let (mut defence, mut answers) = (Defence::default(), Queue::new(64, 128));
        let claim = Claim { ip: local().v4[0].into(), mac: PEER_MAC, probes: false };
        for second in 0..25 {
            let now = Instant::ZERO + Duration::from_secs(second);
            defence.defend(claim, &local(), &mut answers, now);
        }
        assert_eq!(answers.len(), 3);
    }

    #[test]
    fn probes_for_our_addresses_are_answered() {
        let probe = |ip: [u8; 4]| {
            conflicts(|queue| {
                let source = Ipv4Addr::UNSPECIFIED;
                messages::push_arp_request(queue, PEER_MAC, source, ip.into());
            })
        };
        assert_eq!(probe([10, 0, 0, 1]), (0, 1));
        assert_eq!(probe([10, 0, 0, 2]), (0, 0));
        let solicit = |target_addr: Ipv6Addr| {
            conflicts(|queue| {
                let solicitation =
                    Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr: None });
                let group = messages::solicited_node(target_addr);
                let source = Ipv6Addr::UNSPECIFIED;
                messages::push_icmpv6(queue, PEER_MAC, source, group, &solicitation);
            })
        };
        assert_eq!(solicit(local().v6[0]), (0, 1));
        assert_eq!(solicit("fe80::77".parse().unwrap()), (0, 0));
    }
}
