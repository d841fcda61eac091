//! Modex: a process's description of an interface for its peers. Its 32 bytes are exchanged out of band (PMIx, a
//! configuration, a TCP connection). `modex HEX`, as text, is a sequence of such records in hexadecimal digits.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | IPv4 address, network order |
//! | 4 | 4 | UDP port of the priority channel |
//! | 8 | 4 | UDP port of the data channel |
//! | 12 | 4 | netmask, network order |
//! | 16 | 4 | UDP port of the connectivity checker, or 0 |
//! | 20 | 4 | speed of the link in Mb/s |
//! | 24 | 2 | longest message, with libfabric's prefix of 64 bytes |
//! | 26 | 2 | first sequence number |
//! | 28 | 4 | protocol of libfabric: 5, UDP |

use super::{IP_UDP, PREFIX, array};
use crate::wire::header::Layout;
use core::fmt;
use core::net::Ipv4Addr;

/// Bytes of a record.
pub const LENGTH: usize = 32;
/// Libfabric's `FI_PROTO_UDP`.
pub const PROTOCOL: u32 = 5;
/// From the smallest MTU of IPv4 to the largest whose messages fit into the record.
pub const MTUS: core::ops::RangeInclusive<u16> = 576..=65_000;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modex {
    /// The interface's address.
    pub address: Ipv4Addr,
    /// UDP port of the priority channel.
    pub priority_port: u16,
    /// UDP port of the data channel.
    pub data_port: u16,
    /// The subnet's mask.
    pub netmask: Ipv4Addr,
    /// UDP port of the connectivity checker; 0 if there is none.
    pub ping_port: u16,
    /// Speed of the link in Mb/s.
    pub link_speed: u32,
    /// Longest message, with the prefix.
    pub max_message: u16,
    /// First sequence number.
    pub isn: u16,
}

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadModex {
    /// Not 64 hexadecimal digits for each interface.
    Length,
    /// A character that is not a hexadecimal digit.
    Digit,
    /// A port that is 0 or has more than 16 bits.
    Port,
    /// The address is not that of a host.
    Address,
    /// The longest message is shorter than with any MTU of IPv4.
    MaxMessage(u16),
    /// The protocol is not UDP.
    Protocol(u32),
}

impl fmt::Display for BadModex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadModex::Length => f.write_str("a modex has 64 hexadecimal digits for each interface"),
            BadModex::Digit => f.write_str("a modex is written in hexadecimal digits"),
            BadModex::Port => f.write_str("the modex has an invalid UDP port"),
            BadModex::Address => f.write_str("the modex has an address that is not a host's"),
            BadModex::MaxMessage(bytes) => {
                write!(
                    f,
                    "the modex has messages of at most {bytes} bytes, fewer than IPv4 carries"
                )
            }
            BadModex::Protocol(number) => {
                write!(f, "the modex is for libfabric's protocol {number}, not for UDP (5)")
            }
        }
    }
}

impl core::error::Error for BadModex {}

impl Modex {
    /// The longest message for an MTU.
    pub const fn max_message_of(mtu: u16) -> u16 {
        mtu.saturating_sub(IP_UDP).saturating_add(PREFIX)
    }

    /// Longest UDP payload.
    pub const fn datagram(&self) -> u16 {
        self.max_message.saturating_sub(PREFIX)
    }

    /// Most bytes of payload in a FRAG. (In Open MPI 5, the compiler's layout of the header has 25 bytes, fewer than
    /// the 32 of Open MPI 4.)
    pub const fn max_fragment(&self, layout: Layout) -> u16 {
        self.datagram().saturating_sub(layout.header() as u16)
    }

    /// Most bytes of payload in a CHUNK.
    pub const fn max_chunk(&self, layout: Layout) -> u16 {
        self.datagram().saturating_sub(layout.chunk_header() as u16)
    }

    /// Whether both interfaces are in one subnet.
    pub fn is_together_with(&self, other: &Modex) -> bool {
        let subnet = |modex: &Modex| modex.address.to_bits() & modex.netmask.to_bits();
        self.netmask == other.netmask && subnet(self) == subnet(other)
    }

    /// Parses a record.
    pub fn parse(bytes: &[u8; LENGTH]) -> Result<Self, BadModex> {
        let word = |at| array(bytes, at).map_or(0, u32::from_le_bytes);
        let half = |at| array(bytes, at).map_or(0, u16::from_le_bytes);
        let address = |at| array::<4>(bytes, at).map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from);
        let port = |at| u16::try_from(word(at)).map_err(|_| BadModex::Port);
        let modex = Modex {
            address: address(0),
            priority_port: port(4)?,
            data_port: port(8)?,
            netmask: address(12),
            ping_port: port(16)?,
            link_speed: word(20),
            max_message: half(24),
            isn: half(26),
        };
        let Modex { address, .. } = modex;
        let protocol = word(28);
        if protocol != PROTOCOL {
            Err(BadModex::Protocol(protocol))
        } else if modex.priority_port == 0 || modex.data_port == 0 {
            Err(BadModex::Port)
        } else if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            Err(BadModex::Address)
        } else if modex.max_message < Self::max_message_of(*MTUS.start()) {
            Err(BadModex::MaxMessage(modex.max_message))
        } else {
            Ok(modex)
        }
    }

    /// Encodes the record.
    pub fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..4].copy_from_slice(&self.address.octets());
        bytes[4..8].copy_from_slice(&u32::from(self.priority_port).to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.data_port).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.netmask.octets());
        bytes[16..20].copy_from_slice(&u32::from(self.ping_port).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.link_speed.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.max_message.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.isn.to_le_bytes());
        bytes[28..32].copy_from_slice(&PROTOCOL.to_le_bytes());
        bytes
    }

    /// Parses a text of hexadecimal digits into up to `N` records; returns them and their number.
    pub fn read_text<const N: usize>(text: &str) -> Result<([Option<Self>; N], usize), BadModex> {
        let digits = text.trim().as_bytes();
        let records = digits.len() / (2 * LENGTH);
        if !digits.len().is_multiple_of(2 * LENGTH) || records == 0 || records > N {
            return Err(BadModex::Length);
        }
        let mut read = [None; N];
        for (record, into) in digits.chunks_exact(2 * LENGTH).zip(&mut read) {
            let mut bytes = [0; LENGTH];
            for (pair, byte) in record.chunks_exact(2).zip(&mut bytes) {
                let digit = |at: usize| {
                    let digit = char::from(pair.get(at).copied().unwrap_or(0)).to_digit(16);
                    digit.ok_or(BadModex::Digit)
                };
                *byte = (digit(0)? << 4 | digit(1)?) as u8;
            }
            *into = Some(Self::parse(&bytes)?);
        }
        Ok((read, records))
    }
}

/// The record in hexadecimal digits.
impl fmt::Display for Modex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.emit().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses the record of one interface.
impl core::str::FromStr for Modex {
    type Err = BadModex;
    fn from_str(text: &str) -> Result<Self, BadModex> {
        let ([modex], _) = Self::read_text::<1>(text)?;
        modex.ok_or(BadModex::Length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// A record of Open MPI 4.1.4.
    const STOCK: &str = "0a4d00026d960000b1cf0000ffffff0094c50000102700000006881305000000";

    #[test]
    fn record_of_open_mpi_parses() {
        let modex: Modex = STOCK.parse().unwrap();
        let expected = Modex {
            address: Ipv4Addr::new(10, 77, 0, 2),
            priority_port: 38_509,
            data_port: 53_169,
            netmask: Ipv4Addr::new(255, 255, 255, 0),
            ping_port: 50_580,
            link_speed: 10_000,
            max_message: 1536,
            isn: 5000,
        };
        assert_eq!(modex, expected);
        assert_eq!(modex.to_string(), STOCK);
        assert_eq!(modex.max_message, Modex::max_message_of(1500));
        assert_eq!(Modex::max_message_of(9000), 9036);
        let limits = [modex.max_fragment(Layout::V4), modex.max_chunk(Layout::V4)];
        assert_eq!((limits, modex.datagram()), ([1440, 1424], 1472));
    }

    #[test]
    fn text_with_several_records_parses() {
        let text = [STOCK, STOCK].concat();
        let (read, records) = Modex::read_text::<4>(&text).unwrap();
        assert_eq!((records, read[1], read[2]), (2, STOCK.parse().ok(), None));
        assert_eq!(Modex::read_text::<1>(&text), Err(BadModex::Length));
    }

    #[test]
    fn parse_rejects_impossible_records() {
        let with = |at: usize, digits: &str| {
            let mut text = STOCK.to_string();
            text.replace_range(at..at + digits.len(), digits);
            text.parse::<Modex>()
        };
        assert_eq!(STOCK[1..].parse::<Modex>(), Err(BadModex::Length));
        assert_eq!("".parse::<Modex>(), Err(BadModex::Length));
        assert_eq!(with(5, "x"), Err(BadModex::Digit));
        assert_eq!(with(0, "00000000"), Err(BadModex::Address));
        assert_eq!(with(0, "e0000001"), Err(BadModex::Address));
        assert_eq!(with(8, "00000000"), Err(BadModex::Port));
        assert_eq!(with(16, "00000100"), Err(BadModex::Port));
        assert_eq!(with(48, "6002"), Err(BadModex::MaxMessage(0x0260)));
        assert_eq!(with(56, "06"), Err(BadModex::Protocol(6)));
    }
}
