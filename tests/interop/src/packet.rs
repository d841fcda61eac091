//! RoCEv2 packets byte by byte, so that any field can be invalid. The ICRC is computed independently of the appliance's
//! code (InfiniBand vol. 1, 7.8.1; annex A17.3.3). Packets are sent over IPv4 only.

use std::net::Ipv4Addr;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const BTH: usize = 12;
const PORT: u16 = 4791;

/// Opcodes of reliable connections (vol. 1, table 38).
pub mod opcode {
    /// First packet of a SEND.
    pub const SEND_FIRST: u8 = 0x00;
    /// Middle packet of a SEND.
    pub const SEND_MIDDLE: u8 = 0x01;
    /// SEND of one packet.
    pub const SEND_ONLY: u8 = 0x04;
    /// First packet of an RDMA WRITE.
    pub const WRITE_FIRST: u8 = 0x06;
    /// Middle packet of an RDMA WRITE.
    pub const WRITE_MIDDLE: u8 = 0x07;
    /// Last packet of an RDMA WRITE.
    pub const WRITE_LAST: u8 = 0x08;
    /// RDMA WRITE of one packet.
    pub const WRITE_ONLY: u8 = 0x0a;
    /// RDMA READ request.
    pub const READ_REQUEST: u8 = 0x0c;
    /// RDMA READ response of one packet.
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    /// ACK or NAK.
    pub const ACKNOWLEDGE: u8 = 0x11;
    /// Fetch and add.
    pub const FETCH_ADD: u8 = 0x14;
    /// Datagram, an unreliable one.
    pub const UD_SEND_ONLY: u8 = 0x64;
}

/// A packet from BTH to payload.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Source address in the IPv4 header.
    pub source: Ipv4Addr,
    /// See [`opcode`].
    pub opcode: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination queue pair.
    pub qpn: u32,
    /// AckReq bit.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: u32,
    /// Pad count in the BTH.
    pub pad: u8,
    /// Extended headers and payload, padded.
    pub body: Vec<u8>,
}

/// The RETH of a WRITE or READ.
pub fn reth(address: u64, rkey: u32, length: u32) -> Vec<u8> {
    [&address.to_be_bytes()[..], &rkey.to_be_bytes(), &length.to_be_bytes()].concat()
}

impl Packet {
    /// The frame, with correct checksums and ICRC.
    pub fn frame(&self, from: [u8; 6], to: [u8; 6], destination: Ipv4Addr) -> Vec<u8> {
        let udp_length = (UDP + BTH + self.body.len() + 4) as u16;
        let mut ip = vec![0x45, 0];
        ip.extend((IPV4 as u16 + udp_length).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        ip.extend(self.source.octets());
        ip.extend(destination.octets());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [&to[..], &from, &[8, 0], &ip].concat();
        for word in [0xc123, PORT, udp_length, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend([self.opcode, self.pad << 4]);
        frame.extend(self.pkey.to_be_bytes());
        frame.extend((self.qpn & 0xff_ffff).to_be_bytes());
        frame.extend((u32::from(self.ack_request) << 31 | self.psn & 0xff_ffff).to_be_bytes());
        frame.extend(&self.body);
        frame.extend([0; 4]);
        sign(&mut frame);
        frame
    }

    /// Reads a frame; None unless it is RoCEv2 over IPv4.
    pub fn parse(frame: &[u8]) -> Option<Packet> {
        if frame.get(12..14)? != [8, 0] || *frame.get(23)? != 17 {
            return None;
        }
        let bth = frame.get(ETHERNET + IPV4 + UDP..)?;
        if frame.get(36..38)? != PORT.to_be_bytes() || bth.len() < BTH + 4 {
            return None;
        }
        let word = |at: usize| Some(u32::from_be_bytes(*bth.get(at..)?.first_chunk()?));
        Some(Packet {
            source: Ipv4Addr::from(*frame.get(26..)?.first_chunk::<4>()?),
            opcode: bth[0],
            pkey: u16::from_be_bytes([bth[2], bth[3]]),
            qpn: word(4)? & 0xff_ffff,
            ack_request: word(8)? >> 31 == 1,
            psn: word(8)? & 0xff_ffff,
            pad: bth[1] >> 4 & 3,
            body: bth[BTH..bth.len() - 4].to_vec(),
        })
    }
}

/// Puts the correct ICRC at the end of a RoCEv2 frame.
pub fn sign(frame: &mut [u8]) {
    if let (Some(icrc), Some(at)) = (icrc(frame), frame.len().checked_sub(4)) {
        frame[at..].copy_from_slice(&icrc);
    }
}

/// Whether the ICRC of a frame is correct; None unless the frame is RoCEv2.
pub fn icrc_is_correct(frame: &[u8]) -> Option<bool> {
    let computed = icrc(frame)?;
    Some(frame.ends_with(&computed))
}

/// Computes the ICRC of a RoCEv2 frame that has room for it at its end, in wire order.
fn icrc(frame: &[u8]) -> Option<[u8; 4]> {
    let mut covered = frame.get(ETHERNET..frame.len().checked_sub(4)?)?.to_vec();
    let (ip, ones): (usize, &[usize]) = match frame.get(12..14)? {
        [8, 0] if covered.get(9) == Some(&17) => (IPV4, &[1, 8, 10, 11]),
        [0x86, 0xdd] if covered.get(6) == Some(&17) => (IPV6, &[1, 2, 3, 7]),
        _ => return None,
    };
    if covered.len() < ip + UDP + BTH || covered[ip + 2..ip + 4] != PORT.to_be_bytes() {
        return None;
    }
    if ip == IPV6 {
        covered[0] |= 0xf;
    }
    for &at in ones.iter().chain(&[ip + 6, ip + 7, ip + UDP + 4]) {
        covered[at] = 0xff;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&covered);
    Some(crc.finalize().to_le_bytes())
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SEND and its ACK between 192.168.0.1 and 192.168.0.2, made by hand from the vectors of roce.md, which other
    /// implementations of the ICRC produced.
    #[test]
    fn icrc_of_known_packets_is_checked() {
        for (bytes, right) in [
            (
                "45000034123440004011a731c0a80001c0a80002c00012b7002000000400ffff0000001180000001\
              68656c6c6f2121213bd3e26c",
                true,
            ),
            (
                "45000030000140004011b968c0a80002c0a80001c00112b7001c00001100ffff0000001200000001\
              1f00000139f04802",
                true,
            ),
            (
                "45000030000140004011b968c0a80002c0a80001c00112b7001c00001100ffff0000001200000001\
              1f00000239f04802",
                false,
            ),
        ] {
            let digits: Vec<u8> =
                bytes.chars().filter_map(|c| Some(c.to_digit(16)? as u8)).collect();
            let ip: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            let frame = [&[0; 12][..], &[8, 0], &ip].concat();
            assert_eq!(icrc_is_correct(&frame), Some(right));
        }
    }

    #[test]
    fn packet_round_trips_through_a_frame() {
        let packet = Packet {
            source: Ipv4Addr::new(10, 0, 1, 2),
            opcode: opcode::WRITE_ONLY,
            pkey: 0xffff,
            qpn: 0x12_3456,
            ack_request: true,
            psn: 0xab_cdef,
            pad: 1,
            body: [&reth(1, 2, 3)[..], b"abc\0"].concat(),
        };
        let frame = packet.frame([2; 6], [4; 6], Ipv4Addr::new(10, 0, 1, 1));
        assert_eq!(icrc_is_correct(&frame), Some(true));
        assert_eq!(checksum(&frame[14..34]), 0);
        assert_eq!(format!("{packet:?}"), format!("{:?}", Packet::parse(&frame).unwrap()));
    }
}
