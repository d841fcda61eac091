//! Global identifiers.

use core::net::{IpAddr, Ipv6Addr};

/// A global identifier: an IPv6 address, or an IPv4 address mapped into one (annex A17.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid(u128);

impl Gid {
    /// The null GID.
    pub const NONE: Gid = Gid(0);

    /// From its 16 bytes on the wire.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Gid(u128::from_be_bytes(bytes))
    }

    /// Its 16 bytes on the wire.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The GID of an IPv4 address.
    #[inline]
    pub const fn from_ipv4(bytes: [u8; 4]) -> Self {
        Gid(0xffff << 32 | u32::from_be_bytes(bytes) as u128)
    }

    /// The IP address of the GID.
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from_bits(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Gid::from_ipv4(v4.octets()),
            IpAddr::V6(v6) => Gid(v6.to_bits()),
        }
    }
}
