//! Lists of networks whose hosts have access to an object (`hosts = ["10.0.0.0/24", "2001:db8::/64"]`).
//!
//! The source address of the frame is compared. An address that is not a host's ([`crate::is_host`]) is in no network:
//! an IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) does not match the IPv4 address.

use crate::dns::Name;
use crate::is_host;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// A network, or a single host (the longest prefix).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Bits of the prefix: 0 to 32, or to 128.
    prefix: u8,
}

impl Network {
    /// Whether the host is in the network.
    pub fn contains(&self, host: IpAddr) -> bool {
        if !is_host(host) {
            return false;
        }
        let differing = match (self.address, host) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        differing >= u32::from(self.prefix)
    }
}

/// The address under which limits of a host are accounted: its own, or for IPv6 its /64, because a host may use all
/// addresses of a /64 (RFC 7934). All hosts of a link share the link-local /64, so link-local addresses are accounted
/// singly.
pub fn accountable(host: IpAddr) -> IpAddr {
    match host.to_canonical() {
        IpAddr::V6(a) if a.is_unicast_link_local() => IpAddr::V6(a),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

impl FromStr for Network {
    type Err = String;

    /// Reads `10.0.0.0/24`, `2001:db8::/64`, or one host's address.
    fn from_str(text: &str) -> Result<Network, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| match address.parse::<Name>() {
            Ok(_) => "a name proves nothing about a host: write its address, or its network",
            Err(_) => "not an address",
        })?;
        if address != address.to_canonical() {
            return Err(format!("write it as IPv4: {}", address.to_canonical()));
        }
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= longest).unwrap_or(u8::MAX)
            }
            Some(_) => u8::MAX,
        };
        if prefix > longest {
            return Err(format!("the prefix length must be 0 to {longest}"));
        }
        let first = match address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
        };
        // Ambiguous: 10.0.0.5/24 can mean the network or the host.
        if first != address {
            return Err(format!("{first}/{prefix} is the network, {address}/{longest} the host"));
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The hosts with access: those of these networks, or all hosts if the list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<Network>);

impl Hosts {
    /// Hosts of these networks; an empty list admits all hosts.
    pub fn new(networks: Vec<Network>) -> Self {
        Hosts(networks)
    }

    /// Whether a host has access.
    pub fn admits(&self, host: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|network| network.contains(host))
    }

    /// Whether all hosts have access.
    pub fn is_everybody(&self) -> bool {
        self.0.is_empty()
    }

    /// The networks.
    pub fn networks(&self) -> &[Network] {
        &self.0
    }
}

impl fmt::Display for Hosts {
    /// `10.0.0.0/24, 2001:db8::/64`, or `open to everybody`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("open to everybody");
        }
        for (i, network) in self.0.iter().enumerate() {
            write!(f, "{}{network}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn hosts(networks: &[&str]) -> Hosts {
        Hosts::new(networks.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn hosts_of_a_network_are_admitted_and_no_others() {
        let admitted =
            |networks: &[&str], host: &str| hosts(networks).admits(host.parse().unwrap());
        assert!(
            admitted(&["10.0.0.0/24"], "10.0.0.255") && !admitted(&["10.0.0.0/24"], "10.0.1.0")
        );
        assert!(admitted(&["10.0.0.7"], "10.0.0.7") && !admitted(&["10.0.0.7"], "10.0.0.6"));
        assert!(admitted(&["2001:db8::/64"], "2001:db8::5"));
        assert!(!admitted(&["2001:db8::/64"], "2001:db8:0:1::5"));
        assert!(admitted(&["10.0.0.0/8", "fd00::/8"], "fd12::1"));
        assert!(admitted(&["0.0.0.0/0"], "192.0.2.1") && !admitted(&["0.0.0.0/0"], "::1"));
        assert!(!admitted(&["::/0"], "10.0.0.1"));
        assert!(admitted(&[], "10.0.0.1"), "an empty list admits all hosts");
    }

    #[test]
    fn ipv6_hosts_are_accounted_by_their_64() {
        let of = |text: &str| accountable(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("2001:db8:1:3::6"), "2001:db8:1:3::");
        assert_eq!([of("10.0.0.7"), of("::ffff:10.0.0.7")], ["10.0.0.7", "10.0.0.7"]);
        assert_eq!([of("fe80::1"), of("fe80::2:3")], ["fe80::1", "fe80::2:3"]);
    }

    #[test]
    fn special_address_is_in_no_network() {
        let special = ["::ffff:10.0.0.9", "::10.0.0.9", "::ffff:0:10.0.0.9", "64:ff9b::10.0.0.9"];
        for address in special.into_iter().chain(["0.0.0.9", "127.0.0.1", "255.255.255.255", "::1"])
        {
            let host = address.parse().unwrap();
            for list in ["10.0.0.0/24", "::/0", "0.0.0.0/0"] {
                assert!(!hosts(&[list]).admits(host), "{address} in {list}");
            }
        }
    }

    #[test]
    fn malformed_or_ambiguous_network_is_refused() {
        for (text, why) in [
            ("10.0.0.5/24", "10.0.0.0/24 is the network, 10.0.0.5/32 the host"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/+8", "0 to 32"),
            ("10.0.0.0/", "0 to 32"),
            ("fd00::1/8", "fd00::/8 is the network"),
            ("::ffff:10.0.0.0/120", "write it as IPv4"),
            ("host-1", "a name proves nothing about a host: write its address, or its network"),
            ("", "not an address"),
        ] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(hosts(&["10.0.0.1", "fd00::/8"]).to_string(), "10.0.0.1/32, fd00::/8");
        assert_eq!(hosts(&[]).to_string(), "open to everybody");
    }
}
