//! Frames of the wire: ARP, and UDP in the form of usNIC cards.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, ensure};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

use usnic::wire::ping::{LENGTH, Ping};

use crate::wire::{APPLIANCE, PORTS};

/// The hardware address of all peers.
pub(crate) const OUR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);

/// A datagram of the appliance's engine.
pub(crate) struct Parsed<'a> {
    /// Index of its source port.
    pub channel: usize,
    pub to: SocketAddrV4,
    pub payload: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// Parses an IPv4 packet of the appliance. None if it is not of usNIC, an error if it is malformed.
    pub fn of(bytes: &'a [u8]) -> Result<Option<Parsed<'a>>> {
        let packet = Ipv4Packet::new_checked(bytes)?;
        ensure!(packet.verify_checksum(), "a wrong IPv4 checksum");
        if packet.next_header() != IpProtocol::Udp {
            return Ok(None);
        }
        ensure!(packet.dont_frag() && packet.frag_offset() == 0, "a fragment");
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        let udp = UdpPacket::new_checked(packet.payload())?;
        let from = udp.src_port();
        let Some(channel) = PORTS.iter().position(|port| *port == from) else { return Ok(None) };
        ensure!(source == APPLIANCE, "a wrong source address: {source}");
        ensure!(udp.checksum() != 0, "no UDP checksum");
        ensure!(udp.verify_checksum(&source.into(), &destination.into()), "a wrong UDP checksum");
        let to = SocketAddrV4::new(destination, udp.dst_port());
        Ok(Some(Parsed { channel, to, payload: udp.payload() }))
    }
}

/// Translates the address of the requester in a PING: the sender's address, or in an answer the receiver's.
pub(crate) fn translate(payload: &mut [u8], sender: SocketAddrV4, receiver: SocketAddrV4) {
    if let Some(ping) = Ping::parse(payload)
        && let Some(head) = payload.first_chunk_mut::<LENGTH>()
    {
        let asker = if ping.is_ack { receiver } else { sender };
        *head = Ping { asker, ..ping }.emit();
    }
}

/// An ARP request for the appliance's hardware address.
pub(crate) fn question() -> Vec<u8> {
    let question = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: OUR_MAC,
        source_protocol_addr: Ipv4Addr::new(10, 9, 0, 250),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: APPLIANCE,
    };
    arp_frame(&question, EthernetAddress::BROADCAST)
}

pub(crate) fn arp_frame(arp: &ArpRepr, to: EthernetAddress) -> Vec<u8> {
    let ethernet =
        EthernetRepr { src_addr: OUR_MAC, dst_addr: to, ethertype: EthernetProtocol::Arp };
    let mut bytes = vec![0; ethernet.buffer_len() + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

/// A UDP frame in the form of usNIC cards, with a hop limit of 8.
pub(crate) fn udp_frame(
    mac: EthernetAddress,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> Vec<u8> {
    let udp = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let payload_len = udp.header_len() + payload.len();
    let (source, destination) = (*from.ip(), *to.ip());
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Udp,
        payload_len,
        hop_limit: 8,
    };
    let ethernet =
        EthernetRepr { src_addr: OUR_MAC, dst_addr: mac, ethertype: EthernetProtocol::Ipv4 };
    let mut bytes = vec![0; ethernet.buffer_len() + ip.buffer_len() + payload_len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    ethernet.emit(&mut frame);
    let checksums = ChecksumCapabilities::default();
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    let fill = |into: &mut [u8]| into.copy_from_slice(payload);
    udp.emit(&mut datagram, &source.into(), &destination.into(), payload.len(), fill, &checksums);
    bytes
}
