//! Messages of the connectivity checker: a PING and its ACK, 40 bytes each. A PING may be longer, to test the
//! path MTU. They are plain UDP datagrams of a separate port.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 17 PING, 18 ACK |
//! | 4 | 4 | address of the sender of the PING, network order |
//! | 8 | 4 | UDP port of the sender of the PING |
//! | 16 | 8 | 0x9A9E2FBCE63A11E5 in a PING, 0x60735C68F368AACE in an ACK |
//! | 24 | 4 | major version of Open MPI |
//! | 28 | 4 | minor version |
//! | 32 | 4 | length of the PING |

use super::array;
use core::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of an ACK, and of a short PING.
pub const LENGTH: usize = 40;
/// Bytes by which a long PING is shorter than the longest message (with its prefix).
pub const LONG_PING_MARGIN: u16 = 68;

const MAGIC: [u64; 2] = [0x9A9E_2FBC_E63A_11E5, 0x6073_5C68_F368_AACE];

/// A version of Open MPI. Peers of different versions are incompatible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major version, such as 4.
    pub major: u32,
    /// Minor version, such as 1.
    pub minor: u32,
}

/// A PING or its ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Whether it is an ACK.
    pub is_ack: bool,
    /// Address and port of the sender of the PING.
    pub asker: SocketAddrV4,
    /// Version of the sender of the PING.
    pub version: Version,
    /// Bytes of the PING.
    pub size: u32,
}

impl Ping {
    /// Encodes the first 40 bytes; a longer PING is padded with zeros.
    pub fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = 17 + u8::from(self.is_ack);
        bytes[4..8].copy_from_slice(&self.asker.ip().octets());
        bytes[8..12].copy_from_slice(&u32::from(self.asker.port()).to_le_bytes());
        bytes[16..24].copy_from_slice(&MAGIC[usize::from(self.is_ack)].to_le_bytes());
        bytes[24..28].copy_from_slice(&self.version.major.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.version.minor.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Parses a datagram. None if it is neither PING nor ACK, or a PING whose length differs from its `size`, or an ACK
    /// that does not have 40 bytes.
    pub fn parse(datagram: &[u8]) -> Option<Ping> {
        let word = |at| array(datagram, at).map(u32::from_le_bytes);
        let is_ack = match datagram.first()? {
            17 => false,
            18 => true,
            _ => return None,
        };
        let address = Ipv4Addr::from(array::<4>(datagram, 4)?);
        let asker = SocketAddrV4::new(address, u16::try_from(word(8)?).ok()?);
        let magic = u64::from_le_bytes(array(datagram, 16)?);
        let version = Version { major: word(24)?, minor: word(28)? };
        let size = word(32)?;
        let length = if is_ack { LENGTH } else { usize::try_from(size).ok()?.max(LENGTH) };
        let valid = magic == MAGIC[usize::from(is_ack)] && datagram.len() == length;
        valid.then_some(Ping { is_ack, asker, version, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Messages captured from Open MPI 4.1.4.
    const PING: &str =
        "110000000a4d0001c1ab000000000000e5113ae6bc2f9e9a04000000010000002800000000000000";
    const ACK: &str =
        "120000000a4d0002ccaf000000000000ceaa68f3685c736004000000010000002800000000000000";

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn pings_of_open_mpi_round_trip() {
        let asker = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 43_969);
        let version = Version { major: 4, minor: 1 };
        let ping = Ping { is_ack: false, asker, version, size: 40 };
        assert_eq!((Ping::parse(&hex(PING)), ping.emit()[..].to_vec()), (Some(ping), hex(PING)));
        let asker = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 45_004);
        let ack = Ping { is_ack: true, asker, version, size: 40 };
        assert_eq!((Ping::parse(&hex(ACK)), ack.emit()[..].to_vec()), (Some(ack), hex(ACK)));
    }

    #[test]
    fn parse_rejects_inconsistent_messages() {
        let ping = hex(PING);
        for (at, byte) in [(0, 19), (0, 18), (16, 0), (32, 41), (32, 39), (10, 1)] {
            let mut wrong = ping.clone();
            wrong[at] = byte;
            // A size below 40 counts as 40.
            assert_eq!(Ping::parse(&wrong).is_some(), (at, byte) == (32, 39), "{at} {byte}");
        }
        let mut long = ping.clone();
        long.resize(1468, 0);
        assert_eq!(Ping::parse(&long), None);
        long[32..34].copy_from_slice(&1468u16.to_le_bytes());
        assert_eq!(Ping::parse(&long).map(|ping| ping.size), Some(1468));
        let mut ack = hex(ACK);
        ack.push(0);
        assert_eq!(Ping::parse(&ack), None);
    }
}
