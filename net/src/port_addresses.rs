//! The MAC address and the IP addresses of a port that are in use, and tests of addresses.
//!
//! The fast paths (RoCE, UDP echo) compare every frame with them, so they are plain bytes.

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

    /// Whether `ip` is a valid source address: a host's, and not ours.
    #[inline]
    pub fn admits(&self, ip: IpAddr) -> bool {
        is_host(ip) && !self.has(ip)
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

/// Interface identifier of a MAC address: modified EUI-64 (RFC 4291, appendix A).
pub(crate) fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The address with the interface identifier `id` in the /64 `prefix`.
pub(crate) fn in_prefix(prefix: Ipv6Addr, id: [u8; 8]) -> Ipv6Addr {
    let mut octets = prefix.octets();
    octets[8..].copy_from_slice(&id);
    Ipv6Addr::from(octets)
}

/// The link-local address of a port (RFC 4862 section 5.3).
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    in_prefix(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), eui64(mac))
}

/// The MAC address from which a link-local address was formed; None unless it was formed by modified EUI-64.
pub fn mac_of_link_local(ip: Ipv6Addr) -> Option<[u8; 6]> {
    match ip.octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
            Some([a ^ 2, b, c, d, e, f])
        }
        _ => None,
    }
}

/// The MAC address, if it is a unicast address other than zero.
pub(crate) fn unicast_mac(mac: [u8; 6]) -> Option<[u8; 6]> {
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// Whether `ip` can be a host's address on the wire. This is the only such test: TCP, UDP, RoCE, neighbour discovery
/// and lists of hosts use it.
///
/// Excluded for IPv4: "this network" (0/8), loopback, multicast, and class E with the broadcast address (RFC 6890).
/// Excluded for IPv6: loopback, multicast, and addresses that embed an IPv4 address (compatible `::/96` with `::` and
/// `::1`, mapped `::ffff:0:0/96`, translated `::ffff:0:0:0/96`, NAT64 `64:ff9b::/96` and `64:ff9b:1::/48`), because
/// such an address would be compared as one host and denote another.
pub fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, ..] = ip.octets();
            first != 0 && first < 224 && !ip.is_loopback()
        }
        IpAddr::V6(ip) => {
            let has_v4 = matches!(
                ip.segments(),
                [0, 0, 0, 0, 0, 0 | 0xffff, ..]
                    | [0, 0, 0, 0, 0xffff, 0, ..]
                    | [0x64, 0xff9b, 0, 0, 0, 0, ..]
                    | [0x64, 0xff9b, 1, ..]
            );
            !has_v4 && !ip.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_hosts() {
        let host = |text: &str| is_host(text.parse().unwrap());
        let none = [
            "0.0.0.0",
            "0.0.0.1",
            "0.255.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.254",
            "255.255.255.255",
            "::",
            "::1",
            "::2",
            "::10.0.0.2",
            "::ffff:10.0.0.2",
            "::ffff:0:10.0.0.2",
            "64:ff9b::10.0.0.2",
            "64:ff9b:1::a00:2",
            "64:ff9b:1:2:3:4:a00:2",
            "ff02::1",
            "ff0e::1",
        ];
        for address in none {
            assert!(!host(address), "{address}");
        }
        let some = [
            "1.0.0.1",
            "10.0.0.2",
            "126.1.1.1",
            "128.0.0.1",
            "169.254.1.1",
            "223.255.255.255",
            "fe80::1",
            "fd00::2",
            "2001:db8::1",
            "64:ff9b:2::1",
            "1::ffff:a00:2",
        ];
        for address in some {
            assert!(host(address), "{address}");
        }
    }

    #[test]
    fn link_local_address_equals_linuxs() {
        let ip = link_local([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
        assert_eq!(ip, "fe80::5054:ff:fe12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(mac_of_link_local(ip), Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]));
        for other in ["fe80::1", "fd00::5054:ff:fe12:3456", "fe80:1::5054:ff:fe12:3456"] {
            assert_eq!(mac_of_link_local(other.parse().unwrap()), None, "{other}");
        }
    }
}
