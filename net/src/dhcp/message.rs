//! Parses and builds DHCP messages (RFC 2131 section 2, RFC 2132).
//!
//! A server's options may continue in the fields `file` and `sname` (option 52), and a long option may be split into
//! several pieces (RFC 3396). A truncated option ends its field; the options before it are used.

use crate::link::{ETHERNET_HEADER, Queue};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket,
    UdpRepr,
};

/// Option codes.
pub mod code {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const MTU: u8 = 26;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const MAX_SIZE: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const CLIENT: u8 = 61;
    pub const END: u8 = 255;
}

/// Message type (option 53).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
}

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
/// Offsets of the fields.
const TRANSACTION: usize = 4;
const SECONDS: usize = 8;
const CLIENT_ADDRESS: usize = 12;
const YOUR_ADDRESS: usize = 16;
const HARDWARE_ADDRESS: usize = 28;
const SERVER_NAME: core::ops::Range<usize> = 44..108;
const FILE: core::ops::Range<usize> = 108..236;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// Some servers and relays drop shorter messages (RFC 1542 section 2.1).
const SHORTEST: usize = 300;
const HOP_LIMIT: u8 = 64;
/// Bytes of an option that are kept; no option used here needs more.
const OF_OPTION: usize = 64;

/// A server's message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Source IP address.
    pub source: Ipv4Addr,
    bytes: &'a [u8],
}

/// The value of an option, with its pieces joined.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    bytes: [u8; OF_OPTION],
    /// Length of the whole option; may exceed the bytes kept.
    pub length: usize,
}

impl Value {
    /// The first `N` bytes.
    pub fn first<const N: usize>(&self) -> Option<[u8; N]> {
        if self.length < N { None } else { self.bytes.first_chunk().copied() }
    }

    /// The value if it has `N` bytes.
    pub fn exact<const N: usize>(&self) -> Option<[u8; N]> {
        if self.length == N { self.first() } else { None }
    }

    /// The addresses in it, if its length is a multiple of 4.
    pub fn addresses(&self) -> Option<impl Iterator<Item = Ipv4Addr>> {
        let kept = self.bytes.get(..self.length.min(OF_OPTION)).unwrap_or_default();
        let whole = self.length > 0 && self.length.is_multiple_of(4);
        let address = |four: &[u8]| four.first_chunk::<4>().map(|four| Ipv4Addr::from(*four));
        whole.then(|| kept.chunks_exact(4).filter_map(address))
    }
}

impl<'a> Message<'a> {
    /// Parses a frame that the filter has accepted. None unless it is a reply to `mac` in `transaction`.
    pub fn of(frame: &'a [u8], mac: [u8; 6], transaction: u32) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(frame.get(ETHERNET_HEADER..)?).ok()?;
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let udp = UdpPacket::new_checked(ip.payload()).ok()?;
        let ports = (udp.src_port(), udp.dst_port()) == (SERVER_PORT, CLIENT_PORT);
        if !ports || !udp.verify_checksum(&source.into(), &destination.into()) {
            return None;
        }
        let bytes = udp.payload();
        let reply_over_ethernet = bytes.first_chunk::<3>()? == &[2, 1, 6];
        let fits = bytes.get(TRANSACTION..TRANSACTION + 4)? == transaction.to_be_bytes()
            && bytes.get(HARDWARE_ADDRESS..HARDWARE_ADDRESS + 6)? == mac
            && bytes.get(COOKIE..OPTIONS)? == MAGIC;
        (reply_over_ethernet && fits).then_some(Message { source, bytes })
    }

    /// The address that the server assigns (`yiaddr`).
    pub fn address(&self) -> Ipv4Addr {
        let field = self.bytes.get(YOUR_ADDRESS..).and_then(|bytes| bytes.first_chunk::<4>());
        field.map_or(Ipv4Addr::UNSPECIFIED, |bytes| Ipv4Addr::from(*bytes))
    }

    /// Message type.
    pub fn kind(&self) -> Option<Kind> {
        match self.option(code::MESSAGE_TYPE)?.exact::<1>()? {
            [2] => Some(Kind::Offer),
            [5] => Some(Kind::Ack),
            [6] => Some(Kind::Nak),
            _ => None,
        }
    }

    /// The server's address: option 54, or else the source address.
    pub fn server(&self) -> Ipv4Addr {
        let named = self.option(code::SERVER).and_then(|value| value.first::<4>());
        let named =
            named.map(Ipv4Addr::from).filter(|&ip| crate::port_addresses::is_host(ip.into()));
        named.unwrap_or(self.source)
    }

    /// The value of an option, if the message has it.
    pub fn option(&self, code: u8) -> Option<Value> {
        let options = self.bytes.get(OPTIONS..).unwrap_or_default();
        let overload = pieces(options).find(|(code, _)| *code == code::OVERLOAD);
        let overload = match overload {
            Some((_, &[fields])) => fields,
            _ => 0,
        };
        let also = |bit: u8, field| {
            let used = overload <= 3 && overload & bit != 0;
            self.bytes.get(field).filter(|_| used).unwrap_or_default()
        };
        let mut value: Option<Value> = None;
        for field in [options, also(1, FILE), also(2, SERVER_NAME)] {
            for (_, piece) in pieces(field).filter(|(other, _)| *other == code) {
                let value = value.get_or_insert(Value { bytes: [0; OF_OPTION], length: 0 });
                let room = value.bytes.get_mut(value.length..).unwrap_or_default();
                room.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
                value.length += piece.len();
            }
        }
        value
    }
}

/// The options of a field, with their codes.
fn pieces(mut field: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        loop {
            match *field {
                [code::PAD, ref rest @ ..] => field = rest,
                [code::END, ..] => return None,
                [code, length, ref rest @ ..] => {
                    let (piece, rest) = rest.split_at_checked(length.into())?;
                    field = rest;
                    return Some((code, piece));
                }
                _ => return None,
            }
        }
    })
}

/// A message from the client.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    pub mac: [u8; 6],
    pub transaction: u32,
    /// Seconds since the client began to request a lease.
    pub seconds: u16,
    /// Our configured address (`ciaddr`).
    pub client: Option<Ipv4Addr>,
    /// The address that is requested or declined (option 50).
    pub requested: Option<Ipv4Addr>,
    /// The server whose offer is accepted (option 54).
    pub server: Option<Ipv4Addr>,
    pub host_name: Option<&'static str>,
    /// Longest IP packet of a reply (option 57).
    pub max_size: u16,
}

impl Request {
    /// Queues the message: as a broadcast, or to the server `to` in a frame whose destination MAC address is not set
    /// yet.
    pub fn push(&self, to: Option<Ipv4Addr>, queue: &mut Queue) {
        let bytes = self.bytes();
        let source = self.client.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let destination = to.unwrap_or(Ipv4Addr::BROADCAST);
        let udp = UdpRepr { src_port: CLIENT_PORT, dst_port: SERVER_PORT };
        let ip = Ipv4Repr {
            src_addr: source,
            dst_addr: destination,
            next_header: IpProtocol::Udp,
            payload_len: udp.header_len() + bytes.len(),
            hop_limit: HOP_LIMIT,
        };
        let length = ETHERNET_HEADER + ip.buffer_len() + ip.payload_len;
        queue.append(length, |room| {
            let checksums = ChecksumCapabilities::default();
            let mut frame = EthernetFrame::new_unchecked(&mut room[..length]);
            let to =
                if to.is_some() { EthernetAddress([0; 6]) } else { EthernetAddress::BROADCAST };
            frame.set_src_addr(EthernetAddress(self.mac));
            frame.set_dst_addr(to);
            frame.set_ethertype(EthernetProtocol::Ipv4);
            let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
            ip.emit(&mut packet, &checksums);
            let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
            let (from, to) = (source.into(), destination.into());
            let fill = |payload: &mut [u8]| payload.copy_from_slice(&bytes);
            udp.emit(&mut datagram, &from, &to, bytes.len(), fill, &checksums);
            ((), length)
        });
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = alloc::vec![0; OPTIONS];
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[TRANSACTION..TRANSACTION + 4].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[SECONDS..SECONDS + 2].copy_from_slice(&self.seconds.to_be_bytes());
        let client = self.client.unwrap_or(Ipv4Addr::UNSPECIFIED);
        bytes[CLIENT_ADDRESS..CLIENT_ADDRESS + 4].copy_from_slice(&client.octets());
        bytes[HARDWARE_ADDRESS..HARDWARE_ADDRESS + 6].copy_from_slice(&self.mac);
        bytes[COOKIE..].copy_from_slice(&MAGIC);
        let mut option = |code: u8, value: &[u8]| {
            bytes.extend([code, value.len() as u8]);
            bytes.extend(value);
        };
        option(code::MESSAGE_TYPE, &[self.kind as u8]);
        let [a, b, c, d, e, f] = self.mac;
        option(code::CLIENT, &[1, a, b, c, d, e, f]);
        if let Some(ip) = self.requested {
            option(code::REQUESTED_ADDRESS, &ip.octets());
        }
        if let Some(ip) = self.server {
            option(code::SERVER, &ip.octets());
        }
        if self.kind != Kind::Decline {
            option(code::MAX_SIZE, &self.max_size.to_be_bytes());
            let wanted = [
                code::MASK,
                code::ROUTER,
                code::NAME_SERVERS,
                code::MTU,
                code::LEASE_TIME,
                code::RENEWAL_TIME,
                code::REBINDING_TIME,
            ];
            option(code::PARAMETERS, &wanted);
            if let Some(name) = self.host_name.filter(|name| (1..=255).contains(&name.len())) {
                option(code::HOST_NAME, name.as_bytes());
            }
        }
        bytes.push(code::END);
        bytes.resize(bytes.len().max(SHORTEST), code::PAD);
        bytes
    }
}
