//! The way to others: which station of the link a packet goes to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::wire::IpCidr;

/// Networks of a link, and the routers on it.
#[derive(Debug)]
pub struct Routes {
    /// Our addresses with their networks.
    pub addresses: alloc::vec::Vec<IpCidr>,
    /// Networks whose hosts are on the link. That of an address which we made of an advertised prefix need not be
    /// (RFC 5942 section 4).
    pub on_link: alloc::vec::Vec<IpCidr>,
    /// Default routers.
    pub routers: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Largest packets of IPv4 and of IPv6 in bytes.
    pub mtu: [usize; 2],
    /// Changes with every change.
    pub generation: u64,
}

impl Routes {
    /// None, of a link with this MTU.
    pub fn new(mtu: usize) -> Self {
        Routes {
            addresses: alloc::vec::Vec::new(),
            on_link: alloc::vec::Vec::new(),
            routers: (None, None),
            mtu: [mtu; 2],
            generation: 0,
        }
    }

    /// Largest packet to `ip` in bytes, as far as the link is concerned.
    pub fn mtu_to(&self, ip: IpAddr) -> usize {
        self.mtu[usize::from(ip.is_ipv6())]
    }

    /// Largest packet of the family that a packet is of.
    pub fn mtu_of(&self, packet: &[u8]) -> usize {
        let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        self.mtu[usize::from(v6)]
    }

    /// The station to which a packet for `ip` goes: itself, or a router. None for what is no host's
    /// address, for our own, and where no network leads there.
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
