//! Frames: Ethernet, then IPv4 or IPv6 and UDP (RoCEv2, annex A17), or a GRH (RoCEv1, annex A16). One VLAN tag may
//! precede the network header; the loop has already checked that it is one of ours. IPv4 options, fragments and IPv6
//! extension headers are not RoCE.

use super::{Error, bytes, get16};
pub use ::cm::wire::Gid;
use core::fmt;
use core::net::IpAddr;
use verbs::{AddressVector, GidType};

/// UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Length of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;

/// Most bytes before the BTH.
pub const MAX_LEN: usize = ETHERNET_LEN + 48;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
const ETHERTYPE_VLAN: u16 = 0x8100;
const PROTOCOL_UDP: u8 = 17;
const NEXT_HEADER_IBA: u8 = 0x1b;

/// The header between Ethernet header and BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4 and UDP.
    Ipv4,
    /// IPv6 and UDP.
    Ipv6,
    /// Global route header (RoCEv1).
    Grh,
}

impl Network {
    /// Length in bytes.
    pub const fn len(self) -> usize {
        match self {
            Network::Ipv4 => 28,
            Network::Ipv6 => 48,
            Network::Grh => 40,
        }
    }

    /// Kind of its addresses.
    pub const fn gid_type(self) -> GidType {
        match self {
            Network::Grh => GidType::RoceV1,
            Network::Ipv4 | Network::Ipv6 => GidType::RoceV2,
        }
    }

    /// Always false: no network header is empty.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// Source and destination in a network header.
    fn addresses(self, header: &[u8]) -> (Gid, Gid) {
        let v4 = |at| bytes(header, at).map_or(Gid::NONE, Gid::from_ipv4);
        let v6 = |at| bytes(header, at).map_or(Gid::NONE, Gid::from_bytes);
        match self {
            Network::Ipv4 => (v4(12), v4(16)),
            Network::Ipv6 | Network::Grh => (v6(8), v6(24)),
        }
    }
}

/// A received RoCE frame, parsed down to the BTH.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub(super) ethernet: &'a [u8; ETHERNET_LEN],
    /// Kind of the network header.
    pub network: Network,
    /// Network header and all bytes behind it, up to and including the ICRC.
    pub headers: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses `frame`, from its destination MAC on. Bytes behind the length in the headers (Ethernet padding) are left
    /// out.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Error> {
        let (ethernet, rest) = frame.split_first_chunk().ok_or(Error::Truncated)?;
        match get16(ethernet, 12)? {
            ETHERTYPE_VLAN => {
                let (tag, rest) = rest.split_first_chunk::<4>().ok_or(Error::Truncated)?;
                Self::parse_network(get16(tag, 2)?, ethernet, rest)
            }
            kind => Self::parse_network(kind, ethernet, rest),
        }
    }

    /// Parses the bytes behind the Ethernet header and its tag, if any.
    #[inline]
    fn parse_network(
        kind: u16,
        ethernet: &'a [u8; ETHERNET_LEN],
        rest: &'a [u8],
    ) -> Result<Self, Error> {
        match kind {
            ETHERTYPE_IPV4 => Self::parse_ipv4(ethernet, rest),
            ETHERTYPE_IPV6 => Self::parse_ipv6(ethernet, rest),
            ETHERTYPE_ROCE_V1 => Self::parse_grh(ethernet, rest),
            _ => Err(Error::NotRoce),
        }
    }

    #[inline]
    fn parse_ipv4(ethernet: &'a [u8; ETHERNET_LEN], packet: &'a [u8]) -> Result<Self, Error> {
        let header = packet.first_chunk::<28>().ok_or(Error::Truncated)?;
        let fragment = get16(header, 6)? & 0x3fff != 0;
        if header[0] != 0x45
            || header[9] != PROTOCOL_UDP
            || fragment
            || get16(header, 22)? != UDP_PORT
        {
            return Err(Error::NotRoce);
        }
        // The first byte is not 0, so the sum is not 0 either and has to be the other multiple of 0xffff.
        if !sum_ipv4(header).is_multiple_of(0xffff) {
            return Err(Error::Checksum);
        }
        let headers = packet.get(..get16(header, 2)? as usize).ok_or(Error::Truncated)?;
        let udp = headers.get(20..).ok_or(Error::Truncated)?;
        check_udp(udp, &header[12..20])?;
        Ok(Frame { ethernet, network: Network::Ipv4, headers })
    }

    #[inline]
    fn parse_ipv6(ethernet: &'a [u8; ETHERNET_LEN], packet: &'a [u8]) -> Result<Self, Error> {
        let header = packet.first_chunk::<48>().ok_or(Error::Truncated)?;
        if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP || get16(header, 42)? != UDP_PORT {
            return Err(Error::NotRoce);
        }
        let headers = packet.get(..40 + get16(header, 4)? as usize).ok_or(Error::Truncated)?;
        let udp = headers.get(40..).ok_or(Error::Truncated)?;
        check_udp(udp, &header[8..40])?;
        Ok(Frame { ethernet, network: Network::Ipv6, headers })
    }

    fn parse_grh(ethernet: &'a [u8; ETHERNET_LEN], packet: &'a [u8]) -> Result<Self, Error> {
        let header = packet.first_chunk::<40>().ok_or(Error::Truncated)?;
        if header[0] >> 4 != 6 || header[6] != NEXT_HEADER_IBA {
            return Err(Error::Malformed);
        }
        let headers = packet.get(..40 + get16(header, 4)? as usize).ok_or(Error::Truncated)?;
        Ok(Frame { ethernet, network: Network::Grh, headers })
    }

    /// Source GID.
    pub fn source(&self) -> Gid {
        self.network.addresses(self.headers).0
    }

    /// Destination GID.
    pub fn destination(&self) -> Gid {
        self.network.addresses(self.headers).1
    }

    /// Destination MAC address.
    #[inline]
    pub fn destination_mac(&self) -> &[u8] {
        &self.ethernet[..6]
    }

    /// Source MAC address.
    pub fn source_mac(&self) -> [u8; 6] {
        let [_, _, _, _, _, _, mac @ .., _, _] = *self.ethernet;
        mac
    }

    /// Traffic class / type of service.
    pub fn traffic_class(&self) -> u8 {
        match (self.network, self.headers) {
            (Network::Ipv4, [_, class, ..]) => *class,
            (_, [high, low, ..]) => high << 4 | low >> 4,
            _ => 0,
        }
    }

    /// BTH and all bytes behind it, with the ICRC.
    #[inline]
    pub fn transport(&self) -> &'a [u8] {
        self.headers.get(self.network.len()..).unwrap_or_default()
    }

    /// Kind of the addresses.
    pub const fn gid_type(&self) -> GidType {
        self.network.gid_type()
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.source().address(), self.destination().address())
    }
}

/// Checks length and checksum of a UDP datagram; 0 means no checksum (annex A17.3.2.1).
#[inline]
fn check_udp(udp: &[u8], addresses: &[u8]) -> Result<(), Error> {
    let length = get16(udp, 4)?;
    if length as usize != udp.len() {
        return Err(Error::Malformed);
    }
    if get16(udp, 6)? == 0 {
        return Ok(());
    }
    let pseudo = sum(addresses) + PROTOCOL_UDP as u32 + length as u32;
    if fold(pseudo + sum(udp)) == 0xffff { Ok(()) } else { Err(Error::Checksum) }
}

/// Sum of 16-bit words for an Internet checksum, over less than 64 KiB, so that it cannot overflow.
#[inline]
fn sum(data: &[u8]) -> u32 {
    let words = data.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |&b| (b as u32) << 8);
    words.fold(odd, |sum, word| sum + u16::from_be_bytes([word[0], word[1]]) as u32)
}

/// Sum of the words of an IPv4 header, in this machine's byte order. The order changes only the order of the sum's
/// bytes (RFC 1071), so it does not matter to a check. Folding the sum to 16 bits keeps its remainder by 0xffff.
// Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
#[inline(always)]
pub(super) fn sum_ipv4(header: &[u8; 28]) -> u64 {
    let words = header[..20].as_chunks::<4>().0.iter();
    words.map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

/// Folds a sum to 16 bits.
#[inline]
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether the pair of addresses at `at`, of `N` bytes each, is swapped between `a` and `b`.
// Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
#[inline(always)]
fn crossed<const N: usize>(a: &[u8], b: &[u8], at: usize) -> bool {
    let both = |from: &[u8]| Ok::<_, Error>((bytes::<N>(from, at)?, bytes::<N>(from, at + N)?));
    matches!((both(a), both(b)), (Ok((source, destination)), Ok(other)) if other == (destination, source))
}

/// All headers before the BTH of packets to one peer. They are built once; only lengths change.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    bytes: [u8; MAX_LEN],
    network: Network,
    /// Sum of the IPv4 header without its length.
    sum: u32,
}

impl Template {
    /// For packets from `mac` to `to`. IPv4 packets carry DF and id 0 (RFC 6864).
    pub fn new(mac: [u8; 6], to: &AddressVector) -> Self {
        let mut bytes = [0; MAX_LEN];
        bytes[0..6].copy_from_slice(&to.remote_mac);
        bytes[6..12].copy_from_slice(&mac);
        let (network, ethertype) = match (to.gid_type, to.local, to.remote) {
            (GidType::RoceV1, ..) => (Network::Grh, ETHERTYPE_ROCE_V1),
            (GidType::RoceV2, IpAddr::V4(_), IpAddr::V4(_)) => (Network::Ipv4, ETHERTYPE_IPV4),
            (GidType::RoceV2, ..) => (Network::Ipv6, ETHERTYPE_IPV6),
        };
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        let header = &mut bytes[ETHERNET_LEN..];
        let udp = if let (Network::Ipv4, IpAddr::V4(local), IpAddr::V4(remote)) =
            (network, to.local, to.remote)
        {
            header[0] = 0x45;
            header[1] = to.traffic_class;
            header[6] = 0x40;
            header[8] = to.hop_limit;
            header[9] = PROTOCOL_UDP;
            header[12..16].copy_from_slice(&local.octets());
            header[16..20].copy_from_slice(&remote.octets());
            20
        } else {
            header[0] = 0x60 | to.traffic_class >> 4;
            header[1] = to.traffic_class << 4;
            header[6] = if network == Network::Grh { NEXT_HEADER_IBA } else { PROTOCOL_UDP };
            header[7] = to.hop_limit;
            header[8..24].copy_from_slice(&Gid::from(to.local).to_bytes());
            header[24..40].copy_from_slice(&Gid::from(to.remote).to_bytes());
            40
        };
        let sum = if network == Network::Ipv4 { sum(&header[..20]) } else { 0 };
        if network != Network::Grh {
            header[udp..udp + 2].copy_from_slice(&to.source_port.to_be_bytes());
            header[udp + 2..udp + 4].copy_from_slice(&UDP_PORT.to_be_bytes());
        }
        Template { bytes, network, sum }
    }

    /// Encapsulation.
    pub const fn gid_type(&self) -> GidType {
        self.network.gid_type()
    }

    /// Destination GID.
    pub fn remote(&self) -> Gid {
        self.network.addresses(&self.bytes[ETHERNET_LEN..]).1
    }

    /// Destination MAC address.
    #[inline]
    pub fn remote_mac(&self) -> &[u8] {
        &self.bytes[..6]
    }

    /// Changes the destination MAC address.
    pub fn readdress(&mut self, mac: [u8; 6]) {
        self.bytes[..6].copy_from_slice(&mac);
    }

    /// Kind of the network header.
    #[inline]
    pub const fn network(&self) -> Network {
        self.network
    }

    /// All headers before the BTH, without lengths and the checksum that depends on them.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Bytes before the BTH.
    #[inline]
    pub const fn len(&self) -> usize {
        ETHERNET_LEN + self.network.len()
    }

    /// Always false: every frame has headers.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Whether `frame` is from the destination of these headers to their source.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn is_answered_by(&self, frame: &Frame<'_>) -> bool {
        if frame.network != self.network {
            return false;
        }
        let own = &self.bytes[ETHERNET_LEN..];
        match self.network {
            Network::Ipv4 => crossed::<4>(own, frame.headers, 12),
            Network::Ipv6 | Network::Grh => crossed::<16>(own, frame.headers, 8),
        }
    }

    /// Writes the headers of a frame, without its lengths, to the beginning of `into`. The rest of the array behind the
    /// headers is overwritten.
    #[inline]
    pub fn begin(&self, into: &mut [u8; MAX_LEN]) {
        *into = self.bytes;
    }

    /// Completes headers written by `begin`, for a frame with `transport` bytes from BTH to ICRC (at most a path MTU
    /// and headers).
    #[inline]
    pub fn complete(&self, into: &mut [u8; MAX_LEN], transport: usize) {
        let transport = transport as u16;
        match self.network {
            Network::Ipv4 => {
                let total = transport + 28;
                into[16..18].copy_from_slice(&total.to_be_bytes());
                let checksum = !fold(self.sum + total as u32);
                into[24..26].copy_from_slice(&checksum.to_be_bytes());
                into[38..40].copy_from_slice(&(transport + 8).to_be_bytes());
            }
            Network::Ipv6 => {
                let length = (transport + 8).to_be_bytes();
                into[18..20].copy_from_slice(&length);
                into[58..60].copy_from_slice(&length);
            }
            Network::Grh => into[18..20].copy_from_slice(&transport.to_be_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    fn vector(local: IpAddr, remote: IpAddr, gid_type: GidType) -> AddressVector {
        AddressVector {
            local,
            remote,
            gid_type,
            remote_mac: [2, 0, 0, 0, 0, 9],
            source_port: 0xc001,
            traffic_class: 0x68,
            hop_limit: 64,
        }
    }

    proptest! {
        #[test]
        fn emitted_headers_are_parsed(
            a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), kind in 0..4u8, len in 16..4200usize,
        ) {
            let v4 = |x: [u8; 16]| IpAddr::V4(Ipv4Addr::new(x[0], x[1], x[2], x[3]));
            let v6 = |x: [u8; 16]| IpAddr::V6(Ipv6Addr::from(x));
            let (local, remote) = if kind & 1 == 0 { (v4(a), v4(b)) } else { (v6(a), v6(b)) };
            let gid_type = if kind & 2 == 0 { GidType::RoceV2 } else { GidType::RoceV1 };
            let to = vector(local, remote, gid_type);
            let template = Template::new([2, 0, 0, 0, 0, 8], &to);
            let mut head = [0; MAX_LEN];
            template.begin(&mut head);
            template.complete(&mut head, len);
            let mut frame = head[..template.len()].to_vec();
            frame.resize(template.len() + len + 3, 0x5a);
            let parsed = Frame::parse(&frame).unwrap();
            prop_assert_eq!(parsed.transport().len(), len);
            prop_assert_eq!(parsed.network, template.network());
            prop_assert_eq!(parsed.source().address(), local.to_canonical());
            prop_assert_eq!(parsed.destination().address(), remote.to_canonical());
            prop_assert_eq!(parsed.traffic_class(), 0x68);
            prop_assert_eq!(parsed.destination_mac(), [2, 0, 0, 0, 0, 9]);
            prop_assert_eq!(parsed.source_mac(), [2, 0, 0, 0, 0, 8]);
            prop_assert_eq!(parsed.gid_type(), gid_type);
            let (transport, source) = (parsed.transport().to_vec(), parsed.source());
            let mut tagged = frame.clone();
            tagged.splice(12..12, [0x81, 0, 0x60, 0]);
            let parsed = Frame::parse(&tagged).unwrap();
            prop_assert_eq!(parsed.transport(), transport);
            prop_assert_eq!((parsed.source(), parsed.source_mac()), (source, [2, 0, 0, 0, 0, 8]));
            // A second tag.
            tagged.splice(12..12, [0x81, 0, 0, 0]);
            prop_assert_eq!(Frame::parse(&tagged).unwrap_err(), Error::NotRoce);
        }

        #[test]
        fn parse_never_panics(frame in proptest::collection::vec(any::<u8>(), 0..128), kind in 0..4usize) {
            let mut frame = frame;
            if let Some(ethertype) = frame.get_mut(12..14) {
                let known = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, 0];
                ethertype.copy_from_slice(&known[kind].to_be_bytes());
            }
            let _ = Frame::parse(&frame);
        }
    }

    #[test]
    fn udp_checksum_is_checked_where_there_is_one() {
        let mut frame = hex(concat!(
            "020000000002020000000001",
            "0800",
            "45000034123440004011a731c0a80001c0a80002",
            "c00012b700200000",
            "0400ffff0000001180000001",
            "68656c6c6f212121",
            "3bd3e26c"
        ));
        assert!(Frame::parse(&frame).is_ok());
        frame[40..42].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(Frame::parse(&frame).unwrap_err(), Error::Checksum);
        frame[40..42].fill(0);
        let sum = sum(&frame[26..34]) + 17 + 0x20 + sum(&frame[34..]);
        frame[40..42].copy_from_slice(&(!fold(sum)).to_be_bytes());
        assert!(Frame::parse(&frame).is_ok());
        frame[24] ^= 1;
        assert_eq!(Frame::parse(&frame).unwrap_err(), Error::Checksum);
    }
}
