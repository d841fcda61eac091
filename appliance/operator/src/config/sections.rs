//! Lookups of configuration by device or by name, across sections.

use super::ntb::Ntb;
use super::rapidio::Rapidio;
use super::remote::Mirror;
use super::schema::{Config, Net};
use super::usnic::Usnic;
use super::values::Name;
use core::net::{IpAddr, Ipv4Addr};
use usnic::InterfaceConfig;

impl Config {
    /// The NTRDMA bridges, with their numbers in the document.
    pub fn ntrdma(&self) -> impl Iterator<Item = (usize, &Ntb)> {
        self.ntb.iter().enumerate().filter(|(_, ntb)| !ntb.is_transport())
    }

    /// The configuration of the bridge with this position and location, and its number in the document.
    pub fn bridge(&self, index: usize, location: &str) -> Option<(usize, &Ntb)> {
        let devices = self.ntb.iter().enumerate().filter(|(_, ntb)| ntb.tcp.is_none());
        let mut devices = devices.enumerate();
        let found = devices.find(|(place, (_, ntb))| match &ntb.device {
            Some(device) => device.is_port(index, location, [0; 6]),
            None => *place == index,
        });
        found.map(|(_, ntb)| ntb)
    }

    /// The configuration of the RapidIO port with this position and location, and its number in the document.
    pub fn rapidio_port(&self, index: usize, location: &str) -> Option<(usize, &Rapidio)> {
        self.rapidio.iter().enumerate().find(|(place, one)| match &one.device {
            Some(device) => device.is_port(index, location, [0; 6]),
            None => *place == index,
        })
    }

    /// Names of all volumes, remotes and mirrors.
    pub fn volume_names(&self) -> impl Iterator<Item = &Name> {
        let volumes = self.volume.iter().map(|volume| &volume.name);
        let remotes = self.remote.iter().map(|remote| &remote.name);
        volumes.chain(remotes).chain(self.mirror.iter().map(|mirror| &mirror.name))
    }

    /// The mirror that a volume is a member of.
    pub fn mirror_of(&self, name: &str) -> Option<&Mirror> {
        self.mirror.iter().find(|mirror| mirror.members.iter().any(|m| m.as_str() == name))
    }
}

impl Usnic {
    /// Parameters for the engine, with the first sequence number. None if `address` is not an address of the interface.
    pub fn interface(&self, net: &Net, isn: u16) -> Option<InterfaceConfig> {
        let ours = |&(address, _): &(IpAddr, u8)| address == IpAddr::V4(self.address);
        let (_, prefix) = net.fixed().find(ours)?;
        let netmask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        Some(InterfaceConfig {
            address: self.address,
            netmask: Ipv4Addr::from_bits(netmask),
            priority_port: self.priority_port,
            data_port: self.data_port,
            ping_port: self.ping_port.unwrap_or(0),
            link_speed: self.link_speed,
            mtu: self.mtu.or(net.mtu).unwrap_or(1500),
            isn,
        })
    }
}
