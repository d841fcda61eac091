//! Frames for the tests, built by smoltcp.

use crate::checksum::{fold, pseudo, sum};
use crate::segment::{Ends, Segment};
use crate::{Addressing, Cidr, Interface};
use core::net::IpAddr;
use drivers::hal::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr, Ipv4Packet, TcpPacket,
    UdpPacket, UdpRepr,
};
use std::vec;
use std::vec::Vec;

pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A packet of `length` bytes from the peer's MAC address to ours, written by `fill`.
fn packet(
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let ip = IpRepr::new(from.into(), to.into(), protocol, length, 64);
    let mut bytes = vec![0; 14 + ip.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    frame.set_src_addr(EthernetAddress(PEER_MAC));
    frame.set_dst_addr(EthernetAddress(OUR_MAC));
    frame.set_ethertype(if from.is_ipv4() {
        EthernetProtocol::Ipv4
    } else {
        EthernetProtocol::Ipv6
    });
    let packet = frame.payload_mut();
    ip.emit(&mut *packet, &ChecksumCapabilities::default());
    if from.is_ipv4() {
        let mut packet = Ipv4Packet::new_unchecked(&mut *packet);
        packet.set_dont_frag(true);
        packet.fill_checksum();
    }
    fill(&mut packet[ip.header_len()..]);
    bytes
}

/// A UDP datagram from the peer's MAC address to ours.
pub fn udp(from: IpAddr, to: IpAddr, from_port: u16, to_port: u16, data: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: from_port, dst_port: to_port };
    packet(from, to, IpProtocol::Udp, 8 + data.len(), |bytes| {
        let fill = |payload: &mut [u8]| payload.copy_from_slice(data);
        let mut datagram = UdpPacket::new_unchecked(bytes);
        let checksums = ChecksumCapabilities::default();
        udp.emit(&mut datagram, &from.into(), &to.into(), data.len(), fill, &checksums);
    })
}

/// A TCP segment from the peer's MAC address to ours. The length of `options` must be a multiple of four.
pub fn tcp(
    ends: Ends,
    flags: u8,
    sequence: u32,
    acknowledged: u32,
    options: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    packet(ends.remote, ends.local, IpProtocol::Tcp, header + data.len(), |bytes| {
        bytes[..2].copy_from_slice(&ends.remote_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&ends.local_port.to_be_bytes());
        bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
        bytes[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        bytes[12..16].copy_from_slice(&[(header as u8 / 4) << 4, flags, 0xff, 0xff]);
        bytes[20..header].copy_from_slice(options);
        bytes[header..].copy_from_slice(data);
        let (from, to) = (ends.remote.into(), ends.local.into());
        TcpPacket::new_unchecked(bytes).fill_checksum(&from, &to);
    })
}

/// A router's report that a segment of ours with this sequence number, in a packet of `length` bytes, exceeded `mtu`.
pub fn too_big(ends: Ends, sequence: u32, mtu: u32, length: u16) -> Vec<u8> {
    let router = match ends.remote {
        IpAddr::V4(_) => IpAddr::from([10, 0, 0, 254]),
        IpAddr::V6(_) => IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 0xfe]),
    };
    let v4 = ends.remote.is_ipv4();
    let ours = IpRepr::new(ends.local.into(), ends.remote.into(), IpProtocol::Tcp, 0, 64);
    let header = ours.header_len();
    let (protocol, size) = match v4 {
        true => (IpProtocol::Icmp, 8 + header + 8),
        false => (IpProtocol::Icmpv6, 8 + header + 20),
    };
    packet(router, ends.local, protocol, size, |message| {
        message[..4].copy_from_slice(if v4 { &[3, 4, 0, 0] } else { &[2, 0, 0, 0] });
        message[4..8].copy_from_slice(&mtu.to_be_bytes());
        ours.emit(&mut message[8..8 + header], &ChecksumCapabilities::default());
        let (at, length) = if v4 { (10, length) } else { (12, length - 40) };
        message[at..at + 2].copy_from_slice(&length.to_be_bytes());
        let segment = &mut message[8 + header..];
        segment[..2].copy_from_slice(&ends.local_port.to_be_bytes());
        segment[2..4].copy_from_slice(&ends.remote_port.to_be_bytes());
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        let addresses = match v4 {
            true => 0,
            false => pseudo(router, ends.local, 58, size),
        };
        let checksum = !fold(addresses + sum(message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    })
}

/// An interface with the address 10.0.0.1/24, which it has announced.
pub fn with_address() -> Interface {
    let mut interface = Interface::new(OUR_MAC, 1500, [1; 32], Instant::ZERO);
    let addresses = Vec::from([Cidr::new("10.0.0.1".parse().unwrap(), 24)]);
    let addressing = Addressing { addresses, ..Addressing::default() };
    interface.set_addressing(addressing, Instant::ZERO).unwrap();
    sent(&mut interface, Instant::ZERO);
    interface
}

/// An ARP request of the peer for 10.0.0.1, from which we learn its address 10.0.0.2.
pub fn arp_request() -> Vec<u8> {
    let mut frame = Vec::from([0xff; 6]);
    frame.extend(PEER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(PEER_MAC);
    frame.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    frame
}

/// The TCP segments that an interface sends: flags, sequence number, acknowledgement.
pub fn sent(interface: &mut Interface, now: Instant) -> Vec<(u8, u32, u32)> {
    let mut sent = Vec::new();
    for _ in 0..10 {
        interface.poll(now);
        let mut port = netsim::Collector::new(usize::MAX);
        interface.transmit(&mut port, |_| ());
        let segments = port
            .frames
            .iter()
            .filter_map(|frame| Segment::of(frame).map(|s| (s.flags, s.sequence, s.acknowledged)));
        sent.extend(segments);
    }
    sent
}
