//! Settings of the engine, and its ports.

use super::spare::BufferSizes;
use crate::wire::{Eid, MAX_EIDS};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;
use verbs::PathMtu;

/// Fewest connections of a link group that may be negotiated.
pub(super) const MIN_CONNECTIONS: u8 = 16;
/// Most sockets: slot and generation make up a token.
const MAX_SOCKETS: usize = 0xfffe;

/// Name of a physical network (PNET ID). Ports with the same PNET ID reach the same peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PnetId([u8; PnetId::LEN]);

impl PnetId {
    const LEN: usize = 16;

    /// The name, without its padding.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).map_or("?", |text| text.trim_end())
    }
}

impl FromStr for PnetId {
    type Err = &'static str;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let good = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        if name.is_empty() || name.len() > Self::LEN || !name.bytes().all(good) {
            return Err("not a PNET ID");
        }
        let mut id = [b' '; Self::LEN];
        id[..name.len()].copy_from_slice(name.as_bytes());
        Ok(PnetId(id))
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A port that links may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its IPv4 address, which is its GID in version 2.
    pub ip: Ipv4Addr,
    /// Address that identifies the device to the provider ([`verbs::MemoryVerbs::pd_on`]).
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its path MTU.
    pub path_mtu: PathMtu,
    /// The port's network. A port without one has no alternate port.
    pub pnet: Option<PnetId>,
}

impl Device {
    /// Whether this is a port of the network, which the provider identifies by the port's own address. Otherwise it is
    /// a bridge, which reaches one machine: only TCP over the same bridge is certain to lead to that machine.
    pub fn is_port(&self) -> bool {
        self.address == IpAddr::V4(self.ip)
    }

    /// The GID: in version 1 derived from the MAC address, of type RoCEv1 (annex A16).
    #[inline(never)]
    pub(super) fn gid(&self, version: u8) -> Ipv6Addr {
        match version {
            1 => net::link_local(self.mac),
            _ => self.ip.to_ipv6_mapped(),
        }
    }

    /// Whether links of a group may use both ports: they are two ports of one network.
    pub(super) fn joins(&self, other: &Device) -> bool {
        self.ip != other.ip && self.pnet.is_some() && self.pnet == other.pnet
    }
}

/// The IP address of a GID.
#[inline(never)]
pub(super) fn address_of(gid: Ipv6Addr) -> IpAddr {
    gid.to_canonical()
}

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our EIDs; in version 2 peers must share one. At most eight.
    pub eids: Vec<Eid>,
    /// Host name that peers receive, blank padded.
    pub hostname: [u8; 32],
    /// Code of the size of receive buffers (16 KiB << code), 0 to 15.
    pub rmb_size: u8,
    /// Bytes of a send buffer, a power of two.
    pub send_buffer: u32,
    /// Most spare send buffers kept for reuse.
    pub spare_buffers: usize,
    /// Most sockets.
    pub max_sockets: usize,
    /// Most link groups.
    pub max_groups: usize,
    /// Most link groups with one host.
    pub groups_per_host: usize,
    /// Most bytes of receive buffers of one host, by its TCP address. Further connections fall back to TCP.
    pub memory_per_host: u64,
    /// Most connections of a link group, 16 to 255.
    pub max_conns: u8,
    /// Most links of a link group, 1 or 2.
    pub max_links: u8,
    /// Timeout for the peer's next CLC message.
    pub clc_wait: Duration,
    /// Timeout for a server's Accept (Linux as client: 6 s), without and with a link group between the hosts: Linux as
    /// server processes handshakes one after another, and each of them waits while a link is lost.
    pub accept_wait: (Duration, Duration),
    /// How long a Proposal or an Accept is held, for a neighbour's address or for a group that is being created. Its
    /// sender waits 6 s, and must receive the Decline before.
    pub hold_wait: Duration,
    /// Timeout for the Confirm on an existing link group: Linux first announces one buffer after another on the links,
    /// and waits 20 s for its turn. A client that is given up still writes to its released buffer, and loses its links
    /// by that.
    pub late_confirm_wait: Duration,
    /// Timeout for CONFIRM_RKEY before an Accept or Confirm, for which the peer waits 6 s.
    pub key_wait: Duration,
    /// Timeout for CONFIRM_LINK, as server and as client. The server has to give up first: if its Decline and the
    /// client's cross, each is data to the other side. Linux as server waits 2 s, looks for a Decline for 1 s, and
    /// waits 2 s more if none of its packets was acknowledged: its Decline comes after 3 or 5.2 s. As client it
    /// declines after 5 s, and still looks for a Decline for 3 s after its own response.
    pub confirm_wait: (Duration, Duration),
    /// As client: how long our response to CONFIRM_LINK may remain unacknowledged, without a Decline of a server that
    /// has missed it.
    pub answer_wait: Duration,
    /// Timeout for all other LLC responses.
    pub llc_wait: Duration,
    /// Pause between the loss of a link and the first attempt to re-establish it, and longest pause between attempts.
    pub remake: (Duration, Duration),
    /// How long a link may be silent before it is tested.
    pub test_link: Duration,
    /// How long a link group without connections is kept, as server and as client.
    pub keep: (Duration, Duration),
    /// How long sending the remaining data may take after a close; then the socket is aborted.
    pub linger: Duration,
    /// Timeout for the peer's CLOSED or ABORT after its FIN on TCP.
    pub end_wait: Duration,
    /// ACK timeout of queue pairs (4.096 us << code) with and without another link to fail over to: a busy Linux may
    /// not answer for seconds, and itself never gives up.
    pub ack_timeout: (u8, u8),
    /// Retries of queue pairs.
    pub retry_count: u8,
    /// Depth of the completion queue that all links share.
    pub completions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            eids: Vec::new(),
            hostname: *b"isthmus                         ",
            rmb_size: 2,
            send_buffer: 64 << 10,
            spare_buffers: 64,
            max_sockets: 4096,
            max_groups: 128,
            groups_per_host: 32,
            memory_per_host: u64::MAX,
            max_conns: 255,
            max_links: 1,
            clc_wait: Duration::from_secs(6),
            accept_wait: (Duration::from_secs(7), Duration::from_secs(20)),
            hold_wait: Duration::from_secs(5),
            late_confirm_wait: Duration::from_secs(25),
            key_wait: Duration::from_secs(4),
            confirm_wait: (Duration::from_millis(2500), Duration::from_secs(8)),
            answer_wait: Duration::from_secs(7),
            llc_wait: Duration::from_secs(2),
            remake: (Duration::from_secs(1), Duration::from_secs(64)),
            test_link: Duration::from_secs(30),
            keep: (Duration::from_secs(600), Duration::from_secs(610)),
            linger: Duration::from_secs(2),
            end_wait: Duration::from_secs(10),
            ack_timeout: (17, 18),
            retry_count: 7,
            completions: 1 << 14,
        }
    }
}

/// An invalid setting, and the accepted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConfig(&'static str);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Config {
    /// Sizes of the buffers of connections whose user sets no others.
    pub fn sizes(&self) -> BufferSizes {
        BufferSizes { send: self.send_buffer, receive: self.rmb_size }
    }

    /// Checks the settings.
    pub fn check(&self) -> Result<(), BadConfig> {
        let complaint = if self.eids.len() > MAX_EIDS {
            "eids: at most eight"
        } else if self.rmb_size > 15 {
            "rmb_size: 0 to 15"
        } else if !self.send_buffer.is_power_of_two() || self.send_buffer < 4096 {
            "send_buffer: a power of two, at least 4096"
        } else if self.max_sockets == 0 || self.max_sockets > MAX_SOCKETS {
            "max_sockets: 1 to 65534"
        } else if self.max_groups.min(self.groups_per_host) == 0 || self.completions == 0 {
            "max_groups, groups_per_host, completions: at least 1"
        } else if self.max_conns < MIN_CONNECTIONS {
            "max_conns: 16 to 255"
        } else if !(1..=2).contains(&self.max_links) {
            "max_links: 1 or 2"
        } else {
            return Ok(());
        };
        Err(BadConfig(complaint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn pnet_id_accepts_the_names_of_linux() {
        for name in ["A", "LAB", "NET1", "0", "SIXTEENCHARACTER"] {
            let id: PnetId = name.parse().unwrap();
            assert_eq!((id.as_str(), id.to_string().as_str()), (name, name));
        }
        for name in ["", "lab", "LAB ", "A-B", "SEVENTEENCHARACTR", "Ä"] {
            assert!(name.parse::<PnetId>().is_err(), "{name}");
        }
    }

    #[test]
    fn links_join_ports_of_one_network_with_addresses_of_their_own() {
        let device = |last, pnet: Option<&str>| Device {
            ip: Ipv4Addr::new(10, 0, 0, last),
            pnet: pnet.map(|name| name.parse().unwrap()),
            ..crate::testing::device(0, 0)
        };
        let lab = device(1, Some("LAB"));
        assert!(lab.joins(&device(2, Some("LAB"))));
        assert!(!lab.joins(&device(1, Some("LAB"))), "the same address");
        assert!(!lab.joins(&device(2, Some("LAB2"))) && !lab.joins(&device(2, None)));
        assert!(!device(1, None).joins(&device(2, None)), "unknown networks");
        let behind = Device { address: [10, 0, 0, 9].into(), ..lab };
        let at_port = Device { address: IpAddr::V4(lab.ip), ..lab };
        assert!(at_port.is_port() && !behind.is_port(), "a bridge reaches one machine");
    }

    #[test]
    fn settings_have_limits() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().is_ok()
        };
        let eid = || crate::wire::Eid::new("LAB.SMC.EID").unwrap();
        assert!(Config::default().check().is_ok());
        for eids in [8, 9] {
            let config = Config { eids: alloc::vec![eid(); eids], ..Config::default() };
            assert_eq!(config.check().is_ok(), eids <= 8, "{eids} enterprises");
        }
        assert!(with(|c| c.rmb_size = 15) && !with(|c| c.rmb_size = 16));
        assert!(with(|c| c.send_buffer = 4096) && !with(|c| c.send_buffer = 2048));
        assert!(!with(|c| c.send_buffer = 5000));
        assert!(with(|c| c.max_sockets = 65534) && !with(|c| c.max_sockets = 65535));
        assert!(with(|c| c.max_sockets = 1) && !with(|c| c.max_sockets = 0));
        assert!(with(|c| c.max_groups = 1) && !with(|c| c.max_groups = 0));
        assert!(with(|c| c.groups_per_host = 1) && !with(|c| c.groups_per_host = 0));
        assert!(with(|c| c.completions = 1) && !with(|c| c.completions = 0));
        assert!(with(|c| c.max_conns = 16) && !with(|c| c.max_conns = 15));
        assert!(with(|c| c.max_links = 2) && !with(|c| c.max_links = 3));
        assert!(!with(|c| c.max_links = 0));
    }
}
