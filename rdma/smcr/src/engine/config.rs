//! Settings of the engine, and what it knows of the host.

use crate::wire::{Eid, MAX_EIDS};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;
use verbs::PathMtu;

/// Fewest connections of a link group that may be negotiated.
pub(super) const LEAST_CONNECTIONS: u8 = 16;
/// Most sockets: their place and generation make up a token.
const MAX_SOCKETS: usize = 0xfffe;

/// Name of a physical network (PNET ID): ports that have the same reach the same peers.
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
            return Err("no name of a physical network");
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
    /// The address by which the provider knows its device ([`verbs::Provider::pd_on`]).
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its path MTU.
    pub path_mtu: PathMtu,
    /// The network that it is on. Without one, no other port takes its place.
    pub pnet: Option<PnetId>,
}

impl Device {
    /// Whether it is a port of the network, whose provider knows it by its own address; else what it
    /// reaches is one machine behind a bridge, and only TCP over the same way is sure to be that.
    pub fn is_port(&self) -> bool {
        self.address == IpAddr::V4(self.ip)
    }

    /// Its GID: in version 1 that of its MAC address, of type RoCEv1 (annex A16).
    #[inline(never)]
    pub(super) fn gid(&self, version: u8) -> Ipv6Addr {
        match version {
            1 => net::link_local(self.mac),
            _ => self.ip.to_ipv6_mapped(),
        }
    }

    /// Whether links of a group may be over both: they are two ports on one network.
    pub(super) fn joins(&self, other: &Device) -> bool {
        self.ip != other.ip && self.pnet.is_some() && self.pnet == other.pnet
    }
}

/// The address that a GID is.
#[inline(never)]
pub(super) fn address_of(gid: Ipv6Addr) -> IpAddr {
    gid.to_canonical()
}

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Enterprises that we belong to; in version 2 peers must share one. At most eight.
    pub eids: Vec<Eid>,
    /// Name that peers are told, blank padded.
    pub hostname: [u8; 32],
    /// Code of the size of receive buffers (16 KiB << code), 0 to 15.
    pub rmb_size: u8,
    /// Bytes of a send buffer, a power of two.
    pub send_buffer: u32,
    /// Send buffers that are kept for the next who needs one.
    pub spare_buffers: usize,
    /// Most sockets.
    pub max_sockets: usize,
    /// Most link groups.
    pub max_groups: usize,
    /// Most link groups with one host.
    pub groups_per_host: usize,
    /// Bytes of the receive buffers that one host may have, by its TCP address. Who has more goes back to TCP.
    pub memory_per_host: u64,
    /// Most connections of a link group, 16 to 255.
    pub max_conns: u8,
    /// Most links of a link group, 1 or 2.
    pub max_links: u8,
    /// How long a peer may take for its next CLC message.
    pub clc_wait: Duration,
    /// How long a server may take for its Accept (Linux as client: 6 s), and how long where there is more
    /// between us: Linux as server makes one handshake after another, and each of them waits while a link
    /// is lost.
    pub accept_wait: (Duration, Duration),
    /// How long a Proposal or an Accept is held, for a neighbour's address or for a group that is being
    /// made: its sender waits 6 s, and has to hear of the Decline before.
    pub hold_wait: Duration,
    /// How long a client may take for the Confirm where there is a link group: Linux tells of one buffer
    /// after the other on the links first, and waits 20 s for its turn. Who is given up writes all the same,
    /// to a buffer that is gone, and loses its links by that.
    pub late_confirm_wait: Duration,
    /// How long a peer may take to be told of a buffer, before the Accept or Confirm for which it waits 6 s.
    pub key_wait: Duration,
    /// How long a server waits for CONFIRM_LINK, and how long a client does. The server has to give up first:
    /// its Decline and the client's, if they cross, are data to the other side. Linux as server waits for 2 s,
    /// looks for a Decline for 1 s, and waits for 2 s more if none of its packets was acknowledged: its
    /// Decline comes after 3 or 5.2 s. As client it declines after 5 s, and for 3 s after its own answer it
    /// still looks for a Decline.
    pub confirm_wait: (Duration, Duration),
    /// As client: how long our answer to CONFIRM_LINK may go without an acknowledgement, and without the
    /// Decline of a server which has not got it.
    pub answer_wait: Duration,
    /// How long any other LLC response may take.
    pub llc_wait: Duration,
    /// How long after its loss a link is made anew, and how long at most between two attempts.
    pub remake: (Duration, Duration),
    /// How long a link may be silent before it is tested.
    pub test_link: Duration,
    /// How long a link group without connections is kept, as server and as client.
    pub keep: (Duration, Duration),
    /// How long the sending of the rest may take when a socket is closed; then it is aborted.
    pub linger: Duration,
    /// How long after the end of the TCP connection the peer's word on the end of the socket is waited for.
    pub end_wait: Duration,
    /// ACK timeout of queue pairs (4.096 us << code) where there is another link to go on over, and where there is
    /// none: a busy Linux may answer nothing for seconds, and itself never gives up.
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

/// A setting that cannot be, and what is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConfig(&'static str);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Config {
    /// Whether the settings are possible.
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
        } else if self.max_conns < LEAST_CONNECTIONS {
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
    fn names_of_networks_are_those_of_linux() {
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
        assert!(!lab.joins(&device(1, Some("LAB"))), "the same");
        assert!(!lab.joins(&device(2, Some("LAB2"))) && !lab.joins(&device(2, None)));
        assert!(!device(1, None).joins(&device(2, None)), "nobody knows");
        let behind = Device { address: [10, 0, 0, 9].into(), ..lab };
        let at_port = Device { address: IpAddr::V4(lab.ip), ..lab };
        assert!(at_port.is_port() && !behind.is_port(), "what is behind a bridge is one machine");
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
