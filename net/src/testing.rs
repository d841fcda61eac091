//! Frames for the tests, built by smoltcp.

use core::net::IpAddr;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr, Ipv4Packet, UdpPacket,
    UdpRepr,
};
use std::vec;
use std::vec::Vec;

pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A UDP datagram from the peer's MAC address to ours.
pub fn udp(from: IpAddr, to: IpAddr, from_port: u16, to_port: u16, data: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: from_port, dst_port: to_port };
    let ip = IpRepr::new(from.into(), to.into(), IpProtocol::Udp, 8 + data.len(), 64);
    let mut bytes = vec![0; 14 + ip.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    frame.set_src_addr(EthernetAddress(PEER_MAC));
    frame.set_dst_addr(EthernetAddress(OUR_MAC));
    frame.set_ethertype(if from.is_ipv4() {
        EthernetProtocol::Ipv4
    } else {
        EthernetProtocol::Ipv6
    });
    let packet = frame.payload_mut();
    ip.emit(&mut *packet, &checksums);
    if from.is_ipv4() {
        let mut packet = Ipv4Packet::new_unchecked(&mut *packet);
        packet.set_dont_frag(true);
        packet.fill_checksum();
    }
    let mut datagram = UdpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    let fill = |payload: &mut [u8]| payload.copy_from_slice(data);
    udp.emit(&mut datagram, &from.into(), &to.into(), data.len(), fill, &checksums);
    bytes
}
