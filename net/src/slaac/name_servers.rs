//! Name servers that routers advertise (RFC 8106 section 5.1).

use crate::port_addresses;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;

/// Maximum number of servers. Further ones are ignored, so that a station with many forged servers cannot evict others.
const MOST: usize = 8;

#[derive(Clone, Copy, Debug)]
struct NameServer {
    ip: Ipv6Addr,
    /// None if it never expires.
    until: Option<Instant>,
}

/// The advertised name servers.
#[derive(Debug, Default)]
pub struct NameServers(Vec<NameServer>);

impl NameServers {
    /// The servers, in the order of their first advertisement.
    pub fn iter(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.0.iter().map(|one| one.ip)
    }

    /// Handles an RDNSS option, without its type and length. A lifetime of zero removes its servers. True if the servers
    /// change.
    pub fn advertised(&mut self, option: &[u8], now: Instant) -> bool {
        let Some((&[_, _, a, b, c, d], addresses)) = option.split_first_chunk::<6>() else {
            return false;
        };
        let lifetime = u32::from_be_bytes([a, b, c, d]);
        let until = now + Duration::from_secs(lifetime.into());
        let until = (lifetime != u32::MAX).then_some(until);
        let mut changed = false;
        for address in addresses.chunks_exact(16).filter_map(|bytes| bytes.first_chunk::<16>()) {
            let ip = Ipv6Addr::from(*address);
            let place = self.0.iter().position(|one| one.ip == ip);
            match place {
                Some(place) if lifetime == 0 => {
                    self.0.remove(place);
                    changed = true;
                }
                Some(place) => self.0[place].until = until,
                None if lifetime > 0
                    && self.0.len() < MOST
                    && port_addresses::is_host(ip.into()) =>
                {
                    self.0.push(NameServer { ip, until });
                    changed = true;
                }
                None => {}
            }
        }
        changed
    }

    /// Removes expired servers. True if there are any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|one| one.until.is_none_or(|until| now < until));
        self.0.len() != before
    }

    /// When [`NameServers::expire`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|one| one.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(lifetime: u32, servers: &[Ipv6Addr]) -> Vec<u8> {
        let mut bytes = alloc::vec![0, 0];
        bytes.extend(lifetime.to_be_bytes());
        servers.iter().for_each(|ip| bytes.extend(ip.octets()));
        bytes
    }

    fn ip(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
    }

    #[test]
    fn servers_are_kept_for_their_lifetime_and_bounded() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut servers = NameServers::default();
        assert!(servers.advertised(&option(60, &[ip(1), Ipv6Addr::LOCALHOST, ip(2)]), at(0)));
        assert!(!servers.advertised(&option(90, &[ip(2)]), at(0)));
        assert!(!servers.expire(at(59)) && servers.poll_timeout() == Some(at(60)));
        assert!(servers.expire(at(60)) && servers.iter().eq([ip(2)]));
        assert!(servers.advertised(&option(0, &[ip(2)]), at(61)) && servers.iter().count() == 0);
        assert!(servers.advertised(&option(u32::MAX, &[ip(1)]), at(61)));
        assert_eq!(servers.poll_timeout(), None);
        for n in 2..100 {
            servers.advertised(&option(60, &[ip(n)]), at(61));
        }
        assert_eq!(servers.iter().count(), MOST);
        assert!(!servers.advertised(&option(60, &[ip(200)])[..20], at(61)), "cut short");
        assert!(!servers.advertised(&[0, 0], at(61)));
    }
}
