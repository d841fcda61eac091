//! Builds link-scope messages that do not come from smoltcp: ARP (RFC 826) and ICMPv6.

use crate::link::{ETHERNET_HEADER, Queue};
use core::net::{Ipv4Addr, Ipv6Addr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
};

/// Multicast group of all hosts of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address of `ip` (RFC 4291 section 2.7.1).
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Queues a broadcast ARP request for `target` with the sender address `source`.
pub fn push_arp_request(queue: &mut Queue, mac: [u8; 6], source: Ipv4Addr, target: Ipv4Addr) {
    let unknown = EthernetAddress([0; 6]);
    push_arp(
        queue,
        mac,
        ArpOperation::Request,
        source,
        (unknown, target),
        EthernetAddress::BROADCAST,
    );
}

/// Queues the reply to an ARP request for `ours`.
pub fn push_arp_reply(
    queue: &mut Queue,
    mac: [u8; 6],
    ours: Ipv4Addr,
    target_mac: EthernetAddress,
    target: Ipv4Addr,
) {
    push_arp(queue, mac, ArpOperation::Reply, ours, (target_mac, target), target_mac);
}

fn push_arp(
    queue: &mut Queue,
    mac: [u8; 6],
    operation: ArpOperation,
    source: Ipv4Addr,
    target: (EthernetAddress, Ipv4Addr),
    to: EthernetAddress,
) {
    let arp = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: source,
        target_hardware_addr: target.0,
        target_protocol_addr: target.1,
    };
    queue.push(ETHERNET_HEADER + arp.buffer_len(), |frame| {
        let mut frame = EthernetFrame::new_unchecked(frame);
        frame.set_src_addr(EthernetAddress(mac));
        frame.set_dst_addr(to);
        frame.set_ethertype(EthernetProtocol::Arp);
        arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    });
}

/// The MAC address of a multicast group (RFC 2464 section 7).
fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Queues an ICMPv6 message to a multicast group of the link.
pub fn push_icmpv6(
    queue: &mut Queue,
    mac: [u8; 6],
    source: Ipv6Addr,
    group: Ipv6Addr,
    message: &Icmpv6Repr<'_>,
) {
    push_icmpv6_to(queue, mac, source, (group_mac(group), group), message);
}

/// Queues an ICMPv6 message to one station of the link.
pub fn push_icmpv6_to(
    queue: &mut Queue,
    mac: [u8; 6],
    source: Ipv6Addr,
    to: ([u8; 6], Ipv6Addr),
    message: &Icmpv6Repr<'_>,
) {
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: to.1,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    push_packet(queue, mac, to.0, ip.buffer_len() + message.buffer_len(), |packet| {
        let mut packet = Ipv6Packet::new_unchecked(packet);
        ip.emit(&mut packet);
        let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
        message.emit(&source, &to.1, &mut icmp, &ChecksumCapabilities::default());
    });
}

/// Queues an IPv6 packet of `length` bytes, written by `fill`, to a multicast group.
pub fn push_to_group(
    queue: &mut Queue,
    mac: [u8; 6],
    group: Ipv6Addr,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    push_packet(queue, mac, group_mac(group), length, fill);
}

fn push_packet(
    queue: &mut Queue,
    mac: [u8; 6],
    to: [u8; 6],
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    queue.push(ETHERNET_HEADER + length, |frame| {
        let mut frame = EthernetFrame::new_unchecked(frame);
        frame.set_src_addr(EthernetAddress(mac));
        frame.set_dst_addr(EthernetAddress(to));
        frame.set_ethertype(EthernetProtocol::Ipv6);
        fill(frame.payload_mut());
    });
}
