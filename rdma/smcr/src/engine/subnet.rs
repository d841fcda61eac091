//! Subnets of the ports. Version 1 requires that the peer is in one of them (Linux 6.12, smc_clc.c,
//! `smc_clc_prfx_match`).

use super::Engine;
use super::config::Device;
use crate::wire::Prefixes;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Prefix length of IPv4-mapped IPv6 addresses.
const IPV4: u8 = 96;

/// An IP address of a device, with its subnet. Version 1 is possible with peers in the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// [`Device::ip`] of the device.
    device: Ipv4Addr,
    /// IPv4 addresses in mapped form.
    address: Ipv6Addr,
    prefix: u8,
}

impl Subnet {
    /// The subnet of an address of the device with [`Device::ip`] `device`; `prefix` in bits.
    pub fn new(device: Ipv4Addr, address: IpAddr, prefix: u8) -> Self {
        let (address, before) = mapped(address);
        Subnet { device, address, prefix: before.saturating_add(prefix) }
    }

    /// Whether an address is in the subnet.
    pub fn contains(&self, other: IpAddr) -> bool {
        self.base_of(mapped(other).0) == self.base_of(self.address)
    }

    /// The address with its host bits cleared.
    #[inline(never)]
    fn base_of(&self, address: Ipv6Addr) -> Ipv6Addr {
        let rest = 128u32.saturating_sub(self.prefix.into());
        let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
        Ipv6Addr::from_bits(address.to_bits() & mask)
    }
}

/// An address in IPv6 form, and the bits that precede it there.
#[inline(never)]
fn mapped(address: IpAddr) -> (Ipv6Addr, u8) {
    match address {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped(), IPV4),
        IpAddr::V6(v6) => (v6, 0),
    }
}

impl Engine {
    /// As server in version 1: the port of the TCP connection, if it is in one of the client's subnets. Returns an
    /// error if the port does not support version 1.
    pub(super) fn v1_device_among(
        &self,
        local: IpAddr,
        theirs: &Prefixes,
    ) -> Result<Option<&Device>, ()> {
        let device = self.v1_device(local).ok_or(())?;
        let v4 = [(theirs.v4.0.to_ipv6_mapped(), IPV4.saturating_add(theirs.v4.1))];
        let theirs = if theirs.v6.is_empty() { &v4 } else { &theirs.v6[..] };
        for ours in self.subnets.iter().filter(|subnet| subnet.device == device.ip) {
            for &(base, prefix) in theirs {
                if prefix == ours.prefix && ours.contains(IpAddr::V6(base)) {
                    return Ok(Some(device));
                }
            }
        }
        Ok(None)
    }

    /// As client: the port of the TCP connection, if the server is in one of its subnets, and the prefixes that the
    /// server compares: the IPv4 subnet, or all IPv6 subnets.
    #[inline(never)]
    pub(super) fn v1_device_towards(
        &self,
        local: IpAddr,
        remote: IpAddr,
    ) -> Option<(&Device, Prefixes)> {
        let device = self.v1_device(local)?;
        let mut prefixes = Prefixes { v4: (Ipv4Addr::UNSPECIFIED, 0), v6: Vec::new() };
        let mut near = false;
        for subnet in self.subnets.iter().filter(|subnet| subnet.device == device.ip) {
            let here = subnet.contains(remote);
            near |= here;
            let base = subnet.base_of(subnet.address);
            match (base.to_ipv4_mapped(), local) {
                (Some(v4), IpAddr::V4(_)) if here => prefixes.v4 = (v4, subnet.prefix - IPV4),
                (None, IpAddr::V6(_)) => prefixes.v6.push((base, subnet.prefix)),
                _ => {}
            }
        }
        near.then_some((device, prefixes))
    }

    #[inline(never)]
    fn v1_device(&self, local: IpAddr) -> Option<&Device> {
        let (local, _) = mapped(local);
        let subnet = self.subnets.iter().find(|subnet| subnet.address == local)?;
        let device = self.devices.iter().find(|device| device.ip == subnet.device)?;
        device.is_port().then_some(device)
    }
}
