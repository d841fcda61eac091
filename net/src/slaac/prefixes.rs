//! Prefixes advertised by routers: the on-link prefixes (RFC 4861 section 6.3.4, RFC 5942), and our addresses from
//! prefixes (RFC 4862 section 5.5). The two are independent: a prefix without the flag L implies nothing about the
//! link.

use super::MAX_ADDRESSES;
use crate::port_addresses;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::wire::Ipv6Cidr;

/// Maximum number of on-link prefixes.
const MOST: usize = 16;
/// Unauthenticated advertisements cannot reduce a lifetime below this (RFC 4862 section 5.5.3 e).
const TWO_HOURS: Duration = Duration::from_secs(7200);
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

/// Prefix information (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, Debug)]
pub struct Advertised {
    prefix: Ipv6Addr,
    length: u8,
    flags: u8,
    valid: u32,
    preferred: u32,
}

impl Advertised {
    /// Parses the option, without its type and length.
    pub fn of(option: &[u8]) -> Option<Self> {
        let (fields, rest) = option.split_first_chunk::<10>()?;
        let [length, flags, v0, v1, v2, v3, p0, p1, p2, p3] = *fields;
        let prefix = Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?);
        let valid = u32::from_be_bytes([v0, v1, v2, v3]);
        let preferred = u32::from_be_bytes([p0, p1, p2, p3]);
        Some(Advertised { prefix, length, flags, valid, preferred })
    }
}

#[derive(Clone, Copy, Debug)]
struct OnLink {
    network: Ipv6Cidr,
    /// None if it never expires.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Address {
    ip: Ipv6Addr,
    until: Option<Instant>,
    /// End of the preferred lifetime: after it the address is deprecated.
    preferred: Option<Instant>,
}

/// On-link prefixes and addresses.
#[derive(Debug, Default)]
pub struct Prefixes {
    on_link: Vec<OnLink>,
    addresses: Vec<Address>,
}

/// End of a lifetime; None if it is infinite.
fn end(seconds: u32, now: Instant) -> Option<Instant> {
    (seconds != u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}

/// The prefix with the remaining bits cleared.
fn network(prefix: Ipv6Addr, length: u8) -> Ipv6Cidr {
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    Ipv6Cidr::new(Ipv6Addr::from(prefix.to_bits() & mask), length)
}

impl Prefixes {
    /// Our addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.addresses.iter().map(|address| address.ip)
    }

    /// On-link prefixes.
    pub fn on_link(&self) -> impl Iterator<Item = Ipv6Cidr> {
        self.on_link.iter().map(|prefix| prefix.network)
    }

    /// Handles an advertised prefix. `id` is our interface identifier. True if an address or on-link prefix was added
    /// or removed.
    pub fn advertised(&mut self, option: Advertised, id: [u8; 8], now: Instant) -> bool {
        let Advertised { prefix, length, flags, valid, preferred } = option;
        let possible = (1..=128).contains(&length)
            && !prefix.is_unicast_link_local()
            && port_addresses::is_host(prefix.into());
        if !possible || preferred > valid {
            return false;
        }
        let mut changed = false;
        if flags & ON_LINK != 0 {
            changed |= self.set_on_link(network(prefix, length), valid, now);
        }
        if flags & AUTONOMOUS != 0 && length == 64 {
            let ip = port_addresses::in_prefix(prefix, id);
            changed |= self.set_address(ip, valid, preferred, now);
        }
        changed
    }

    fn set_on_link(&mut self, network: Ipv6Cidr, valid: u32, now: Instant) -> bool {
        let until = end(valid, now);
        match self.on_link.iter().position(|prefix| prefix.network == network) {
            Some(place) if valid == 0 => drop(self.on_link.remove(place)),
            Some(place) => {
                self.on_link[place].until = until;
                return false;
            }
            None if valid == 0 || self.on_link.len() >= MOST => return false,
            None => self.on_link.push(OnLink { network, until }),
        }
        true
    }

    fn set_address(&mut self, ip: Ipv6Addr, valid: u32, preferred: u32, now: Instant) -> bool {
        let wanted = Duration::from_secs(valid.into());
        let (until, preferred) = (end(valid, now), end(preferred, now));
        if let Some(address) = self.addresses.iter_mut().find(|address| address.ip == ip) {
            let left = address.until.map_or(Duration::MAX, |until| until.since(now));
            if until.is_none() || wanted > left || wanted > TWO_HOURS {
                address.until = until;
            } else if left > TWO_HOURS {
                address.until = Some(now + TWO_HOURS);
            }
            address.preferred = preferred;
            return false;
        }
        if valid == 0 {
            return false;
        }
        let new = Address { ip, until, preferred };
        if self.addresses.len() < MAX_ADDRESSES {
            self.addresses.push(new);
            return true;
        }
        // The network was renumbered: a deprecated address makes room.
        let deprecated = |address: &&mut Address| address.preferred.is_some_and(|at| at <= now);
        let Some(old) = self.addresses.iter_mut().find(deprecated) else { return false };
        let useful = new.preferred.is_none_or(|at| at > now);
        if useful {
            *old = new;
        }
        useful
    }

    /// Removes expired entries. True if there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = (self.on_link.len(), self.addresses.len());
        let lasts = |until: Option<Instant>| until.is_none_or(|until| now < until);
        self.on_link.retain(|prefix| lasts(prefix.until));
        self.addresses.retain(|address| lasts(address.until));
        before != (self.on_link.len(), self.addresses.len())
    }

    /// When [`Prefixes::expire`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let on_link = self.on_link.iter().filter_map(|prefix| prefix.until);
        let addresses = self.addresses.iter().filter_map(|address| address.until);
        on_link.chain(addresses).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 9];

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn option(prefix: &str, flags: u8, valid: u32, preferred: u32) -> Advertised {
        Advertised { prefix: prefix.parse().unwrap(), length: 64, flags, valid, preferred }
    }

    fn counts(prefixes: &Prefixes) -> (usize, usize) {
        (prefixes.addresses().count(), prefixes.on_link().count())
    }

    #[test]
    fn prefix_flags_are_independent() {
        let mut prefixes = Prefixes::default();
        assert!(prefixes.advertised(option("fd07::", 0x40, 100, 100), ID, at(0)));
        assert_eq!(counts(&prefixes), (1, 0));
        assert!(prefixes.advertised(option("fd07::", 0xc0, 100, 100), ID, at(0)));
        assert_eq!(counts(&prefixes), (1, 1));
        assert!(!prefixes.advertised(option("fd07::", 0x40, 200, 200), ID, at(50)));
        assert_eq!(counts(&prefixes), (1, 1), "without L the link is unchanged");
        assert!(prefixes.expire(at(100)));
        assert_eq!(counts(&prefixes), (1, 0), "each has its own lifetime");
        assert!(prefixes.advertised(option("fd08::", 0x80, 100, 100), ID, at(100)));
        assert!(prefixes.advertised(option("fd08::", 0x80, 0, 0), ID, at(101)), "withdrawn");
        assert_eq!(counts(&prefixes), (1, 0));
    }

    #[test]
    fn prefix_with_preferred_above_valid_lifetime_is_ignored() {
        let mut prefixes = Prefixes::default();
        assert!(!prefixes.advertised(option("fd07::", 0xc0, 100, 101), ID, at(0)));
        assert_eq!(counts(&prefixes), (0, 0));
        assert!(prefixes.advertised(option("fd07::", 0xc0, 100, 100), ID, at(0)));
        assert!(!prefixes.advertised(option("fd07::", 0xc0, 9000, u32::MAX), ID, at(1)));
        assert!(prefixes.expire(at(100)), "its lifetime did not change");
    }

    #[test]
    fn lifetime_is_not_reduced_below_two_hours() {
        let (mut prefixes, first) = (Prefixes::default(), option("fd07::", 0x40, 20_000, 20_000));
        prefixes.advertised(first, ID, at(0));
        prefixes.advertised(option("fd07::", 0x40, 1, 1), ID, at(0));
        assert_eq!(prefixes.poll_timeout(), Some(at(7200)));
        prefixes.advertised(option("fd07::", 0x40, 0, 0), ID, at(7000));
        assert_eq!(prefixes.poll_timeout(), Some(at(7200)));
        prefixes.advertised(option("fd07::", 0x40, 300, 300), ID, at(7000));
        assert_eq!(prefixes.poll_timeout(), Some(at(7300)), "longer than the rest");
        prefixes.advertised(option("fd07::", 0x40, 7201, 7201), ID, at(7000));
        assert_eq!(prefixes.poll_timeout(), Some(at(14_201)));
        prefixes.advertised(option("fd07::", 0x40, u32::MAX, u32::MAX), ID, at(7000));
        assert_eq!(prefixes.poll_timeout(), None);
        prefixes.advertised(option("fd07::", 0x40, 1, 1), ID, at(8000));
        assert_eq!(prefixes.poll_timeout(), Some(at(15_200)));
    }

    #[test]
    fn tables_are_bounded_and_a_deprecated_address_makes_room() {
        let mut prefixes = Prefixes::default();
        let numbered = |n: u32, preferred| {
            let prefix = Ipv6Addr::from((0x2001_0db8u128 << 96) | u128::from(n) << 64);
            Advertised { prefix, length: 64, flags: 0xc0, valid: 9000, preferred }
        };
        for n in 0..5000 {
            prefixes.advertised(numbered(n, 9000), ID, at(0));
        }
        assert_eq!(counts(&prefixes), (MAX_ADDRESSES, MOST));
        prefixes.advertised(numbered(0, 0), ID, at(1));
        assert!(prefixes.advertised(numbered(7777, 9000), ID, at(1)));
        let id = port_addresses::in_prefix(numbered(7777, 0).prefix, ID);
        assert!(prefixes.addresses().any(|ip| ip == id));
    }

    #[test]
    fn impossible_prefixes_are_ignored() {
        let mut prefixes = Prefixes::default();
        for prefix in ["ff02::", "fe80::", "::", "::1"] {
            assert!(!prefixes.advertised(option(prefix, 0xc0, 100, 100), ID, at(0)), "{prefix}");
        }
        for length in [0, 129, 255] {
            let wrong = Advertised { length, ..option("fd07::", 0xc0, 100, 100) };
            assert!(!prefixes.advertised(wrong, ID, at(0)), "/{length}");
        }
        let long = Advertised { length: 80, ..option("fd07::", 0xc0, 100, 100) };
        assert!(prefixes.advertised(long, ID, at(0)));
        assert_eq!(counts(&prefixes), (0, 1), "on the link, without an address");
        for length in 0..30 {
            assert!(Advertised::of(&std::vec![1; length]).is_none());
        }
        assert!(Advertised::of(&[1; 30]).is_some());
    }
}
