//! Routes of an interface: selects the next hop of a packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::wire::IpCidr;

/// Networks of a link, and the routers on it.
#[derive(Debug)]
pub struct Routes {
    /// Our addresses with their networks.
    pub addresses: alloc::vec::Vec<IpCidr>,
    /// Networks whose hosts are on the link. The network of an address formed from an advertised prefix need not be
    /// among them (RFC 5942 section 4).
    pub on_link: alloc::vec::Vec<IpCidr>,
    /// Default routers.
    pub routers: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Largest packets of IPv4 and of IPv6 in bytes.
    pub mtu: [usize; 2],
    /// A counter that changes with every change.
    pub generation: u64,
}

impl Routes {
    /// No routes, on a link with this MTU.
    pub fn new(mtu: usize) -> Self {
        Routes {
            addresses: alloc::vec::Vec::new(),
            on_link: alloc::vec::Vec::new(),
            routers: (None, None),
            mtu: [mtu; 2],
            generation: 0,
        }
    }

    /// Link MTU to `ip` in bytes.
    pub fn mtu_to(&self, ip: IpAddr) -> usize {
        self.mtu[usize::from(ip.is_ipv6())]
    }

    /// Link MTU of a packet's family.
    pub fn mtu_of(&self, packet: &[u8]) -> usize {
        let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        self.mtu[usize::from(v6)]
    }

    /// The next hop to `ip`: the host itself, or a router. None for our own addresses, for addresses that are not a
    /// host's, and without a route.
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        if !crate::port_addresses::is_host(ip)
            || self.addresses.iter().any(|c| c.address() == ip.into())
        {
            return None;
        }
        if self.on_link.iter().any(|cidr| cidr.contains_addr(&ip.into())) {
            return Some(ip);
        }
        match ip {
            IpAddr::V4(_) => self.routers.0.map(IpAddr::V4),
            IpAddr::V6(_) => self.routers.1.map(IpAddr::V6),
        }
    }
}
