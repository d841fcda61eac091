//! The TCP option by which hosts tell each other that they speak SMC (RFC 7609, 3.1): experimental
//! option 254 with the identifier "SMCR" in EBCDIC, in SYN, and in SYN-ACK if the SYN had it.
//!
//! smoltcp has no options of others. So the option is put into segments that smoltcp has made, and
//! looked for in segments before smoltcp sees them (which ignores it). Ports that nobody enabled are
//! left alone. IPv4 only: SMC-Rv2 knows no other.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const NOP: u8 = 1;
/// Two NOPs, kind, length, identifier.
const OPTION: [u8; 8] = [NOP, NOP, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
const TCP_FIXED: usize = 20;
const TCP_MAX: usize = 60;
/// Offers that are remembered until their connection is accepted; the oldest go first.
const OFFERS: usize = 1024;

/// A connection, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    local_port: u16,
    remote: (Ipv4Addr, u16),
}

/// Who offers the option, and who has offered it to us.
#[derive(Debug, Default)]
pub struct SmcOption {
    /// Local ports whose connections offer it.
    ports: Vec<u16>,
    /// Connections whose peer has offered it.
    offers: VecDeque<Connection>,
}

/// A TCP segment over IPv4 in an Ethernet frame, with its header's length.
struct Segment<'a> {
    ip: &'a [u8],
    tcp: &'a [u8],
    header: usize,
}

impl<'a> Segment<'a> {
    /// Of a frame that holds a SYN or SYN-ACK.
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

    fn is_answer(&self) -> bool {
        self.tcp[13] & ACK != 0
    }

    fn ports(&self) -> (u16, u16) {
        let port = |at: usize| u16::from_be_bytes([self.tcp[at], self.tcp[at + 1]]);
        (port(0), port(2))
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::new(self.ip[at], self.ip[at + 1], self.ip[at + 2], self.ip[at + 3])
    }

    /// Bytes behind the last of its options.
    fn padding(&self) -> usize {
        let mut options = &self.tcp[TCP_FIXED..self.header];
        while let Some(rest) = next(options) {
            options = rest;
        }
        options.len()
    }

    /// Whether the option is among its options.
    fn offers(&self) -> bool {
        let mut options = &self.tcp[TCP_FIXED..self.header];
        while let Some(rest) = next(options) {
            if options.starts_with(&OPTION[2..]) {
                return true;
            }
            options = rest;
        }
        false
    }
}

/// What follows the first option; None at the end of the list, or where it makes no sense.
fn next(options: &[u8]) -> Option<&[u8]> {
    match options {
        [] | [0, ..] | [_] => None,
        [NOP, rest @ ..] => Some(rest),
        [_, length, ..] if *length < 2 => None,
        [_, length, ..] => options.get(usize::from(*length)..),
    }
}

impl SmcOption {
    /// Has connections of a local port offer the option, or no more.
    pub fn set_port(&mut self, port: u16, on: bool) {
        self.ports.retain(|&other| other != port);
        if on {
            self.ports.push(port);
        }
    }

    /// Looks at a received frame.
    #[inline]
    pub fn inspect(&mut self, frame: &[u8]) {
        if !self.ports.is_empty() {
            self.inspect_syn(frame);
        }
    }

    fn inspect_syn(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::of_syn(frame) else { return };
        let (remote_port, local_port) = segment.ports();
        if !self.ports.contains(&local_port) {
            return;
        }
        let connection = Connection { local_port, remote: (segment.address(12), remote_port) };
        self.offers.retain(|other| *other != connection);
        if segment.offers() {
            if self.offers.len() == OFFERS {
                self.offers.pop_front();
            }
            self.offers.push_back(connection);
        }
    }

    /// Whether the peer of a connection has offered the option; asked once, when it is open.
    pub fn take_offer(&mut self, local_port: u16, remote: (Ipv4Addr, u16)) -> bool {
        let connection = Connection { local_port, remote };
        let found = self.offers.iter().position(|other| *other == connection);
        found.and_then(|at| self.offers.remove(at)).is_some()
    }

    /// Adds the option to the frame of `len` bytes at the beginning of `room`, if it is one that
    /// wants it; the length of the frame from then on.
    pub fn add(&self, room: &mut [u8], len: usize) -> usize {
        if self.ports.is_empty() {
            return len;
        }
        let Some(segment) = room.get(..len).and_then(Segment::of_syn) else { return len };
        let (local_port, remote_port) = segment.ports();
        let connection = Connection { local_port, remote: (segment.address(16), remote_port) };
        let wanted = self.ports.contains(&local_port)
            && (!segment.is_answer() || self.offers.contains(&connection))
            && segment.header + OPTION.len() <= TCP_MAX
            // Data in a SYN would have to move.
            && segment.header == segment.tcp.len()
            && len + OPTION.len() <= room.len();
        if !wanted {
            return len;
        }
        let (ip, tcp) = (segment.ip.len(), segment.header);
        let padding = segment.padding();
        let at = ETHERNET + ip + tcp;
        // The end of the list of options is to be behind ours.
        room[at - padding..at].fill(NOP);
        room[at..at + OPTION.len()].copy_from_slice(&OPTION);
        let (packet, _) = room[ETHERNET..].split_at_mut(ip + tcp + OPTION.len());
        let total = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&total);
        packet[10..12].fill(0);
        let sum = checksum(0, &packet[..ip]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let (ip, tcp) = packet.split_at_mut(ip);
        tcp[12] = ((tcp.len() / 4) as u8) << 4 | tcp[12] & 15;
        tcp[16..18].fill(0);
        let pseudo =
            ip[12..20].as_chunks::<2>().0.iter().map(|&b| u32::from(u16::from_be_bytes(b)));
        let pseudo = pseudo.sum::<u32>() + u32::from(TCP) + tcp.len() as u32;
        let sum = checksum(pseudo, tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        len + OPTION.len()
    }
}

/// The Internet checksum (RFC 1071) over an even number of bytes.
fn checksum(first: u32, bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0.iter().map(|&b| u32::from(u16::from_be_bytes(b)));
    let mut sum = first + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    /// A SYN from 10.77.0.2, port 40336, to 10.77.0.1, port 18001, as Linux sends it.
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
    fn an_offer_is_seen_and_taken_once() {
        let mut smc = SmcOption::default();
        let remote = (Ipv4Addr::new(10, 77, 0, 2), 40336);
        let offer = syn(SYN, &[&MSS[..], &OPTION[..]].concat());
        smc.inspect(&offer);
        assert!(!smc.take_offer(18001, remote), "nobody enabled the port");
        smc.set_port(18001, true);
        smc.inspect(&offer);
        assert!(!smc.take_offer(18002, remote));
        assert!(smc.take_offer(18001, remote));
        assert!(!smc.take_offer(18001, remote));
        smc.inspect(&offer);
        smc.inspect(&syn(SYN, &MSS));
        assert!(!smc.take_offer(18001, remote), "a later SYN does not offer");
        let mut other = offer.clone();
        *other.last_mut().unwrap() = 0xc4;
        smc.inspect(&other);
        assert!(!smc.take_offer(18001, remote), "that is SMC-D's");
    }

    #[test]
    fn what_is_added_is_what_is_seen() {
        let mut smc = SmcOption::default();
        // smoltcp ends the list of its options, and we begin behind that.
        let mut room = syn(SYN, &[MSS, [3, 3, 0, 0]].concat());
        let len = room.len();
        room.resize(len + 20, 0xaa);
        assert_eq!(smc.add(&mut room.clone(), len), len, "nobody enabled the port");
        smc.set_port(40336, true);
        assert_eq!(smc.add(&mut room, len), len + 8);
        let segment = Segment::of_syn(&room[..len + 8]).unwrap();
        assert!(segment.offers());
        assert_eq!(segment.header, 36);
        assert_eq!(segment.tcp[27], NOP);
        assert_eq!(checksum(0, segment.ip), 0, "the checksum covers itself");
        let pseudo = 0x0a4d + 2 + 0x0a4d + 1 + 6 + 36;
        assert_eq!(checksum(pseudo, segment.tcp), 0);
        assert_eq!(room[len + 8], 0xaa, "and no more than that");
    }

    #[test]
    fn an_answer_offers_only_to_who_has_offered() {
        let mut smc = SmcOption::default();
        smc.set_port(40336, true);
        let mut answer = syn(SYN | ACK, &MSS);
        let len = answer.len();
        answer.resize(len + 8, 0);
        assert_eq!(smc.add(&mut answer, len), len);
        smc.offers.push_back(Connection {
            local_port: 40336,
            remote: (Ipv4Addr::new(10, 77, 0, 1), 18001),
        });
        assert_eq!(smc.add(&mut answer, len), len + 8);
        assert!(smc.take_offer(40336, (Ipv4Addr::new(10, 77, 0, 1), 18001)));
    }

    #[test]
    fn there_is_no_room_and_no_sense() {
        let mut smc = SmcOption::default();
        smc.set_port(40336, true);
        for (flags, options) in [(ACK, &MSS[..]), (SYN, &[1; 40][..])] {
            let mut frame = syn(flags, options);
            let len = frame.len();
            frame.resize(len + 8, 0);
            assert_eq!(smc.add(&mut frame, len), len);
        }
        let mut frame = syn(SYN, &MSS);
        let len = frame.len();
        assert_eq!(smc.add(&mut frame, len), len, "the buffer is full");
        for cut in 0..len {
            smc.inspect(&frame[..cut]);
            assert_eq!(smc.add(&mut frame[..cut].to_vec(), cut), cut);
        }
        // An option that claims to be longer than the header, or to have no length.
        for option in [[2, 40, 0, 0], [3, 0, 254, 6]] {
            let frame = syn(SYN, &option);
            assert!(!Segment::of_syn(&frame).unwrap().offers());
        }
    }
}
