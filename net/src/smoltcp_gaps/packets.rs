//! Packets in the name of a peer, by which a socket is led to a state, and the numbers in its answers.

use crate::isn::Handshake;
use crate::link::ETHERNET_HEADER;
use crate::segment::Ends;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

/// Hop limit of packets that smoltcp does not build.
pub const HOP_LIMIT: u8 = 64;

/// Rebuilds the SYN of a handshake from the known options, as a packet without TCP checksum. Returns its length.
pub fn build_syn(ends: Ends, handshake: &Handshake, packet: &mut [u8; 100]) -> usize {
    let tcp = TcpRepr {
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(handshake.theirs as i32),
        window_scale: handshake.offer.scale,
        max_seg_size: Some(handshake.offer.mss),
        sack_permitted: handshake.offer.sack,
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Builds the ACK that completes a handshake, as a packet without TCP checksum. Returns its length.
pub fn build_ack(ends: Ends, handshake: &Handshake, packet: &mut [u8; 100]) -> usize {
    let tcp = TcpRepr {
        seq_number: TcpSeqNumber(handshake.theirs.wrapping_add(1) as i32),
        ack_number: Some(TcpSeqNumber(handshake.ours.wrapping_add(1) as i32)),
        window_len: u16::MAX,
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Builds a segment of the peer with one byte that was received before, as a packet without TCP checksum. Returns its
/// length.
pub fn build_stale_byte(
    ends: Ends,
    sequence: u32,
    acknowledged: u32,
    packet: &mut [u8; 100],
) -> usize {
    let tcp = TcpRepr {
        seq_number: TcpSeqNumber(sequence as i32),
        ack_number: Some(TcpSeqNumber(acknowledged as i32)),
        payload: &[0],
        ..empty(ends.remote_port, ends.local_port)
    };
    write(ends, &tcp, packet)
}

/// Sequence number and acknowledgement of a segment in a queued frame.
pub fn numbers(frame: Option<&[u8]>) -> Option<(u32, u32)> {
    let packet = frame?.get(ETHERNET_HEADER..)?;
    let header = if packet.first()? >> 4 == 4 { 20 } else { 40 };
    let word = |at: usize| Some(u32::from_be_bytes(*packet.get(header + at..)?.first_chunk()?));
    Some((word(4)?, word(8)?))
}

/// Writes a packet from the peer to us. Returns its length.
fn write(ends: Ends, tcp: &TcpRepr<'_>, packet: &mut [u8; 100]) -> usize {
    let (from, to) = (ends.remote.into(), ends.local.into());
    let ip = IpRepr::new(from, to, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let length = ip.buffer_len();
    emit(&ip, tcp, &mut packet[..length]);
    length
}

/// Writes a packet with this segment, without TCP checksum.
pub fn emit(ip: &IpRepr, tcp: &TcpRepr<'_>, packet: &mut [u8]) {
    ip.emit(&mut *packet, &ChecksumCapabilities::default());
    let mut segment = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    let checksums = ChecksumCapabilities::ignored();
    tcp.emit(&mut segment, &ip.src_addr(), &ip.dst_addr(), &checksums);
}

/// A segment without flags, options and data.
pub fn empty(from: u16, to: u16) -> TcpRepr<'static> {
    TcpRepr {
        src_port: from,
        dst_port: to,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    }
}
