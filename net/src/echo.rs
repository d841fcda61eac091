//! The UDP echo service (RFC 862) without sockets: the reply is built from the received frame.
//!
//! Only unicast datagrams from unicast addresses get a reply, and none from port 7: two echo services would loop.
//! Fragments and packets with IP options get no reply. Swapping addresses and ports does not change the UDP checksum;
//! only the IPv4 header checksum is recomputed.

use crate::checksum::{fold, sum};
use crate::classify::ECHO_PORT;
use crate::port_addresses::{self, PortAddresses};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// Builds the reply to `frame` (of class [`crate::Class::UdpEcho`]) in `reply`, which must have room for a whole frame.
/// Returns its length, or None if the frame is malformed or gets no reply.
pub fn answer(frame: &[u8], local: &PortAddresses, reply: &mut [u8]) -> Option<usize> {
    let ethernet = frame.first_chunk::<ETHERNET>()?;
    let [d0, d1, d2, d3, d4, d5, source @ .., t0, t1] = *ethernet;
    if [d0, d1, d2, d3, d4, d5] != local.mac {
        return None;
    }
    let source = port_addresses::unicast_mac(source)?;
    let length = match [t0, t1] {
        [0x08, 0x00] => answer_v4(&frame[ETHERNET..], local, reply.get_mut(ETHERNET..)?)?,
        [0x86, 0xdd] => answer_v6(&frame[ETHERNET..], local, reply.get_mut(ETHERNET..)?)?,
        _ => return None,
    };
    let header = reply.first_chunk_mut::<ETHERNET>()?;
    header[..6].copy_from_slice(&source);
    header[6..12].copy_from_slice(&local.mac);
    header[12..].copy_from_slice(&[t0, t1]);
    Some(ETHERNET + length)
}

fn answer_v4(packet: &[u8], local: &PortAddresses, reply: &mut [u8]) -> Option<usize> {
    let ip = packet.first_chunk::<IPV4>()?;
    let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let [source, destination] =
        [[ip[12], ip[13], ip[14], ip[15]], [ip[16], ip[17], ip[18], ip[19]]];
    let from = IpAddr::V4(Ipv4Addr::from(source));
    if ip[0] != 0x45 || ip[9] != UDP_PROTOCOL || fragment || fold(sum(ip)) != 0xffff {
        return None;
    }
    if !local.has_v4(Ipv4Addr::from(destination)) || !local.admits(from) {
        return None;
    }
    let udp = packet.get(IPV4..length)?;
    let checksum = check_udp(udp, sum(&source) + sum(&destination))?;
    if checksum == Checksum::Wrong {
        return None;
    }
    let (header, data) = reply.split_first_chunk_mut::<IPV4>()?;
    *header = *ip;
    header[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    header[8] = HOP_LIMIT;
    header[10..12].fill(0);
    header[12..16].copy_from_slice(&destination);
    header[16..].copy_from_slice(&source);
    let checksum = !fold(sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    answer_udp(udp, data)?;
    Some(length)
}

fn answer_v6(packet: &[u8], local: &PortAddresses, reply: &mut [u8]) -> Option<usize> {
    let ip = packet.first_chunk::<IPV6>()?;
    let length = IPV6 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let source: [u8; 16] = *ip[8..].first_chunk()?;
    let destination: [u8; 16] = *ip[24..].first_chunk()?;
    let from = IpAddr::V6(Ipv6Addr::from(source));
    if ip[0] >> 4 != 6 || ip[6] != UDP_PROTOCOL {
        return None;
    }
    if !local.has_v6(Ipv6Addr::from(destination)) || !local.admits(from) {
        return None;
    }
    let udp = packet.get(IPV6..length)?;
    // Over IPv6 a datagram without checksum is dropped (RFC 8200 section 8.1).
    if check_udp(udp, sum(&source) + sum(&destination))? != Checksum::Right {
        return None;
    }
    let (header, data) = reply.split_first_chunk_mut::<IPV6>()?;
    *header = *ip;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&destination);
    header[24..].copy_from_slice(&source);
    answer_udp(udp, data)?;
    Some(length)
}

#[derive(PartialEq, Eq)]
enum Checksum {
    Right,
    Wrong,
    Absent,
}

/// Checks lengths, ports and checksum. None if the datagram gets no reply. `addresses` is the sum over both IP
/// addresses.
fn check_udp(udp: &[u8], addresses: u64) -> Option<Checksum> {
    let header = udp.first_chunk::<UDP>()?;
    let length = u16::from_be_bytes([header[4], header[5]]);
    let from = u16::from_be_bytes([header[0], header[1]]);
    let to = u16::from_be_bytes([header[2], header[3]]);
    if usize::from(length) != udp.len() || to != ECHO_PORT || from == ECHO_PORT || from == 0 {
        return None;
    }
    if header[6..] == [0, 0] {
        return Some(Checksum::Absent);
    }
    let pseudo = addresses + u64::from(UDP_PROTOCOL) + u64::from(length);
    let right = fold(pseudo + sum(udp)) == 0xffff;
    Some(if right { Checksum::Right } else { Checksum::Wrong })
}

fn answer_udp(udp: &[u8], reply: &mut [u8]) -> Option<()> {
    let reply = reply.get_mut(..udp.len())?;
    reply.copy_from_slice(udp);
    let ports = reply.first_chunk_mut::<4>()?;
    let [a, b, c, d] = *ports;
    *ports = [c, d, a, b];
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, OUR_MAC, PEER_MAC, udp};
    use proptest::prelude::*;
    use std::vec::Vec;

    fn local() -> PortAddresses {
        PortAddresses {
            mac: OUR_MAC,
            v4: [Ipv4Addr::new(10, 0, 0, 1)].into(),
            v6: ["fe80::1".parse().unwrap()].into(),
        }
    }

    fn ends(v6: bool) -> (IpAddr, IpAddr) {
        let (from, to) = if v6 { ("fe80::2", "fe80::1") } else { ("10.0.0.2", "10.0.0.1") };
        (from.parse().unwrap(), to.parse().unwrap())
    }

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        let mut reply = [0xee; 1514];
        super::answer(frame, &local(), &mut reply).map(|length| reply[..length].into())
    }

    proptest! {
        #[test]
        fn reply_equals_smoltcps(
            data in proptest::collection::vec(any::<u8>(), 0..1400),
            port in 8u16..,
            v6: bool,
            padding in 0usize..20,
        ) {
            let (peer, us) = ends(v6);
            let mut frame = udp(peer, us, port, 7, &data);
            frame.extend(std::vec![0; padding]);
            let mut expected = udp(us, peer, 7, port, &data);
            expected[..6].copy_from_slice(&PEER_MAC);
            expected[6..12].copy_from_slice(&OUR_MAC);
            prop_assert_eq!(answer(&frame), Some(expected));
        }

        #[test]
        fn a_flipped_bit_is_noticed(bit in 0usize..(14 + 20 + 8 + 9) * 8) {
            let (peer, us) = ends(false);
            let frame = udp(peer, us, 9999, 7, b"some data");
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let sender_mac = (6..12).contains(&(bit / 8)) && bit != 48;
            prop_assert_eq!(answer(&damaged).is_some(), sender_mac);
        }

        #[test]
        fn arbitrary_frames_do_no_harm(mut frame in proptest::collection::vec(any::<u8>(), 0..100)) {
            answer(&frame);
            if let Some(mac) = frame.first_chunk_mut() {
                *mac = OUR_MAC;
                answer(&frame);
            }
        }
    }

    #[test]
    fn missing_checksum_is_accepted_over_ipv4_only() {
        for v6 in [false, true] {
            let (peer, us) = ends(v6);
            let mut frame = udp(peer, us, 9999, 7, b"x");
            let at = frame.len() - 3;
            frame[at..at + 2].fill(0);
            let reply = answer(&frame);
            assert_eq!(reply.is_some(), !v6);
            assert!(reply.is_none_or(|r| r[at..at + 2] == [0, 0]));
        }
    }

    #[test]
    fn groups_loops_and_our_own_address_get_no_reply() {
        let (peer, us) = ends(false);
        let broadcast = "10.0.0.255".parse().unwrap();
        let group = "224.0.0.1".parse().unwrap();
        assert_eq!(answer(&udp(peer, us, 7, 7, b"")), None, "two echo services would loop");
        assert_eq!(answer(&udp(peer, us, 0, 7, b"")), None, "no source port");
        assert_eq!(answer(&udp(peer, us, 99, 8, b"")), None, "another port");
        assert_eq!(answer(&udp(peer, broadcast, 99, 7, b"")), None);
        assert_eq!(answer(&udp(group, us, 99, 7, b"")), None);
        assert_eq!(answer(&udp(us, us, 99, 7, b"")), None);
        let mut frame = udp(peer, us, 99, 7, b"");
        frame[..6].fill(0xff);
        assert_eq!(answer(&frame), None, "a broadcast");
    }

    #[test]
    fn reply_that_exceeds_the_buffer_is_not_built() {
        let (peer, us) = ends(false);
        let frame = testing::udp(peer, us, 99, 7, &[7; 100]);
        let mut reply = [0; 141];
        assert_eq!(super::answer(&frame, &local(), &mut reply), None);
    }
}
