//! RoCEv2 packets: InfiniBand's transport headers (vol. 1, chapter 9) over UDP (annex A17).

use super::fields::{be16, be32, be64, put16, put32};
use crate::offload::{self, ETHERNET, IPV4, IPV6, Layers, UDP, VLAN};

/// The destination UDP port.
pub const PORT: u16 = 4791;

/// Operations: the lower five bits of the opcode.
pub const SEND_FIRST: u8 = 0x00;
pub const SEND_MIDDLE: u8 = 0x01;
pub const SEND_LAST: u8 = 0x02;
pub const SEND_LAST_IMMEDIATE: u8 = 0x03;
pub const SEND_ONLY: u8 = 0x04;
pub const SEND_ONLY_IMMEDIATE: u8 = 0x05;
pub const WRITE_FIRST: u8 = 0x06;
pub const WRITE_MIDDLE: u8 = 0x07;
pub const WRITE_LAST: u8 = 0x08;
pub const WRITE_LAST_IMMEDIATE: u8 = 0x09;
pub const WRITE_ONLY: u8 = 0x0a;
pub const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
pub const READ_REQUEST: u8 = 0x0c;
pub const READ_FIRST: u8 = 0x0d;
pub const READ_MIDDLE: u8 = 0x0e;
pub const READ_LAST: u8 = 0x0f;
pub const READ_ONLY: u8 = 0x10;
pub const ACKNOWLEDGE: u8 = 0x11;
pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
pub const COMPARE_SWAP: u8 = 0x13;
pub const FETCH_ADD: u8 = 0x14;
pub const SEND_LAST_INVALIDATE: u8 = 0x16;
pub const SEND_ONLY_INVALIDATE: u8 = 0x17;

/// The upper three bits of the opcode: reliable connections, unreliable datagrams.
const RELIABLE: u8 = 0;
const DATAGRAM: u8 = 0x60;

/// Bytes of the base transport header, and of the invariant CRC.
const BASE: usize = 12;
const CRC: usize = 4;
const UDP_HEADER: usize = 8;

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
    pub tag: Option<u16>,
    /// Source GID: an IPv6 address, or an IPv4-mapped one.
    pub source: [u8; 16],
    /// Destination GID.
    pub destination: [u8; 16],
    pub class: u8,
    pub hops: u8,
    pub label: u32,
    pub udp_source: u16,
}

/// Whether a GID is an IPv4 address.
pub fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

/// Remote memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub key: u32,
    pub length: u32,
}

/// A packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub path: Path,
    /// Q_Key and source queue pair of a datagram.
    pub datagram: Option<(u32, u32)>,
    pub operation: u8,
    pub solicited: bool,
    pub partition: u16,
    pub pair: u32,
    pub wants_ack: bool,
    pub sequence: u32,
    pub remote: Remote,
    /// Operands of an atomic operation: the value to swap in or add, and the value to compare with.
    pub atomic: [u64; 2],
    /// Immediate data, or the key to invalidate.
    pub immediate: u32,
    /// Syndrome and message number.
    pub acknowledge: (u8, u32),
    /// The original value of an atomic operation's memory.
    pub original: u64,
    pub payload: Vec<u8>,
}

fn has_remote(operation: u8) -> bool {
    matches!(operation, WRITE_FIRST | WRITE_ONLY | WRITE_ONLY_IMMEDIATE | READ_REQUEST)
}

fn has_immediate(operation: u8) -> bool {
    matches!(
        operation,
        SEND_LAST_IMMEDIATE
            | SEND_ONLY_IMMEDIATE
            | WRITE_LAST_IMMEDIATE
            | WRITE_ONLY_IMMEDIATE
            | SEND_LAST_INVALIDATE
            | SEND_ONLY_INVALIDATE
    )
}

fn is_atomic(operation: u8) -> bool {
    matches!(operation, COMPARE_SWAP | FETCH_ADD)
}

fn has_acknowledge(operation: u8) -> bool {
    matches!(operation, READ_FIRST | READ_LAST | READ_ONLY | ACKNOWLEDGE | ATOMIC_ACKNOWLEDGE)
}

impl Packet {
    /// Whether the packet is a response to the requester.
    pub fn is_response(&self) -> bool {
        (READ_FIRST..=ATOMIC_ACKNOWLEDGE).contains(&self.operation)
    }

    /// The transport headers and the payload, without CRC.
    fn transport(&self) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() % 4;
        let class = if self.datagram.is_some() { DATAGRAM } else { RELIABLE };
        let mut bytes = vec![class | self.operation];
        // Migration state is "migrated", as without path migration.
        bytes.push(u8::from(self.solicited) << 7 | 0x40 | (pad as u8) << 4);
        bytes.extend(self.partition.to_be_bytes());
        bytes.extend(self.pair.to_be_bytes());
        bytes.extend((u32::from(self.wants_ack) << 31 | self.sequence).to_be_bytes());
        let mut put = |word: u32| bytes.extend(word.to_be_bytes());
        if let Some((key, source)) = self.datagram {
            put(key);
            put(source);
        }
        let Remote { address, key, length } = self.remote;
        if has_remote(self.operation) || is_atomic(self.operation) {
            put((address >> 32) as u32);
            put(address as u32);
            put(key);
        }
        if has_remote(self.operation) {
            put(length);
        }
        if is_atomic(self.operation) {
            for value in self.atomic {
                put((value >> 32) as u32);
                put(value as u32);
            }
        }
        if has_acknowledge(self.operation) {
            put(u32::from(self.acknowledge.0) << 24 | self.acknowledge.1 & 0xff_ffff);
        }
        if self.operation == ATOMIC_ACKNOWLEDGE {
            put((self.original >> 32) as u32);
            put(self.original as u32);
        }
        if has_immediate(self.operation) {
            put(self.immediate);
        }
        bytes.extend_from_slice(&self.payload);
        bytes.resize(bytes.len() + pad, 0);
        bytes
    }

    /// Encodes the packet as an Ethernet frame.
    pub fn encode(&self) -> Vec<u8> {
        let Path { source, destination, class, hops, label, udp_source, .. } = self.path;
        let transport = self.transport();
        let mut frame = [self.path.destination_mac, self.path.source_mac].concat();
        if let Some(tag) = self.path.tag {
            frame.extend(VLAN.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        let length = (UDP_HEADER + transport.len() + CRC) as u16;
        let at = frame.len() + 2;
        if is_ipv4(&source) {
            frame.extend(IPV4.to_be_bytes());
            frame.extend([0x45, class]);
            frame.extend((20 + length).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, hops, UDP, 0, 0]);
            frame.extend_from_slice(&source[12..]);
            frame.extend_from_slice(&destination[12..]);
            let sum = !offload::sum(&frame[at..], 0);
            put16(&mut frame, at + 10, sum);
        } else {
            frame.extend(IPV6.to_be_bytes());
            frame.extend((6 << 28 | u32::from(class) << 20 | label & 0xf_ffff).to_be_bytes());
            frame.extend(length.to_be_bytes());
            frame.extend([UDP, hops]);
            frame.extend_from_slice(&source);
            frame.extend_from_slice(&destination);
        }
        frame.extend(udp_source.to_be_bytes());
        frame.extend(PORT.to_be_bytes());
        frame.extend(length.to_be_bytes());
        // No UDP checksum: IPv6 permits that for RoCE, because packets have the invariant CRC.
        frame.extend([0, 0]);
        frame.extend(transport);
        let crc = invariant_crc(&frame[at..]);
        frame.extend(crc);
        frame
    }

    /// Decodes a frame. None if it is not a RoCE packet, an error if the packet is invalid.
    pub fn decode(frame: &[u8]) -> Option<Result<Packet, &'static str>> {
        let layers = Layers::of(frame);
        let (UDP, at) = layers.transport.filter(|_| !layers.fragment)? else { return None };
        if frame.len() < at + UDP_HEADER || be16(frame, at + 2) != PORT {
            return None;
        }
        Some(Packet::decode_transport(frame, &layers, at))
    }

    fn decode_transport(frame: &[u8], layers: &Layers, at: usize) -> Result<Packet, &'static str> {
        let end = at + usize::from(be16(frame, at + 4));
        if end > frame.len() || end < at + UDP_HEADER + BASE + CRC {
            return Err("length");
        }
        let (packet, crc) = frame[..end].split_at(end - CRC);
        if crc != invariant_crc(&packet[layers.network..]) {
            return Err("invariant CRC");
        }
        let mut path = Path {
            destination_mac: frame[..6].try_into().expect("six bytes"),
            source_mac: frame[6..12].try_into().expect("six bytes"),
            tag: layers.tag,
            udp_source: be16(frame, at),
            ..Path::default()
        };
        let network = layers.network;
        if layers.ethertype == IPV4 {
            let map = |from: usize| {
                let mut gid = [0; 16];
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(&frame[from..from + 4]);
                gid
            };
            (path.source, path.destination) = (map(network + 12), map(network + 16));
            (path.class, path.hops) = (frame[network + 1], frame[network + 8]);
        } else {
            let gid = |from: usize| frame[from..from + 16].try_into().expect("sixteen bytes");
            (path.source, path.destination) = (gid(network + 8), gid(network + 24));
            let first = be32(frame, network);
            (path.class, path.hops) = ((first >> 20) as u8, frame[network + 7]);
            path.label = first & 0xf_ffff;
        }
        let base = &packet[at + UDP_HEADER..];
        let (opcode, flags) = (base[0], base[1]);
        let (class, operation) = (opcode & 0xe0, opcode & 0x1f);
        let known = match class {
            RELIABLE => operation <= SEND_ONLY_INVALIDATE && operation != 0x15,
            DATAGRAM => matches!(operation, SEND_ONLY | SEND_ONLY_IMMEDIATE),
            _ => false,
        };
        if !known || flags & 0xf != 0 {
            return Err("opcode or version");
        }
        let mut read = Packet {
            path,
            operation,
            solicited: flags >> 7 == 1,
            partition: be16(base, 2),
            pair: be32(base, 4) & 0xff_ffff,
            wants_ack: base[8] >> 7 == 1,
            sequence: be32(base, 8) & 0xff_ffff,
            ..Packet::default()
        };
        let mut rest = &base[BASE..];
        let mut take = |length: usize| {
            let (now, behind) = rest.split_at_checked(length).ok_or("length")?;
            rest = behind;
            Ok::<_, &'static str>(now)
        };
        if class == DATAGRAM {
            let header = take(8)?;
            read.datagram = Some((be32(header, 0), be32(header, 4) & 0xff_ffff));
        }
        if has_remote(operation) {
            let header = take(16)?;
            let (address, key, length) = (be64(header, 0), be32(header, 8), be32(header, 12));
            read.remote = Remote { address, key, length };
        }
        if is_atomic(operation) {
            let header = take(28)?;
            read.remote = Remote { address: be64(header, 0), key: be32(header, 8), length: 8 };
            read.atomic = [be64(header, 12), be64(header, 20)];
        }
        if has_acknowledge(operation) {
            let header = take(4)?;
            read.acknowledge = (header[0], be32(header, 0) & 0xff_ffff);
        }
        if operation == ATOMIC_ACKNOWLEDGE {
            read.original = be64(take(8)?, 0);
        }
        if has_immediate(operation) {
            read.immediate = be32(take(4)?, 0);
        }
        let pad = usize::from(flags >> 4 & 3);
        let length = rest.len().checked_sub(pad).ok_or("length")?;
        read.payload = rest[..length].to_vec();
        Ok(read)
    }

    /// The 40 bytes before a datagram's payload in its receive buffer: an IPv6 header, or an IPv4 header in the last
    /// 20.
    pub fn network_header(&self) -> [u8; 40] {
        let mut header = [0; 40];
        let path = Path { tag: None, ..self.path };
        let frame = Packet { path, ..self.clone() }.encode();
        let length = if is_ipv4(&path.source) { 20 } else { 40 };
        header[40 - length..].copy_from_slice(&frame[ETHERNET..ETHERNET + length]);
        header
    }
}

/// The invariant CRC of a packet from its network header on (vol. 1, 7.8.1; annex A17.3.3).
fn invariant_crc(packet: &[u8]) -> [u8; CRC] {
    let is_ipv4 = packet[0] >> 4 == 4;
    let headers = if is_ipv4 { 20 } else { 40 } + UDP_HEADER + BASE;
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(packet);
    let start = &mut masked[8..];
    if is_ipv4 {
        [1, 8, 10, 11, 26, 27].into_iter().for_each(|at| start[at] = 0xff);
    } else {
        let first = be32(start, 0) | 0x0fff_ffff;
        put32(start, 0, first);
        [7, 46, 47].into_iter().for_each(|at| start[at] = 0xff);
    }
    // The reserved byte of the base header.
    start[headers - BASE + 4] = 0xff;
    crc32fast::hash(&masked).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(v4: bool) -> Path {
        let mut gid = [0; 16];
        match v4 {
            true => gid[10..16].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]),
            false => gid[..2].copy_from_slice(&[0xfd, 0]),
        }
        let mut other = gid;
        other[15] = 2;
        Path {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            source: gid,
            destination: other,
            hops: 64,
            udp_source: 0xc123,
            ..Path::default()
        }
    }

    #[test]
    fn packets_decode_as_encoded() {
        for operation in (0..=SEND_ONLY_INVALIDATE).filter(|operation| *operation != 0x15) {
            for v4 in [true, false] {
                let mut packet = Packet {
                    path: path(v4),
                    operation,
                    partition: 0xffff,
                    pair: 0x123,
                    sequence: 0xff_fffe,
                    wants_ack: true,
                    payload: vec![7; 13],
                    ..Packet::default()
                };
                if has_remote(operation) {
                    packet.remote = Remote { address: 1 << 40 | 5, key: 77, length: 13 };
                }
                if is_atomic(operation) {
                    packet.remote = Remote { address: 1 << 40, key: 77, length: 8 };
                    packet.atomic = [1 << 50, 2];
                }
                if has_acknowledge(operation) {
                    packet.acknowledge = (0x61, 9);
                }
                if operation == ATOMIC_ACKNOWLEDGE {
                    packet.original = 1 << 60;
                }
                if has_immediate(operation) {
                    packet.immediate = 0xabcd;
                }
                let mut frame = packet.encode();
                assert_eq!(Packet::decode(&frame), Some(Ok(packet)));
                let last = frame.len() - 6;
                frame[last] ^= 1;
                assert_eq!(Packet::decode(&frame), Some(Err("invariant CRC")));
            }
        }
    }

    #[test]
    fn datagram_has_its_network_header() {
        let packet = Packet {
            path: path(true),
            datagram: Some((0x8001_0000, 1)),
            operation: SEND_ONLY,
            payload: vec![3; 256],
            pair: 1,
            ..Packet::default()
        };
        let frame = packet.encode();
        assert_eq!(Packet::decode(&frame), Some(Ok(packet.clone())));
        let header = packet.network_header();
        assert_eq!((header[19], header[20], header[29]), (0, 0x45, UDP));
        assert_eq!(header[20..], frame[14..34]);
    }
}
