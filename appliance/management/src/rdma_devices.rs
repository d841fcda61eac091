//! Names of the RDMA devices for `hca_name` and `ib_dev`: `roce0`, `connectx0`, `ntrdma0`. Each has one port, 1.

use crate::appliance::Appliance;
use crate::report::Value;
use crate::status::{BridgeStatus, PortStatus};
use core::net::IpAddr;

/// RDMA devices with their local addresses.
pub(crate) struct RdmaDevices(Vec<(String, Vec<IpAddr>)>);

impl RdmaDevices {
    /// The number of a device's only port (`hca_port`, `ib_p`).
    pub const PORT: u8 = 1;

    /// The devices of all loops.
    pub fn of(appliance: &dyn Appliance) -> Self {
        Self::new(&appliance.ports(), &appliance.bridges())
    }

    /// Devices are numbered within their kind, in the order of the interfaces and of the bridges. A bridge precedes the
    /// IP interface over it.
    pub fn new(ports: &[PortStatus<'_>], bridges: &[BridgeStatus]) -> Self {
        let over = bridges.iter().zip(0..);
        let over =
            over.map(|(bridge, n): (_, u32)| (format!("ntrdma{n}"), vec![bridge.addresses.0]));
        let mut devices: Vec<_> = over.collect();
        let mut counts = [0u32; 2];
        for port in ports {
            let (kind, place) = match port.report.card {
                Some(_) => ("connectx", 0),
                None => ("roce", 1),
            };
            let addresses = port.addresses.list.iter().filter_map(|text| address(text)).collect();
            devices.push((format!("{kind}{}", counts[place]), addresses));
            counts[place] += 1;
        }
        RdmaDevices(devices)
    }

    /// Name of the device with a local address; None after the address was removed.
    pub fn name(&self, local: IpAddr) -> Option<&str> {
        let found = self.0.iter().find(|(_, addresses)| addresses.contains(&local));
        found.map(|(name, _)| name.as_str())
    }

    /// `hca_name`.
    pub fn hca_name(&self, local: IpAddr) -> Value {
        self.name(local).map(str::to_string).into()
    }
}

/// The address in `10.0.0.1/24`.
fn address(with_prefix: &str) -> Option<IpAddr> {
    with_prefix.split('/').next()?.parse().ok()
}

/// Whether a host is in the network of an interface's `10.0.0.1/24`.
fn is_in_network(with_prefix: &str, host: IpAddr) -> bool {
    let prefix = with_prefix.split_once('/').and_then(|(_, prefix)| prefix.parse::<u32>().ok());
    let (Some(own), Some(prefix)) = (address(with_prefix), prefix) else { return false };
    let differing = match (own, host) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= prefix
}

/// The address of the first core from which `to` is reached: that of the bridge whose peer `to` is, that of an interface
/// in the same network, or that of the interface with a default gateway.
pub(crate) fn local_address(
    ports: &[PortStatus<'_>],
    bridges: &[BridgeStatus],
    to: IpAddr,
) -> Option<IpAddr> {
    if let Some(bridge) = bridges.iter().find(|bridge| bridge.addresses.1 == to) {
        return Some(bridge.addresses.0);
    }
    let own = || ports.iter().filter(|port| port.is_own);
    let list = own().flat_map(|port| &port.addresses.list);
    let near = list.filter(|text| is_in_network(text, to));
    let routed = own().filter(|port| {
        let mut gateways = port.addresses.gateways.iter().filter_map(|text| address(text));
        gateways.any(|gateway| gateway.is_ipv4() == to.is_ipv4())
    });
    let routed = routed.flat_map(|port| &port.addresses.list);
    let of_family = |address: &IpAddr| address.is_ipv4() == to.is_ipv4();
    near.chain(routed).filter_map(|text| address(text)).find(of_family)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::status::{Addresses, CardReport, PortReport};

    fn port<'a>(
        name: &'a str,
        addresses: &'a Addresses,
        card: Option<CardReport>,
    ) -> PortStatus<'a> {
        PortStatus {
            name,
            location: "",
            driver: "",
            mac: [0; 6],
            mtu: 1500,
            link: true,
            addresses,
            core: 0,
            others: &[],
            is_own: true,
            report: PortReport { card, ..PortReport::default() },
            control_dropped: 0,
            forwarding_dropped: None,
        }
    }

    /// Two ports with the addresses 10.0.0.1 and 10.0.1.1.
    pub(crate) fn devices() -> RdmaDevices {
        let list = |text: &str| Addresses { list: vec![text.into()], ..Addresses::default() };
        let (one, other) = (list("10.0.0.1/24"), list("10.0.1.1/24"));
        RdmaDevices::new(&[port("net0", &one, None), port("net1", &other, None)], &[])
    }

    #[test]
    fn source_of_a_path_is_in_the_network_of_its_destination() {
        let list = |text: &str| Addresses { list: vec![text.into()], ..Addresses::default() };
        let (one, mut other) = (list("10.0.0.1/24"), list("10.0.1.1/24"));
        let found = |other: &Addresses, to: &str| {
            let ports = [port("net0", &one, None), port("net1", other, None)];
            local_address(&ports, &[], to.parse().unwrap()).map(|from| from.to_string())
        };
        assert_eq!(found(&other, "10.0.1.7").as_deref(), Some("10.0.1.1"));
        assert_eq!(found(&other, "10.0.0.7").as_deref(), Some("10.0.0.1"));
        assert_eq!(found(&other, "10.0.2.7"), None);
        other.gateways = vec!["10.0.1.254".into()];
        assert_eq!(found(&other, "10.0.2.7").as_deref(), Some("10.0.1.1"));
        assert_eq!(found(&other, "fd00::2"), None);
    }

    #[test]
    fn second_port_has_its_own_device() {
        let list = |text: &str| Addresses { list: vec![text.into()], ..Addresses::default() };
        let (one, other) = (list("10.0.0.1/24"), list("fd00::1/64"));
        let devices =
            RdmaDevices::new(&[port("net0", &one, None), port("net1", &other, None)], &[]);
        assert_eq!(devices.name("10.0.0.1".parse().unwrap()), Some("roce0"));
        assert_eq!(devices.name("fd00::1".parse().unwrap()), Some("roce1"));
        assert_eq!(devices.name("10.0.0.2".parse().unwrap()), None);
    }
}
