//! What is ours on a port: the MAC address and the IP addresses in use at the moment.
//!
//! The fast paths (RoCE, UDP echo) compare with this on every frame, so it is plain bytes.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAddresses {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 addresses; empty until DHCP has given one.
    pub v4: Vec<Ipv4Addr>,
    /// IPv6 addresses, the link-local one first.
    pub v6: Vec<Ipv6Addr>,
}

impl PortAddresses {
    /// Whether `ip` is one of ours.
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.has_v4(ip),
            IpAddr::V6(ip) => self.has_v6(ip),
        }
    }

    /// Whether `ip` is one of our IPv4 addresses.
    #[inline]
    pub fn has_v4(&self, ip: Ipv4Addr) -> bool {
        self.v4.contains(&ip)
    }

    /// Whether `ip` is one of our IPv6 addresses.
    #[inline]
    pub fn has_v6(&self, ip: Ipv6Addr) -> bool {
        self.v6.contains(&ip)
    }
}

/// The interface identifier that a MAC address gives: modified EUI-64 (RFC 4291, appendix A).
pub(crate) fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The address of interface identifier `id` in the /64 whose network is `prefix`.
pub(crate) fn in_prefix(prefix: Ipv6Addr, id: [u8; 8]) -> Ipv6Addr {
    let mut octets = prefix.octets();
    octets[8..].copy_from_slice(&id);
    Ipv6Addr::from(octets)
}

/// The link-local address of a port (RFC 4862 section 5.3).
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    in_prefix(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), eui64(mac))
}

/// The MAC address if it is one that a single station can have.
pub(crate) fn unicast_mac(mac: [u8; 6]) -> Option<[u8; 6]> {
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// Whether `ip` is one that a host can have.
pub fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
        }
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_address_is_the_one_that_linux_shows() {
        let ip = link_local([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
        assert_eq!(ip, "fe80::5054:ff:fe12:3456".parse::<Ipv6Addr>().unwrap());
    }
}
