//! The way to others: which station of the link a packet goes to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::wire::IpCidr;

/// Networks of a link, and the routers on it.
#[derive(Debug, Default)]
pub struct Routes {
    /// Our addresses with their networks.
    pub addresses: alloc::vec::Vec<IpCidr>,
    /// Default routers.
    pub routers: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Changes with every change.
    pub generation: u64,
}

impl Routes {
    /// The station to which a packet for `ip` goes: itself, or a router. None for what is no host's
    /// address, for our own, and where no network leads there.
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        if !crate::port_addresses::is_host(ip)
            || self.addresses.iter().any(|c| c.address() == ip.into())
        {
            return None;
        }
        if self.addresses.iter().any(|cidr| cidr.contains_addr(&ip.into())) {
            return Some(ip);
        }
        match ip {
            IpAddr::V4(_) => self.routers.0.map(IpAddr::V4),
            IpAddr::V6(_) => self.routers.1.map(IpAddr::V6),
        }
    }
}
