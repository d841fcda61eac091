//! The configured sources of an interface's addresses, and their validation.

use crate::port_addresses;
use crate::slaac;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use smoltcp::wire::IpCidr;

/// smoltcp's table (`iface-max-addr-count-8`) less link-local, DHCP and announced prefixes.
const MAX_STATIC: usize = 8 - 2 - slaac::MAX_ADDRESSES;

/// Address sources of an interface. It always has its link-local IPv6 address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    /// Addresses with their networks, at most four.
    pub addresses: Vec<IpCidr>,
    /// Default routers, at most one of each family; they override learnt routers.
    pub gateways: Vec<IpAddr>,
    /// Ask for an IPv4 address by DHCP (RFC 2131).
    pub dhcp: bool,
    /// Take IPv6 addresses and the default router from router advertisements.
    pub slaac: bool,
    /// The operator has set the MTU: a DHCP server's MTU is ignored.
    pub fixed_mtu: bool,
}

/// Why an [`Addressing`] is rejected: a configuration error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressingError {
    /// Not a unicast host address.
    NotAHost(IpAddr),
    /// More addresses than an interface holds.
    TooManyAddresses,
    /// More than one gateway of a family.
    TooManyGateways,
    /// The gateway is in none of the interface's networks.
    GatewayOffLink(IpAddr),
}

impl fmt::Display for AddressingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHost(ip) => write!(f, "{ip} cannot be the address of a host"),
            Self::TooManyAddresses => write!(f, "more than {MAX_STATIC} addresses"),
            Self::TooManyGateways => write!(f, "more than one gateway of a family"),
            Self::GatewayOffLink(ip) => {
                write!(f, "gateway {ip} is in none of the interface's networks")
            }
        }
    }
}

impl core::error::Error for AddressingError {}

impl Addressing {
    /// Checks the number of addresses and gateways, and that each gateway is on link.
    pub(crate) fn check(&self) -> Result<(), AddressingError> {
        if self.addresses.len() > MAX_STATIC {
            return Err(AddressingError::TooManyAddresses);
        }
        let hosts = self.addresses.iter().map(|cidr| cidr.address().into());
        for ip in hosts.chain(self.gateways.iter().copied()) {
            if !port_addresses::is_host(ip) {
                return Err(AddressingError::NotAHost(ip));
            }
        }
        for v4 in [true, false] {
            if self.gateways.iter().filter(|ip| ip.is_ipv4() == v4).count() > 1 {
                return Err(AddressingError::TooManyGateways);
            }
        }
        for &ip in &self.gateways {
            let learnt = match ip {
                IpAddr::V4(_) => self.dhcp,
                IpAddr::V6(v6) => self.slaac || v6.is_unicast_link_local(),
            };
            if !learnt && !self.addresses.iter().any(|c| c.contains_addr(&ip.into())) {
                return Err(AddressingError::GatewayOffLink(ip));
            }
        }
        Ok(())
    }
}
