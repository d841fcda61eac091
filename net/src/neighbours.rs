//! [`Neighbours`]: the address lookups of engines above IP: local address for a peer, and next hop to it.

use crate::{Interface, Resolution};
use core::net::IpAddr;
use drivers::hal::Instant;

/// The part of an interface that engines use for connection setup.
pub trait Neighbours {
    /// Our address for a peer at `remote`: `preferred` if it is of the same kind (IPv4, IPv6, IPv6 link-local).
    fn address_towards(&self, remote: IpAddr, preferred: IpAddr) -> Option<IpAddr>;
    /// The next hop to `remote`.
    fn resolve(&mut self, remote: IpAddr, now: Instant) -> Resolution;
    /// Whether the next hop to `remote` is that host itself, so that the MAC address is the host's own.
    fn is_direct(&self, _remote: IpAddr) -> bool {
        false
    }
}

impl Neighbours for Interface {
    fn address_towards(&self, remote: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        let local = self.local();
        let v4 = local.v4.iter().map(|&ip| IpAddr::V4(ip));
        let v6 = local.v6.iter().map(|&ip| IpAddr::V6(ip));
        let mut fitting = v4.chain(v6).filter(|&ip| kind(ip) == kind(remote));
        if kind(preferred) == kind(remote) { Some(preferred) } else { fitting.next() }
    }

    fn resolve(&mut self, remote: IpAddr, now: Instant) -> Resolution {
        Interface::resolve(self, remote, now)
    }

    fn is_direct(&self, remote: IpAddr) -> bool {
        self.next_hop(remote) == Some(remote)
    }
}

/// Kind of an address: IPv4, IPv6 or IPv6 link-local. Only addresses of one kind can communicate.
fn kind(ip: IpAddr) -> (bool, bool) {
    match ip {
        IpAddr::V4(_) => (true, false),
        IpAddr::V6(ip) => (false, ip.is_unicast_link_local()),
    }
}
