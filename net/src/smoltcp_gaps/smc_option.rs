//! The TCP option that offers SMC (RFC 7609 section 3.1): experimental option 254 with the identifier "SMCR" in EBCDIC,
//! in the SYN, and in the SYN-ACK if the SYN had it.
//!
//! smoltcp does not support custom options. So the option is inserted into segments that smoltcp has built, and parsed
//! before smoltcp gets a segment (it ignores the option). Listeners and connectors select whether SMC is offered. IPv4
//! only, as in SMC-Rv2.

use crate::checksum::{fold, sum};

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const NOP: u8 = 1;
/// Two NOPs, kind, length, identifier.
const OPTION: [u8; 8] = [NOP, NOP, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
const TCP_FIXED: usize = 20;
const TCP_MAX: usize = 60;

/// A TCP segment over IPv4 in an Ethernet frame, with the length of its TCP header.
struct Segment<'a> {
    ip: &'a [u8],
    tcp: &'a [u8],
    header: usize,
}

impl<'a> Segment<'a> {
    /// Parses a frame. None unless it has a SYN or SYN-ACK.
    fn of_syn(frame: &'a [u8]) -> Option<Self> {
        if frame.get(12..14)? != IPV4 {
            return None;
        }
        let packet = &frame[ETHERNET..];
        let ip = usize::from(packet.first()? & 15) * 4;
        if ip < 20 || packet.first()? >> 4 != 4 || *packet.get(9)? != TCP {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        let tcp = packet.get(ip..total)?;
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        if header < TCP_FIXED || header > tcp.len() || tcp.get(13)? & SYN == 0 {
            return None;
        }
        Some(Segment { ip: &packet[..ip], tcp, header })
    }

    /// Bytes after its last option.
    fn padding(&self) -> usize {
        let mut options = &self.tcp[TCP_FIXED..self.header];
        while let Some(rest) = next(options) {
            options = rest;
        }
        options.len()
    }
}

/// The options after the first one; None at the end of the list, or if it is malformed.
fn next(options: &[u8]) -> Option<&[u8]> {
    match options {
        [] | [0, ..] | [_] => None,
        [NOP, rest @ ..] => Some(rest),
        [_, length, ..] if *length < 2 => None,
        [_, length, ..] => options.get(usize::from(*length)..),
    }
}

/// Whether these TCP options include the SMC option.
pub fn offers(mut options: &[u8]) -> bool {
    while let Some(rest) = next(options) {
        if options.starts_with(&OPTION[2..]) {
            return true;
        }
        options = rest;
    }
    false
}

/// Adds the option to the frame of `len` bytes at the beginning of `room`, if it has a SYN or SYN-ACK with room for it.
/// Returns the new length of the frame. The TCP checksum is not updated.
pub fn add(room: &mut [u8], len: usize) -> usize {
    let Some(segment) = room.get(..len).and_then(Segment::of_syn) else { return len };
    let wanted = segment.header + OPTION.len() <= TCP_MAX
        // Data in a SYN would have to be moved.
        && segment.header == segment.tcp.len()
        && len + OPTION.len() <= room.len();
    if !wanted {
        return len;
    }
    let (ip, tcp) = (segment.ip.len(), segment.header);
    let padding = segment.padding();
    let at = ETHERNET + ip + tcp;
    // An end-of-options marker must not precede the option.
    room[at - padding..at].fill(NOP);
    room[at..at + OPTION.len()].copy_from_slice(&OPTION);
    let (packet, _) = room[ETHERNET..].split_at_mut(ip + tcp + OPTION.len());
    let total = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&total);
    packet[10..12].fill(0);
    let checksum = !fold(sum(&packet[..ip]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    let tcp = &mut packet[ip..];
    tcp[12] = ((tcp.len() / 4) as u8) << 4 | tcp[12] & 15;
    len + OPTION.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A SYN of Linux from 10.77.0.2, port 40336, to 10.77.0.1, port 18001.
    fn syn(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0x9d, 0x90, 0x46, 0x51, 0, 0, 0, 1, 0, 0, 0, 0, 0, flags, 0xff, 0xff];
        tcp.extend([0, 0, 0, 0]);
        tcp.extend(options);
        tcp[12] = ((tcp.len() / 4) as u8) << 4;
        let mut frame = vec![0; ETHERNET];
        frame[12..14].copy_from_slice(&IPV4);
        let total = (20 + tcp.len()) as u8;
        frame.extend([0x45, 0, 0, total, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
        frame.extend(tcp);
        frame
    }

    const MSS: [u8; 4] = [2, 4, 5, 0xb4];

    #[test]
    fn offer_is_recognised() {
        assert!(offers(&[&MSS[..], &OPTION[..]].concat()));
        assert!(!offers(&MSS));
        let mut other = OPTION;
        other[7] = 0xc4;
        assert!(!offers(&other), "SMC-D");
        // An option that claims to be longer than the header, or to have no length.
        for option in [[2, 40, 0, 0], [3, 0, 254, 6]] {
            assert!(!offers(&option));
        }
    }

    #[test]
    fn added_option_is_recognised() {
        for flags in [SYN, SYN | 0x10] {
            // smoltcp terminates its list of options; ours is added after that.
            let mut room = syn(flags, &[MSS, [3, 3, 0, 0]].concat());
            let len = room.len();
            room.resize(len + 20, 0xaa);
            assert_eq!(add(&mut room, len), len + 8);
            let segment = Segment::of_syn(&room[..len + 8]).unwrap();
            assert!(offers(&segment.tcp[TCP_FIXED..segment.header]));
            assert_eq!(segment.header, 36);
            assert_eq!(segment.tcp[27], NOP);
            assert_eq!(fold(sum(segment.ip)), 0xffff, "the checksum covers itself");
            assert_eq!(room[len + 8], 0xaa, "no byte beyond the frame is written");
        }
    }

    #[test]
    fn option_is_not_added_without_room_or_syn() {
        for (flags, options) in [(0x10, &MSS[..]), (SYN, &[1; 40][..])] {
            let mut frame = syn(flags, options);
            let len = frame.len();
            frame.resize(len + 8, 0);
            assert_eq!(add(&mut frame, len), len);
        }
        let mut frame = syn(SYN, &MSS);
        let len = frame.len();
        assert_eq!(add(&mut frame, len), len, "the buffer is full");
        for cut in 0..len {
            assert_eq!(add(&mut frame[..cut].to_vec(), cut), cut);
        }
    }
}
