//! UDP over IPv4 for engines on the data path: parses datagrams in received frames, and builds the headers of sent
//! ones. The UDP checksum is mandatory in both directions: a datagram without one is rejected. RFC 768 makes it
//! optional, but cards that verify checksums on receive do not accept its absence.
//!
//! Fragments, IP options and VLAN tags are not supported ([`crate::classify`] does not dispatch such frames to
//! engines).

use crate::checksum::{fold, sum};
use crate::port_addresses::PortAddresses;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use drivers::hal::Window;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// Bytes of the headers of Ethernet, IPv4 and UDP before a datagram.
pub const HEADERS: usize = ETHERNET + IPV4 + UDP;

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address and port.
    pub from: SocketAddrV4,
    /// Source MAC address of its frame.
    pub mac: [u8; 6],
    /// Destination address and port.
    pub to: SocketAddrV4,
    /// Payload.
    pub payload: &'a [u8],
}

/// Why a frame is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is for another station or address, or from an address that cannot be answered.
    NotOurs,
    /// Its lengths are inconsistent, or it has an unsupported header.
    Malformed,
    /// A checksum is wrong or absent.
    Checksum,
}

impl<'a> Datagram<'a> {
    /// Parses a frame that a port with these addresses received.
    #[inline]
    pub fn parse(frame: &'a [u8], local: &PortAddresses) -> Result<Datagram<'a>, Unfit> {
        let (headers, rest) = frame.split_first_chunk::<HEADERS>().ok_or(Unfit::Malformed)?;
        let word = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
        let address = |at: usize| {
            Ipv4Addr::new(headers[at], headers[at + 1], headers[at + 2], headers[at + 3])
        };
        let (source, destination) = (address(26), address(30));
        if headers[..6] != local.mac
            || !local.has_v4(destination)
            || !local.admits(IpAddr::V4(source))
        {
            return Err(Unfit::NotOurs);
        }
        let [total, udp_length] = [word(16), word(38)].map(usize::from);
        let is_plain = headers[12..15] == [0x08, 0x00, 0x45] && headers[23] == UDP_PROTOCOL;
        let is_whole = word(20) & 0x3fff == 0 && total == IPV4 + udp_length;
        if !is_plain || !is_whole || udp_length < UDP {
            return Err(Unfit::Malformed);
        }
        let payload = rest.get(..udp_length - UDP).ok_or(Unfit::Malformed)?;
        let pseudo = sum(&headers[26..34]) + u64::from(UDP_PROTOCOL) + udp_length as u64;
        let checksum = pseudo + sum(&headers[34..]) + sum(payload);
        let is_right = fold(sum(&headers[14..34])) == 0xffff && fold(checksum) == 0xffff;
        if !is_right || word(40) == 0 {
            return Err(Unfit::Checksum);
        }
        let from = SocketAddrV4::new(source, word(34));
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *headers;
        let mac = [a, b, c, d, e, f];
        Ok(Datagram { from, mac, to: SocketAddrV4::new(destination, word(36)), payload })
    }
}

/// A checksum over several parts, which may begin at odd offsets (RFC 1071 section 2 B).
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: u64,
    is_odd: bool,
}

impl Sum {
    fn add(&mut self, part: u64, length: usize) {
        let part = fold(part);
        self.sum += u64::from(if self.is_odd { part.swap_bytes() } else { part });
        self.is_odd ^= !length.is_multiple_of(2);
    }
}

/// Builds the headers of a frame whose payload is `head` followed by the windows of `tail`. Don't Fragment is set,
/// because receiving engines do not accept fragments. None if the datagram exceeds IPv4's limit.
#[inline]
pub fn headers(
    macs: [[u8; 6]; 2],
    from: SocketAddrV4,
    to: SocketAddrV4,
    head: &[u8],
    tail: &[Window],
) -> Option<[u8; HEADERS]> {
    let [ours, next_hop] = macs;
    let length = UDP + head.len() + tail.iter().map(Window::len).sum::<usize>();
    let total = u16::try_from(IPV4 + length).ok()?;
    let mut frame = [0; HEADERS];
    frame[..6].copy_from_slice(&next_hop);
    frame[6..12].copy_from_slice(&ours);
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[20] = 0x40;
    frame[22..24].copy_from_slice(&[HOP_LIMIT, UDP_PROTOCOL]);
    frame[26..30].copy_from_slice(&from.ip().octets());
    frame[30..34].copy_from_slice(&to.ip().octets());
    frame[34..36].copy_from_slice(&from.port().to_be_bytes());
    frame[36..38].copy_from_slice(&to.port().to_be_bytes());
    frame[38..40].copy_from_slice(&(total - IPV4 as u16).to_be_bytes());
    let checksum = !fold(sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let mut all = Sum::default();
    all.add(sum(&frame[26..40]) + u64::from(UDP_PROTOCOL) + length as u64, 0);
    all.add(sum(head), head.len());
    for window in tail {
        let mut part = 0;
        window.for_each_block(|block| part += sum(block));
        all.add(part, window.len());
    }
    // 0 would mean that there is no checksum; it is sent as all ones (RFC 768).
    let checksum = match !fold(all.sum) {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[40..42].copy_from_slice(&checksum.to_be_bytes());
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{OUR_MAC, PEER_MAC, udp};
    use drivers::hal::Arena;
    use proptest::prelude::*;
    use std::vec::Vec;

    const US: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 7001);
    const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 9999);

    fn local(mac: [u8; 6], address: SocketAddrV4) -> PortAddresses {
        PortAddresses { mac, v4: [*address.ip()].into(), v6: Vec::new() }
    }

    /// A frame built by smoltcp.
    fn frame(payload: &[u8]) -> Vec<u8> {
        udp((*PEER.ip()).into(), (*US.ip()).into(), PEER.port(), US.port(), payload)
    }

    proptest! {
        #[test]
        fn datagram_built_by_smoltcp_is_accepted(
            payload in proptest::collection::vec(any::<u8>(), 0..1400),
            padding in 0usize..20,
        ) {
            let mut frame = frame(&payload);
            frame.extend(std::vec![7; padding]);
            let mac = frame[6..12].try_into().unwrap();
            let expected = Datagram { from: PEER, mac, to: US, payload: &payload };
            prop_assert_eq!(Datagram::parse(&frame, &local(OUR_MAC, US)), Ok(expected));
        }

        #[test]
        fn built_datagram_is_accepted_and_equals_smoltcps(
            head in proptest::collection::vec(any::<u8>(), 0..50),
            first in proptest::collection::vec(any::<u8>(), 0..400),
            second in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut arena = Arena::on_heap(4096);
            let mut window = |bytes: &[u8]| {
                let window = arena.alloc(bytes.len().max(1), 1).unwrap();
                window.write(0, bytes).unwrap();
                window.slice(0, bytes.len()).unwrap()
            };
            let tail = [window(&first), window(&second)];
            let made = headers([PEER_MAC, OUR_MAC], PEER, US, &head, &tail).unwrap();
            let payload = [head, first, second].concat();
            let mut expected = frame(&payload);
            expected[6..12].copy_from_slice(&PEER_MAC);
            let made = [&made[..], &payload].concat();
            prop_assert_eq!(&made[42..], &expected[42..]);
            prop_assert_eq!(&made[40..42], &expected[40..42], "UDP checksum");
            let taken = Datagram::parse(&made, &local(OUR_MAC, US));
            prop_assert_eq!(taken, Ok(Datagram { from: PEER, mac: PEER_MAC, to: US, payload: &payload }));
        }

        #[test]
        fn a_flipped_bit_is_noticed(bit in 0usize..(42 + 9) * 8) {
            let mut damaged = frame(b"some data");
            damaged[bit / 8] ^= 1 << (bit % 8);
            let sender_mac = (6..12).contains(&(bit / 8));
            let taken = Datagram::parse(&damaged, &local(OUR_MAC, US));
            prop_assert_eq!(taken.is_ok(), sender_mac, "{:?}", taken);
        }

        #[test]
        fn arbitrary_frames_do_no_harm(mut frame in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Datagram::parse(&frame, &local(OUR_MAC, US));
            if let Some(head) = frame.first_chunk_mut::<34>() {
                head[..6].copy_from_slice(&OUR_MAC);
                head[30..].copy_from_slice(&US.ip().octets());
                let _ = Datagram::parse(&frame, &local(OUR_MAC, US));
            }
        }
    }

    #[test]
    fn datagram_without_checksum_or_for_another_host_is_rejected() {
        let mut without = frame(b"x");
        without[40..42].fill(0);
        let taken = |frame: &[u8]| Datagram::parse(frame, &local(OUR_MAC, US)).unwrap_err();
        assert_eq!(taken(&without), Unfit::Checksum);
        let mut to_all = frame(b"x");
        to_all[..6].fill(0xff);
        assert_eq!(taken(&to_all), Unfit::NotOurs);
        let from = |address: [u8; 4]| {
            udp(Ipv4Addr::from(address).into(), (*US.ip()).into(), 1, US.port(), b"x")
        };
        assert_eq!(taken(&from([224, 0, 0, 1])), Unfit::NotOurs);
        assert_eq!(taken(&from([10, 0, 0, 1])), Unfit::NotOurs);
        assert_eq!(taken(&frame(b"x")[..41]), Unfit::Malformed);
        assert_eq!(taken(&frame(b"long")[..45]), Unfit::Malformed);
    }

    #[test]
    fn oversized_datagram_is_not_built() {
        assert_eq!(headers([PEER_MAC, OUR_MAC], PEER, US, &[0; 65_508], &[]), None);
        assert!(headers([PEER_MAC, OUR_MAC], PEER, US, &[0; 65_507], &[]).is_some());
    }
}
